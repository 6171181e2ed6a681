"""The chart's switch from the webhook to admission policies and back, while pods are created all the time."""

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kube.answers import ApiError
from kube.client import MERGE_PATCH, KubeClient
from tests.support.admission_policies import list_path
from tests.support.chart_variants import CERT_MANAGER, WEBHOOK
from tests.support.cluster_webhook import (
    Canary,
    ca_of,
    ensure_namespaces,
    from_cluster,
    has_share,
    kubectl,
    managed_namespace,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.creations import created_throughout
from tests.support.free_ports import free_ports
from tests.support.helm_chart import CHART, NAMESPACE, ROOT, helm, options
from tests.support.helm_release import WITHOUT_SCHEMA, Release, define_others_kinds, lead_to_this_machine
from tests.support.kinds import made
from tests.support.waiting import until
from tests.support.webhook_checks import examine
from webhook.registration.configurations import CONFIGURATION_NAME

TEAM = "switching"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kaishare-webhook"
STANDS_SECONDS = 11
"""The chart demands that both forms have stood for 10 s."""


@dataclass(frozen=True, kw_only=True)
class Switched:
    """The chart's release, whose Service leads to a webhook on this machine."""

    plane: ControlPlane
    client: KubeClient
    port: int
    ca: str

    async def helm(self, command: str, kind: str) -> str:
        """Install or upgrade; return helm's error."""
        webhook = {
            "kind": kind,
            "defaultMode": "default",
            "servicePort": self.port,
            "certificates": {"mode": "secret", "caBundle": self.ca},
        }
        values = {"webhook": webhook, "agent": {"enabled": False}}
        what = [command, "kaishare", str(CHART), "--namespace", NAMESPACE, WITHOUT_SCHEMA, *options(values)]
        if command == "install":
            what.append("--create-namespace")
        return await self._run(*what)

    async def is_not_rolled_back(self, revision: int, change: str) -> None:
        """Try to return to a revision, and do what the refusal says; fail unless it names the change."""
        refusal = await self._run("rollback", "kaishare", str(revision), "--namespace", NAMESPACE)
        assert f"helm rollback does not change webhook.kind {change}. Nothing has changed." in refusal
        (remedy,) = re.findall('Clear the attempt by "kubectl (.*?)"', refusal)
        done = await kubectl(self.plane, *remedy.split())
        assert "sh.helm.release.v1.kaishare" in done.output, done.errors

    async def _run(self, *what: str) -> str:
        done = await asyncio.to_thread(helm, *what, kubeconfig=self.plane.kubeconfig())
        assert done.returncode == 0 or done.stderr, what
        return "" if done.returncode == 0 else done.stderr

    async def reach(self) -> None:
        """Let the Service lead to this machine, and let the Deployment be ready, as its controller does."""
        await lead_to_this_machine(self.client)
        status = {"status": {"replicas": 2, "readyReplicas": 2}}
        path, body = f"{DEPLOYMENT}/status", json.dumps(status).encode()
        await self.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@pytest.mark.kubernetes(1, 36)
@pytest.mark.slow
async def test_no_creation_fails_and_each_pod_is_decided_once(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    names = [f"kaishare-webhook.{NAMESPACE}.svc"]
    command = from_cluster(own_plane, tmp_path, names=names)
    async with KubeClient(own_plane.access()) as client:
        team = managed_namespace(TEAM, mode="enforce", gpu_fraction="0.5", priority="train")
        await ensure_namespaces(client, team)
        canary = Canary(client, TEAM)
        async with serving(tmp_path / "log", *command, listen=port) as webhook:
            release = Switched(plane=own_plane, client=client, port=port, ca=ca_of(tmp_path).decode())
            assert not await release.helm("install", "webhook")
            await release.reach()
            await canary.until_mutated()
            async with created_throughout(client, TEAM, rate=5) as creations:
                assert "upgrade with webhook.kind=both first" in await release.helm("upgrade", "policy")
                assert not await release.helm("upgrade", "both")
                assert "for 10 s" in await release.helm("upgrade", "policy")
                findings = await examine(own_plane.access(), CONFIGURATION_NAME)
                messages = [each.what for each in findings if each.check == "admission policies"]
                assert messages == [
                    "the webhook and admission policies both stand; the policies decide first"
                ]
                await asyncio.sleep(STANDS_SECONDS)
                assert not await release.helm("upgrade", "policy")
                await webhook.stop()
                first = len(creations.pods)
                await until(lambda: len(creations.pods) > first + 20, "pods are created without a webhook")
                assert not creations.failed, creations.failed[:3]

                assert "upgrade with webhook.kind=both first" in await release.helm("upgrade", "webhook")
                await release.is_not_rolled_back(1, "from policy to webhook")
                async with serving(tmp_path / "log-2", *command, listen=port) as again:
                    assert not await release.helm("upgrade", "both")
                    await asyncio.sleep(STANDS_SECONDS)
                    assert "its pods are ready" in await release.helm("upgrade", "webhook")
                    await release.reach()
                    assert not await release.helm("upgrade", "webhook")
                    await release.is_not_rolled_back(3, "from webhook to policy")
                    last = len(creations.pods)
                    await until(lambda: len(creations.pods) > last + 20, "pods are created after the switch")
                    assert not creations.failed, creations.failed[:3]
                    decisions = [*webhook.logged("decision"), *again.logged("decision")]
        assert all(map(has_share, creations.pods))
        reasons = {pod["metadata"]["annotations"]["kaishare.dev/reason"] for pod in creations.pods}
        assert reasons == {"whole-gpu-converted"}
        mutations = [each for each in decisions if each["webhook"] == "mutate" and each["name"] != "canary"]
        injected = Counter(each["name"] for each in mutations if each["action"] == "injected")
        assert set(injected.values()) == {1}
        unchanged = {each["name"] for each in mutations if each["action"] == "unchanged"}
        by_policy = {pod["metadata"]["name"] for pod in creations.pods} - injected.keys()
        assert len(by_policy & unchanged) > 20  # while both stood, the policy decided first
        assert min(len(injected), len(by_policy)) > 20


@pytest.mark.kubernetes(1, 36)
@pytest.mark.slow
async def test_after_the_documented_commands_an_uninstallation_of_policies_refuses_no_pod(
    own_plane: ControlPlane,
) -> None:
    """Each policy is forgotten after up to a second, so the one that refuses goes first."""
    docs = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    commands = r"^\$ kubectl (delete validating.*)\n\$ sleep ([0-9]+)\n\$ kubectl (delete mutating.*)$"
    ((first, seconds, second),) = re.findall(commands, docs, re.MULTILINE)
    namespace = "without-policies"
    release = ("kaishare", "--namespace", namespace)
    async with KubeClient(own_plane.access()) as client:
        await ensure_namespaces(client, managed_namespace(TEAM, mode="enforce", gpu_fraction="0.5"))
        values = {"webhook": {"kind": "policy", "defaultMode": "default"}, "agent": {"enabled": False}}
        what = ("install", *release, "--create-namespace", str(CHART), WITHOUT_SCHEMA, *options(values))
        await uninstalled(own_plane, "kaishare", NAMESPACE)
        done = await asyncio.to_thread(helm, *what, kubeconfig=own_plane.kubeconfig())
        assert done.returncode == 0, done.stderr
        await Canary(client, TEAM).until_mutated()
        async with created_throughout(client, TEAM, rate=10) as creations:
            await until(lambda: len(creations.pods) > 20, "pods are created under the policies")
            for command in (first, second):
                deleted = await kubectl(own_plane, *command.split())
                assert deleted.status == 0, deleted.errors
                await asyncio.sleep(int(seconds))
            await uninstalled(own_plane, *release[::2])
            await Canary(client, TEAM).until_unchanged()
        assert not creations.failed, creations.failed[:3]
        for kind in ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            assert json.loads(await client.get(list_path(kind)))["items"] == []


async def uninstalled(plane: ControlPlane, name: str, namespace: str) -> None:
    """Remove a release, if it is installed."""
    what = ("uninstall", name, "--namespace", namespace, "--ignore-not-found")
    done = await asyncio.to_thread(helm, *what, kubeconfig=plane.kubeconfig())
    assert done.returncode == 0, done.stderr


SELF: dict[str, Any] = {"webhook": {"certificates": {"mode": "self"}}}
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"


async def issue_certificates(client: KubeClient) -> set[str]:
    """Create the Secret of each Certificate, as cert-manager does; return the Secrets' names.

    cert-manager gives its Secrets no owner by default, so they outlive the Certificates.
    """
    certificates = json.loads(await client.get(CERTIFICATES))["items"]
    names = {certificate["spec"]["secretName"] for certificate in certificates}
    for name in names:
        data = dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), "YQ==")
        labels = {"controller.cert-manager.io/fao": "true"}
        secret = made("Secret", name, labels=labels, type="kubernetes.io/tls", data=data)
        try:
            await client.request("POST", SECRETS, body=json.dumps(secret).encode())
        except ApiError as error:
            if error.status != 409:
                raise
    return names


async def secret_types(client: KubeClient) -> dict[str, str]:
    secrets = json.loads(await client.get(SECRETS))["items"]
    return {secret["metadata"]["name"]: secret["type"] for secret in secrets}


@pytest.mark.slow
async def test_certificates_change_between_cert_manager_and_the_webhook(own_plane: ControlPlane) -> None:
    release = Release(plane=own_plane, values=WEBHOOK)
    theirs: set[str] = set()
    async with KubeClient(own_plane.access()) as client:
        await define_others_kinds(client)
        try:
            for values in (CERT_MANAGER, SELF, CERT_MANAGER):
                release.values = {**WEBHOOK, **values}
                release.upgrade_or_install()
                theirs |= await issue_certificates(client)
                types = await secret_types(client)
                # Helm deletes none of cert-manager's Secrets, and the webhook gets one of its own.
                assert {types.get(name) for name in theirs} <= {"kubernetes.io/tls"}
                if values is SELF:
                    assert types.get("kaishare-webhook-ca") == "Opaque"
            assert len(theirs) == 2
        finally:
            release.uninstall()
            for name in theirs:
                await client.request("DELETE", f"{SECRETS}/{name}")
