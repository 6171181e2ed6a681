"""`kaishare doctor` on a separate real API server: a healthy cluster, and a webhook behind a Service.

Our webhook is a real process. KAI is a stand-in with the configuration that its operator writes.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console.doctor.check_results import CheckResult, State, exit_status
from kai.releases import Version
from kube.access import Access
from kube.client import find_access
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    ca_of,
    configured,
    ensure_namespaces,
    external_service,
    from_files,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.kai_definitions import DEFINITIONS, define
from tests.support.kube_objects import namespace_object, pod
from tests.support.other_webhooks import as_kai, kai_configuration, patching
from tests.support.published_settings import settings_object
from tests.support.registration import ServiceTarget, UrlTarget
from tests.support.waiting import until
from tests.support.webhook_checks import examine
from tests.support.webhook_recorder import recording
from webhook.policy.decision_settings import DecisionSettings
from webhook.registration.configurations import CONFIGURATION_NAME

VISION = managed_namespace("doctor-vision", "team-a", gpu_fraction="0.5")


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane) -> ControlPlane:
    return own_plane


async def results_of(access: Access, check: str) -> list[CheckResult]:
    return [result for result in await examine(access, CONFIGURATION_NAME) if result.check == check]


def wrong(results: list[CheckResult]) -> list[str]:
    bad = (State.PROBLEM, State.WARNING)
    return [f"{each.state}: {each.check}: {each.what}" for each in results if each.state in bad]


def queue(name: str, parent: str = "") -> dict[str, Any]:
    spec = {"parentQueue": parent} if parent else {}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def kai(admin: Administrator, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """Install KAI's queues, pod and RuntimeClass in the cluster; return the configuration that KAI would register."""
    await define(admin, *DEFINITIONS)
    for name in ("kai-scheduler", "kaishare"):
        await admin.ensure(namespace_object(name))
    image = "example.invalid/admission:v0.13.4"
    container = {"name": "admission", "image": image, "args": ["--gpu-sharing-enabled=true"]}
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    for item in (
        queue("department"),
        queue("team-a", "department"),
        pod("admission", 50, namespace="kai-scheduler", node="node-1", containers=[container]),
        {**runtime, "metadata": {"name": "nvidia"}},
    ):
        await admin.create(item)
    (tmp_path / "kai").mkdir()
    async with recording(tmp_path / "kai", patching(as_kai)) as recorder:
        yield kai_configuration(recorder)


@contextlib.asynccontextmanager
async def our_webhook(folder: Path, admin: Administrator) -> AsyncIterator[tuple[UrlTarget, bytes]]:
    """Run the webhook as a process for one namespace; yield its address and its CA."""
    await ensure_namespaces(admin.client, VISION)
    options = from_files(folder, VISION, names=("kaishare-webhook.default.svc",))
    async with serving(folder / "log", *options) as running:
        yield running.target, ca_of(folder)
    await ensure_namespaces(admin.client, namespace_object("doctor-vision"))


async def until_ok(plane: ControlPlane, check: str) -> list[CheckResult]:
    """Wait until a check is well, since changes reach the API server with a delay; return all results."""

    async def is_ok() -> list[CheckResult]:
        results = await examine(plane.access(), CONFIGURATION_NAME)
        return results if any(each.check == check and each.state is State.OK for each in results) else []

    results: list[CheckResult] = await until(is_ok, f"{check} is well")
    return results


async def test_a_healthy_cluster_has_no_problem(
    plane: ControlPlane, admin: Administrator, kai: dict[str, Any], tmp_path: Path
) -> None:
    await admin.create(settings_object(DecisionSettings(kai_version=Version(0, 13, 4))))
    async with (
        our_webhook(tmp_path, admin) as (target, ca),
        configured(admin.client, *our_configurations(target, ca), kai),
    ):
        results = await until_ok(plane, "dry run of a share")
    assert wrong(results) == []
    assert [each.check for each in results if each.state is State.UNKNOWN] == []
    assert exit_status(results) == 0
    what = {each.check: each.what for each in results}
    assert what["certificate"].endswith("trusted by the caBundle")
    assert {
        "settings": "published by the webhook",
        "KAI's version": "v0.13.4, as kaishare's --kai-version",
        "dry run of a share": "in doctor-vision KAI's webhook saw a pod with the default share, gpu-fraction 0.5",
        "dry run of a pod": "in doctor-vision the pod gets queue team-a and scheduler kai-scheduler",
        "order": "kai-00-kaishare is called before mutating-kai-admission",
    }.items() <= what.items()
    left = json.loads(await admin.client.get("/api/v1/namespaces/doctor-vision/pods"))["items"]
    assert left == [], "a dry run leaves nothing"


async def test_behind_a_service(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> None:
    async with our_webhook(tmp_path, admin) as (there, ca):
        port = int(there.url.rpartition(":")[2])
        target = ServiceTarget(namespace="default", name="kaishare-webhook", port=port)
        async with configured(admin.client, *our_configurations(target, ca)):
            (missing,) = await results_of(plane.access(), "certificate")
            assert missing.what == "Service default/kaishare-webhook does not exist"
            await admin.create(external_service("kaishare-webhook", "default", port))
            results = await until_ok(plane, "dry run of a pod")
            (certificate,) = [each for each in results if each.check == "certificate"]
            assert certificate.state is State.OK
            assert "for 127.0.0.1, kaishare-webhook.default.svc, until" in certificate.what
        await admin.create(external_service("kaishare-other", "default", port))
        other = ServiceTarget(namespace="default", name="kaishare-other", port=port)
        async with configured(admin.client, *our_configurations(other, ca)):
            (inside,) = await results_of(plane.access(), "certificate")
            (outside,) = await results_of(await find_access(str(plane.kubeconfig())), "certificate")
    assert inside.state is State.PROBLEM
    assert "not trusted for kaishare-other.default.svc: Hostname mismatch" in inside.what
    assert outside.state is State.UNKNOWN, "another server may have the address outside the cluster"
