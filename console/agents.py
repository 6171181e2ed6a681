"""Names of console.cluster.agents for their users here, until these import that module."""

from console.cluster.agents import (
    AGENT_ACCOUNT,
    AGENT_LABELS,
    AGENT_NAMESPACE,
    MOST_AT_ONCE,
    NETWORK_ADVICE,
    AgentOptions,
    AgentPod,
    AgentReadiness,
    AgentReading,
    Agents,
    Received,
    add_agent_options,
    parse_agent_options,
)

__all__ = [
    "AGENT_ACCOUNT",
    "AGENT_LABELS",
    "AGENT_NAMESPACE",
    "MOST_AT_ONCE",
    "NETWORK_ADVICE",
    "AgentOptions",
    "AgentPod",
    "AgentReadiness",
    "AgentReading",
    "Agents",
    "Received",
    "add_agent_options",
    "parse_agent_options",
]
