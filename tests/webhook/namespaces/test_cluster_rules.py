"""The facts about the cluster that decisions need: classes, LimitRanges, queues, and the API server's release."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kai.installation import CONFIG_NAME, SharingMode
from kube.client import KubeClient
from kube.kinds import KAI_CONFIGS, LIMIT_RANGES, PRIORITY_CLASSES, QUEUES, Kind
from service.log import JsonLog
from tests.support.api_server import ApiServer, refuses, says
from tests.support.waiting import until
from webhook.namespaces.decision_inputs import ClusterDefaults
from webhook.policy.decision_settings import DecisionSettings


def priority_class(name: str, value: int = 0, *, default: bool | None = None) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "1"}
    return {"metadata": metadata, "value": value} | ({} if default is None else {"globalDefault": default})


class Following:
    def __init__(self, client: KubeClient, rules: DecisionSettings) -> None:
        self._stream = io.BytesIO()
        self.facts = ClusterDefaults(client, rules, log=JsonLog(self._stream))

    @property
    def default_class(self) -> str | None:
        return self.facts.current.default_priority_class

    @property
    def resource_lines(self) -> list[tuple[str, str]]:
        lines = map(json.loads, self._stream.getvalue().splitlines())
        return [(line["message"], line["resource"]) for line in lines]


@contextlib.asynccontextmanager
async def following(client: KubeClient, rules: DecisionSettings | None = None) -> AsyncIterator[Following]:
    follow = Following(client, rules or DecisionSettings())
    running = asyncio.gather(*(task() for task in follow.facts.tasks))
    try:
        yield follow
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def serve(server: ApiServer, kind: Kind[Any], *items: dict[str, Any]) -> None:
    server.path = kind.path()
    server.pods = {item["metadata"]["name"]: item for item in items}


async def test_the_default_class_is_followed(server: ApiServer, client: KubeClient) -> None:
    serve(server, PRIORITY_CLASSES, priority_class("train", 9), priority_class("usual", 5, default=True))
    async with following(client, DecisionSettings(default_priority_class="configured")) as follow:
        assert follow.default_class == "configured"
        await until(lambda: follow.default_class == "usual")
        server.change("ADDED", priority_class("lower", 1, default=True))
        await until(lambda: follow.default_class == "lower")
        server.change("MODIFIED", priority_class("lower", 1, default=False))
        await until(lambda: follow.default_class == "usual")
        server.change("DELETED", priority_class("usual", 5, default=True))
        await until(lambda: follow.default_class is None)
        assert "priorityclasses" not in dict(follow.resource_lines).values()


@pytest.mark.parametrize("configured", [None, "configured"])
async def test_the_setting_holds_until_the_classes_are_listed(
    server: ApiServer, client: KubeClient, configured: str | None
) -> None:
    serve(server, PRIORITY_CLASSES, priority_class("train", 9))
    server.refusals = {"/priorityclasses": refuses(403, "Forbidden")}
    async with following(client, DecisionSettings(default_priority_class=configured)) as follow:
        await until(lambda: len(server.requested_paths("/priorityclasses")) >= 2)
        assert (follow.default_class, follow.facts.knows_default_class) == (
            configured,
            configured is not None,
        )
        assert ("resource unavailable", "priorityclasses") in follow.resource_lines
        server.refusals = {}
        await until(lambda: follow.facts.knows_default_class and follow.default_class is None)


def limit_range(type_: str = "Container", **bounds: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "gpus", "namespace": "team-a", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"limits": [{"type": type_, **bounds}]}}


@pytest.mark.parametrize("type_", ["Container", "Pod"])
@pytest.mark.parametrize("bound", ["min", "max", "maxLimitRequestRatio"])
async def test_limit_ranges_that_need_gpus_are_followed(
    server: ApiServer, client: KubeClient, type_: str, bound: str
) -> None:
    serve(server, LIMIT_RANGES, limit_range(type_, max={"cpu": "1"}))
    async with following(client) as follow:
        await until(lambda: server.requested_paths("/limitranges"))
        assert follow.facts.current.gpu_limit_ranges == {}
        server.change("MODIFIED", limit_range(type_, **{bound: {"nvidia.com/gpu": "1"}}))
        await until(lambda: follow.facts.current.gpu_limit_ranges == {"team-a": "gpus"})
        known = follow.facts.current
        server.change("MODIFIED", limit_range(type_, **{bound: {"nvidia.com/gpu": "2"}}))
        server.change("MODIFIED", limit_range("Container", default={"nvidia.com/gpu": "1"}))
        await until(lambda: follow.facts.current.gpu_limit_ranges == {})
        assert known.gpu_limit_ranges == {"team-a": "gpus"}


def queue(name: str, parent: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"parentQueue": parent}}


async def test_the_queues_that_pods_can_name_are_followed(server: ApiServer, client: KubeClient) -> None:
    serve(server, QUEUES, queue("all"), queue("vision", "all"))
    async with following(client) as follow:
        await until(lambda: follow.facts.current.queues == {"vision"})
        server.change("ADDED", queue("speech", "all"))
        await until(lambda: follow.facts.current.queues == {"speech", "vision"})


async def test_unserved_queues_are_unknown_and_no_trouble(server: ApiServer, client: KubeClient) -> None:
    serve(server, PRIORITY_CLASSES)
    async with following(client) as follow:
        await until(lambda: server.requested_paths("/queues"))
        await until(lambda: follow.facts.knows_default_class)
        assert follow.facts.current.queues is None
        assert "queues" not in dict(follow.resource_lines).values()


async def test_the_sharing_mode_stays_while_it_cannot_be_read(server: ApiServer, client: KubeClient) -> None:
    follow = Following(client, DecisionSettings())
    hami_core = json.dumps({"spec": {"global": {"gpuSharingMode": "HamiCore"}}})
    seen = []
    for answer in (
        says(hami_core),
        refuses(403, "Forbidden"),
        refuses(403, "Forbidden"),
        refuses(404, "NotFound"),
    ):
        server.refusals = {KAI_CONFIGS.path(name=CONFIG_NAME): answer}
        await follow.facts.read_sharing_mode()
        seen.append(follow.facts.current.gpu_sharing_mode)
    assert seen == [SharingMode.HAMI_CORE] * 3 + [None]
    resource = "configs.kai.scheduler"
    assert follow.resource_lines == [
        ("resource unavailable", resource),
        ("resource available again", resource),
    ]
