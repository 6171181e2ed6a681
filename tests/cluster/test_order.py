"""The order of mutating webhooks, watched on a real API server beside a stand-in for KAI's configuration."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kube.client import KubeClient
from tests.cluster.test_policies import EVENTS, NAMESPACES, webhook
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.waiting import until
from webhook.registration.configurations import CONFIGURATION_NAME, UrlTarget, mutating_configuration

NOWHERE = UrlTarget("https://127.0.0.1:1")
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


@pytest.fixture
async def client(plane: ControlPlane, admin: Administrator) -> AsyncIterator[KubeClient]:
    token = await admin.token("order", READ)
    async with KubeClient(plane.access(token)) as client:
        yield client


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
