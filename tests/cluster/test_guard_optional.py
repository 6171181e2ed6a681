"""The guard's optional policies on a real API server."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.guard import BINDER, ENFORCED, POD_GROUPER, SYNCER, guard_on, rendered, synced_pod
from tests.support.guard_pod_groups import RUNNING, count, pod_group
from tests.support.guarded_objects import (
    ALICE,
    PLACES,
    Item,
    admitted,
    bare,
    managed,
    refused,
    until_answered,
    user_of,
)
from tests.support.kube_user import Answer, Asker, where

pytestmark = pytest.mark.usefixtures("limited")
MUTATING: Final = pytest.mark.kubernetes(1, 36)  # MutatingAdmissionPolicy v1


@pytest.fixture(scope="module")
def limited(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guard_on(plane, optional={"maxGraceSeconds": 600, "members": True}):
        yield plane


LONG: Final = "so it must end within 600 s: use a shorter grace period"


@PLACES
async def test_grace_periods_are_limited(asker: Asker, place: str) -> None:
    user = user_of(place)
    pod = bare(place, "ending")
    long = {**pod, "spec": {**pod["spec"], "terminationGracePeriodSeconds": 601}}
    await until_answered(
        lambda: asker.create(long, user=user, dry_run=True), lambda answer: answer.status == 403
    )
    await refused(asker.create(long, user=user, dry_run=True), LONG)
    long["spec"] |= {"schedulerName": "mine"}
    await admitted(asker.create(long, user=user, dry_run=True))
    pod["spec"]["terminationGracePeriodSeconds"] = 600
    await admitted(asker.create(pod, user=user))
    path = where(pod)
    await admitted(asker.send("DELETE", path, user=user, dry_run=True, gracePeriodSeconds="99999"))  # at once
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "ending"}}
    target = {"target": {"kind": "Node", "name": "gpu-node-0"}}
    await admitted(asker.send("POST", path + "/binding", {**binding, **target}, user=BINDER))
    await refused(asker.send("DELETE", path, user=user, dry_run=True, gracePeriodSeconds="99999"), LONG)
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 601}
    await refused(asker.send("DELETE", path, options, user=user, dry_run=True), LONG)
    if place == ENFORCED:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "ending"}}
        await refused(
            asker.send("POST", path + "/eviction", {**eviction, "deleteOptions": options}, user=user), LONG
        )
        await admitted(asker.send("POST", path + "/eviction", eviction, user=user, dry_run=True))
    for seconds in ("600", "0"):
        await admitted(asker.send("DELETE", path, user=user, dry_run=True, gracePeriodSeconds=seconds))
    await admitted(asker.send("DELETE", path, user=user, dry_run=True))
    await asker.remove(path)


@PLACES
async def test_the_pods_of_a_group_without_a_status_are_found(asker: Asker, place: str) -> None:
    labels = managed(place)
    group, other = (pod_group(name, namespace=place, labels=labels) for name in ("members", "others"))
    for each in (group, other):
        await admitted(asker.create(each, user=POD_GROUPER))
    pod = bare(place, "member")
    await admitted(asker.create(pod, user=user_of(place)))
    member = {"metadata": {"annotations": {"pod-group-name": group["metadata"]["name"]}}}
    await admitted(asker.merge(where(pod), member, user=POD_GROUPER))

    async def delete() -> Answer:
        return await asker.send("DELETE", where(group), dry_run=True)

    answer = await until_answered(delete, lambda answer: answer.status == 403)
    assert "pod member of this PodGroup exists: delete it first" in answer.message
    await admitted(asker.send("DELETE", where(other), dry_run=True))
    higher = {"spec": {"priorityClassName": "build"}}
    await refused(
        asker.merge(where(group), higher, user=POD_GROUPER, dry_run=True), "such as member: restore"
    )
    lower = {"spec": {"priorityClassName": "build-preemptible"}}
    await admitted(asker.merge(where(group), lower, user=POD_GROUPER, dry_run=True))
    await admitted(asker.merge(where(pod) + "/status", {"status": {"phase": "Succeeded"}}))
    await until_answered(delete, lambda answer: answer.status == 200)
    await admitted(asker.merge(where(group), higher, user=POD_GROUPER, dry_run=True))
    for each in (pod, group, other):
        await asker.remove(where(each))


@pytest.fixture
async def changing(asker: Asker) -> AsyncIterator[Asker]:
    """Add both policies to the guard."""
    made = [item for item in rendered(optional=BOTH) if item["kind"].startswith("Mutating")]
    for item in made:
        await asker.apply(item)
    yield asker
    for item in reversed(made):
        await asker.remove(where(item))


BOTH: Final = {"subgroups": True, "configMap": True}
GANG: Final = [{"name": "head", "minMember": 1}, {"name": "workers", "minMember": 2, "parent": "all"}]


def subgroups(answer: Answer) -> dict[str, int]:
    return {each["name"]: each["minMember"] for each in answer.body["spec"].get("subGroups", [])}


@MUTATING
@PLACES
async def test_a_subgroup_stays_while_the_group_has_pods(changing: Asker, place: str) -> None:
    labels = managed(place)
    group = pod_group("gang", namespace=place, labels=labels, subGroups=GANG)
    path = where(group)
    await admitted(changing.create(group, user=POD_GROUPER))

    async def write(names: Any) -> Answer:
        """Change them; the API server knows a new kind only after a moment where a policy changes its objects."""
        body = {"spec": {"subGroups": names}}
        change = partial(changing.merge, path, body, user=POD_GROUPER, dry_run=True)
        return await admitted(until_answered(change, lambda answer: answer.status == 200))

    assert subgroups(await write(GANG[:1])) == {"head": 1}, "no pod is counted yet"
    await count(changing, path, RUNNING)
    ends = {"head": 1, "workers": 0}
    await until_answered(lambda: write(GANG[:1]), lambda answer: subgroups(answer) == ends)
    assert subgroups(await write(GANG[:1])) == ends
    assert subgroups(await write(None)) == {"head": 0, "workers": 0}
    assert subgroups(await write([{"name": "new", "minMember": 1}])) == {"new": 1, "head": 0, "workers": 0}
    assert subgroups(await write([{**GANG[1], "minMember": 5}, GANG[0]])) == {"workers": 5, "head": 1}
    many = [{"name": f"worker-{number}", "minMember": 1} for number in range(1_000)]
    await admitted(changing.merge(path, {"spec": {"subGroups": many}}, user=POD_GROUPER))
    assert len(subgroups(await write(GANG[:1]))) == 1_002, "a thousand renames cost no error"
    await count(changing, path, {})
    assert subgroups(await write(None)) == {}
    await admitted(changing.send("DELETE", path))


@MUTATING
@PLACES
async def test_a_new_pod_brings_no_name_of_a_config_map(changing: Asker, place: str) -> None:
    pod = bare(place, "named")
    pod["metadata"]["annotations"] |= {
        "runai/shared-gpu-configmap": "x-abcdefg-shared-gpu",
        "gpu-fraction": "0.5",
    }

    async def created(user: str) -> Item:
        metadata: Item = (await changing.create(pod, user=user, dry_run=True)).body["metadata"]
        return metadata

    answer = await until_answered(
        lambda: changing.create(pod, user=user_of(place), dry_run=True), lambda answer: answer.status == 201
    )
    assert answer.body["metadata"]["annotations"]["gpu-fraction"] == "0.5"
    for user in (user_of(place), BINDER):
        assert "runai/shared-gpu-configmap" not in (await created(user))["annotations"]


@MUTATING
async def test_elsewhere_nothing_is_changed(changing: Asker) -> None:
    pod = synced_pod("other", namespace="not-enforced", labels={"vcluster.loft.sh/managed-by": None})
    pod["metadata"]["annotations"] = {"runai/shared-gpu-configmap": "x", "gpu-fraction": "0.5"}
    answer = await admitted(changing.create(pod, user=ALICE, dry_run=True))
    assert answer.body["metadata"]["annotations"]["runai/shared-gpu-configmap"] == "x"
    group = pod_group("other", namespace="not-enforced", subGroups=GANG)
    await admitted(changing.create(group, user=SYNCER))
    await count(changing, where(group), RUNNING)
    answer = await admitted(changing.merge(where(group), {"spec": {"subGroups": None}}, user=POD_GROUPER))
    assert subgroups(answer) == {}
    await admitted(changing.send("DELETE", where(group)))


def test_policies_that_change_requests_are_bound_on_deny_only() -> None:
    for action, number in (("audit", 2), ("warn", 2), ("deny", 5)):
        items = rendered(action, optional=BOTH)
        assert len([item for item in items if item["kind"].startswith("Mutating")]) == number
