"""The doctor's check of the guard on the real API server: its defaults, changed guards, and the dry runs."""

import copy
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pytest

from console.cluster.facts import Fact, FactReader, items
from console.doctor.admission import DIGEST, OBJECTS, PODGROUPS, PODS, digest
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_state import DoctorOptions, read_cluster
from console.doctor.guard import guard_stands
from kube.client import KubeClient
from kube.kinds import AdmissionPolicySpec
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.guard import (
    ENFORCED,
    HOST,
    NAMESPACES,
    SYNCER,
    is_refused,
    rendered,
    synced_pod,
    until_all,
)
from tests.support.guard_pod_groups import RUNNING, count, pod_group
from tests.support.kube_user import Asker, where

Spec = dict[str, Any]
_WITHIN_SECONDS: Final = 20.0
_QUEUE = "a new PodGroup in another queue"
_HELD = "the deletion of a PodGroup with pods"
_KEY = "a new pod with a key of KAI"
_CONFIG_MAP = "a new ConfigMap with a name of KAI's"
_PROVED = f"{_QUEUE}, {_HELD}, {_KEY}, {_CONFIG_MAP}"
_GROUPS = (
    pod_group("held"),
    pod_group("held", namespace=HOST, labels={"vcluster.loft.sh/managed-by": "team-a"}),
)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.doctor.guard_proof._TAKES_EFFECT_SECONDS", 0.0)  # the tests repeat doctor


@pytest.fixture
async def denying(guarded: None, asker: Asker) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """Yield the objects of the guard on deny by name, beside PodGroups with pods; undo the test's changes."""
    synced = synced_pod("synced")
    answer = await asker.create(synced, user=SYNCER)
    assert answer.status == 201, answer.message
    for item in _GROUPS:
        assert (await asker.create(item)).status == 201
        await count(asker, where(item), RUNNING)
    objects = {_title(item): item for item in rendered()}
    yield copy.deepcopy(objects)
    for item in objects.values():
        await put(asker, item)
    for item in _GROUPS:
        await count(asker, where(item), None)
        await asker.remove(where(item))
    await asker.remove(where(synced))
    await until_all(asker, is_refused)


def _title(item: dict[str, Any]) -> str:
    return f"{'binding ' if item['kind'].endswith('Binding') else ''}{item['metadata']['name']}"


async def findings(plane: ControlPlane, token: str = ADMIN_TOKEN) -> list[CheckResult]:
    """Return what doctor says of the guard, without the namespaces of other tests."""
    async with KubeClient(plane.access(token)) as client:
        reader = FactReader(client)
        cluster = await read_cluster(reader, DoctorOptions())
        own = tuple(each for each in items(cluster.namespaces) if each.name in NAMESPACES)
        pods = tuple(each for each in items(cluster.synced) if each.metadata.namespace in NAMESPACES)
        cluster = replace(cluster, namespaces=Fact(own), synced=Fact(pods))
        return [result async for result in guard_stands(cluster, reader)]


async def put(asker: Asker, item: dict[str, Any]) -> None:
    """Replace an object by one with exactly these labels, annotations and this spec."""
    while True:
        stored = (await asker.send("GET", where(item))).body
        item["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        answer = await asker.send("PUT", where(item), item)
        if answer.status != 409:  # a controller writes the status of a changed policy at any time
            break
    assert answer.status == 200, answer.message


async def until_found(
    plane: ControlPlane, is_expected: Callable[[list[CheckResult]], bool]
) -> list[CheckResult]:
    """Return the findings as soon as they are the expected ones; a change needs about a second to take effect."""
    ends = time.monotonic() + _WITHIN_SECONDS
    while True:
        results = await findings(plane)
        if is_expected(results):
            return results
        assert time.monotonic() < ends, results


async def until_reported(plane: ControlPlane, *texts: str, state: State = State.PROBLEM) -> list[CheckResult]:
    """Wait until findings have these texts."""

    def is_reported(results: list[CheckResult]) -> bool:
        text = " ".join(result.what for result in results if result.state is state)
        return all(part in text for part in texts)

    return await until_found(plane, is_reported)


async def until_states(plane: ControlPlane, *states: State) -> list[CheckResult]:
    """Wait until findings have these states."""
    return await until_found(plane, lambda results: [result.state for result in results] == [*states])


async def test_the_guard_on_deny_is_proved_and_a_dry_run_stores_nothing(
    asker: Asker, plane: ControlPlane, denying: dict[str, Any]
) -> None:
    results = await until_states(plane, State.OK, State.OK)
    assert results[0].what.startswith("refuses in 1 namespace, as this release's")
    assert f"proved by dry runs in {ENFORCED}: {_PROVED}; kaiNamespaces: kai-scheduler" in results[0].what
    assert results[1].what.startswith("refuses in 1 host namespace of vClusters, as this release's")
    assert f"proved by dry runs in {HOST}: {_PROVED};" in results[1].what
    await nothing_is_stored(asker)


async def nothing_is_stored(asker: Asker) -> None:
    for item in _GROUPS:
        groups = (await asker.send("GET", where(item).rpartition("/")[0])).body["items"]
        assert [(each["metadata"]["name"], "deletionTimestamp" in each["metadata"]) for each in groups] == [
            (item["metadata"]["name"], False)
        ]
    for namespace in (ENFORCED, HOST):
        for resource in ("pods", "configmaps"):
            items = (await asker.send("GET", f"/api/v1/namespaces/{namespace}/{resource}")).body["items"]
            assert "kaishare-doctor" not in str([item["metadata"] for item in items])


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A change of the guard."""

    name: str
    """The changed policy."""
    change: Callable[[Spec], object]
    admits: str = ""
    """The forbidden request that the changed guard admits; empty if the dry runs do not find the hole."""


def _variable(spec: Spec, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(item for item in spec["variables"] if item["name"] == name)
    return entry


def _without_rule(index: int) -> Callable[[Spec], object]:
    return lambda spec: spec["validations"][index].update(expression="true")


_ELSEWHERE = {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}
CHANGES = {
    "the rule about queues": Changed(name=PODGROUPS, change=_without_rule(0), admits=_QUEUE),
    "the rule about deletion": Changed(name=PODGROUPS, change=_without_rule(-1), admits=_HELD),
    "the rule about priority": Changed(name=PODGROUPS, change=_without_rule(2)),
    "operations": Changed(
        name=PODGROUPS,
        change=lambda spec: spec["matchConstraints"]["resourceRules"][0].update(
            operations=["CREATE", "UPDATE"]
        ),
        admits=_HELD,
    ),
    "a condition that never holds": Changed(
        name=PODS,
        change=lambda spec: spec.update(matchConditions=[{"name": "never", "expression": "false"}]),
        admits=_KEY,
    ),
    "everybody is KAI": Changed(
        name=OBJECTS,
        change=lambda spec: _variable(spec, "byKai").update(expression="true"),
        admits=_CONFIG_MAP,
    ),
    "errors ignored": Changed(name=PODS, change=lambda spec: spec.update(failurePolicy="Ignore")),
    "some namespaces": Changed(
        name=PODS,
        change=lambda spec: spec["matchConstraints"].update(namespaceSelector=_ELSEWHERE),
        admits=_KEY,
    ),
    "a second parameter that hides the first": Changed(
        name=OBJECTS,
        change=lambda spec: spec["variables"].append({"name": "kaiNamespaces", "expression": "['x']"}),
    ),
    "words": Changed(name=PODS, change=lambda spec: spec["validations"][0].update(message="no")),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
async def test_a_changed_guard_is_a_problem(
    asker: Asker, plane: ControlPlane, denying: dict[str, dict[str, Any]], changed: Changed
) -> None:
    item = denying[changed.name]
    changed.change(item["spec"])
    await put(asker, item)
    acts = f"{ENFORCED}: the guard does not act: {changed.admits} ({changed.name})" if changed.admits else ""
    results = await until_reported(plane, f"{changed.name} is not as its release made it", acts)
    assert not [result for result in results if result.state is State.OK]
    await nothing_is_stored(asker)


async def test_an_edited_digest_hides_no_hole(
    asker: Asker, plane: ControlPlane, denying: dict[str, dict[str, Any]]
) -> None:
    item = denying[PODGROUPS]
    CHANGES["the rule about queues"].change(item["spec"])
    item["metadata"]["annotations"][DIGEST] = digest(msgspec.convert(item["spec"], AdmissionPolicySpec))
    await put(asker, item)
    await until_reported(plane, f"the guard does not act: {_QUEUE} ({PODGROUPS})")


READING = [
    right("mutatingwebhookconfigurations", "list", group="admissionregistration.k8s.io"),
    right("validatingwebhookconfigurations", "list", group="admissionregistration.k8s.io"),
    right("validatingadmissionpolicies", "list", group="admissionregistration.k8s.io"),
    right("validatingadmissionpolicybindings", "list", group="admissionregistration.k8s.io"),
    right("podgroups", "list", group="scheduling.run.ai"),
    right("namespaces", "list"),
    right("pods", "list"),
]


async def test_a_caller_without_rights_to_write_proves_nothing(
    admin: Administrator, plane: ControlPlane, denying: dict[str, Any]
) -> None:
    results = await findings(plane, await admin.token("guard-reader", *READING))
    assert [result.what for result in results if result.state is State.PROBLEM] == []
    unproved = [result.what for result in results if result.what.startswith("not proved: ")]
    assert {text.rpartition(": ")[2] for text in unproved} == {
        f"the caller may not {right} in {namespace}"
        for right in ("create podgroups", "delete podgroups", "create pods", "create configmaps")
        for namespace in (ENFORCED, HOST)
    }
    assert sum("as this release's; not proved" in result.what for result in results) == 2


async def test_the_refusal_of_another_policy_is_no_proof(
    asker: Asker, plane: ControlPlane, denying: dict[str, dict[str, Any]]
) -> None:
    """The guard admits the foreign queue, and a policy of another product refuses every PodGroup."""
    item = denying[PODGROUPS]
    CHANGES["the rule about queues"].change(item["spec"])
    other = copy.deepcopy(item)
    other["metadata"] = {"name": "of-another-product"}
    other["spec"]["validations"] = [{"expression": "object == null", "message": "kaishare-guard: queue x"}]
    binding = {**denying[PODGROUPS], "kind": "ValidatingAdmissionPolicyBinding"}
    binding = {
        **binding,
        "metadata": {"name": "of-another-product"},
        "spec": {"policyName": "of-another-product", "validationActions": ["Deny"]},
    }
    await put(asker, item)
    for each in (other, binding):
        await asker.apply(each)
    try:
        results = await until_reported(
            plane,
            f"not proved: {_QUEUE} ({PODGROUPS}): {ENFORCED}: ",
            "of-another-product",
            state=State.UNKNOWN,
        )
    finally:
        for each in (binding, other):
            await asker.remove(where(each))
    assert "does not act" not in str(results)
