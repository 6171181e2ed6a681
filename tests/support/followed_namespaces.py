"""Follows namespaces in a test."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from kube.client import KubeClient
from service.log import JsonLog
from tests.support.api_server import ApiServer
from tests.support.waiting import in_background
from tests.support.watches import QUICK
from webhook.namespaces.cluster_policies import ClusterPolicies, Managed

QUEUE = "kai.scheduler/queue"
PATH = "/api/v1/namespaces"


def namespace(name: str, *, queue: str | None = "queue-a", **labels: str) -> dict[str, Any]:
    """Return a namespace; kaishare's labels are given without their prefix."""
    ours = {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    named = ours if queue is None else {QUEUE: queue, **ours}
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", "labels": named}}


def serve_namespaces(server: ApiServer, *namespaces: dict[str, Any]) -> None:
    server.path = PATH
    server.pods = {item["metadata"]["name"]: item for item in namespaces}
    for item in namespaces:
        serve_by_name(server, item)


def serve_by_name(server: ApiServer, item: dict[str, Any]) -> None:
    server.objects[f"{PATH}/{item['metadata']['name']}"] = item


@dataclass
class Following:
    policies: ClusterPolicies
    stream: BytesIO
    changes: list[Managed]
    errors: list[str] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    @property
    def names(self) -> set[str]:
        return set(self.policies.all() or ())

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def log_lines(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["message"] == message]


def source(client: KubeClient, **options: Any) -> Following:
    stream = BytesIO()
    changes: list[Managed] = []
    errors: list[str] = []

    async def changed(managed: Managed) -> None:
        changes.append(managed)

    settings = {"timing": QUICK, "on_change": changed, "on_error": lambda: errors.append("error"), **options}
    return Following(ClusterPolicies(client=client, log=JsonLog(stream), **settings), stream, changes, errors)


@contextlib.asynccontextmanager
async def following(client: KubeClient, **options: Any) -> AsyncIterator[Following]:
    followed = source(client, **options)
    async with in_background(followed.policies.run()) as followed.task:
        yield followed
