"""The recorded states of pods that do not start, on a simulated API server, for tests of `kaishare why`.
A state is a folder of `KAISHARE_FIXTURES/why/RELEASE`: the objects as the API server returned them."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from console.cluster.agents import AgentOptions
from console.why.evidence import PodEvidence
from console.why.reader import read_evidence
from console.why.target import parse_target
from kube.client import KubeClient
from kube.kinds import Pod, decode_pod_with_document
from tests.support.api_server import ObjectServer

RELEASES = ("kai-v0.17.0", "kai-v0.13.4", "kai-v0.9.8")
_FILES = ("pod", "podgroup", "bindrequest", "queue", "events", "reservation-pods", "owners", "other", "nodes")


def folder() -> Path | None:
    fixtures = os.environ.get("KAISHARE_FIXTURES")
    path = Path(fixtures) / "why" if fixtures else None
    return path if path is not None and path.is_dir() else None


@dataclass(frozen=True)
class State:
    path: Path

    @property
    def number(self) -> str:
        return self.path.name.partition("-")[0]

    def items(self, kind: str) -> list[dict[str, Any]]:
        path = self.path / f"{kind}.json"
        if not path.exists() and kind == "nodes":
            path = self.path.parent / "nodes.json"
        return json.loads(path.read_text())["items"] if path.exists() else []

    @property
    def now(self) -> datetime:
        """When the state was recorded: the time of its newest Event or object, at least 38 s after the pods'."""
        times = [
            time
            for kind in ("pod", "events", "podgroup", "bindrequest")
            for item in self.items(kind)
            for time in (item["metadata"].get("creationTimestamp"), item.get("lastTimestamp"))
            if time
        ]
        return datetime.fromisoformat(max(times)) + timedelta(seconds=38)

    def pods(self) -> list[Pod]:
        return [decode_pod_with_document(json.dumps(item).encode()) for item in self.items("pod")]

    @property
    def namespace(self) -> str:
        """Their namespace; two states were recorded one after the other in the same one."""
        return next((pod.metadata.namespace for pod in self.pods()), self.path.name)


def states(release: str) -> Iterator[State]:
    root = folder()
    if root is not None:
        yield from (State(path) for path in sorted((root / release).iterdir()) if path.is_dir())


def put(server: ObjectServer, state: State, *, is_edit: bool = False) -> None:
    name = state.namespace
    server.objects.clear()
    server.add({"kind": "Namespace", "metadata": {"name": name}})
    server.add(*(item for file in _FILES for item in state.items(file) if item["kind"] != "ResourceQuota"))
    server.date = state.now
    own = f"/api/v1/namespaces/{name}"

    def is_forbidden(path: str) -> bool:
        is_own = path == own or f"/namespaces/{name}/" in path
        return ".run.ai/" in path or "kai.scheduler" in path or not is_own

    server.forbidden = is_forbidden if is_edit else lambda _: False


async def read(server: ObjectServer, namespace: str, name: str, kind: str = "Pod") -> PodEvidence:
    server.requests.clear()
    async with KubeClient(server.access) as client:
        kinds, name = parse_target(f"{kind}/{name}")
        return await read_evidence(
            client, namespace, kinds, name, agents=AgentOptions(), settings_namespace="kaishare"
        )
