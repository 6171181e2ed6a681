"""Writes of KAI and of a tenant in generated orders, on a real API server with the guard.

The tenant changes the words that KAI copies, deletes what owns the group, and edits pods. KAI's programs act late:
each one may take its turn, or not. Whatever the order, a pod that KAI counts keeps its PodGroup, in a queue of the
namespace, with the priority that it started with.
"""

import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.guard import (
    BINDER,
    ENFORCED,
    GARBAGE_COLLECTOR,
    HOST,
    POD_GROUPER,
    SCHEDULER,
    guard_on,
    synced_pod,
)
from tests.support.guard_pod_groups import RELEASES, STARTED, count, pod_group
from tests.support.guard_requests import changes
from tests.support.kube_user import Answer, Asker, where

QUEUES: Final = {ENFORCED: ("team-a",), HOST: ("team-a", "team-a-batch")}
STEPS: Final = 60
LASTING: Final = frozenset(
    {("inference", ""), ("train", "non-preemptible"), ("inference", "non-preemptible")}
)
"""Class and preemptibility of groups that KAI never reclaims."""


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guard_on(plane):
        yield plane


@pytest.fixture
async def asker(guarded: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(guarded) as asking:
        yield asking


@dataclass(kw_only=True)
class Cluster:
    """Two pods of one owner, KAI's programs and the tenant."""

    asker: Asker
    place: str
    release: str
    chance: random.Random
    words: dict[str, Any] = field(default_factory=lambda: {"queue": "team-a", "priorityClassName": "train"})
    """What the tenant's objects say, from which the pod-grouper makes the PodGroup."""
    owner: str = "first"

    @property
    def group(self) -> dict[str, Any]:
        labels = {"vcluster.loft.sh/managed-by": "team-a"} if self.place == HOST else {}
        return pod_group(self.owner, namespace=self.place, release=self.release, labels=labels, **self.words)

    def pod(self, name: str) -> dict[str, Any]:
        labels = {} if self.place == HOST else {"vcluster.loft.sh/managed-by": None}
        return synced_pod(name, namespace=self.place, labels=labels)

    def collection(self, kind: str) -> str:
        return where(self.group if kind == "groups" else self.pod("a")).rpartition("/")[0]

    async def listed(self, kind: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.asker.send("GET", self.collection(kind))).body["items"]
        return items

    async def tenant(self) -> object:
        """Let the tenant do something."""
        name = self.chance.choice("ab")
        match self.chance.choice([0, 0, 0, *range(1, 8)]):
            case 0:
                return await self.asker.create(self.pod(name), user="alice")
            case 1:
                path = where(self.pod(name))
                return await self.asker.send("DELETE", path, user="alice", gracePeriodSeconds="0")
            case 2:
                self.words["queue"] = self.chance.choice(["team-a", "team-b", "", "team-a-batch", None])
            case 3:
                self.words["priorityClassName"] = self.chance.choice(
                    ["train", "inference", "build-preemptible"]
                )
            case 4:
                self.words["preemptibility"] = self.chance.choice([None, "non-preemptible", "preemptible"])
            case 5:
                self.owner = self.chance.choice(["first", "second"])
            case 6:
                self.words["annotations"] = self.chance.choice([{}, {STARTED: "2099-01-01T00:00:00Z"}])
            case 7:
                change = self.chance.choice(
                    [
                        changes({"kai.scheduler/subgroup-name": "x"}),
                        changes(annotations={"pod-group-name": "another"}),
                        changes(annotations={"pod-group-name": None}),
                    ]
                )
                return await self.asker.merge(where(self.pod(name)), change, user="alice")
        return self.words

    async def kai(self) -> object:
        """Let one of KAI's programs, or the garbage collector, take its turn."""
        match self.chance.choice(
            ["grouper", "grouper", "controller", "controller", "scheduler", "collector"]
        ):
            case "grouper":
                return await self.grouped()
            case "controller":
                return await self.counted()
            case "scheduler":
                for group in await self.listed("groups"):
                    started = {"metadata": {"annotations": {STARTED: "2026-11-21T00:39:26Z"}}}
                    await self.asker.merge(where(group | {"kind": "PodGroup"}), started, user=SCHEDULER)
                return "started"
        answers: list[Answer] = []
        for group in await self.listed("groups"):
            path = where(group | {"kind": "PodGroup"})
            answers.append(await self.asker.send("DELETE", path, user=GARBAGE_COLLECTOR))
        return [answer.status for answer in answers]

    async def grouped(self) -> object:
        """Write the PodGroup of the present words, and then its name on the pods, as the pod-grouper does."""
        group = self.group
        answer = await self.asker.create(group, user=POD_GROUPER)
        if answer.status == 409:
            fields = {"preemptibility": None, "priorityClassName": None, **group["spec"]}
            fields.pop("queue", None)  # KAI keeps the queue of a PodGroup (handler.go); the guard does, too
            if self.chance.random() < 0.5:
                fields["queue"] = self.words["queue"]
            patch = {"metadata": {"annotations": group["metadata"]["annotations"]}, "spec": fields}
            answer = await self.asker.merge(where(group), patch, user=POD_GROUPER)
        if answer.status < 300:
            name = changes(annotations={"pod-group-name": group["metadata"]["name"]})
            for pod in await self.listed("pods"):
                await self.asker.merge(where(pod | {"kind": "Pod"}), name, user=POD_GROUPER)
        return answer.status

    async def counted(self) -> object:
        """Count the pods of each PodGroup, as the podgroup-controller does."""
        pods = await self.listed("pods")
        for group in await self.listed("groups"):
            names = [pod["metadata"].get("annotations", {}).get("pod-group-name") for pod in pods]
            number = names.count(group["metadata"]["name"])
            resources = {"requested": {"nvidia.com/gpu": str(number)}} if number else {}
            if number and self.chance.random() < 0.5:
                resources["allocated"] = resources["requested"]
            await count(self.asker, where(group | {"kind": "PodGroup"}), resources)
        return "counted"

    async def check(self, before: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Compare the groups with those before the step; return them."""
        groups = {group["metadata"]["name"]: group for group in await self.listed("groups")}
        pods = await self.listed("pods")
        for name, old in before.items():
            counted = old.get("status", {}).get("resourcesStatus", {})
            if not (counted.get("requested") or counted.get("allocated")):
                continue
            assert name in groups, "a group with counted pods is gone"
            was, now = (
                (group["spec"].get("priorityClassName", ""), group["spec"].get("preemptibility", ""))
                for group in (old, groups[name])
            )
            assert was == now or now not in LASTING, (was, now)
        for group in groups.values():
            assert group["spec"].get("queue") in QUEUES[self.place]
            assert group["metadata"]["annotations"].get(STARTED, "2026") < "2027"
        for pod in pods:
            assert "kai.scheduler/subgroup-name" not in pod["metadata"]["labels"]
            assert pod["metadata"]["annotations"].get("pod-group-name", "pg-").startswith("pg-")
        return groups


@pytest.mark.parametrize("place", [ENFORCED, HOST], ids=["enforce", "vcluster"])
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(6, 60))]
)
async def test_in_any_order_counted_pods_keep_group_queue_and_priority(
    asker: Asker, place: str, seed: int
) -> None:
    chance = random.Random(seed)
    cluster = Cluster(asker=asker, place=place, release=chance.choice(RELEASES), chance=chance)
    groups = await cluster.check({})
    try:
        for _ in range(STEPS):
            step = cluster.tenant if chance.random() < 0.5 else cluster.kai
            print(step.__name__, await step())  # noqa: T201
            groups = await cluster.check(groups)
    finally:
        for pod in await cluster.listed("pods"):
            await asker.remove(where(pod | {"kind": "Pod"}))
        for group in await cluster.listed("groups"):
            await count(asker, where(group | {"kind": "PodGroup"}), None)
            await asker.send("DELETE", where(group | {"kind": "PodGroup"}), user=BINDER)
