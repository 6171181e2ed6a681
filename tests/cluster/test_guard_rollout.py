"""The steps of the guard before it denies, and its removal."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kube.client import KubeClient
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.guard import (
    ENFORCED,
    GUARD,
    NAMESPACES,
    PROBES,
    SYNCER,
    is_refused,
    is_warned_of,
    put_on,
    rendered,
    synced_pod,
    take_off,
    until_all,
)
from tests.support.kube_user import Asker, where
from webhook.doctor.api_reader import ApiReader
from webhook.doctor.cluster import read_cluster
from webhook.doctor.guard.check import guard_findings
from webhook.registration.configurations import CONFIGURATION_NAME

_COUNTED = re.compile(
    r"^apiserver_validating_admission_policy_check_total\{(?P<labels>[^}]*)\} \d+", re.MULTILINE
)


@pytest.fixture
async def asker(plane: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(plane) as asking:
        yield asking


async def counted(asker: Asker, action: str) -> set[str]:
    """Return the policies that took an action at least once, from the API server's metrics."""
    text = (await asker.send("GET", "/metrics")).body["text"]
    label_sets = [dict(re.findall(r'(\w+)="([^"]*)"', match["labels"])) for match in _COUNTED.finditer(text)]
    return {labels["policy"] for labels in label_sets if labels["enforcement_action"] == action}


async def until_counted(asker: Asker, policies: set[str]) -> None:
    """Send the probes until these policies have been audited; every probe must pass without a warning."""
    ends = time.monotonic() + 20
    while not policies <= await counted(asker, "audit"):
        assert time.monotonic() < ends
        for probe in PROBES:
            answer = await asker.create(probe.item, user=probe.user, dry_run=True)
            assert (answer.status, answer.warnings) == (201, []), answer


async def doctor_says(plane: ControlPlane) -> list[str]:
    """Return the findings of `doctor` about the guard, without the enforced namespaces of other tests."""
    async with KubeClient(plane.access(ADMIN_TOKEN)) as client:
        reader = ApiReader(client)
        cluster = await read_cluster(reader, CONFIGURATION_NAME)
        own = tuple(each for each in cluster.namespaces.items if each.name in NAMESPACES)
        cluster = replace(cluster, namespaces=replace(cluster.namespaces, items=own))
        return [finding.what for finding in await guard_findings(reader, cluster)]


async def test_from_audit_to_warn_to_deny_and_away(asker: Asker, plane: ControlPlane) -> None:
    made = await put_on(asker, GUARD)
    try:
        report, proof = await doctor_says(plane)
        assert "kaishare.dev/mode=enforce, but the guard only reports violations of " in report
        assert proof.startswith("compared, not proved: ")
        await until_counted(asker, {probe.policy for probe in PROBES})
        await put_on(asker, GUARD / "warn")
        await until_all(asker, is_warned_of)
        assert (await asker.create(synced_pod(), user=SYNCER, dry_run=True)).warnings == []
        await put_on(asker, GUARD / "deny")
        await until_all(asker, is_refused)
        stands = next(text for text in await doctor_says(plane) if "refuses ways past the webhook" in text)
        assert f"{ENFORCED}: kaishare-guard-keys, kaishare-guard-owners, " in stands
    finally:
        await take_off(asker, made)
    (finding,) = await doctor_says(plane)
    assert "kaishare.dev/mode=enforce, but the guard is not installed" in finding


async def test_kubernetes_own_type_check_finds_nothing(asker: Asker, controllers: None) -> None:
    made = await put_on(asker, GUARD)
    wrong = {item["metadata"]["name"]: item for item in rendered(GUARD)}["kaishare-guard-queues"]
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["validations"][0]["expression"] = "object.spec.schedulersName == ''"
    try:
        await asker.apply(wrong)
        warnings = {
            item["metadata"]["name"]: await type_check(asker, where(item))
            for item in [*made, wrong]
            if item["kind"].endswith("Policy")
        }
    finally:
        await take_off(asker, [*made, wrong])
    assert "schedulersName" in warnings.pop("wrong")
    assert set(warnings.values()) == {""}, warnings


async def type_check(asker: Asker, path: str) -> str:
    """Return kube-controller-manager's warnings on a policy's expressions, once it has checked them."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        policy = (await asker.send("GET", path)).body
        status = policy.get("status", {})
        if status.get("observedGeneration") == policy["metadata"]["generation"]:
            warnings = status.get("typeChecking", {}).get("expressionWarnings", [])
            return " ".join(warning["warning"] for warning in warnings)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} was not looked at")


async def test_an_error_in_an_expression_refuses_no_pod_before_deny(asker: Asker) -> None:
    """The binding's validationActions apply to failurePolicy Fail, too (verified on Kubernetes 1.36.3)."""
    audited = {item["metadata"]["name"]: item for item in rendered(GUARD)}
    broken, binding = audited["kaishare-guard-keys"], audited["kaishare-guard-keys-vclusters"]
    for item in (broken, binding):
        item["metadata"]["name"] = "broken"
    binding["spec"]["policyName"] = "broken"
    broken["spec"]["validations"] = [{"expression": "object.metadata.annotations['absent'] == ''"}]
    pod = synced_pod()
    await put_on(asker, GUARD)
    try:
        for item in (broken, binding):
            await asker.apply(item)
        await until_counted(asker, {"broken"})
        binding["spec"]["validationActions"] = ["Deny"]
        await asker.apply(binding)
        ends = time.monotonic() + 20
        while (answer := await asker.create(pod, user=SYNCER, dry_run=True)).status == 201:
            assert time.monotonic() < ends
        assert "no such key: absent" in answer.message
    finally:
        await take_off(asker, [broken, binding, *audited.values(), *rendered(GUARD)])
