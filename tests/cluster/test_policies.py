"""Policies from the namespaces of a real API server."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.cluster_webhook import (
    Canary,
    Serving,
    ca_of,
    configured,
    has_share,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.followed_namespaces import PATH
from tests.support.memory import peak_resident_mib
from tests.support.waiting import until as until_true
from tests.support.webhook_in_a_pod import in_a_pod

NAMESPACES = right("namespaces", "get", "list", "watch")
EVENTS = right("events", "create", "patch")


class Namespaces:
    """Makes namespaces and removes their labels at the end; no controller runs here that could delete namespaces."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._labelled: dict[str, set[str]] = {}

    async def make(self, name: str, **labels: str) -> None:
        """Make a managed namespace, or reset it; `gpu_fraction` is kaishare.dev/gpu-fraction."""
        made = managed_namespace(name, **labels)
        try:
            await self._client.request("POST", PATH, body=json.dumps(made).encode())
        except ApiError as error:
            if error.status != 409:
                raise
            await self.label(name, made["metadata"]["labels"])
        self._labelled.setdefault(name, set()).update(made["metadata"]["labels"])

    async def label(self, name: str, labels: dict[str, str | None]) -> None:
        """Set labels; None removes a label."""
        self._labelled.setdefault(name, set()).update(labels)
        body = json.dumps({"metadata": {"labels": labels}}).encode()
        kind = "application/merge-patch+json"
        await self._client.request("PATCH", f"{PATH}/{name}", body=body, content_type=kind)

    async def clear(self) -> None:
        for name, labels in self._labelled.items():
            await self.label(name, dict.fromkeys(labels))


@pytest.fixture
async def namespaces(admin: Administrator) -> AsyncIterator[Namespaces]:
    made = Namespaces(admin.client)
    yield made
    await made.clear()


@contextlib.asynccontextmanager
async def webhook(
    plane: ControlPlane, token: str, folder: Path, *, is_forked: bool = True
) -> AsyncIterator[Serving]:
    """Run the webhook as in a pod, with its policies from the cluster."""
    pod = in_a_pod(plane, token, folder)
    options = ("--certs", str(folder / "tls"), "--host-name", "127.0.0.1")
    async with serving(
        folder / "log", *options, program=pod.program, environment=pod.environment, is_forked=is_forked
    ) as running:
        yield running


async def is_ready(running: Serving) -> bool:
    return (await running.get("/readyz"))[0] == 200


async def event_in(client: KubeClient, namespace: str, holds: Callable[[dict[str, Any]], object]) -> Any:
    """Wait until the event of an invalid policy satisfies a condition; return it."""

    async def find() -> Any:
        with contextlib.suppress(ApiError):
            path = f"/api/v1/namespaces/{namespace}/events/kaishare-policy-invalid"
            event = json.loads(await client.get(path))
            return event if holds(event) else None

    return await until_true(find, "an event")


async def test_a_whole_webhook_needs_few_rights_little_memory_and_no_kubeconfig_reader(
    plane: ControlPlane, admin: Administrator, namespaces: Namespaces, tmp_path: Path
) -> None:
    await namespaces.make("whole", gpu_fraction="0.5", priority="train")
    token = await admin.token("webhook", NAMESPACES, EVENTS)
    async with webhook(plane, token, tmp_path, is_forked=False) as running:
        await until_true(lambda: is_ready(running), "ready")
        async with configured(admin.client, *our_configurations(running.target, ca_of(tmp_path))):
            await Canary(admin.client, "whole").until_mutated()
            for number in range(5):
                name = f"whole-{number}"
                await namespaces.make(name, gpu_fraction="0.5", priority="train")
                pod = await Canary(admin.client, name).pod()
                assert has_share(pod), "the first pod of a new namespace"
        series = await running.series()
        assert series['kaishare_watch_last_contact_timestamp_seconds{resource="namespaces"}'] > 1e9
        assert series['kaishare_webhook_policies{state="valid"}'] >= 6
        assert not any(name.startswith("kaishare_webhook_errors_total") for name in series)
        assert peak_resident_mib(running.process.pid) <= 90
        assert await running.stop() == 0
    loaded = (tmp_path / "loaded").read_text().split()
    assert "kube.watch" in loaded


async def test_a_bad_label_shows_in_the_metrics_the_log_and_one_event_of_all_replicas(
    plane: ControlPlane, admin: Administrator, namespaces: Namespaces, tmp_path: Path
) -> None:
    await namespaces.make("invalid")
    token = await admin.token("webhook", NAMESPACES, EVENTS)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with (
        webhook(plane, token, tmp_path / "one") as first,
        webhook(plane, token, tmp_path / "other") as second,
    ):
        for running in (first, second):
            await until_true(lambda running=running: is_ready(running), "ready")
        await namespaces.label("invalid", {"kaishare.dev/gpu-fraction": "2", "kaishare.dev/mode": "of"})
        event = await event_in(admin.client, "invalid", lambda event: event["count"] >= 2)
        for running in (first, second):
            gauge = 'kaishare_webhook_policy_invalid{label="kaishare.dev/gpu-fraction",namespace="invalid"}'
            assert (await running.series())[gauge] == 1
            labels = [
                line["label"] for line in running.logged("policy invalid") if line["namespace"] == "invalid"
            ]
            assert sorted(labels) == ["kaishare.dev/gpu-fraction", "kaishare.dev/mode"]
        uid = json.loads(await admin.client.get(f"{PATH}/invalid"))["metadata"]["uid"]
        about = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "name": "invalid",
            "namespace": "invalid",
            "uid": uid,
        }
        assert event["involvedObject"] == about
        assert (event["reason"], event["type"]) == ("PolicyInvalid", "Warning")
        assert event["source"]["component"] == "kaishare-webhook"
        assert 'gpu-fraction: "2" is not allowed' in event["message"]
        assert 'mode: "of" is not allowed' in event["message"]
        await namespaces.label("invalid", {"kaishare.dev/gpu-fraction": "3", "kaishare.dev/mode": None})
        event = await event_in(admin.client, "invalid", lambda event: '"3"' in event["message"])
        assert "mode" not in event["message"]
        await namespaces.label("invalid", {"kaishare.dev/gpu-fraction": "0.5"})

        async def is_mended() -> bool:
            return gauge not in await first.series()

        await until_true(is_mended, "mended")
