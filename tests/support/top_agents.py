"""Agents for `kaishare top`: their responses as an agent writes them, and a reader that gives them out."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from console.cluster.agents import VERSION_LABEL, AgentReading, Agents, Received
from console.top.fleet import Fleet
from gpuagent.api_types import read_answer
from gpuagent.first_acts import FOR_FLAG, FirstAct, for_gpu
from gpuagent.problems import RiskName
from kube.answers import Unreachable
from kube.kinds import PODS, Pod

GIB = 1 << 30


def act_line(act: FirstAct) -> str:
    """Return what `top` and `doctor` say to do."""
    return f"{act.text} See kaishare help {act.section}."


FLAG_ACT = {"firstAct": FOR_FLAG["over-share"].text, "runbook": FOR_FLAG["over-share"].section}


def gpu(node: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a GPU of 24 GiB in an agent's JSON, with the first act that an agent gives it."""
    act = for_gpu(
        risk=RiskName.PODS if fields.get("atRiskBytes") else None,
        is_overpromised=(fields.get("promisedBytes") or 0) > 24 * GIB,
    )
    return {
        "firstAct": act and act.text, "runbook": act and act.section,
        "uuid": f"GPU-{node}-{index}", "index": index, "model": "NVIDIA A10", "totalBytes": 24 * GIB,
        "usedBytes": 10 * GIB, "promisedBytes": 20 * GIB, **fields,
    }  # fmt: skip


def pod(
    name: str, node: str, used: int | None = GIB, *, share: int = 2 * GIB, index: int = 0,
    lasted: float | None = None, is_flagged: bool = False, **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a pod on one GPU in an agent's JSON; `lasted` are seconds above its share."""
    uuid = f"GPU-{node}-{index}"
    verdict = {
        "reason": "over-share", "gpuUuid": uuid, "flagged": is_flagged, "lastedSeconds": lasted,
        "usedBytes": used, "allowedBytes": share, **(FLAG_ACT if is_flagged else {}),
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
    whole = {"node": node, "attributionOk": True, "gpus": list(gpus) or [gpu(node)], "pods": list(pods), **fields}  # fmt: skip
    return json.dumps(whole).encode()


def agent_manifest(
    node: str, name: str = "", *, waiting: str = "", phase: str = "Running", restarts: int = 0,
    version: str = "", **metadata: str,
) -> dict[str, Any]:  # fmt: skip
    """Return an agent's pod, which is ready unless a container waits or its phase is another one."""
    labels = {"labels": {VERSION_LABEL: version}} if version else {}
    state = {"waiting": {"reason": waiting}} if waiting else {}
    is_ready = not waiting and phase == "Running"
    return {
        "metadata": {"name": name or f"agent-of-{node}", "namespace": "kaishare-agent", "uid": f"u-{node}", **labels, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "ports": [{"name": "http", "containerPort": 9445}]}]},
        "status": {
            "phase": phase, "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [{"name": "agent", "restartCount": restarts, "state": state}],
        },
    }  # fmt: skip


def agent_pod(node: str, name: str = "", **fields: Any) -> Pod:
    return PODS.decode(json.dumps(agent_manifest(node, name, **fields)))


def received(body: bytes, at: float = 0.0) -> Received:
    return Received(answer=read_answer(body), body=body, at=at, age=1.0)


def fleet_of(bodies: Mapping[str, bytes | str]) -> Fleet:
    """Return a cluster whose nodes have answered with a document, or failed for a reason."""
    fleet = Fleet()
    fleet.set_agents([agent_pod(node) for node in bodies], 0.0)
    for node, body in bodies.items():
        if isinstance(body, str):
            fleet.set_failure(f"agent-of-{node}", body)
        else:
            fleet.set_response(f"agent-of-{node}", received(body))
    return fleet


class FakeAgents(Agents):
    """Agents without a cluster; an answer that is a text is the reason of a failure, and None never comes."""

    def __init__(self, answers: Mapping[str, bytes | str | None]) -> None:
        self.answers = dict(answers)
        self.namespace = "kaishare-agent"
        self.list_failure = ""
        self.lists = self.reads = self.in_flight = self.most_in_flight = 0

    async def list(self, node: str = "") -> list[Pod]:
        self.lists += 1
        if self.list_failure:
            raise Unreachable(self.list_failure)
        return [agent_pod(node) for node in self.answers]

    async def read(self, pod: Pod) -> AgentReading:
        self.reads += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            answer = self.answers[pod.spec.node_name]
            await asyncio.sleep(0.001 if answer is not None else 3600)
        finally:
            self.in_flight -= 1
        if isinstance(answer, bytes):
            return AgentReading(pod=pod, received=received(answer, time.monotonic()))
        return AgentReading(pod=pod, failure=answer or "no answer")


Answer = Callable[[BaseHTTPRequestHandler], None]


def gives(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """A server on loopback that gives that answer to requests of the figures, and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                (answer if self.path == "/api/v1/shares" else gives(b"", 404))(self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
