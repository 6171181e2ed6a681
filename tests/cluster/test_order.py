"""The order of mutating webhooks, watched on a real API server beside a stand-in for KAI's configuration."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kube.client import KubeClient
from service.log import JsonLog
from tests.cluster.test_policies import EVENTS, NAMESPACES, webhook
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.waiting import until
from webhook.metrics import Metrics
from webhook.registration.call_order import OrderWatch
from webhook.registration.configurations import CONFIGURATION_NAME, UrlTarget, mutating_configuration

NOWHERE = UrlTarget("https://127.0.0.1:1")
WRONG = "zz-kaishare"
READ = right("mutatingwebhookconfigurations", "list", "watch", group="admissionregistration.k8s.io")


def ours(name: str = CONFIGURATION_NAME) -> dict[str, Any]:
    return mutating_configuration(NOWHERE, name=name)


def of_kai(name: str = "mutating-kai-admission") -> dict[str, Any]:
    """Return KAI's configuration as its operator writes it since v0.13.0, except for the namespaces."""
    made = mutating_configuration(NOWHERE, name=name)
    (hook,) = made["webhooks"]
    hook |= {
        "name": "admission.kai-scheduler.svc",
        "matchConditions": [
            {"name": "scheduler-name-match", "expression": "object.spec.schedulerName == 'kai-scheduler'"}
        ],
    }
    return made


class Watching:
    def __init__(self, client: KubeClient, own: str) -> None:
        self._stream = io.BytesIO()
        self.order = OrderWatch(client, own=own, log=JsonLog(self._stream))
        self._metrics = Metrics()
        self._metrics.show_order(lambda: self.order.is_ok)

    @property
    def figure(self) -> float | None:
        for family in text_string_to_metric_families(self._metrics.text().decode()):
            if family.name == "kaishare_webhook_order_ok":
                return family.samples[0].value if family.samples else None
        raise AssertionError("the metric is not there at all")

    @property
    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self._stream.getvalue().splitlines()]


@pytest.fixture
async def client(plane: ControlPlane, admin: Administrator) -> AsyncIterator[KubeClient]:
    token = await admin.token("order", READ)
    async with KubeClient(plane.access(token)) as client:
        yield client


@pytest.mark.parametrize(("own", "figure"), [(CONFIGURATION_NAME, 1.0), (WRONG, 0.0)])
async def test_the_metric_is_1_if_kais_webhook_is_called_after_kaishares(
    admin: Administrator, client: KubeClient, own: str, figure: float
) -> None:
    await admin.create(ours(own))
    await admin.create(of_kai())
    watching = Watching(client, own)
    assert watching.figure is None, "nothing is known yet"
    running = asyncio.create_task(watching.order.run())
    await until(lambda: watching.figure is not None, "the order is known")
    assert watching.figure == figure
    running.cancel()


async def test_each_change_is_logged_once(admin: Administrator, client: KubeClient) -> None:
    watching = Watching(client, CONFIGURATION_NAME)
    running = asyncio.create_task(watching.order.run())
    await until(lambda: watching.messages, "ours is missed")
    assert watching.figure is None
    await admin.create(ours())
    await until(lambda: watching.figure == 1.0, "ours is there")
    await admin.create(of_kai("a-kai"))
    await until(lambda: watching.figure == 0.0, "KAI is in front")
    await admin.create(of_kai("mutating-kai-admission"))
    await admin.delete("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/a-kai")
    await until(lambda: watching.figure == 1.0, "KAI is behind again")
    await until(lambda: len(watching.messages) == 4, "the last change is logged")
    assert watching.messages == [
        "webhook configuration not found",
        "webhook order correct",
        "webhook order wrong: KAI's webhook is called before kaishare's",
        "webhook order correct",
    ]
    running.cancel()


async def test_without_permission_the_order_is_unknown(plane: ControlPlane, admin: Administrator) -> None:
    await admin.create(ours())
    token = await admin.token("order-without-rights")
    async with KubeClient(plane.access(token)) as client:
        watching = Watching(client, CONFIGURATION_NAME)
        running = asyncio.create_task(watching.order.run())
        await until(lambda: watching.messages, "the denial is logged")
        assert watching.messages == ["webhook order unknown"]
        assert watching.figure is None
        running.cancel()


async def test_the_metrics_of_serve_have_the_current_order(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    await admin.create(ours())
    token = await admin.token("order-serve", NAMESPACES, EVENTS, READ)
    async with webhook(plane, token, tmp_path) as serving:

        async def figure() -> float | None:
            return (await serving.series()).get("kaishare_webhook_order_ok")

        async def is_ok() -> bool:
            return await figure() == 1.0

        async def is_wrong() -> bool:
            return await figure() == 0.0

        await until(is_ok, "no other webhook is called before kaishare's")
        await admin.create(of_kai("a-kai"))
        await until(is_wrong, "KAI is in front")
        message = "webhook order wrong: KAI's webhook is called before kaishare's"
        (line,) = await until(lambda: serving.logged(message), "the log says so")
        assert line["called_before"] == ["a-kai"]
        contact = 'kaishare_watch_last_contact_timestamp_seconds{resource="mutatingwebhookconfigurations"}'
        assert contact in await serving.series()
