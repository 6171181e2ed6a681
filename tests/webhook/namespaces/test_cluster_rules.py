"""The fact about the cluster that decisions need: the default PriorityClass, by a watch."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube.client import KubeClient
from service.log import JsonLog
from tests.support.api_server import ApiServer, refuses
from tests.support.waiting import until
from webhook.namespaces.decision_inputs import PRIORITY_CLASSES, ClusterDefaults
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
    running = asyncio.create_task(follow.facts.watch.run())
    try:
        yield follow
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def serve(server: ApiServer, *classes: dict[str, Any]) -> None:
    server.path = PRIORITY_CLASSES.path
    server.pods = {item["metadata"]["name"]: item for item in classes}


async def test_the_default_class_is_followed(server: ApiServer, client: KubeClient) -> None:
    serve(server, priority_class("train", 9), priority_class("usual", 5, default=True))
    async with following(client, DecisionSettings(default_priority_class="configured")) as follow:
        assert follow.default_class == "configured"
        await until(lambda: follow.default_class == "usual")
        server.change("ADDED", priority_class("lower", 1, default=True))
        await until(lambda: follow.default_class == "lower")
        server.change("MODIFIED", priority_class("lower", 1, default=False))
        await until(lambda: follow.default_class == "usual")
        server.change("DELETED", priority_class("usual", 5, default=True))
        await until(lambda: follow.default_class is None)
        assert follow.resource_lines == []


@pytest.mark.parametrize("configured", [None, "configured"])
async def test_the_setting_holds_until_the_classes_are_listed(
    server: ApiServer, client: KubeClient, configured: str | None
) -> None:
    serve(server, priority_class("train", 9))
    server.refusals = {"/priorityclasses": refuses(403, "Forbidden")}
    async with following(client, DecisionSettings(default_priority_class=configured)) as follow:
        await until(lambda: len(server.requested_paths("/priorityclasses")) >= 2)
        assert (follow.default_class, follow.facts.knows_default_class) == (
            configured,
            configured is not None,
        )
        assert follow.resource_lines == [("resource unavailable", "priorityclasses")]
        server.refusals = {}
        await until(lambda: follow.facts.knows_default_class and follow.default_class is None)
