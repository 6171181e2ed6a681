"""Under admission policies: what `doctor` and `explain` say, and how the policies are switched off."""

import copy
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from console.doctor.check_results import CheckResult, State
from console.explain.cluster_facts import read_facts
from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kai.releases import Version
from kube.client import KubeClient
from tests.support.admission_policies import applied, list_path
from tests.support.cluster_facts import result_lines
from tests.support.cluster_webhook import (
    Canary,
    ensure_namespaces,
    kubectl,
    managed_namespace,
)
from tests.support.control_plane import ControlPlane
from tests.support.helm_chart import ROOT
from tests.support.webhook_checks import examine
from webhook.policy.decision_settings import DecisionSettings
from webhook.registration.configurations import CONFIGURATION_NAME
from webhook.settings.decision_options import NAMESPACE, KnownSettings
from webhook.settings.published_settings import KEY, NAME, PublishedSettings, encode_settings

TEAM = "policy-form"


@pytest.fixture
async def client(own_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient(own_plane.access()) as connected:
        yield connected


def lines(findings: Sequence[CheckResult], check: str) -> list[str]:
    return result_lines((finding for finding in findings if finding.check == check), *State)


async def test_doctor_compares_the_policies_and_needs_no_webhook(
    own_plane: ControlPlane, client: KubeClient
) -> None:
    await ensure_namespaces(client, managed_namespace(TEAM, gpu_fraction="0.5"))
    rules = DecisionSettings(
        kai_version=Version.parse("0.17.0"), excluded_namespaces=frozenset({"kube-system", "other"})
    )
    items = [*objects_of(MUTATING, rules), *objects_of(VALIDATING, rules)]

    async def examined(*changed: Mapping[str, Any]) -> list[CheckResult]:
        async with applied(client, changed or items):
            if changed:
                return await examine(own_plane.access(), CONFIGURATION_NAME)
            await Canary(client, TEAM).until_mutated()
            return await examine(own_plane.access(), CONFIGURATION_NAME)

    findings = await examined()
    expected = "as expected; the API server decides about pods, and no webhook is installed"
    assert lines(findings, "admission policies") == [f"ok: admission policies: {expected}"]
    assert lines(findings, "order") == [
        "ok: order: admission policies act before every webhook that changes pods"
    ]
    assert [line[:3] for line in lines(findings, "dry run of a pod")] == ["ok:"]
    assert not lines(findings, "installation")
    await Canary(client, TEAM).until_unchanged()

    altered = copy.deepcopy(items)
    altered[0]["spec"]["failurePolicy"] = "Fail"
    altered[0]["spec"]["variables"][-1]["expression"] = "false"
    altered[1]["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
    named = {(item["kind"], item["metadata"]["name"]): item for item in altered}
    named["ValidatingAdmissionPolicyBinding", "kaishare-pods"]["spec"]["validationActions"] = ["Audit"]
    del named["ValidatingAdmissionPolicyBinding", "kaishare-namespaces"]
    differs = "is not as this release makes it"
    assert lines(await examined(*named.values()), "admission policies") == [
        f"problem: admission policies: {line}"
        for line in (
            f"MutatingAdmissionPolicy kaishare {differs}",
            f"MutatingAdmissionPolicyBinding kaishare {differs}",
            f"ValidatingAdmissionPolicyBinding kaishare-pods {differs}",
            "ValidatingAdmissionPolicyBinding kaishare-namespaces does not exist: pods or labels are not validated",
        )
    ]


async def test_explain_says_that_admission_policies_decide(client: KubeClient) -> None:
    await ensure_namespaces(
        client, managed_namespace(TEAM), {"kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    published = PublishedSettings(
        version="1", policies="cluster", rules=DecisionSettings(by_admission_policies=True)
    )
    body = {"metadata": {"name": NAME}, "data": {KEY: encode_settings(published)}}
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    await client.request("POST", path, body=json.dumps(body).encode())
    try:
        facts = await read_facts(client, KnownSettings(), names=[TEAM], settings_namespace=NAMESPACE)
    finally:
        await client.request("DELETE", f"{path}/{NAME}")
    (note,) = facts.notes
    assert note.startswith("admission policies decide in this cluster: ")
    assert facts.rules.excluded_namespaces == DecisionSettings().excluded_namespaces


async def test_the_documented_commands_switch_the_policies_off(
    own_plane: ControlPlane, client: KubeClient
) -> None:
    await ensure_namespaces(client, managed_namespace(TEAM, gpu_fraction="0.5", mode="enforce"))
    page = (ROOT / "docs" / "install.md").read_text().partition("\n## Webhook or admission policies\n")[2]
    commands = re.findall(r"^\$ kubectl (delete .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    policies = [*objects_of(MUTATING, DecisionSettings()), *objects_of(VALIDATING, DecisionSettings())]
    bindings = [item for item in policies if item["kind"].endswith("Binding")]
    async with applied(client, [item for item in policies if item not in bindings]):
        for item in bindings:
            await client.request("POST", list_path(item["kind"]), body=json.dumps(item).encode())
        canary = Canary(client, TEAM)
        await canary.until_mutated()
        for command in commands:
            done = await kubectl(own_plane, *command.split())
            assert done.status == 0, done.errors
        await canary.until_unchanged()
