"""The publisher: when it writes the settings, and what a failure leads to (simulated API server)."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from kube.client import KubeClient
from service.log import JsonLog
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.waiting import until
from webhook.policy.decision_settings import DecisionSettings
from webhook.settings.decision_options import DEFAULT_CLASS, SETTINGS
from webhook.settings.published_settings import (
    KEY,
    REPAIR_SECONDS,
    PublishedSettings,
    SettingsPublisher,
    decode_settings,
)

PATH = "/api/v1/namespaces/kaishare/configmaps/kaishare-settings"
STORED = says(
    json.dumps({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "kaishare-settings"}})
)


AT_THE_START = PublishedSettings(
    version="0.1.0", policies="cluster", rules=DecisionSettings(), known=SETTINGS - {DEFAULT_CLASS}
)
"""Settings before the PriorityClasses are listed."""


@dataclass
class Publishing:
    """A publisher with a clock, and the patches that reached the API server."""

    publisher: SettingsPublisher = field(init=False)
    settings: PublishedSettings = AT_THE_START
    now: float = 1000.0
    answer: Answer = STORED
    patches: list[dict[str, Any]] = field(default_factory=list)
    stream: io.BytesIO = field(default_factory=io.BytesIO)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert (request.method, request.path) == ("PATCH", PATH)
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        self.patches.append(await request.json())
        return await self.answer(request)

    async def after(self, seconds: float) -> int:
        """Let time pass, and look at the settings; return the number of patches so far."""
        self.now += seconds
        await self.publisher.publish_if_due()
        return len(self.patches)

    def change(self, **rules: Any) -> None:
        self.settings = replace(self.settings, rules=replace(self.settings.rules, **rules), known=SETTINGS)

    @property
    def texts(self) -> list[str]:
        return [patch["data"][KEY] for patch in self.patches]

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def messages(self) -> list[str]:
        return [line["message"] for line in self.log]


@pytest.fixture
def publishing(server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> Publishing:
    monkeypatch.setattr("webhook.settings.published_settings._LOOK_SECONDS", 0.01)
    made = Publishing()
    server.always = made.handle
    made.publisher = SettingsPublisher(
        client, lambda: made.settings, namespace="kaishare", log=JsonLog(made.stream), clock=lambda: made.now
    )
    return made


@contextlib.asynccontextmanager
async def running(publisher: SettingsPublisher) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(publisher.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_first_write_does_not_wait_for_the_priority_classes(publishing: Publishing) -> None:
    assert await publishing.after(0) == 1
    assert [list(publishing.patches[0]), list(publishing.patches[0]["data"])] == [["data"], [KEY]]
    assert "defaultPriorityClass" not in publishing.texts[0]
    assert decode_settings(publishing.texts[0]) == publishing.settings
    publishing.change(default_priority_class=None)  # they are listed, and none is the default
    assert await publishing.after(3) == 2
    assert DEFAULT_CLASS in decode_settings(publishing.texts[1]).known
    publishing.change(default_priority_class="usual")
    assert await publishing.after(3) == 3
    assert decode_settings(publishing.texts[2]).rules.default_priority_class == "usual"
    assert await publishing.after(0.79 * REPAIR_SECONDS) == 3
    assert await publishing.after(0.42 * REPAIR_SECONDS) == 4, "they are written again after ten minutes"
    assert publishing.log == []


FAILURES: dict[str, Answer] = {
    "forbidden": refuses(403, "Forbidden"), "not found": refuses(404, "NotFound"),
    "immutable": refuses(422, "Invalid"), "internal error": refuses(500, "InternalError"),
    "the page of a proxy": says("<html>", kind="text/html"),
    "an object of another kind": says(json.dumps({"kind": "Secret"})), "no object": says("[]"),
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_is_logged_at_its_begin_and_its_end_and_tried_again_after_pauses(
    failure: str, publishing: Publishing
) -> None:
    publishing.answer = FAILURES[failure]
    assert await publishing.after(0) == 1
    assert await publishing.after(1) == 1  # the first pause is 2 s
    for _ in range(1200):
        await publishing.after(3)
    assert 50 <= len(publishing.patches) <= 90  # in an hour: the longest pause is 60 s
    assert publishing.messages == ["settings not published"]
    line = publishing.log[0]
    assert (line["level"], line["configmap"]) == ("warning", "kaishare/kaishare-settings")
    assert PATH in line["error"]
    publishing.answer = STORED
    before = len(publishing.patches)
    assert await publishing.after(75) == before + 1
    assert publishing.messages == ["settings not published", "settings published again"]
    assert await publishing.after(75) == before + 1
    publishing.change(inject_shares=False)
    publishing.answer = FAILURES[failure]
    assert await publishing.after(3) == before + 2
    assert await publishing.after(3) == before + 3, "the pauses are short again after a success"
    publishing.answer = refuses(429, "TooManyRequests", Retry_After="200")
    assert await publishing.after(75) == before + 4
    assert await publishing.after(199) == before + 4
    assert await publishing.after(2) == before + 5, "a server that asks for a pause gets it"


async def test_a_setting_that_changed_back_after_a_failed_write_is_written(publishing: Publishing) -> None:
    """The failed write may have been stored."""
    await publishing.after(0)
    first = publishing.settings
    publishing.change(inject_shares=False)
    publishing.answer = FAILURES["the page of a proxy"]
    assert await publishing.after(3) == 2
    publishing.settings, publishing.answer = first, STORED
    assert await publishing.after(75) == 3
    assert publishing.texts[2] == publishing.texts[0]


async def test_a_running_publisher_follows_the_settings_by_itself(publishing: Publishing) -> None:
    async with running(publishing.publisher):
        await until(lambda: len(publishing.patches) == 1)
        publishing.change(inject_shares=False)
        await until(lambda: len(publishing.patches) == 2)
    assert [json.loads(text)["injectShares"] for text in publishing.texts] == [True, False]
