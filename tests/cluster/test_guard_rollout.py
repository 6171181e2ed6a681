"""The steps of the guard before it denies, and its removal."""

import asyncio
import re
import shutil
import time
from functools import partial
from pathlib import Path

from tests.support import helm_chart
from tests.support.control_plane import ControlPlane
from tests.support.guard import (
    PROBES,
    SYNCER,
    Probe,
    create_namespaces,
    define_pod_groups,
    is_refused,
    is_warned_of,
    put_on,
    rendered,
    synced_pod,
    take_off,
    until_all,
)
from tests.support.kube_user import Answer, Asker, where

_COUNTED = re.compile(
    r"^apiserver_validating_admission_policy_check_total\{(?P<labels>[^}]*)\} \d+", re.MULTILINE
)


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


async def test_from_audit_to_warn_to_deny_and_away(asker: Asker, plane: ControlPlane) -> None:
    made = await put_on(asker, "audit")
    try:
        await until_counted(asker, {probe.policy for probe in PROBES})
        await put_on(asker, "warn")
        await until_all(asker, is_warned_of)
        assert (await asker.create(synced_pod(), user=SYNCER, dry_run=True)).warnings == []
        await put_on(asker, "deny")
        await until_all(asker, is_refused)
    finally:
        await take_off(asker, made)


async def test_kubernetes_own_type_check_finds_nothing(asker: Asker, controllers: None) -> None:
    made = await put_on(asker, "audit", optional={"maxGraceSeconds": 60})
    wrong = {item["metadata"]["name"]: item for item in rendered("audit")}["kaishare-guard-gpus"]
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


# An upgrade that renames every policy, as from kaishare 0.2.

VALUES = "guard.enabled=true,guard.action=deny,webhook.enabled=false,agent.enabled=false"
TO = ("--namespace", "kaishare", "--set", VALUES)


def chart_with_other_names(folder: Path) -> Path:
    """Return a copy of the chart whose guard has other names; helm removes those after it has created the new ones."""
    chart = Path(shutil.copytree(helm_chart.CHART, folder / "chart"))
    for file in (chart / "templates" / "_helpers.tpl", chart / "templates" / "guard" / "bindings.yaml"):
        file.write_text(file.read_text().replace("kaishare-guard-", "kaishare-former-"))
    return chart


async def test_an_upgrade_to_other_names_leaves_no_moment_without_a_guard(
    asker: Asker, plane: ControlPlane, tmp_path: Path
) -> None:
    """Helm creates the new objects before it removes the old ones, and the API server reads both in this order."""
    kubeconfig = plane.kubeconfig()
    await create_namespaces(asker)
    await define_pod_groups(asker)
    answers: list[tuple[Probe, Answer]] = []
    upgraded = asyncio.Event()

    async def attack(probe: Probe) -> None:
        while not upgraded.is_set():
            answers.append((probe, await asker.create(probe.item, user=probe.user, dry_run=True)))
            await asyncio.sleep(0.02)

    former = chart_with_other_names(tmp_path)
    await run_helm("install", "kaishare", str(former), "--create-namespace", *TO, kubeconfig=kubeconfig)
    try:
        await until_all(asker, lambda probe, answer: answer.status == 403)
        attacks = [asyncio.create_task(attack(probe)) for probe in PROBES]
        await run_helm("upgrade", "kaishare", str(helm_chart.CHART), *TO, kubeconfig=kubeconfig)
        await until_all(asker, is_refused)
        await asyncio.sleep(1)
        upgraded.set()
        await asyncio.gather(*attacks)
        for probe, answer in answers:
            assert answer.status == 403, (probe.policy, answer)
        policies = {
            name
            for _, answer in answers
            for name in ("former", "guard")
            if f"'kaishare-{name}-" in answer.message
        }
        assert policies == {"former", "guard"}
    finally:
        upgraded.set()
        await run_helm("uninstall", "kaishare", "--namespace", "kaishare", kubeconfig=kubeconfig)
        await until_all(asker, lambda probe, answer: answer.status == 201)


async def run_helm(*arguments: str, kubeconfig: Path) -> None:
    done = await asyncio.to_thread(partial(helm_chart.helm, *arguments, kubeconfig=kubeconfig))
    assert done.returncode == 0, done.stderr
