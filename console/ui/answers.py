"""The answers of all agents as the page's documents: what has changed since a version. Pure."""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from console.cluster.agents import Received
from console.top.fleet import AgentState, Fleet
from gpuagent.api_types import AgentResponse
from service.text import one_line

MOST_BYTES: Final = 4 << 20  # largest answer of one agent: that of a node with 8 GPUs and 512 pods has 1 MB


@dataclass(slots=True)
class Answers(Fleet):
    """The newest answer of each agent, as JSON that was decoded and encoded again.

    What an agent sends is not passed on as it is: one malformed answer would make the document of all nodes
    unreadable.
    """

    changed: dict[str, int] = field(default_factory=dict)
    """The version at which each agent last changed, by its name."""

    def set_response(self, name: str, received: Received) -> None:
        """Take the response of an agent."""
        body = msgspec.json.encode(
            msgspec.structs.replace(received.answer, runbooks_url=None, fleet_url=None)
        )
        if len(body) > MOST_BYTES:
            self.set_failure(name, f"the response has more than {MOST_BYTES >> 20} MiB")
        elif name in self.agents:
            agent = self.agents[name]
            agent.node = agent.pod.node or received.answer.node
            is_same = agent.received is not None and agent.received.body == body and not agent.failure
            kept = AgentResponse(agent.node)  # the bytes are a fifth of the objects
            agent.received = Received(answer=kept, body=body, at=received.at, age=received.age)
            agent.failure = ""
            if not is_same:  # the page knows the age of what it has
                self._mark(name)

    def set_failure(self, name: str, reason: str) -> None:
        """Record that an agent does not respond; its last figures stay."""
        is_same = name in self.agents and self.agents[name].failure == reason
        Fleet.set_failure(self, name, reason)
        if not is_same:
            self._mark(name)

    def document(self, since: int, now: float, namespace: str) -> bytes:
        """Return what has changed since a version, 0 for all; `names` are the nodes of all listed agents.

        Args:
            since: version of the page's last document.
            now: monotonic seconds.
            namespace: the agents'.
        """
        if since > self.version:  # of an earlier process
            since = 0
        listed = {agent.pod.name: agent.node for agent in self.agents.values()}
        entries = [
            _entry(agent, now, namespace)
            for name, agent in self.agents.items()
            if self.changed.get(name, 0) > since and (agent.received is not None or agent.failure)
        ]
        return msgspec.json.encode(
            {
                "version": self.version,
                "names": list(listed.values()),
                "failure": self.list_failure,
                "isListed": self.is_listed,
                "nodes": entries,
            }
        )

    def _mark(self, name: str) -> None:
        self.version += 1
        self.changed = {each: self.changed[each] for each in self.changed if each in self.agents}
        self.changed[name] = self.version


def _entry(agent: AgentState, now: float, namespace: str) -> dict[str, Any]:
    received = agent.received
    return {
        "node": agent.node,
        "failure": agent.failure or None,
        "firstAct": f"Read the agent's log: kubectl logs -n {namespace} {one_line(agent.pod.name)}."
        if agent.failure
        else None,
        "ageSeconds": received.age_at(now) if received is not None else None,
        "answer": msgspec.Raw(received.body) if received is not None else None,
    }
