"""Objects for tests of the guard, the keys of KAI by their rule, and requests with what their answers must be."""

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.guard import BINDER, ENFORCED, HOST, SYNCER, synced_pod
from tests.support.kinds import made
from tests.support.kube_user import APPLY, Answer, Asker, where

ALICE = "alice"
KUBELET = "system:node:gpu-node-0"
JSON_PATCH, STRATEGIC = "application/json-patch+json", "application/strategic-merge-patch+json"
Item = dict[str, Any]
Key = tuple[str, str]
"""`labels` or `annotations`, and the key."""

KAI_ONLY: Final[tuple[Key, ...]] = (
    ("labels", "kai.scheduler/subgroup-name"),
    ("labels", "runai-gpu-group"),
    ("labels", "runai-gpu-group/a1b2"),
    ("annotations", "nvidia.com/mig-1g.5gb"),
    ("annotations", "received-resource-type"),
    ("annotations", "kai.scheduler/last-start-timestamp"),
    ("annotations", "kai.scheduler/stale-podgroup-timestamp"),
    ("annotations", "kai.scheduler/last-eviction-timestamp"),
    ("annotations", "kai.scheduler/top-owner-metadata"),
    ("annotations", "kai.scheduler/skip-podgrouper"),
    ("annotations", "kai.scheduler/numa-placement-observed"),
    ("annotations", "kai.scheduler/numa-placement-predicted"),
    ("annotations", "run.ai/reserve_for_gpu_index"),
    ("labels", "shared-gpu-pod-name"),
    ("labels", "shared-gpu-pod-namespace"),
    # Keys of a later release.
    ("labels", "kai.scheduler/unknown"),
    ("annotations", "runai/unknown"),
    ("labels", "run.ai/unknown"),
    ("annotations", "nvidia.com/mig-unknown"),
)
"""Keys of pods that users write neither at creation nor later."""
FIXED: Final[tuple[Key, ...]] = (
    ("annotations", "gpu-fraction"),
    ("annotations", "gpu-memory"),
    ("annotations", "gpu-fraction-num-devices"),
    ("annotations", "gpu-fraction-container-name"),
    ("annotations", "gpu-fraction.limit"),
    ("annotations", "gpu-memory.limit"),
    ("annotations", "nvidia.com/container.main.gpu-memory.request"),
    ("annotations", "kai.scheduler/container.main.gpu-memory.portion.limit"),
    ("labels", "kai.scheduler/queue"),
    ("labels", "kai.scheduler/node-pool"),
    ("labels", "kai.scheduler/preemptibility"),
    ("annotations", "kai.scheduler/segment-size"),
)
"""Keys of pods that users write at creation only."""
FREE: Final[tuple[Key, ...]] = (
    ("labels", "kai.scheduler/task-priority"),
    ("annotations", "kai.scheduler/topology"),
    ("annotations", "kai.scheduler/topology-required-placement"),
    ("annotations", "kai.scheduler/topology-preferred-placement"),
    ("annotations", "kai.scheduler/segment-topology-required-placement"),
    ("annotations", "kai.scheduler/segment-topology-preferred-placement"),
    ("annotations", "kai.scheduler/batch-min-member"),
    ("annotations", "kai.scheduler/preemption-delay"),
    ("annotations", "kai.scheduler/staleness-grace-period"),
    # KAI reads these, too, and judges their effect on the PodGroup.
    ("labels", "priorityClassName"),
    ("labels", "project"),
    ("labels", "ray.io/group"),
    ("labels", "training.kubeflow.org/replica-type"),
    ("labels", "spark-app-selector"),
    ("annotations", "leaderworkerset.sigs.k8s.io/size"),
    # Of others.
    ("labels", "app"),
    ("labels", "user"),
    ("labels", "gpu-type"),
    ("labels", "pod-group-name-of-ours"),
    ("labels", "runai-gpu-groups"),
    ("annotations", "mps"),
    ("annotations", "gpu-memory-note"),
    ("annotations", "gpu-memory-class"),
    ("annotations", "gpu-fraction-doc"),
    ("annotations", "nvidia.com/gpu-driver-upgrade-requested"),
    ("labels", "kueue.x-k8s.io/queue-name"),
    ("labels", "vcluster.loft.sh/object-namespace"),
)
"""Keys of pods that users write at any time."""
ALL: Final = (*KAI_ONLY, *FIXED, *FREE)
RESTORE: Final = "restore the old value, or delete and recreate the pod"
"""The remedy in a refusal to change a pod."""
VALUES: Final = {"gpu-fraction": "0.5", "gpu-memory": "8000", "gpu-fraction-num-devices": "2"}
"""Values of the keys that have numbers."""


PLACES: Final = pytest.mark.parametrize("place", [ENFORCED, HOST], ids=["enforce", "vcluster"])


def managed(place: str) -> dict[str, str]:
    """Return the label that vCluster's syncer gives to objects of a place."""
    return {"vcluster.loft.sh/managed-by": "team-a"} if place == HOST else {}


def user_of(place: str) -> str:
    return SYNCER if place == HOST else ALICE


def bare(place: str, name: str = "bare") -> Item:
    """Return a pod without a share or any other key that is tried."""
    mark = {} if place == HOST else {"vcluster.loft.sh/managed-by": None, "vcluster.loft.sh/namespace": None}
    return synced_pod(name, namespace=place, labels=mark, annotations={"example.com/own": "a"})


def with_keys(item: Item, *written: Key, value: str = "") -> Item:
    copied = copy.deepcopy(item)
    for kind, key in written:
        copied["metadata"].setdefault(kind, {})[key] = value or VALUES.get(key, "x")
    return copied


def full(place: str) -> Item:
    """Return a pod with every key that is tried."""
    return with_keys(bare(place, "full"), *ALL)


async def _update(asker: Asker, path: str, key: Key, value: str | None, user: str) -> tuple[Item, Answer]:
    kind, name = key
    while True:
        whole = (await asker.send("GET", path)).body
        entries = whole["metadata"].setdefault(kind, {})
        entries.pop(name, None)
        if value is not None:
            entries[name] = value
        answer = await asker.send("PUT", path, whole, user=user, dry_run=True)
        if answer.status != 409:
            return whole, answer


async def edits(
    asker: Asker, item: Item, key: Key, value: str | None, user: str, *, in_all_ways: bool = True
) -> dict[str, Answer]:
    """Write one key of an object in all ways, as dry runs; None removes it. Return the answers by way.
    Policies see only the result, so most keys need no more than a merge patch of the object and of its status."""
    kind, name = key
    path = where(item)
    change = {"metadata": {kind: {name: value}}}
    pointer = f"/metadata/{kind}/{name.replace('~', '~0').replace('/', '~1')}"
    operation = (
        {"op": "remove", "path": pointer} if value is None else {"op": "add", "path": pointer, "value": value}
    )
    answers = {"merge patch": await asker.merge(path, change, user=user, dry_run=True)}
    if item["kind"] in ("Pod", "Job"):
        answers["status"] = await asker.merge(path + "/status", change, user=user, dry_run=True)
    if not in_all_ways:
        return answers
    whole, update = await _update(asker, path, key, value, user)
    applied = {**whole, "metadata": {**whole["metadata"], "managedFields": None, "resourceVersion": None}}
    return answers | {
        "update": update,
        "JSON patch": await asker.send("PATCH", path, [operation], user=user, content_type=JSON_PATCH, dry_run=True),
        "strategic patch": await asker.send("PATCH", path, change, user=user, content_type=STRATEGIC, dry_run=True),
        "server-side apply": await asker.send(
            "PATCH",
            path,
            applied,
            user=user,
            content_type=APPLY,
            dry_run=True,
            fieldManager="test",
            force="true",
        ),
    }  # fmt: skip


async def store(asker: Asker, item: Item, user: str = ALICE) -> None:
    """Create an object by server-side apply; its manager is that of `edits`."""
    answer = await asker.send("PATCH", where(item), item, user=user, content_type=APPLY, fieldManager="test")
    assert answer.status == 201, answer.message


def assert_refused(answers: Mapping[str, Answer], *words: str) -> None:
    for way, answer in answers.items():
        assert answer.status == 403, (way, answer)
        for word in ("'kaishare-guard-", "kaishare-guard: ", *words):
            assert word in answer.message, (way, answer.message)


def assert_admitted(answers: Mapping[str, Answer]) -> None:
    for way, answer in answers.items():
        assert answer.status == 200, (way, answer.message)


def workload(kind: str, name: str) -> Item:
    """Return a Deployment, StatefulSet, Job or ConfigMap."""
    mine = {"labels": {"mine": "a"}, "annotations": {"mine": "a"}}
    if kind == "ConfigMap":
        return made(kind, name, ENFORCED, **mine)
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/image"}]},
    }
    spec: Item = {"template": template}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec |= {"replicas": 1, "selector": {"matchLabels": {"app": name}}}
    return made(kind, name, ENFORCED, **mine, spec=spec)


def every_pod() -> list[Item]:
    """Return a pod with all keys and one without them, for an enforced namespace and for a vCluster."""
    return [make(place) for place in (ENFORCED, HOST) for make in (bare, full)]


@contextlib.asynccontextmanager
async def stored(plane: ControlPlane, items: list[Item]) -> AsyncIterator[None]:
    """Store objects as KAI, which may write every key, and remove them at the end."""
    async with Asker(plane) as asker:
        for item in items:
            await store(asker, item, BINDER)
        yield
        for item in items:
            await asker.remove(where(item))


GROUP = {"runai-gpu-group": "63ba70c6"}
"""The label that KAI's binder writes to a pod with a share."""
WHOLE_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def changes(
    labels: Mapping[str, str | None] | None = None, annotations: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Return a patch of labels and annotations; None removes one."""
    return {"metadata": {"labels": labels or {}, "annotations": annotations or {}}}


async def admitted(request: Any) -> Answer:
    """Await a request, which must be admitted; return its answer."""
    answer: Answer = await request
    assert answer.status in (200, 201), answer.message
    return answer


async def refused(request: Any, *words: str) -> None:
    answer: Answer = await request
    assert answer.status == 403, answer
    assert "ValidatingAdmissionPolicy 'kaishare-guard-" in answer.message
    for word in words:
        assert word in answer.message


async def until_answered(ask: Callable[[], Awaitable[Answer]], is_it: Callable[[Answer], bool]) -> Answer:
    """Repeat a request until its answer is the expected one; return the last answer after ten seconds."""
    ends = time.monotonic() + 10
    while True:
        answer = await ask()
        if is_it(answer) or time.monotonic() > ends:
            return answer
        await asyncio.sleep(0.02)
