"""`kaishare doctor` on a separate real API server: each check with a fault, and then without.

Our webhook is a real process. KAI is a stand-in with the configuration that its operator writes; its queues
and PodGroups have definitions that keep any object.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console.doctor.check_results import CheckResult, State, exit_status
from kai.releases import Version
from kube.answers import ApiError
from kube.client import find_access
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    Canary,
    ca_of,
    configured,
    external_service,
    from_files,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.kube_objects import pod
from tests.support.other_webhooks import as_kai, kai_configuration, patching
from tests.support.published_settings import settings_object
from tests.support.waiting import until
from tests.support.webhook_checks import examine
from tests.support.webhook_recorder import recording
from webhook.policy.decision_settings import DecisionSettings
from webhook.registration.configurations import CONFIGURATION_NAME, ServiceTarget, UrlTarget

VISION = "doctor-vision"


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane) -> ControlPlane:
    return own_plane


class Examined:
    """The results of the doctor."""

    def __init__(self, findings: list[CheckResult]) -> None:
        self.findings = findings

    def of(self, check: str) -> list[CheckResult]:
        return [finding for finding in self.findings if finding.check == check]

    def states(self, check: str) -> list[State]:
        return [finding.state for finding in self.of(check)]

    @property
    def wrong(self) -> list[str]:
        bad = (State.PROBLEM, State.WARNING)
        return [
            f"{result.state}: {result.check}: {result.what}"
            for result in self.findings
            if result.state in bad
        ]


async def examined(plane: ControlPlane, token: str = ADMIN_TOKEN, name: str = CONFIGURATION_NAME) -> Examined:
    return Examined(await examine(plane.access(token), name))


async def until_reported(
    plane: ControlPlane, state: State, check: str, words: str = "", *, name: str = CONFIGURATION_NAME
) -> Examined:
    """Wait until a check is in a state; changes reach the API server with a delay."""
    last = Examined([])

    async def is_reported() -> bool:
        nonlocal last
        last = await examined(plane, name=name)
        return any(finding.state is state and words in finding.what for finding in last.of(check))

    try:
        await until(is_reported, f"{state}: {check}: {words}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it was {last.findings}") from None
    return last


def definition(group: str, version: str, kind: str, scope: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def queue(name: str, parent: str = "") -> dict[str, Any]:
    spec = {"parentQueue": parent} if parent else {}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def runtime_class() -> dict[str, Any]:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }


def kai_pod(*args: str) -> dict[str, Any]:
    container = {"name": "admission", "image": "example.invalid/admission:v0.13.4", "args": list(args)}
    return pod("admission", 50, namespace="kai-scheduler", node="node-1", containers=[container])


SHARING = "--gpu-sharing-enabled=true"


@pytest.fixture
async def kai(admin: Administrator, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """Install KAI's queues, pod and RuntimeClass in the cluster; return the configuration that KAI would register."""
    await admin.ensure(definition("scheduling.run.ai", "v2", "Queue", "Cluster"))
    await admin.ensure(definition("scheduling.run.ai", "v2alpha2", "PodGroup", "Namespaced"))
    for path in ("/apis/scheduling.run.ai/v2/queues", "/apis/scheduling.run.ai/v2alpha2/podgroups"):
        await until(lambda path=path: is_served(admin, path), f"{path} is served")
    for name in ("kai-scheduler", "kaishare"):
        await admin.ensure({"kind": "Namespace", "metadata": {"name": name}})
    for item in (queue("department"), queue("team-a", "department"), kai_pod(SHARING), runtime_class()):
        await admin.create(item)
    folder = tmp_path / "kai"
    folder.mkdir()
    async with recording(folder, patching(as_kai)) as recorder:
        yield kai_configuration(recorder)


async def is_served(admin: Administrator, path: str) -> bool:
    with contextlib.suppress(ApiError):
        await admin.client.get(path)
        return True
    return False


@pytest.fixture
async def vision(admin: Administrator) -> AsyncIterator[str]:
    """Make a managed namespace; its labels are removed at the end."""
    policy = managed_namespace(VISION, "team-a", gpu_fraction="0.5")
    await admin.ensure(policy)
    await label(admin, policy["metadata"]["labels"])
    yield VISION
    kept = json.loads(await admin.client.get(f"/api/v1/namespaces/{VISION}"))["metadata"]["labels"]
    await label(admin, dict.fromkeys(key for key in kept if not key.startswith("kubernetes.io/")))


async def label(admin: Administrator, labels: dict[str, str | None]) -> None:
    await admin.merge(f"/api/v1/namespaces/{VISION}", {"metadata": {"labels": labels}})


@contextlib.asynccontextmanager
async def our_webhook(folder: Path, *policies: dict[str, Any]) -> AsyncIterator[tuple[UrlTarget, bytes]]:
    """Run the webhook as a process with policies; yield its address and its CA."""
    policies = policies or (managed_namespace(VISION, "team-a", gpu_fraction="0.5"),)
    async with serving(
        folder / "log", *from_files(folder, *policies, names=("kaishare-webhook.default.svc",))
    ) as running:
        yield running.target, ca_of(folder)


# --- nothing, and everything ---


async def test_a_healthy_cluster_has_no_problem(
    plane: ControlPlane, admin: Administrator, kai: dict[str, Any], vision: str, tmp_path: Path
) -> None:
    await admin.create(settings_object(DecisionSettings(kai_version=Version(0, 13, 4))))
    async with (
        our_webhook(tmp_path) as (target, ca),
        configured(admin.client, *our_configurations(target, ca), kai),
    ):
        report = await until_reported(plane, State.OK, "dry run of a share")
        assert report.wrong == []
        assert [result.check for result in report.findings if result.state is State.UNKNOWN] == []
        assert report.of("settings")[0].what == "published by the webhook"
        assert report.of("KAI's version")[0].what == "v0.13.4, as the webhook's --kai-version"
        assert (
            report.of("dry run of a share")[0].what
            == f"in {vision} KAI's webhook saw a pod with the default share, gpu-fraction 0.5"
        )
        assert exit_status(report.findings) == 0
        assert (
            report.of("dry run of a pod")[0].what
            == f"in {vision} the pod gets queue team-a and scheduler kai-scheduler"
        )
        assert report.of("order")[0].what == "kai-00-kaishare is called before mutating-kai-admission"
        assert report.of("certificate")[0].what.endswith("trusted by the caBundle")
        assert report.states("RuntimeClass") == report.states("PodGroups") == [State.OK]
    left = json.loads(await admin.client.get(f"/api/v1/namespaces/{vision}/pods"))["items"]
    assert left == [], "a dry run leaves nothing"


# --- pods on their way ---


# --- certificates ---


async def test_behind_a_service(
    plane: ControlPlane, admin: Administrator, vision: str, tmp_path: Path
) -> None:
    async with our_webhook(tmp_path) as (there, ca):
        port = int(there.url.rpartition(":")[2])
        target = ServiceTarget(namespace="default", name="kaishare-webhook", port=port)
        async with configured(admin.client, *our_configurations(target, ca)):
            report = await examined(plane)
            assert [result.what for result in report.of("certificate")] == [
                "Service default/kaishare-webhook does not exist"
            ]
            await admin.create(external_service("kaishare-webhook", "default", port))
            report = await until_reported(plane, State.OK, "dry run of a pod")
            assert report.states("certificate") == [State.OK]
            assert "for 127.0.0.1, kaishare-webhook.default.svc, until" in report.of("certificate")[0].what


async def test_another_server_behind_the_service_is_a_problem_only_inside_the_cluster(
    plane: ControlPlane, admin: Administrator, vision: str, tmp_path: Path
) -> None:
    async with our_webhook(tmp_path) as (there, ca):
        port = int(there.url.rpartition(":")[2])
        await admin.create(external_service("kaishare-other", "default", port))
        target = ServiceTarget(namespace="default", name="kaishare-other", port=port)
        async with configured(admin.client, *our_configurations(target, ca)):
            (inside,) = (await examined(plane)).of("certificate")
            outside = await examine(await find_access(str(plane.kubeconfig())), CONFIGURATION_NAME)
    assert inside.state is State.PROBLEM
    assert "not trusted for kaishare-other.default.svc: Hostname mismatch" in inside.what
    (seen,) = Examined(outside).of("certificate")
    assert seen.state is State.UNKNOWN
    assert (
        "another server answers, with a certificate for 127.0.0.1, kaishare-webhook.default.svc" in seen.what
    )


async def test_a_requirement_of_a_platform_hides_a_namespace(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    hidden, control = "compared-hidden", "compared-other"
    for name, more in ((hidden, {"control-plane": "true"}), (control, {})):
        await admin.ensure({"kind": "Namespace", "metadata": {"name": name}})
        labels = {"kai.scheduler/queue": "team-a", **more}
        await admin.merge(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
    async with recording(tmp_path) as recorder:
        mutating, validating = our_configurations(UrlTarget(recorder.url), recorder.ca_bundle)
        selector = mutating["webhooks"][0]["namespaceSelector"]["matchExpressions"]
        selector.append({"key": "control-plane", "operator": "DoesNotExist"})
        async with configured(admin.client, mutating, validating):
            report = await examined(plane)

            async def is_called() -> bool:
                await Canary(admin.client, control).pod()
                return bool(recorder.paths())

            await until(is_called, "the API server calls the webhook for the other namespace")
            await Canary(admin.client, hidden).pod()
            assert recorder.paths() == [], "the API server sees the namespace as doctor does"
    assert (
        f"problem: managed namespaces: {hidden}: hidden from pods.mutate.kaishare.dev, whose namespaceSelector"
        " requires control-plane DoesNotExist; they have the label control-plane=true"
    ) in report.wrong
    assert (
        "warning: mutating webhook: pods.mutate.kaishare.dev: namespaceSelector also requires control-plane"
        " DoesNotExist"
    ) in report.wrong
    await admin.delete(f"/api/v1/namespaces/{hidden}")
    await admin.delete(f"/api/v1/namespaces/{control}")


# --- the command ---
