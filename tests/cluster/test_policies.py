"""A whole webhook with its policies from the namespaces of a real API server, with the rights of a pod."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kube.answers import ApiError
from tests.support.administrator import Administrator, right
from tests.support.cluster_webhook import (
    Canary,
    Serving,
    ca_of,
    configured,
    ensure_namespaces,
    has_share,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import namespace_object
from tests.support.memory import peak_resident_mib
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod

NAMES = ("invalid", "whole", *(f"whole-{number}" for number in range(5)))


@pytest.fixture(autouse=True)
async def _without_labels(admin: Administrator) -> AsyncIterator[None]:
    """Remove the labels at the end; no controller runs here that could delete namespaces."""
    yield
    await ensure_namespaces(admin.client, *map(namespace_object, NAMES))


@contextlib.asynccontextmanager
async def webhook(
    plane: ControlPlane, admin: Administrator, folder: Path, *, is_forked: bool = True
) -> AsyncIterator[Serving]:
    """Run the webhook as in a pod, with few rights; wait until it is ready."""
    rights = (right("namespaces", "get", "list", "watch"), right("events", "create", "patch"))
    pod = in_a_pod(plane, await admin.token(f"webhook-{len(folder.name)}", *rights), folder)
    options = ("--certs", str(folder / "tls"), "--host-name", "127.0.0.1")
    async with serving(
        folder / "log", *options, program=pod.program, environment=pod.environment, is_forked=is_forked
    ) as running:

        async def is_ready() -> bool:
            return (await running.get("/readyz"))[0] == 200

        await until(is_ready, "ready")
        yield running


async def test_a_whole_webhook_needs_few_rights_little_memory_and_no_kubeconfig_reader(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    _, first, *others = (managed_namespace(name, gpu_fraction="0.5", priority="train") for name in NAMES)
    await ensure_namespaces(admin.client, first)
    async with webhook(plane, admin, tmp_path, is_forked=False) as running:
        ours = our_configurations(running.target, ca_of(tmp_path))
        async with configured(admin.client, *ours):
            await Canary(admin.client, "whole").until_mutated()
            for namespace in others:
                await ensure_namespaces(admin.client, namespace)
                pod = await Canary(admin.client, namespace["metadata"]["name"]).pod()
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
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    async def label(**labels: str) -> None:
        await ensure_namespaces(admin.client, managed_namespace("invalid", **labels))

    async def until_told(holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until the Event of the invalid policy satisfies a condition; return it."""

        async def find() -> dict[str, Any] | None:
            with contextlib.suppress(ApiError):
                event = await admin.read("/api/v1/namespaces/invalid/events/kaishare-policy-invalid")
                return event if holds(event) else None
            return None

        event: dict[str, Any] = await until(find, "an Event")
        return event

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    await label()
    async with (
        webhook(plane, admin, tmp_path / "one") as first,
        webhook(plane, admin, tmp_path / "other") as second,
    ):
        await label(gpu_fraction="2", mode="of")
        event = await until_told(lambda event: event["count"] >= 2)
        gauge = 'kaishare_webhook_policy_invalid{label="kaishare.dev/gpu-fraction",namespace="invalid"}'
        for running in (first, second):
            assert (await running.series())[gauge] == 1
            lines = [line for line in running.logged("policy invalid") if line["namespace"] == "invalid"]
            labels = sorted(line["label"] for line in lines)
            assert labels == ["kaishare.dev/gpu-fraction", "kaishare.dev/mode"]
        stored = json.loads(await admin.client.get("/api/v1/namespaces/invalid"))["metadata"]
        about = {"name": "invalid", "namespace": "invalid", "uid": stored["uid"]}
        assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Namespace", **about}
        assert (event["reason"], event["type"]) == ("PolicyInvalid", "Warning")
        assert event["source"]["component"] == "kaishare-webhook"
        assert 'gpu-fraction: "2" is not allowed' in event["message"]
        assert 'mode: "of" is not allowed' in event["message"]
        await label(gpu_fraction="3")
        assert "mode" not in (await until_told(lambda event: '"3"' in event["message"]))["message"]
        await label(gpu_fraction="0.5")

        async def is_mended() -> bool:
            return gauge not in await first.series()

        await until(is_mended, "mended")
