"""The doctor's check of the guard on the real API server: its defaults, changed guards, and the dry runs."""

import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
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
from tests.support.guarded_objects import admitted, managed
from tests.support.kube_user import Asker, where
from tests.support.waiting import until

Item = dict[str, Any]
QUEUE: Final = "a new PodGroup in another queue"
HELD: Final = "the deletion of a PodGroup with pods"
KEY: Final = "a new pod with a key of KAI"
CONFIG_MAP: Final = "a new ConfigMap with a name of KAI's"
PROVED: Final = f"{QUEUE}, {HELD}, {KEY}, {CONFIG_MAP}"
GROUPS: Final = (pod_group("held"), pod_group("held", namespace=HOST, labels=managed(HOST)))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.doctor.guard_proof._TAKES_EFFECT_SECONDS", 0.0)  # the tests repeat doctor


@pytest.fixture
async def denying(guarded: None, asker: Asker) -> AsyncIterator[dict[str, Item]]:
    """Yield the policies of the guard on deny by name, beside PodGroups with pods; undo the test's changes."""
    synced = synced_pod("synced")
    await admitted(asker.create(synced, user=SYNCER))
    for group in GROUPS:
        await admitted(asker.create(group))
        await count(asker, where(group), RUNNING)
    policies = {item["metadata"]["name"]: item for item in rendered() if not item["kind"].endswith("Binding")}
    yield copy.deepcopy(policies)
    for policy in policies.values():
        await put(asker, policy)
    for group in GROUPS:
        await count(asker, where(group), None)
        await asker.remove(where(group))
    await asker.remove(where(synced))
    await until_all(asker, is_refused)


async def put(asker: Asker, item: Item) -> None:
    """Replace an object, again if a controller writes its status at the same time."""

    async def is_replaced() -> bool:
        stored = (await asker.send("GET", where(item))).body
        item["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        answer = await asker.send("PUT", where(item), item)
        assert answer.status in (200, 409), answer.message
        return answer.status == 200

    await until(is_replaced, f"{where(item)} is replaced")


async def findings(plane: ControlPlane, token: str = ADMIN_TOKEN) -> list[CheckResult]:
    """Return what doctor says of the guard, without the namespaces of other tests."""
    async with KubeClient(plane.access(token)) as client:
        reader = FactReader(client)
        cluster = await read_cluster(reader, DoctorOptions())
        own = tuple(each for each in items(cluster.namespaces) if each.name in NAMESPACES)
        pods = tuple(each for each in items(cluster.synced) if each.metadata.namespace in NAMESPACES)
        cluster = replace(cluster, namespaces=Fact(own), synced=Fact(pods))
        return [result async for result in guard_stands(cluster, reader)]


def texts(results: list[CheckResult], state: State = State.PROBLEM) -> str:
    return " ".join(result.what for result in results if result.state is state)


async def until_found(plane: ControlPlane, *words: str, state: State = State.PROBLEM) -> list[CheckResult]:
    """Return the findings as soon as those of a state have words; a change needs about a second to take effect."""
    results: list[CheckResult] = []

    async def are_there() -> bool:
        results[:] = await findings(plane)
        return all(word in texts(results, state) for word in words)

    await until(are_there, lambda: f"{words} in {results}", seconds=30)
    return results


async def nothing_is_stored(asker: Asker) -> None:
    for item in GROUPS:
        (group,) = (await asker.send("GET", where(item).rpartition("/")[0])).body["items"]
        assert (group["metadata"]["name"], "deletionTimestamp" in group["metadata"]) == (
            item["metadata"]["name"],
            False,
        )
    for namespace in (ENFORCED, HOST):
        for resource in ("pods", "configmaps"):
            stored = (await asker.send("GET", f"/api/v1/namespaces/{namespace}/{resource}")).body["items"]
            assert "kaishare-doctor" not in str([item["metadata"] for item in stored])


async def test_the_guard_on_deny_is_proved_and_a_dry_run_stores_nothing(
    asker: Asker, plane: ControlPlane, denying: dict[str, Item]
) -> None:
    first, second = await until_found(
        plane, f"dry runs in {ENFORCED}: {PROVED}", f"dry runs in {HOST}: {PROVED}",
        state=State.OK,
    )  # fmt: skip
    assert first.what.startswith("refuses in 1 namespace, as this release's")
    assert second.what.startswith("refuses in 1 host namespace of vClusters, as this release's")
    await nothing_is_stored(asker)


def _without_rule(index: int) -> Callable[[Item], object]:
    return lambda spec: spec["validations"][index].update(expression="true")


def _everybody_is_kai(spec: Item) -> None:
    next(item for item in spec["variables"] if item["name"] == "byKai")["expression"] = "true"


NEVER: Final = [{"name": "never", "expression": "false"}]
CHANGES: Final[dict[str, tuple[str, Callable[[Item], object], str]]] = {
    "the rule about queues": (PODGROUPS, _without_rule(0), QUEUE),
    "the rule about deletion": (PODGROUPS, _without_rule(-1), HELD),
    "a condition that never holds": (PODS, lambda spec: spec.update(matchConditions=NEVER), KEY),
    "everybody is KAI": (OBJECTS, _everybody_is_kai, CONFIG_MAP),
}
"""The changed policy, the change, and the forbidden request that is admitted now."""


@pytest.mark.parametrize("title", CHANGES)
async def test_a_changed_guard_is_a_problem(
    asker: Asker, plane: ControlPlane, denying: dict[str, Item], title: str
) -> None:
    name, change, admits = CHANGES[title]
    change(denying[name]["spec"])
    await put(asker, denying[name])
    acts = f"{ENFORCED}: the guard does not act: {admits} ({name})"
    results = await until_found(plane, f"{name} is not as its release made it", acts)
    assert not texts(results, State.OK)
    await nothing_is_stored(asker)


async def test_an_edited_digest_hides_no_hole(
    asker: Asker, plane: ControlPlane, denying: dict[str, Item]
) -> None:
    item = denying[PODGROUPS]
    _without_rule(0)(item["spec"])
    item["metadata"]["annotations"][DIGEST] = digest(msgspec.convert(item["spec"], AdmissionPolicySpec))
    await put(asker, item)
    await until_found(plane, f"the guard does not act: {QUEUE} ({PODGROUPS})")


async def test_a_caller_without_rights_to_write_proves_nothing(
    admin: Administrator, plane: ControlPlane, denying: dict[str, Item]
) -> None:
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    kinds += ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    reading = [right(kind, "list", group="admissionregistration.k8s.io") for kind in kinds]
    reading += [
        right("podgroups", "list", group="scheduling.run.ai"),
        right("namespaces", "list"),
        right("pods", "list"),
    ]
    results = await findings(plane, await admin.token("guard-reader", *reading))
    assert texts(results) == ""
    unproved = [result.what for result in results if result.what.startswith("not proved: ")]
    assert {text.rpartition(": ")[2] for text in unproved} == {
        f"the caller may not {verb} in {namespace}"
        for verb in ("create podgroups", "delete podgroups", "create pods", "create configmaps")
        for namespace in (ENFORCED, HOST)
    }
    assert sum("as this release's; not proved" in result.what for result in results) == 2


async def test_the_refusal_of_another_policy_is_no_proof(
    asker: Asker, plane: ControlPlane, denying: dict[str, Item]
) -> None:
    """The guard admits the foreign queue, and a policy of another product refuses every PodGroup."""
    item, metadata = denying[PODGROUPS], {"name": "of-another-product"}
    _without_rule(0)(item["spec"])
    other = copy.deepcopy({**item, "metadata": metadata})
    other["spec"]["validations"] = [{"expression": "object == null", "message": "kaishare-guard: queue x"}]
    spec = {"policyName": "of-another-product", "validationActions": ["Deny"]}
    binding = {**item, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": spec}
    await put(asker, item)
    for each in (other, binding):
        await asker.apply(each)
    try:
        unproved = f"not proved: {QUEUE} ({PODGROUPS}): {ENFORCED}: "
        results = await until_found(plane, unproved, "of-another-product", state=State.UNKNOWN)
    finally:
        for each in (binding, other):
            await asker.remove(where(each))
    assert "does not act" not in str(results)
