"""The chart on a real API server: installed, used with its own service accounts, upgraded, uninstalled."""

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from certs.authority import Authority
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.chart_variants import VARIANTS
from tests.support.cluster_webhook import (
    Canary,
    bare_pod,
    ensure_namespaces,
    has_share,
    kubectl,
    managed_namespace,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.free_ports import free_port
from tests.support.helm_chart import EVERYTHING, NAMESPACE, ROOT, find_object, rendered
from tests.support.helm_release import (
    Release,
    define_others_kinds,
    deployed_options,
    lead_to_this_machine,
    let_go,
    token_of,
)
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod
from webhook.registration.configurations import CONFIGURATION_NAME

AGENT_NAMESPACE = "kaishare-agent"
CONFIGURATIONS = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{CONFIGURATION_NAME}"
    for kind in ("mutating", "validating")
]
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SETTINGS = f"{CONFIG_MAPS}/kaishare-settings"
CA_SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/kaishare-webhook-ca"
STRATEGIC = "application/strategic-merge-patch+json"
BUNDLE = base64.b64encode(Authority.create(now=datetime.now(UTC)).pair.certificate_pem).decode()


@pytest.fixture(scope="module")
def release(plane: ControlPlane) -> Iterator[Release]:
    async def prepare() -> None:
        async with KubeClient(plane.access()) as client:
            await define_others_kinds(client)

    async def tidy() -> None:
        async with KubeClient(plane.access()) as client:
            await let_go(client, AGENT_NAMESPACE)

    asyncio.run(prepare())
    # API servers call the Service's port, and here nothing stands in between.
    values = {
        **EVERYTHING,
        "webhook": {**EVERYTHING.get("webhook", {}), "servicePort": free_port(), "defaultMode": "default"},
    }
    installed = Release(plane=plane, values=values)
    installed.install()
    try:
        yield installed
    finally:
        installed.uninstall()
        asyncio.run(tidy())


async def merge(client: KubeClient, path: str, patch: dict[str, Any], kind: str = STRATEGIC) -> None:
    await client.request("PATCH", path, body=json.dumps(patch).encode(), content_type=kind)


BESIDE_HOST_PID = {
    "GPUs by a mount": "hostPath volumes",
    "all the rest": "seLinuxOptions",
    "the MIG monitor capability": 'must not include "SYS_ADMIN"',
}
"""Installations whose agent asks for more that the profile baseline does not allow."""


def held_to(profile: str) -> dict[str, Any]:
    metadata = {"name": f"held-to-{profile}", "labels": {"pod-security.kubernetes.io/enforce": profile}}
    return {"kind": "Namespace", "metadata": metadata}


def pods(values: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the pods or pod templates of all objects of a kind."""
    items = [item for item in rendered(values, tests=True) if item["kind"] == kind]
    return [item["spec"].get("template", item) for item in items]


async def admitted(client: KubeClient, profile: str, pod: dict[str, Any]) -> None:
    """Create a pod as a dry run in a namespace that is held to a Pod Security profile."""
    of_others = ("runtimeClassName", "priorityClassName")
    spec = {key: value for key, value in pod["spec"].items() if key not in of_others}
    made = {"kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}
    path = f"/api/v1/namespaces/held-to-{profile}/pods"
    await client.request("POST", path, params={"dryRun": "All"}, body=json.dumps(made).encode())


@pytest.mark.parametrize("variant", VARIANTS)
async def test_pod_security_admits_the_webhook_as_restricted_and_the_agent_but_for_two_things_of_the_host(
    variant: str, admin: Administrator
) -> None:
    await ensure_namespaces(admin.client, held_to("restricted"), held_to("baseline"))
    for pod in (*pods(VARIANTS[variant], "Deployment"), *pods(VARIANTS[variant], "Pod")):
        await admitted(admin.client, "restricted", pod)
    for pod in pods(VARIANTS[variant], "DaemonSet"):
        if VARIANTS[variant].get("agent", {}).get("simulated"):
            await admitted(admin.client, "restricted", pod)
            continue
        with pytest.raises(
            ApiError, match=r'violates PodSecurity "baseline:latest": .*host namespaces \(hostPID=true\)'
        ) as refusal:
            await admitted(admin.client, "baseline", pod)
        if variant in BESIDE_HOST_PID:
            assert BESIDE_HOST_PID[variant] in str(refusal.value)
        else:
            assert "hostPath volumes" in str(refusal.value)
            del pod["spec"]["hostPID"]
            cgroup = {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup"}}
            assert cgroup in pod["spec"]["volumes"]
            pod["spec"]["volumes"].remove(cgroup)
            (container,) = pod["spec"]["containers"]
            container["volumeMounts"] = [
                each for each in container["volumeMounts"] if each["name"] != "cgroup"
            ]
            await admitted(admin.client, "restricted", pod)


@pytest.fixture
async def accounts(
    plane: ControlPlane, release: Release, admin: Administrator
) -> AsyncIterator[dict[str, KubeClient]]:
    webhook = await token_of(admin.client, "kaishare-webhook", NAMESPACE)
    agent = await token_of(admin.client, "kaishare-agent", AGENT_NAMESPACE)
    async with KubeClient(plane.access(webhook)) as first, KubeClient(plane.access(agent)) as second:
        yield {"webhook": first, "agent": second}


POD = {"metadata": {"name": "mine"}, "spec": {"containers": [{"name": "main", "image": "image"}]}}
LABEL = {"metadata": {"labels": {"a": "b"}}}
GROUP = "/apis/admissionregistration.k8s.io/v1"
REFUSED = [
    ("webhook", "GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None),
    ("webhook", "GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/another", None),
    ("webhook", "GET", "/api/v1/namespaces/kube-system/secrets/kaishare-webhook-ca", None),
    ("webhook", "GET", "/api/v1/secrets", None),
    ("webhook", "POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": "another"}}),
    ("webhook", "DELETE", CA_SECRET, None),
    ("webhook", "GET", CONFIG_MAPS, None),
    ("webhook", "GET", f"{CONFIG_MAPS}/another", None),
    ("webhook", "POST", CONFIG_MAPS, {"metadata": {"name": "another"}}),
    ("webhook", "PUT", SETTINGS, {"metadata": {"name": "kaishare-settings"}}),
    ("webhook", "DELETE", SETTINGS, None),
    ("webhook", "PATCH", f"{CONFIG_MAPS}/another", LABEL),
    ("webhook", "PATCH", "/api/v1/namespaces/team-a/configmaps/kaishare-settings", LABEL),
    ("webhook", "PATCH", f"{GROUP}/mutatingwebhookconfigurations/mutating-kai-admission", LABEL),
    ("webhook", "PATCH", f"{GROUP}/validatingwebhookconfigurations/another", LABEL),
    ("webhook", "DELETE", CONFIGURATIONS[0], None),
    ("webhook", "GET", CONFIGURATIONS[0], None),
    ("webhook", "GET", CONFIGURATIONS[1], None),
    ("webhook", "GET", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", None),
    ("webhook", "POST", f"{GROUP}/mutatingwebhookconfigurations", {"metadata": {"name": "another"}}),
    ("webhook", "PATCH", "/api/v1/namespaces/team-a", LABEL),
    ("webhook", "GET", "/api/v1/namespaces/team-a/pods", None),
    ("webhook", "POST", "/api/v1/namespaces/team-a/pods", POD),
    ("webhook", "PATCH", "/api/v1/namespaces/team-a/pods/any", LABEL),
    ("webhook", "GET", "/api/v1/namespaces/team-a/events", None),
    ("agent", "GET", "/api/v1/secrets", None),
    ("agent", "GET", CA_SECRET, None),
    ("agent", "PATCH", "/api/v1/namespaces/team-a/pods/any", LABEL),
    ("agent", "PATCH", "/api/v1/namespaces/team-a/pods/any/status", LABEL),
    ("agent", "DELETE", "/api/v1/namespaces/team-a/pods/any", None),
    ("agent", "POST", "/api/v1/namespaces/team-a/pods", POD),
    ("agent", "GET", "/api/v1/nodes", None),
    ("agent", "PATCH", "/api/v1/nodes/any", LABEL),
    ("agent", "GET", "/api/v1/namespaces", None),
    ("agent", "GET", "/api/v1/configmaps", None),
    ("agent", "GET", "/apis/scheduling.run.ai/v1alpha2/namespaces/team-a/bindrequests/any", None),
    ("agent", "PATCH", "/apis/scheduling.run.ai/v1alpha2/namespaces/team-a/bindrequests/any", LABEL),
    ("agent", "GET", f"{GROUP}/mutatingwebhookconfigurations", None),
]


async def test_a_request_beyond_an_accounts_permissions_is_refused(accounts: dict[str, KubeClient]) -> None:
    for account, method, path, body in REFUSED:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        written = json.dumps(body).encode() if body else None
        with pytest.raises(ApiError) as refusal:
            await accounts[account].request(method, path, body=written, content_type=content_type)
        assert refusal.value.status == 403, (account, method, path)


RIGHTS_IN_RUNBOOKS = re.findall(
    r"^\$ kubectl (auth can-i .+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("question", RIGHTS_IN_RUNBOOKS)
async def test_a_question_of_the_runbooks_about_a_granted_right_is_answered_yes(
    question: str, plane: ControlPlane, release: Release
) -> None:
    answer = await kubectl(plane, *question.split())
    assert (answer.status, answer.output.strip()) == (0, "yes"), answer.errors


@pytest.mark.slow
async def test_the_charts_webhook_works_with_its_own_account_and_through_an_upgrade(
    plane: ControlPlane, release: Release, admin: Administrator, tmp_path: Path
) -> None:
    client = admin.client
    await ensure_namespaces(client, managed_namespace("chart-users", gpu_fraction="0.5", priority="train"))
    await lead_to_this_machine(client)
    options = await deployed_options(client)
    pod = in_a_pod(plane, await token_of(client, "kaishare-webhook", NAMESPACE), tmp_path)
    canary = Canary(client, "chart-users")
    async with serving(
        tmp_path / "log",
        *options,
        listen=release.values["webhook"]["servicePort"],
        program=pod.program,
        environment=pod.environment,
    ) as webhook:
        await canary.until_mutated()
        await admin.client.request(
            "POST", "/api/v1/namespaces/chart-users/pods", body=json.dumps(bare_pod("first")).encode()
        )
        assert has_share(await admin.read("/api/v1/namespaces/chart-users/pods/first"))
        await admin.delete("/api/v1/namespaces/chart-users/pods/first")

        async def is_ready() -> bool:
            return (await webhook.get("/readyz"))[0] == 200

        await until(is_ready, "both bundles hold its CA")
        secret = (await admin.read(CA_SECRET))["data"]
        bundles = [await admin.read(path) for path in CONFIGURATIONS]
        assert secret
        assert all(hook["clientConfig"]["caBundle"] for one_of in bundles for hook in one_of["webhooks"])

        test = find_object(rendered(release.values, tests=True), "Pod", "kaishare-webhook-doctor")
        (container,) = test["spec"]["containers"]
        assert container["command"] == ["kaishare"]
        token = await token_of(client, "kaishare-webhook", NAMESPACE)
        console = in_a_pod(plane, token, tmp_path, "console")
        command = [sys.executable, *console.program, *container["args"], "-o", "json"]
        doctor = await asyncio.to_thread(
            subprocess.run, command, env=pod.environment, capture_output=True, text=True, check=False
        )
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        states = {finding["check"]: finding["state"] for finding in json.loads(doctor.stdout)["findings"]}
        checks = ("mutating webhook", "validating webhooks", "order", "caBundle", "policies")
        assert {check: states[check] for check in checks} == dict.fromkeys(checks, "ok")

        unmutated = 0
        upgrading = asyncio.create_task(asyncio.to_thread(release.upgrade, tmp_path, version="0.2.0"))
        while not upgrading.done():
            unmutated += not await canary.is_mutated()
        await upgrading
        assert unmutated == 0

        upgraded = await admin.read(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kaishare-webhook")
        assert upgraded["metadata"]["labels"]["app.kubernetes.io/version"] == "0.2.0"
        assert (await admin.read(CA_SECRET))["data"] == secret
        for path, before in zip(CONFIGURATIONS, bundles, strict=True):
            after = await admin.read(path)
            assert after["webhooks"] == before["webhooks"]
            assert after["metadata"]["labels"]["app.kubernetes.io/version"] == "0.2.0"
        assert await webhook.stop() == 0
    assert "403 Forbidden" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "way", [["--server-side", "--force-conflicts"], []], ids=["server-side", "by the client"]
)
async def test_applying_the_charts_objects_again_keeps_the_fields_that_the_webhook_wrote(
    way: list[str], plane: ControlPlane, release: Release, admin: Administrator, tmp_path: Path
) -> None:
    # The release's Service has another port.
    await admin.delete(f"/api/v1/namespaces/{NAMESPACE}/services/kaishare-webhook")
    values = {"webhook": {"createNamespace": True}, "agent": {"enabled": False}}
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(rendered(values)))
    apply = ("apply", "-f", str(tmp_path / "objects.yaml"), *way)
    first = await kubectl(plane, *apply)
    assert first.status == 0, first.errors
    written = {"ca.crt": base64.b64encode(b"a CA").decode()}
    await merge(admin.client, CA_SECRET, {"data": written})
    published = {"settings.json": "{}"}
    await merge(admin.client, SETTINGS, {"data": published})
    for path in CONFIGURATIONS:
        hooks = [hook["name"] for hook in (await admin.read(path))["webhooks"]]
        bundled = [{"name": name, "clientConfig": {"caBundle": BUNDLE}} for name in hooks]
        await merge(admin.client, path, {"webhooks": bundled})
    again = await kubectl(plane, *apply)
    assert again.status == 0, again.errors
    assert (await admin.read(CA_SECRET))["data"].items() >= written.items()
    assert (await admin.read(SETTINGS))["data"] == published
    for path in CONFIGURATIONS:
        assert {hook["clientConfig"]["caBundle"] for hook in (await admin.read(path))["webhooks"]} == {BUNDLE}


async def test_uninstalling_removes_the_webhooks_first_and_leaves_nothing(
    release: Release, admin: Administrator
) -> None:
    before = {(item["kind"], item["metadata"]["name"]) for item in rendered(release.values)}
    deleted = re.findall(r'Starting delete for "([\w-]+)" (\w+)', release.uninstall())
    assert before <= {(kind, name) for name, kind in deleted}
    others = [number for number, (_, kind) in enumerate(deleted) if not kind.endswith("WebhookConfiguration")]
    assert set(deleted[: others[0]]) == {
        (CONFIGURATION_NAME, "ValidatingWebhookConfiguration"),
        (CONFIGURATION_NAME, "MutatingWebhookConfiguration"),
    }
    for path in (
        *CONFIGURATIONS,
        CA_SECRET,
        SETTINGS,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/kaishare-webhook",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kaishare-agent",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kaishare-webhook",
    ):
        with pytest.raises(ApiError) as gone:
            await admin.client.get(path)
        assert gone.value.status == 404
