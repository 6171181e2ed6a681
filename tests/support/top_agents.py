"""Agents for `kaishare top`: their responses as an agent writes them, and a reader that gives them out."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from console.agent_client import ReadFailed, Received
from console.top.fleet import AgentRef, Fleet
from gpuagent.api_types import read_answer

GIB = 1 << 30


def gpu(node: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a GPU of 24 GiB in an agent's JSON."""
    return {
        "uuid": f"GPU-{node}-{index}", "index": index, "model": "NVIDIA A10", "totalBytes": 24 * GIB,
        "usedBytes": 10 * GIB, "promisedBytes": 20 * GIB, **fields,
    }  # fmt: skip


def pod(
    name: str,
    node: str,
    used: int | None = GIB,
    *,
    share: int = 2 * GIB,
    index: int = 0,
    lasted: float | None = None,
    is_flagged: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Return a pod on one GPU in an agent's JSON; `lasted` are seconds above its share."""
    uuid = f"GPU-{node}-{index}"
    verdict = {
        "reason": "over-share", "gpuUuid": uuid, "flagged": is_flagged, "lastedSeconds": lasted,
        "usedBytes": used, "allowedBytes": share,
    }  # fmt: skip
    return {
        "namespace": "team-a", "name": name, "uid": f"uid-{node}-{name}", "phase": "Running", "gpuUuids": [uuid],
        "shares": {uuid: {"bytes": share, "source": "bind-request"}},
        "candidates": [
            {"source": "bind-request", "text": "portion 0.25", "bytesPerGpu": {uuid: share}},
            {"source": "annotation", "text": "gpu-fraction 0.5", "bytesPerGpu": {uuid: 2 * share}},
        ],
        "gpuGroups": ["group-1"],
        "gpus": [{"gpuUuid": uuid, "gpu": index, "usedBytes": used, "processes": 1}],
        "verdicts": [verdict], **fields,
    }  # fmt: skip


def document(node: str, *pods: Mapping[str, Any], gpus: Sequence[Any] = (), **fields: Any) -> bytes:
    """Return an agent's JSON; without GPUs the node has one."""
    whole = {
        "node": node,
        "attributionOk": True,
        "gpus": list(gpus) or [gpu(node)],
        "pods": list(pods),
        **fields,
    }
    return json.dumps(whole).encode()


def received(body: bytes, at: float = 0.0) -> Received:
    """Return a response that arrived at a time."""
    return Received(answer=read_answer(body), body=body, at=at, age=1.0)


def fleet_of(bodies: Mapping[str, bytes | str], at: float = 0.0) -> Fleet:
    """Return a cluster whose nodes have answered with a document, or failed for a reason."""
    fleet = Fleet()
    fleet.set_agents([AgentRef(f"agent-of-{node}", node) for node in bodies], at)
    for node, body in bodies.items():
        if isinstance(body, str):
            fleet.set_failure(f"agent-of-{node}", body)
        else:
            fleet.set_response(f"agent-of-{node}", received(body, at))
    return fleet


class Agents:
    """A reader; an answer that is a text is the reason of a failure, and None never comes."""

    def __init__(self, answers: Mapping[str, bytes | str | None]) -> None:
        self.answers = dict(answers)
        self.list_failure = ""
        self.lists = 0
        self.reads = 0
        self.in_flight = 0
        self.most_in_flight = 0

    async def agents(self) -> Sequence[AgentRef]:
        self.lists += 1
        if self.list_failure:
            raise ReadFailed(self.list_failure)
        return [AgentRef(f"agent-of-{node}", node) for node in self.answers]

    async def read(self, agent: AgentRef) -> Received:
        self.reads += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            answer = self.answers[agent.node]
            await asyncio.sleep(0.001 if answer is not None else 3600)
        finally:
            self.in_flight -= 1
        if isinstance(answer, bytes):
            return received(answer, time.monotonic())
        raise ReadFailed(answer or "no answer")
