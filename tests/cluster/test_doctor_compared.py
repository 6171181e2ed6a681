"""`kaishare doctor` on a separate real API server: what is configured against what runs.

KAI, the webhook and the agents are objects without programs; their pods have the status that a scheduler or
a kubelet writes.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.doctor.check_results import CheckResult, State
from console.policies import read_policies
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.agent_fleet import NAMESPACE as AGENTS
from tests.support.cluster_webhook import Canary, configured, managed_namespace, our_configurations
from tests.support.control_plane import ControlPlane
from tests.support.doctor_findings import doctor
from tests.support.published_settings import settings_object
from tests.support.waiting import until
from tests.support.webhook_recorder import recording
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode
from webhook.registration.configurations import ServiceTarget, UrlTarget

TARGET = ServiceTarget(namespace="kaishare", name="kaishare-webhook")
TEAM = "compared-team"


@pytest.fixture(scope="module")
def plane(own_plane: ControlPlane) -> ControlPlane:
    return own_plane


@pytest.fixture
async def installed(admin: Administrator) -> AsyncIterator[None]:
    """Register kaishare's webhooks for a Service in front of no program; make one managed namespace."""
    for name in ("kaishare", "kai-scheduler", AGENTS):
        await admin.ensure({"kind": "Namespace", "metadata": {"name": name}})
    await admin.ensure(managed_namespace(TEAM, "team-a", gpu_fraction="0.5"))
    async with configured(admin.client, *our_configurations(TARGET, b"")):
        yield


def of(findings: list[CheckResult], check: str) -> list[tuple[State, str]]:
    return [(finding.state, finding.what) for finding in findings if finding.check == check]


async def test_policies_use_the_published_settings(
    plane: ControlPlane, admin: Administrator, installed: None
) -> None:
    settings = DecisionSettings(default_mode=Mode.OBSERVE, excluded_namespaces=frozenset({TEAM}))
    await admin.create(settings_object(settings))
    async with KubeClient(plane.access()) as client:
        table = await read_policies(client, TEAM)
        assert [(row.policy.mode, row.is_excluded) for row in table.rows] == [(Mode.OBSERVE, True)]
        assert table.notes == ()
        given = await read_policies(client, TEAM, Mode.OFF)
        assert [row.policy.mode for row in given.rows] == [Mode.OFF]


# --- namespaces that a platform hides ---


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
            findings = await doctor(plane)

            async def is_called() -> bool:
                await Canary(admin.client, control).pod()
                return bool(recorder.paths())

            await until(is_called, "the API server calls the webhook for the other namespace")
            await Canary(admin.client, hidden).pod()
            assert recorder.paths() == [], "the API server sees the namespace as doctor does"
    assert (
        State.PROBLEM,
        (
            f"{hidden}: hidden from pods.mutate.kaishare.dev, whose namespaceSelector requires control-plane"
            " DoesNotExist; they have the label control-plane=true"
        ),
    ) in of(findings, "managed namespaces")
    assert of(findings, "mutating webhook") == [
        (
            State.WARNING,
            "pods.mutate.kaishare.dev: namespaceSelector also requires control-plane DoesNotExist",
        )
    ]


# --- a developer ---


async def developer(admin: Administrator, name: str, role: str) -> str:
    """Return the token of an account with a role of Kubernetes in the team's namespace.

    The roles `view` and `edit` are sums of these, which a controller adds up; the test's cluster has none.
    """
    token = await admin.token(name)
    group = "rbac.authorization.k8s.io"
    for each in {"system:aggregate-to-view", f"system:aggregate-to-{role}"}:
        await admin.create(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{name}-{each.rpartition(':')[2]}", "namespace": TEAM},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": each},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "team-a"}],
            }
        )
    return token


async def test_a_developer_lists_the_policy_of_one_namespace(
    plane: ControlPlane, admin: Administrator, installed: None
) -> None:
    token = await developer(admin, f"reads-{TEAM}", "view")
    async with KubeClient(plane.access(token)) as client:
        table = await read_policies(client, TEAM)
    assert [row.policy.namespace for row in table.rows] == [TEAM]
    assert table.notes == (
        "the excluded namespaces are not known: ConfigMap kaishare-settings in namespace kaishare: you may not get it",
        "the webhook's default mode is not known; give --default-mode (assumed: default)",
    )
