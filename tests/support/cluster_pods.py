"""Runs the agent's source of cluster pods (`ClusterPods`) in a test."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from gpuagent.pods.cluster_pods import ClusterPods
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.lookups import FetchTiming
from kube.client import KubeClient
from service.log import JsonLog
from tests.support.api_server import ApiServer, refuses
from tests.support.kube_objects import (
    NODE,
    RESERVATIONS,
    bind_request,
    fraction,
    namespace_object,
    node,
    reservation,
)
from tests.support.waiting import in_background
from tests.support.watches import QUICK

SOON = FetchTiming(gap=0.0, first_refused=0.1, longest_refused=0.2, first_pause=0.01, longest_pause=0.05)
"""Timing about 500 times as fast as in production."""

FORBIDDEN = refuses(403, "Forbidden", "no")
NAMESPACE = namespace_object(labels={"team": "a"})
EVERYTHING = (fraction(schedulerName="kai-scheduler"), reservation(), bind_request(), node(), NAMESPACE)


@dataclass
class Running:
    pods: ClusterPods
    stream: BytesIO

    @property
    def inventory(self) -> Inventory:
        assert self.pods.inventory is not None
        return self.pods.inventory

    @property
    def names(self) -> set[str] | None:
        inventory = self.pods.inventory
        return None if inventory is None else {pod.name for pod in inventory.pods.values()}

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def log_subjects(self, message: str) -> list[str]:
        """Return the resource, or else the error, of each log line with a message."""
        lines = (line for line in self.log if line["message"] == message)
        return [line.get("resource") or line.get("error", "") for line in lines]


@contextlib.asynccontextmanager
async def running(client: KubeClient, **options: Any) -> AsyncIterator[Running]:
    stream = BytesIO()
    settings: dict[str, Any] = {
        "node": NODE, "reservation_namespace": RESERVATIONS, "log": JsonLog(stream), "timing": QUICK,
        "fetch_timing": SOON, **options,
    }  # fmt: skip
    pods = ClusterPods(client=client, **settings)
    async with in_background(pods.run()):
        yield Running(pods, stream)


def versioned(item: dict[str, Any], version: int = 1) -> dict[str, Any]:
    metadata = {**item["metadata"], "resourceVersion": str(version)}
    return {**item, "metadata": metadata}


def offer(server: ApiServer, *items: dict[str, Any]) -> None:
    for item in items:
        name = item["metadata"]["name"]
        match item["kind"]:
            case "Pod":
                server.pods[name] = versioned(item)
            case "Node":
                server.objects[f"/api/v1/nodes/{name}"] = item
            case "Namespace":
                server.objects[f"/api/v1/namespaces/{name}"] = item
            case "BindRequest":
                server.bind_requests.pods[name] = versioned(item)


def portion_of(run: Running, name: str = "half") -> str | None:
    """Return the portion of a pod's BindRequest; None if it is not known."""
    request = run.inventory.bind_requests.get(("research", name))
    return None if request is None else request.portion


def scheduled_by(scheduler: str, made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "spec": {**made["spec"], "schedulerName": scheduler}}
