"""What a tenant may try against KAI's books: steps by alice, and the effect that is measured afterwards.

Effects: `OVER` pods use more GPUs than the limit of their queue, `other` a pod runs in another queue, `kept` GPUs that another
queue has a quota for are not reclaimed, `stored` KAI believes what alice wrote, `.` none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kai.releases import Version
from tests.kai_programs.steps import (
    NONE,
    Step,
    all_run,
    annotate,
    counts,
    create,
    decided,
    delete,
    enforced,
    group_goes,
    grouped,
    job,
    label,
    lose,
    more,
    over,
    own,
    owner,
    patch,
    pod,
    queue_of,
    reclaimed,
    replica_set,
    run,
    stored,
    take,
    touch,
    until_run,
    wait,
)
from tests.support.kai_programs import HANGS, RESERVATIONS, KaiCluster
from tests.support.kai_tenant import GPU, Object, Tenant

QUEUE: Final = "kai.scheduler/queue"
_BY_OPTIONAL: Final = {"needs_optional": True, "since": "0.13.0", "closed_since": "0.17.0"}


@dataclass(frozen=True, kw_only=True)
class Attack:
    title: str
    steps: Callable[..., Awaitable[str]]
    effect: str
    guarded: str = NONE
    """Effect with the guard; another one than `.` where no policy closes the attack."""
    limit: float = 1
    quota: float = 1
    gpus: int = 2
    since: str = "0.9.0"
    """First release of KAI on which it has the effect."""
    is_short: bool = False
    needs_optional: bool = False
    """Whether the optional policies close it."""
    closed_since: str = "0.9.0"
    """First release of KAI on which the optional policies close it."""
    is_alone: bool = False
    """Whether it runs alone, because programs of KAI are stopped."""

    def works_on(self, version: Version) -> bool:
        """Return whether the attack has its effect on a release without the guard."""
        return _is_at_least(version, self.since)

    def is_closed_on(self, version: Version) -> bool:
        """Return whether the optional policies close the attack on a release."""
        return _is_at_least(version, self.closed_since)


def _is_at_least(version: Version, release: str) -> bool:
    return (version.major, version.minor, version.patch) >= tuple(int(part) for part in release.split("."))


def attack(title: str, effect: str, *steps: Step, **row: Any) -> Attack:
    return Attack(title=title, steps=partial(take, steps), effect=effect, **row)


def reclaim(title: str, effect: str, *steps: Step, **row: Any) -> Attack:
    """Return an attack on the reclaim of GPUs: alice's queue has no quota, the rival's has all GPUs."""
    return attack(title, effect, *steps, reclaimed(), limit=-1, quota=0, **row)


# --- Words of KAI and of workloads -----------------------------------------------------------------------------------

_FUTURE: Final = "2099-01-01T00:00:00Z"
_KEEPS: Final = {"kai.scheduler/preemptibility": "non-preemptible"}
_BUILD: Final = {"priorityClassName": "build"}
_MIG: Final = {"nvidia.com/mig-1g.5gb": "0"}
_SUBGROUP: Final = {"kai.scheduler/subgroup-name": "none-such"}
_RESERVATION: Final = {"app": "kai-resource-reservation"}
_DOOR: Final = {QUEUE: "$other"}
_NO_QUEUE: Final = {QUEUE: ""}
_NO_CLASS: Final = {"priorityClassName": "none-such"}
_START: Final = {"kai.scheduler/last-start-timestamp": _FUTURE}
_SKIP: Final = {"kai.scheduler/skip-podgrouper": "true"}
_MEMORY: Final = {"gpu-memory": "18000"}
_RUNS_ON: Final[dict[str, Any]] = {"annotations": {HANGS: ""}, "terminationGracePeriodSeconds": 99_999}
_GATED: Final[dict[str, Any]] = {"schedulingGates": [{"name": "example.com/gate"}]}
_CPU: Final[dict[str, Any]] = {"container": {"resources": {"requests": {"cpu": "1m"}}}}
_FIRST: Final[dict[str, Any]] = {"labels": {"kai.scheduler/task-priority": "100"}}
_open_gate = partial(patch, body={"spec": {"schedulingGates": []}})


def _spark(application: str = "spark-$name") -> dict[str, str]:
    return {"spark-app-name": "x", "spark-app-selector": application}


def _ray(worker: str = "w") -> dict[str, Any]:
    group = {"groupName": worker, "replicas": 1, "minReplicas": 0, "template": {}}
    return {"spec": {"headGroupSpec": {"template": {}}, "workerGroupSpecs": [group]}}


_RAY: Final = (
    create("RayCluster/rc", **_ray()),
    pod("head", 0, ["RayCluster/rc"], labels={"ray.io/group": "headgroup", "ray.io/node-type": "head"}),
    pod("a", 1, ["RayCluster/rc"], labels={"ray.io/group": "w", "ray.io/node-type": "worker"}),
    all_run("head", "a"),
)
"""A RayCluster whose head needs no GPU, and a worker."""


def _pytorch(*roles: str) -> dict[str, Any]:
    specs = {role: {"replicas": 1, "template": {}} for role in roles}
    return {"spec": {"pytorchReplicaSpecs": specs, "runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}}


_ROLE_REMOVED: Final = (
    create("PyTorchJob/pj", **_pytorch("Master", "Worker")),
    pod("master", 0, ["PyTorchJob/pj"], labels={"training.kubeflow.org/replica-type": "master"}),
    pod("a", 1, ["PyTorchJob/pj"], labels={"training.kubeflow.org/replica-type": "worker"}),
    all_run("master", "a"),
    patch("PyTorchJob/pj", {"spec": {"pytorchReplicaSpecs": {"Worker": None}}}),
    touch("master", "a"),
    wait(2),
)


def _two(gpus: float = 1, **template: Any) -> tuple[Step, ...]:
    return (owner("o"), pod("a", gpus, ["o"], **template), pod("b", gpus, ["o"], **template))


_TWO: Final = (*_two(), all_run("a", "b"))


def _flip(labels: dict[str, str], annotations: dict[str, str] | None = None) -> tuple[Step, ...]:
    """Change the owner of two pods; KAI reads owners from its cache, after a second."""
    metadata = {"labels": labels, "annotations": annotations or {}}
    return patch("ConfigMap/o", {"metadata": metadata}), wait(1), touch("a", "b"), wait(2)


_BOUND: Final = (until_run("a", "b", seconds=20), touch("a", "b"), wait(2))


def _claims(name: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": "c", "resourceClaimName": name}]}


_UNCOUNTED: Final = (pod("c", 0, ["o"], **_CPU, **_claims("none-such")), grouped("c"), wait(1))
"""A pod in the PodGroup that KAI's podgroup-controller may fail to add up."""


def _sidecar(**main: Any) -> tuple[Step, ...]:
    sidecar = {"name": "side", "image": "x", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}}
    pods = pod("a", 0, ["o"], container={"resources": main}, initContainers=[sidecar])
    return pods, counts(a=1), until_run("a", seconds=20), lose("a"), more()


def _race(gpus: float, moment: Callable[[Object], bool]) -> Step:
    """Delete the owner of pod after pod at a moment of its life."""

    async def step(t: Tenant) -> str:
        for name in ("a0", "a1", "a2", "a3"):
            await pod(name, gpus, [f"o-{name}"])(t)

            async def is_there(name: str = name) -> bool:
                return moment(await t.get("Pod", name))

            if not await t.until(is_there, 10):
                break  # the queue is full, as it should be
            await t.own(name)
            await t.delete("ConfigMap", f"o-{name}")
            await asyncio.sleep(1)
        return await t.over()

    return step


async def _memory_raced(t: Tenant) -> str:
    for index, name in enumerate(("a0", "a1", "a2", "a3")):
        await pod(name, 0, [f"o-{name}"], annotations=_MEMORY)(t)
        t.requested[name] = 0.78
        if not await decided(index + 1, 8)(t):
            break
        await t.own(name)
        await t.delete("ConfigMap", f"o-{name}")
        await asyncio.sleep(1)
    return await t.over()


async def _born_elsewhere(t: Tenant) -> str:
    item = t.pod_template(0)
    metadata = {**item["metadata"], "name": "theirs", "labels": {QUEUE: t.other}}
    await t.asker.send("POST", t.path("Pod", namespace=t.other), {"metadata": metadata, "spec": item["spec"]})
    group = ""

    async def is_grouped() -> bool:
        nonlocal group
        theirs = await t.get("Pod", "theirs", t.other)
        group = theirs["metadata"].get("annotations", {}).get("pod-group-name", "")
        return bool(group)

    assert await t.until(is_grouped, 30)
    await t.pod("a", annotations={"pod-group-name": group})
    return await t.queue_of("a")


async def _believes_received_type(t: Tenant) -> bool:
    item = await t.get("Pod", "a")
    return bool(item["metadata"]["annotations"]["received-resource-type"] == "None")


async def _gpu_group_removed(t: Tenant) -> bool:
    await run("a", 0.5)(t)
    reservation = await t.reservation_of("a")
    await t.set_labels("Pod", "a", {"runai-gpu-group": None})
    await run("b", 0.9, seconds=20)(t)
    is_gone = await t.is_gone("Pod", reservation, seconds=5, namespace=RESERVATIONS)
    return is_gone and bool(await t.get("Pod", "a"))


async def _binding(t: Tenant) -> bool:
    await t.group_of("b")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "b", "annotations": _MIG},
        "target": {"apiVersion": "v1", "kind": "Node", "name": f"{t.name}-node"},
    }
    await t.send("POST", f"{t.path('Pod', 'b')}/binding", body)
    await t.send("POST", f"{t.path('Pod', 'b')}/binding", body, user="admin")
    item = await t.get("Pod", "b")
    return bool(item["metadata"].get("annotations", {}).keys() >= _MIG.keys())


async def _config_maps_of_share(t: Tenant) -> tuple[str, list[Object]]:
    """Return what the names of KAI's ConfigMaps of the pod a begin with, and the ConfigMaps."""
    item = await t.get("Pod", "a")
    prefix: str = item["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    maps = await t.objects("ConfigMap")
    return prefix, [each for each in maps if each["metadata"]["name"].startswith(f"{prefix}-")]


async def _config_map_written(t: Tenant) -> bool:
    _, (first, *_) = await _config_maps_of_share(t)
    name, device = first["metadata"]["name"], {"NVIDIA_VISIBLE_DEVICES": "GPU-of-another"}
    await t.patch("ConfigMap", name, {"data": device})
    item = await t.get("ConfigMap", name)
    return bool(item["data"].items() >= device.items())


async def _config_map_named(t: Tenant) -> bool:
    prefix, _ = await _config_maps_of_share(t)
    await run("b", 0.4, annotations={"runai/shared-gpu-configmap": prefix}, seconds=20)(t)
    _, maps = await _config_maps_of_share(t)
    return "b" in {each["name"] for item in maps for each in item["metadata"].get("ownerReferences", [])}


async def _namespace_owns(t: Tenant) -> None:
    rival = (await t.asker.send("GET", f"/api/v1/namespaces/{t.other}")).body
    reference = {"apiVersion": "v1", "kind": "Namespace", "name": t.other, "uid": rival["metadata"]["uid"]}
    await t.pod("a", owners=[reference])


async def _evict(t: Tenant) -> None:
    await t.send(
        "POST", f"{t.path('Pod', 'a')}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}, "deleteOptions": {"gracePeriodSeconds": 99_999}},
    )  # fmt: skip


async def _delete_everything(t: Tenant) -> None:
    for kind in ("ConfigMap", "ServiceAccount", "Event", "PodGroup"):
        await t.send("DELETE", t.path(kind))


async def _nothing_counted(t: Tenant, cluster: KaiCluster) -> Any:
    await asyncio.to_thread(cluster.stop, "podgroupcontroller")
    effect = await take((run("a", owners=["o"]), lose("a"), more()), t)
    await asyncio.to_thread(cluster.start, "podgroupcontroller")
    return effect


ATTACKS: Final[list[Attack]] = [
    # L: more GPUs than the limit.
    attack("L1 annotation of a MIG profile on a running pod", "OVER", run("a"), annotate("a", _MIG), more()),
    attack("L3 label of a subgroup on a running pod", "OVER", run("a"), label("a", _SUBGROUP), more()),
    attack(  # with these labels KAI would count the first pod again
        "L5 Spark: the pod that owns the PodGroup is deleted", "OVER", run("a", labels=_spark()), pod("d", 0, labels=_spark()),
        group_goes("d", until_run("d"), delete("d")), more(),
    ),
    attack("L6 owner references removed, owner deleted", "OVER", run("a", owners=["o"]), lose("a"), more(), is_short=True),
    attack(
        "L7 two owners, one is deleted", "OVER", owner("keep", ["p", "q"]), run("a", owners=["o", "keep"]),
        group_goes("a", delete("ConfigMap/o")), more(),
    ),
    attack(  # each event of the pod would let KAI group it by the other owner
        "L8 the owner's owner is cut off and deleted", "OVER", owner("j", ["o"]), run("a", owners=["j"]),
        group_goes("a", wait(2), patch("ConfigMap/j", {"metadata": {"ownerReferences": None}}), delete("ConfigMap/o")), more(),
    ),
    attack("L8r owner deleted at the moment of binding", "OVER", _race(1, lambda item: bool(item["spec"].get("nodeName")))),
    attack(
        "L9 another owner with an empty queue", "OVER", run("a"), owner("e", labels=_NO_QUEUE), own("a", "e"), wait(2), more(), is_short=True,
    ),
    attack("L10 annotation pod-group-name changed", "OVER", run("a"), annotate("a", {"pod-group-name": "none-such"}), more()),
    attack("L11 born in a PodGroup of another team", "other", _born_elsewhere),
    attack("L12 share lowered on a running pod", "OVER", run("a", 0.9), annotate("a", {"gpu-fraction": "0.1"}), wait(2), more(0.9), gpus=1),
    attack(
        "L13 annotation received-resource-type on a running pod", "stored",
        run("a"), annotate("a", {"received-resource-type": "None"}), touch("a"), stored(_believes_received_type),
    ),
    attack("L14 label of the GPU group removed", "stored", stored(_gpu_group_removed), limit=2),
    attack(  # the limit is that of the node's GPUs
        "L15 label app of KAI's reservation pods on a running pod", "OVER", run("a"), label("a", _RESERVATION), wait(2), pod("more"), over(1),
        limit=2, gpus=1,
    ),
    attack(
        "L16 label app of KAI's reservation pods at creation", "OVER", run("scaling", labels={"app": "scaling-pod"}, seconds=5), delete("scaling"),
        run("a", labels=_RESERVATION, seconds=10), pod("more"), over(1), limit=2, gpus=1,
    ),
    attack("L17 a Ray worker gets another owner", "OVER", *_RAY, own("a", "o"), wait(2), more(), since="0.13.0"),
    attack(
        "L18 group of a RayCluster renamed", "OVER", *_RAY, patch("RayCluster/rc", _ray("v")), touch("head", "a"), wait(2), more(),
        guarded="OVER", **_BY_OPTIONAL,
    ),
    attack("L19 pods that are deleted and run on", "OVER", run("a", seconds=15, **_RUNS_ON), delete("a"), more(), guarded="OVER", needs_optional=True),
    # X: other words for the same books.
    attack("X1 GPU of a sidecar, owner deleted", "OVER", *_sidecar(), is_short=True),
    attack("X1b GPU of a sidecar beside a request of CPU, owner deleted", "OVER", *_sidecar(requests={"cpu": "1m"})),
    attack("X6 role of a PyTorchJob removed", "OVER", *_ROLE_REMOVED, more(), guarded="OVER", **_BY_OPTIONAL),
    reclaim("X10 role of a PyTorchJob removed: not reclaimed", "kept", *_ROLE_REMOVED, guarded="kept", **_BY_OPTIONAL),
    # Y: what KAI believes.
    reclaim("Y1 owner deleted: not reclaimed", "kept", run("a", owners=["o"]), lose("a"), run("b", owners=["p"]), lose("b", "p")),
    attack("Y2 keys written through pods/binding, by an administrator", "stored", run("a"), pod("b"), stored(_binding)),
    attack("Y3 KAI's ConfigMap of a share rewritten", "stored", pod("a", 0.4), all_run("a"), stored(_config_map_written)),
    attack(
        "Y4 another pod's ConfigMap named at creation", "stored", pod("a", 0.4), all_run("a"), stored(_config_map_named),
        guarded="stored", needs_optional=True,
    ),
    # Q: another queue.
    attack("Q1 queue label of the pod", "other", pod("a", labels=_DOOR), queue_of("a")),
    attack("Q2 queue label of a Job", "other", job(labels=_DOOR), wait(2), queue_of(), is_short=True),
    attack("Q3 queue label of a ConfigMap that owns the pod", "other", owner("o", labels=_DOOR), pod("a", 1, ["o"]), queue_of("a")),
    attack("Q4 the rival's Namespace owns the pod", "other", _namespace_owns, queue_of("a")),
    attack("Q5 queue label of the owner's owner", "other", owner("o", labels=_DOOR), owner("j", ["o"]), pod("a", 1, ["j"]), queue_of("a")),
    attack("Q6 label project instead of the queue", "other", pod("a", labels={"project": "$other"}, queue=False), queue_of("a")),
    attack(
        "Q7 owner labelled before enforce", "other",
        enforced(again=False), owner("o", labels=_DOOR), enforced(again=True), wait(1), pod("a", 1, ["o"]), queue_of("a"),
    ),
    attack(
        "Q8 PodGroup in another queue from before enforce", "other", enforced(again=False), owner("o", labels=_DOOR), pod("first", 0, ["o"]),
        grouped("first"), enforced(again=True), wait(1), pod("a", 1, ["o"]), queue_of("a"), guarded="other",
    ),
    attack(
        "Q9 PodGroup with the name of another namespace's", "stored",
        pod("a", labels=_spark("pg-theirs-$name")), wait(4), stored(lambda t: t.get("PodGroup", f"pg-theirs-{t.name}")),
    ),
    *(
        attack(
            title, "other", run("a"), pod("b", **template), grouped("b"), owner("o", labels=_DOOR), own("b", "o"), wait(1), _open_gate("b"),
            queue_of("b"),
        )
        for title, template in (
            ("Q10 owner added while the pod waits", {}),
            ("Q11 owner added while a scheduling gate holds the pod", _GATED),
        )
    ),
    # R: not reclaimed.
    reclaim("R0 nothing: the rival's quota is reclaimed", NONE, *_TWO, is_short=True),
    reclaim("R1 label preemptibility of the owner", "kept", *_TWO, *_flip(_KEEPS), since="0.13.0"),
    reclaim("R2 label priorityClassName of the owner", "kept", *_TWO, *_flip(_BUILD), is_short=True),
    reclaim("R3 label priorityClassName of the pods", "kept", *_TWO, label("a", _BUILD), label("b", _BUILD), touch("a", "b"), wait(3)),
    reclaim(
        "R4 another owner with a label preemptibility", "kept",
        pod("a"), pod("b"), until_run("a", "b"), owner("k", labels=_KEEPS), own("a", "k"), own("b", "k"), wait(3), since="0.13.0",
    ),
    reclaim(
        "R5 a suspended Job as owner, then labelled", "kept", job(suspend=True), pod("a", 1, ["Job/j"]), pod("b", 1, ["Job/j"]),
        until_run("a", "b"), label("Job/j", {**_KEEPS, **_BUILD}), touch("a", "b"), wait(3),
    ),
    reclaim(
        "R6 start time of the owner in the future", "kept", pod("a", 1, ["o"]), pod("b", 1, ["p"]), until_run("a", "b"),
        annotate("ConfigMap/p", _START), annotate("ConfigMap/o", _START), wait(1), touch("a", "b"), wait(2),
    ),
    reclaim("R8 a second pod of another class", "kept", *_TWO, pod("c", 0, ["o"], labels=_BUILD), wait(4)),
    reclaim("R9 class changed between KAI's decision and the binding", "kept", *_two(0.9), decided(2), label("ConfigMap/o", _BUILD), *_BOUND),
    reclaim(
        "R10 another owner between KAI's decision and the binding", "kept",
        owner("k", labels={**_KEEPS, **_BUILD}), *_two(0.9), decided(2), own("a", "k"), own("b", "k"), *_BOUND, since="0.13.0",
    ),
    # N: not in the lists above.
    attack(
        "N1 a pod with a claim that does not exist, owner deleted", "OVER", *_UNCOUNTED, run("a", 1, ["o"], 20, **_FIRST), lose("a"), more(),
        guarded="OVER", since="0.13.0", needs_optional=True,
    ),
    reclaim(
        "N2 a pod with a claim that does not exist, class changed", "kept", *_UNCOUNTED, *_two(**_FIRST), until_run("a", "b", seconds=20),
        *_flip(_BUILD), guarded="kept", since="0.13.0", needs_optional=True,
    ),
    attack(
        "N3 a claim deleted while its pod runs, owner deleted", "OVER", create("ResourceClaim/gone", spec={"devices": {}}),
        run("c", 0, ["o"], 10, **_CPU, **_claims("gone")), patch("ResourceClaim/gone", {"metadata": {"finalizers": None}}),
        delete("ResourceClaim/gone"), wait(1), run("a", 1, ["o"], 20), lose("a"), more(),
        since="0.13.0",
    ),
    attack(
        "N4 a class that does not exist, owner deleted", "OVER",
        owner("o", labels=_NO_CLASS), run("a", 1, ["o"], 20, labels=_NO_CLASS), lose("a"), more(),
    ),
    attack(
        "N5 gpu-memory instead of a fraction, owner deleted", "OVER",
        *(
            step
            for name in ("a", "b")
            for step in (
                pod(name, 0, [f"o-{name}"], annotations=_MEMORY), counts(**{name: 0.78}), until_run(name, seconds=20), lose(name, f"o-{name}"),
            )
        ),
        over(),
    ),
    attack("N6 gpu-memory, owner deleted between KAI's decision and the binding", "OVER", _memory_raced, gpus=3),
    reclaim(
        "N10 running pods adopted by a ReplicaSet of another class", "kept", pod("a", labels={"adopt": "me"}), pod("b", labels={"adopt": "me"}),
        until_run("a", "b"), replica_set("rs", {"adopt": "me"}, 2, {**_KEEPS, **_BUILD}), wait(4),
    ),
    attack("N12 pods evicted that run on", "OVER", run("a", annotations={HANGS: ""}), _evict, more(), guarded="OVER", needs_optional=True),
    reclaim(
        "N13 reclaimed pods that run on", "kept", pod("a", **_RUNS_ON), pod("b", **_RUNS_ON), until_run("a", "b", seconds=15),
        guarded="kept", needs_optional=True,
    ),
    reclaim(
        "N15 class changed while scheduling gates hold the pods", "kept", run("a", owners=["o"]), pod("b", 1, ["o"], **_GATED),
        label("ConfigMap/o", _BUILD), touch("b"), wait(2), _open_gate("b"), until_run("b", seconds=8),
    ),
    attack(
        "N17 queue label changed on a running pod, owner replaced", "other",
        run("a", owners=["o"]), label("a", _DOOR), own("a", "p"), wait(2), queue_of("a"),
    ),
    attack(
        "N19 annotation skip-podgrouper of the owner, owner replaced", "OVER", run("a", owners=["o"]), annotate("ConfigMap/o", _SKIP),
        owner("k", annotations=_SKIP), group_goes("a", own("a", "k"), delete("ConfigMap/o")), more(), since="0.13.0",
    ),
    attack(
        "N20 two Spark applications, the driver owns both", "OVER", pod("driver", 0, labels=_spark("spark-$name-one")), grouped("driver"),
        run("a", owners=["Pod/driver"], labels=_spark("spark-$name-one")), label("a", {"spark-app-selector": "spark-$name-two"}),
        group_goes("a", wait(2), own("a"), delete("driver")), more(),
    ),
    reclaim(
        "N22 a class that does not exist, then a class of KAI", "kept", owner("o", labels=_NO_CLASS), pod("a", 1, ["o"], labels=_NO_CLASS),
        pod("b", 1, ["o"], labels=_NO_CLASS), until_run("a", "b", seconds=20), *_flip(_BUILD),
    ),
    attack(
        "N23 all objects of the namespace deleted but the pod", "OVER", run("a", owners=["o"]), group_goes("a", own("a"), _delete_everything), more(),
    ),
    Attack(
        title="N24 podgroup-controller does not run, owner deleted", steps=_nothing_counted, effect="OVER", guarded="OVER",
        needs_optional=True, is_alone=True,
    ),
]  # fmt: skip
