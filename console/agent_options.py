"""The options that select the agents of a cluster, and the service account whose tokens they accept."""

import argparse
from dataclasses import dataclass
from typing import Final

from service.command import namespace_name, read_by
from service.names import is_dns_subdomain
from service.text import quoted

AGENT_NAMESPACE: Final = "kaishare-agent"
"""The chart's default for `agent.namespace`."""

AGENT_ACCOUNT: Final = "kaishare-reader"
"""The chart's service account for readers of the agents; it is in the agents' namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The agents' namespace, and the service account for tokens."""

    namespace: str = AGENT_NAMESPACE
    account: str = AGENT_ACCOUNT
    """Its tokens are sent to agents that ask for authentication."""


def add_agent_options(command: argparse.ArgumentParser) -> None:
    """Add the options `--agent-namespace` and `--agent-account`."""
    command.add_argument(
        "--agent-namespace",
        type=read_by(namespace_name),
        default=AGENT_NAMESPACE,
        metavar="NAMESPACE",
        help="namespace of the agents (default %(default)s)",
    )
    command.add_argument(
        "--agent-account",
        type=read_by(_account_name),
        default=AGENT_ACCOUNT,
        metavar="NAME",
        help="service account in the namespace of the agents, for the tokens that are sent to agents with"
        " --authentication=tokens; your account needs the right to create serviceaccounts/token of it"
        " (default %(default)s)",
    )


def parse_agent_options(arguments: argparse.Namespace) -> AgentOptions:
    """Return the values of `--agent-namespace` and `--agent-account`."""
    return AgentOptions(namespace=arguments.agent_namespace, account=arguments.agent_account)


def _account_name(text: str) -> str:
    """Read the name of a service account.

    Raises:
        ValueError: the text is not the name of an object; the message is one line.
    """
    if not is_dns_subdomain(text):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a service account")
    return text
