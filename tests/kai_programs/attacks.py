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
from tests.support.kai_programs import HANGS, RESERVATIONS, KaiCluster
from tests.support.kai_tenant import GPU, Tenant

FUTURE: Final = "2099-01-01T00:00:00Z"
KEEPS: Final = {"kai.scheduler/preemptibility": "non-preemptible"}
BUILD: Final = {"priorityClassName": "build"}
NONE: Final = "."
_SPARK_NAME: Final = "spark-app-name"
_SPARK: Final = "spark-app-selector"


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


ATTACKS: list[Attack] = []


_Steps = Callable[..., Awaitable[str]]
_BY_OPTIONAL: Final = {"needs_optional": True, "since": "0.13.0", "closed_since": "0.17.0"}


def attack(title: str, effect: str, **row: Any) -> Callable[[_Steps], _Steps]:
    def add(steps: _Steps) -> _Steps:
        ATTACKS.append(Attack(title=title, steps=steps, effect=effect, **row))
        return steps

    return add


def reclaim(title: str, effect: str, **row: Any) -> Any:
    """Add an attack on the reclaim of GPUs: alice's queue has no quota, the rival's has all GPUs."""
    return attack(title, effect, limit=-1, quota=0, **row)


async def _next(t: Tenant, gpus: float = 1, **template: Any) -> str:
    await t.pod("more", gpus, **template)
    return await t.over()


async def _lose_owner(t: Tenant, pod: str, owner: str) -> None:
    """Take the owner references of a running pod away, and delete the owner."""
    group = await t.group_of(pod)
    await t.own(pod)
    await t.delete("ConfigMap", owner)
    await t.is_gone("PodGroup", group)


# --- L: more GPUs than the limit -------------------------------------------------------------------------------------


@attack("L1 annotation of a MIG profile on a running pod", "OVER")
async def mig_later(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.annotate("Pod", "a", {"nvidia.com/mig-1g.5gb": "0"})
    return await _next(t)


@attack("L2 annotation of a MIG profile at creation", NONE)
async def mig_at_creation(t: Tenant) -> str:
    await t.pod("a", annotations={"nvidia.com/mig-1g.5gb": "0"})
    await asyncio.sleep(3)
    return await _next(t)


@attack("L3 label of a subgroup on a running pod", "OVER")
async def subgroup_later(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.set_labels("Pod", "a", {"kai.scheduler/subgroup-name": "none-such"})
    return await _next(t)


@attack("L4 label of a subgroup at creation", NONE)
async def subgroup_at_creation(t: Tenant) -> str:
    await t.pod("a", labels={"kai.scheduler/subgroup-name": "none-such"})
    await asyncio.sleep(3)
    return await _next(t)


@attack("L5 Spark: the pod that owns the PodGroup is deleted", "OVER", is_short=True)
async def spark(t: Tenant) -> str:
    labels = {_SPARK_NAME: "x", _SPARK: f"spark-{t.name}"}
    await t.pod("a", labels=labels)
    await t.runs("a")
    await t.pod("d", 0, labels=labels)
    group = await t.group_of("d")
    await t.runs("d")
    await t.delete("Pod", "d")
    await t.is_gone("PodGroup", group)
    return await _next(t)  # with these labels KAI would count the first pod again


@attack("L6 owner references removed, owner deleted", "OVER", is_short=True)
async def owner_removed(t: Tenant) -> str:
    await t.pod("a", owners=[await t.owner("o")])
    await t.runs("a")
    await _lose_owner(t, "a", "o")
    return await _next(t)


@attack("L7 two owners, one is deleted", "OVER", is_short=True)
async def two_owners(t: Tenant) -> str:
    parents = [await t.owner("p"), await t.owner("q")]
    keep = await t.owner("keep", owners=parents)
    await t.pod("a", owners=[await t.owner("o"), keep])
    await t.runs("a")
    group = await t.group_of("a")
    await t.delete("ConfigMap", "o")
    await t.is_gone("PodGroup", group)
    return await _next(t)


@attack("L8 the owner's owner is cut off and deleted", "OVER", is_short=True)
async def owner_of_owner(t: Tenant) -> str:
    top = await t.owner("o")
    await t.pod("a", owners=[await t.owner("j", owners=[top])])
    await t.runs("a")
    group = await t.group_of("a")
    await asyncio.sleep(2)  # each event of the pod would let KAI group it by the other owner
    await t.patch("ConfigMap", "j", {"metadata": {"ownerReferences": None}})
    await t.delete("ConfigMap", "o")
    await t.is_gone("PodGroup", group)
    return await _next(t)


async def _race(t: Tenant, gpus: float, moment: Callable[[dict[str, Any]], bool]) -> str:
    for index in range(4):
        name, owner = f"a{index}", f"o{index}"
        reference = await t.owner(owner)
        await t.pod(name, gpus, owners=[reference])

        async def is_there(name: str = name) -> bool:
            return moment(await t.get("Pod", name))

        if not await t.until(is_there, 10):
            break  # the queue is full, as it should be
        await t.own(name)
        await t.delete("ConfigMap", owner)
        await asyncio.sleep(1)
    return await t.over()


@attack("L8r owner deleted at the moment of binding", "OVER")
async def owner_raced(t: Tenant) -> str:
    return await _race(t, 1, lambda pod: bool(pod["spec"].get("nodeName")))


@attack("L8g owner of a half deleted as soon as the pod is grouped", NONE, gpus=3)
async def owner_raced_half(t: Tenant) -> str:
    return await _race(t, 0.8, lambda pod: "pod-group-name" in pod["metadata"].get("annotations", {}))


@attack("L9 another owner with an empty queue", "OVER", is_short=True)
async def empty_queue(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.own("a", await t.owner("e", labels={"kai.scheduler/queue": ""}))
    await asyncio.sleep(2)
    return await _next(t)


@attack("L10 annotation pod-group-name changed", "OVER")
async def group_changed(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.annotate("Pod", "a", {"pod-group-name": "none-such"})
    return await _next(t)


@attack("L11 born in a PodGroup of another team", "other")
async def born_elsewhere(t: Tenant) -> str:
    item = t.pod_template(0)
    metadata = {**item["metadata"], "name": "theirs", "labels": {"kai.scheduler/queue": t.other}}
    await t.asker.send("POST", t.path("Pod", namespace=t.other), {"metadata": metadata, "spec": item["spec"]})
    group = ""

    async def is_grouped() -> bool:
        nonlocal group
        pod = await t.get("Pod", "theirs", t.other)
        group = pod["metadata"].get("annotations", {}).get("pod-group-name", "")
        return bool(group)

    assert await t.until(is_grouped, 30)
    await t.pod("a", annotations={"pod-group-name": group})
    return await t.queue_of("a")


@attack("L12 share lowered on a running pod", "OVER", limit=1, gpus=1)
async def share_lowered(t: Tenant) -> str:
    await t.pod("a", 0.9)
    await t.runs("a")
    await t.annotate("Pod", "a", {"gpu-fraction": "0.1"})
    await asyncio.sleep(2)
    return await _next(t, 0.9)


@attack("L13 annotation received-resource-type on a running pod", "stored")
async def received_type(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.annotate("Pod", "a", {"received-resource-type": "None"})
    await t.touch("a")
    pod = await t.get("Pod", "a")
    return "stored" if pod["metadata"]["annotations"]["received-resource-type"] == "None" else NONE


@attack("L14 label of the GPU group removed", "stored", limit=2)
async def gpu_group_removed(t: Tenant) -> str:
    await t.pod("a", 0.5)
    await t.runs("a")
    reservation = await t.reservation_of("a")
    await t.set_labels("Pod", "a", {"runai-gpu-group": None})
    await t.pod("b", 0.9)
    await t.runs("b", seconds=20)
    is_gone = await t.is_gone("Pod", reservation, seconds=5, namespace=RESERVATIONS)
    return "stored" if is_gone and await t.get("Pod", "a") else NONE


@attack("L15 label app of KAI's reservation pods on a running pod", "OVER", limit=2, gpus=1)
async def app_later(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.set_labels("Pod", "a", {"app": "kai-resource-reservation"})
    await asyncio.sleep(2)
    await t.pod("more")
    return await t.over(1)  # GPUs of the node


@attack("L16 label app of KAI's reservation pods at creation", "OVER", limit=2, gpus=1)
async def app_at_creation(t: Tenant) -> str:
    await t.pod("scaling", labels={"app": "scaling-pod"})
    await t.runs("scaling", seconds=5)
    await t.delete("Pod", "scaling")
    await t.pod("a", labels={"app": "kai-resource-reservation"})
    await t.runs("a", seconds=10)
    await t.pod("more")
    return await t.over(1)  # GPUs of the node


def _ray(worker: str = "w", replicas: int = 1) -> dict[str, Any]:
    group = {"groupName": worker, "replicas": replicas, "minReplicas": 0, "template": {}}
    return {"spec": {"headGroupSpec": {"template": {}}, "workerGroupSpecs": [group]}}


async def _ray_worker(t: Tenant, name: str = "a", **template: Any) -> None:
    """Create a RayCluster whose head needs no GPU, and a worker."""
    await t.create("RayCluster", "rc", **_ray())
    reference = await t.reference("RayCluster", "rc")
    await t.pod(
        "head", 0, owners=[reference], labels={"ray.io/group": "headgroup", "ray.io/node-type": "head"}
    )
    labels = {"ray.io/group": "w", "ray.io/node-type": "worker"}
    await t.pod(name, owners=[reference], labels=labels, **template)
    assert await t.runs("head", name)


@attack("L17 a Ray worker gets another owner", "OVER", since="0.13.0")
async def ray_other_owner(t: Tenant) -> str:
    await _ray_worker(t)
    await t.own("a", await t.owner("o"))
    await asyncio.sleep(2)
    return await _next(t)


@attack("L18 group of a RayCluster renamed", "OVER", guarded="OVER", **_BY_OPTIONAL)
async def ray_renamed(t: Tenant) -> str:
    await _ray_worker(t)
    await t.patch("RayCluster", "rc", _ray("v"))
    await t.touch("head", "a")
    await asyncio.sleep(2)
    return await _next(t)


@attack("L19 pods that are deleted and run on", "OVER", guarded="OVER", needs_optional=True)
async def runs_on(t: Tenant) -> str:
    await t.pod("a", annotations={HANGS: ""}, terminationGracePeriodSeconds=99_999)
    await t.runs("a", seconds=15)
    await t.delete("Pod", "a")
    return await _next(t)


@attack("L20 label of a node pool on a running pod", NONE)
async def node_pool(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.set_labels("Pod", "a", {"kai.scheduler/node-pool": "none-such"})
    return await _next(t)


# --- X: other words for the same books -------------------------------------------------------------------------------


async def _sidecar(t: Tenant, main: dict[str, Any]) -> str:
    sidecar = {"name": "side", "image": "x", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}}
    await t.pod("a", 0, owners=[await t.owner("o")], container=main, initContainers=[sidecar])
    t.requested["a"] = 1
    await t.runs("a", seconds=20)
    await _lose_owner(t, "a", "o")
    return await _next(t)


@attack("X1 GPU of a sidecar, owner deleted", "OVER", is_short=True)
async def sidecar(t: Tenant) -> str:
    return await _sidecar(t, {"resources": {}})


@attack("X1b GPU of a sidecar beside a request of CPU, owner deleted", "OVER")
async def sidecar_with_cpu(t: Tenant) -> str:
    return await _sidecar(t, {"resources": {"requests": {"cpu": "1m"}}})


async def _later(t: Tenant, labels: dict[str, str], annotations: dict[str, str]) -> str:
    await t.pod("a", owners=[await t.owner("o")])
    await t.runs("a")
    await t.patch("Pod", "a", {"metadata": {"labels": labels, "annotations": annotations}})
    await t.patch("ConfigMap", "o", {"metadata": {"labels": labels, "annotations": annotations}})
    await t.touch("a")
    await asyncio.sleep(2)
    return await _next(t)


_LATER: Final[dict[str, tuple[dict[str, str], dict[str, str]]]] = {
    "X2 unknown topology on a running pod and its owner": (
        {},
        {"kai.scheduler/topology": "none-such", "kai.scheduler/topology-required-placement": "rack"},
    ),
    "X3 labels of Spark on a running pod": ({_SPARK_NAME: "x", _SPARK: "spark-later"}, {}),
    "X4 labels of Ray on a running pod": (
        {"ray.io/group": "w", "ray.io/cluster": "c", "ray.io/node-type": "worker"},
        {},
    ),
    "X5 labels of PyTorch on a running pod": (
        {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "7"},
        {},
    ),
    "X7 labels of LeaderWorkerSet on a running pod": (
        {"leaderworkerset.sigs.k8s.io/group-index": "3", "leaderworkerset.sigs.k8s.io/worker-index": "9"},
        {"leaderworkerset.sigs.k8s.io/size": "50"},
    ),
    "X8 labels of JobSet, Knative and Grove on a running pod": (
        {
            "jobset.sigs.k8s.io/replicatedjob-name": "x",
            "serving.knative.dev/revision": "x",
            "grove.io/podgang": "x",
        },
        {},
    ),
}
for _title, (_labels, _annotations) in _LATER.items():
    attack(_title, NONE)(partial(_later, labels=_labels, annotations=_annotations))


def _pytorch(*roles: str) -> dict[str, Any]:
    specs = {role: {"replicas": 1, "template": {}} for role in roles}
    return {"spec": {"pytorchReplicaSpecs": specs, "runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}}


async def _pytorch_worker(t: Tenant) -> None:
    await t.create("PyTorchJob", "pj", **_pytorch("Master", "Worker"))
    reference = await t.reference("PyTorchJob", "pj")
    await t.pod("master", 0, owners=[reference], labels={"training.kubeflow.org/replica-type": "master"})
    await t.pod("a", owners=[reference], labels={"training.kubeflow.org/replica-type": "worker"})
    assert await t.runs("master", "a")


async def _pytorch_role_removed(t: Tenant) -> None:
    await _pytorch_worker(t)
    await t.patch("PyTorchJob", "pj", {"spec": {"pytorchReplicaSpecs": {"Worker": None}}})
    await t.touch("master", "a")
    await asyncio.sleep(2)


@attack("X6 role of a PyTorchJob removed", "OVER", guarded="OVER", **_BY_OPTIONAL)
async def pytorch_role(t: Tenant) -> str:
    await _pytorch_role_removed(t)
    return await _next(t)


@attack("X9 minMember of 500 on a running Job", NONE)
async def min_member(t: Tenant) -> str:
    template = t.pod_template(1, restartPolicy="Never")
    await t.create("Job", "j", spec={"template": template})
    await asyncio.sleep(4)
    pods = [pod["metadata"]["name"] for pod in await t.objects("Pod")]
    t.requested.update(dict.fromkeys(pods, 1))
    await t.annotate("Job", "j", {"kai.scheduler/batch-min-member": "500"})
    await t.touch(*pods)
    await asyncio.sleep(2)
    return await _next(t)


@reclaim("X10 role of a PyTorchJob removed: not reclaimed", "kept", guarded="kept", **_BY_OPTIONAL)
async def pytorch_role_kept(t: Tenant) -> str:
    await _pytorch_role_removed(t)
    return await t.reclaimed()


# --- Y: what KAI believes --------------------------------------------------------------------------------------------


@reclaim("Y1 owner deleted: not reclaimed", "kept")
async def owner_removed_kept(t: Tenant) -> str:
    for name, owner in (("a", "o"), ("b", "p")):
        await t.pod(name, owners=[await t.owner(owner)])
        await t.runs(name)
        await _lose_owner(t, name, owner)
    return await t.reclaimed()


@attack("Y2 keys written through pods/binding, by an administrator", "stored")
async def binding(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.pod("b")
    await t.group_of("b")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "b", "annotations": {"nvidia.com/mig-1g.5gb": "0"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": f"{t.name}-node"},
    }
    await t.send("POST", f"{t.path('Pod', 'b')}/binding", body)
    await t.send("POST", f"{t.path('Pod', 'b')}/binding", body, user="admin")
    pod = await t.get("Pod", "b")
    return "stored" if "nvidia.com/mig-1g.5gb" in pod["metadata"].get("annotations", {}) else NONE


async def _share(t: Tenant, name: str) -> str:
    """Run a half; return the name that its ConfigMaps begin with."""
    await t.pod(name, 0.4)
    assert await t.runs(name)
    pod = await t.get("Pod", name)
    prefix: str = pod["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    return prefix


@attack("Y3 KAI's ConfigMap of a share rewritten", "stored")
async def configmap_written(t: Tenant) -> str:
    prefix = await _share(t, "a")
    (name, *_) = (
        item["metadata"]["name"]
        for item in await t.objects("ConfigMap")
        if item["metadata"]["name"].startswith(f"{prefix}-")
    )
    await t.patch("ConfigMap", name, {"data": {"NVIDIA_VISIBLE_DEVICES": "GPU-of-another"}})
    item = await t.get("ConfigMap", name)
    return "stored" if item["data"].get("NVIDIA_VISIBLE_DEVICES") == "GPU-of-another" else NONE


@attack("Y4 another pod's ConfigMap named at creation", "stored", guarded="stored", needs_optional=True)
async def configmap_named(t: Tenant) -> str:
    prefix = await _share(t, "a")
    await t.pod("b", 0.4, annotations={"runai/shared-gpu-configmap": prefix})
    await t.runs("b", seconds=20)
    owners = {
        owner["name"]
        for item in await t.objects("ConfigMap")
        if item["metadata"]["name"].startswith(f"{prefix}-")
        for owner in item["metadata"].get("ownerReferences", [])
    }
    return "stored" if "b" in owners else NONE


# --- Q: another queue ------------------------------------------------------------------------------------------------


def _door(t: Tenant) -> dict[str, str]:
    return {"kai.scheduler/queue": t.other}


@attack("Q1 queue label of the pod", "other")
async def pod_label(t: Tenant) -> str:
    await t.pod("a", labels=_door(t))
    return await t.queue_of("a")


@attack("Q2 queue label of a Job", "other", is_short=True)
async def job_label(t: Tenant) -> str:
    await t.create("Job", "j", labels=_door(t), spec={"template": t.pod_template(1, restartPolicy="Never")})
    await asyncio.sleep(2)
    return await t.queue_of(*(pod["metadata"]["name"] for pod in await t.objects("Pod")))


@attack("Q3 queue label of a ConfigMap that owns the pod", "other")
async def configmap_label(t: Tenant) -> str:
    await t.pod("a", owners=[await t.owner("o", labels=_door(t))])
    return await t.queue_of("a")


@attack("Q4 the rival's Namespace owns the pod", "other")
async def namespace_owns(t: Tenant) -> str:
    rival = (await t.asker.send("GET", f"/api/v1/namespaces/{t.other}")).body
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": t.other, "uid": rival["metadata"]["uid"]}
    await t.pod("a", owners=[owner])
    return await t.queue_of("a")


@attack("Q5 queue label of the owner's owner", "other")
async def climb(t: Tenant) -> str:
    top = await t.owner("o", labels=_door(t))
    await t.pod("a", owners=[await t.owner("j", owners=[top])])
    return await t.queue_of("a")


@attack("Q6 label project instead of the queue", "other")
async def project(t: Tenant) -> str:
    await t.pod("a", labels={"project": t.other}, queue=False)
    return await t.queue_of("a")


async def _before_enforce(t: Tenant, *, has_pod: bool) -> str:
    await t.set_namespace(t.name, is_enforced=False)
    owner = await t.owner("o", labels=_door(t))
    if has_pod:
        await t.pod("first", 0, owners=[owner])
        await t.group_of("first")
    await t.set_namespace(t.name, is_enforced=t.is_enforced)
    await asyncio.sleep(1)
    await t.pod("a", owners=[owner])
    return await t.queue_of("a")


@attack("Q7 owner labelled before enforce", "other")
async def door(t: Tenant) -> str:
    return await _before_enforce(t, has_pod=False)


@attack("Q8 PodGroup in another queue from before enforce", "other", guarded="other")
async def open_door(t: Tenant) -> str:
    return await _before_enforce(t, has_pod=True)


@attack("Q9 PodGroup with the name of another namespace's", "stored")
async def spark_name(t: Tenant) -> str:
    name = f"pg-theirs-{t.name}"
    await t.pod("a", labels={_SPARK_NAME: "x", _SPARK: name})
    await asyncio.sleep(4)
    return "stored" if await t.get("PodGroup", name) else NONE


async def _pending(t: Tenant, **template: Any) -> str:
    await t.pod("a")
    await t.runs("a")
    await t.pod("b", **template)
    await t.group_of("b")
    await t.own("b", await t.owner("o", labels=_door(t)))
    await asyncio.sleep(1)
    await t.patch("Pod", "b", {"spec": {"schedulingGates": []}})
    return await t.queue_of("b")


@attack("Q10 owner added while the pod waits", "other")
async def owner_while_waiting(t: Tenant) -> str:
    return await _pending(t)


@attack("Q11 owner added while a scheduling gate holds the pod", "other")
async def owner_while_gated(t: Tenant) -> str:
    return await _pending(t, schedulingGates=[{"name": "example.com/gate"}])


@attack("Q12 empty queue of an owner at creation", NONE)
async def empty_at_creation(t: Tenant) -> str:
    await t.pod("a", owners=[await t.owner("o", labels={"kai.scheduler/queue": ""})])
    return await t.queue_of("a")


# --- R: not reclaimed ------------------------------------------------------------------------------------------------


async def _two(t: Tenant, **template: Any) -> None:
    owner = await t.owner("o")
    for name in ("a", "b"):
        await t.pod(name, owners=[owner], **template)
    assert await t.runs("a", "b")


@reclaim("R0 nothing: the rival's quota is reclaimed", NONE, is_short=True)
async def nothing(t: Tenant) -> str:
    await _two(t)
    return await t.reclaimed()


async def _flip(
    t: Tenant, labels: dict[str, str], annotations: dict[str, str] | None = None, gpus: int = 2
) -> str:
    await t.patch("ConfigMap", "o", {"metadata": {"labels": labels, "annotations": annotations or {}}})
    await asyncio.sleep(1)  # KAI reads owners from its cache
    await t.touch("a", "b")
    await asyncio.sleep(2)
    return await t.reclaimed(gpus)


@reclaim("R1 label preemptibility of the owner", "kept", since="0.13.0")
async def preemptibility(t: Tenant) -> str:
    await _two(t)
    return await _flip(t, KEEPS)


@reclaim("R2 label priorityClassName of the owner", "kept", is_short=True)
async def priority(t: Tenant) -> str:
    await _two(t)
    return await _flip(t, BUILD)


@reclaim("R3 label priorityClassName of the pods", "kept")
async def priority_of_pod(t: Tenant) -> str:
    await _two(t)
    for pod in ("a", "b"):
        await t.set_labels("Pod", pod, BUILD)
    await t.touch("a", "b")
    await asyncio.sleep(3)
    return await t.reclaimed()


@reclaim("R4 another owner with a label preemptibility", "kept", since="0.13.0")
async def other_owner(t: Tenant) -> str:
    await t.pod("a")
    await t.pod("b")
    await t.runs("a", "b")
    owner = await t.owner("k", labels=KEEPS)
    await t.own("a", owner)
    await t.own("b", owner)
    await asyncio.sleep(3)
    return await t.reclaimed()


@reclaim("R5 a suspended Job as owner, then labelled", "kept")
async def suspended(t: Tenant) -> str:
    spec = {"suspend": True, "template": t.pod_template(1, restartPolicy="Never")}
    await t.create("Job", "j", spec=spec)
    owner = await t.reference("Job", "j")
    for name in ("a", "b"):
        await t.pod(name, owners=[owner])
    await t.runs("a", "b")
    await t.set_labels("Job", "j", {**KEEPS, **BUILD})
    await t.touch("a", "b")
    await asyncio.sleep(3)
    return await t.reclaimed()


_START: Final = {"kai.scheduler/last-start-timestamp": FUTURE}


@reclaim("R6 start time of the owner in the future", "kept")
async def start_time(t: Tenant) -> str:
    for name, owner in (("a", "o"), ("b", "p")):
        await t.pod(name, owners=[await t.owner(owner)])
    await t.runs("a", "b")
    await t.annotate("ConfigMap", "p", _START)
    await t.annotate("ConfigMap", "o", _START)
    await asyncio.sleep(1)
    await t.touch("a", "b")
    await asyncio.sleep(2)
    return await t.reclaimed()


@reclaim("R7 start time in the future at creation", NONE)
async def start_time_at_creation(t: Tenant) -> str:
    owner = await t.owner("o", annotations=_START)
    for name in ("a", "b"):
        await t.pod(name, owners=[owner])
    await t.runs("a", "b", seconds=15)
    return await t.reclaimed()


@reclaim("R8 a second pod of another class", "kept", is_short=True)
async def second_pod(t: Tenant) -> str:
    await _two(t)
    await t.pod("c", 0, owners=[await t.reference("ConfigMap", "o")], labels=BUILD)
    await asyncio.sleep(4)
    return await t.reclaimed()


async def _is_decided(t: Tenant, pods: int) -> bool:
    requests = await t.asker.send("GET", f"/apis/scheduling.run.ai/v1alpha2/namespaces/{t.name}/bindrequests")
    return len(requests.body["items"]) >= pods


async def _before_binding(t: Tenant, change: Callable[[], Awaitable[Any]]) -> str:
    owner = await t.owner("o")
    for name in ("a", "b"):
        await t.pod(name, 0.9, owners=[owner])

    await t.until(partial(_is_decided, t, 2), 20)
    await change()
    await t.runs("a", "b", seconds=20)
    await t.touch("a", "b")
    await asyncio.sleep(2)
    return await t.reclaimed()


@reclaim("R9 class changed between KAI's decision and the binding", "kept")
async def flip_before_binding(t: Tenant) -> str:
    return await _before_binding(t, lambda: t.set_labels("ConfigMap", "o", BUILD))


@reclaim("R10 another owner between KAI's decision and the binding", "kept", since="0.13.0")
async def regroup_before_binding(t: Tenant) -> str:
    other = await t.owner("k", labels={**KEEPS, **BUILD})

    async def change() -> None:
        await t.own("a", other)
        await t.own("b", other)

    return await _before_binding(t, change)


@reclaim("R11 eviction and staleness in the future", NONE)
async def other_times(t: Tenant) -> str:
    await _two(t)
    times = {
        "kai.scheduler/stale-podgroup-timestamp": FUTURE,
        "kai.scheduler/last-eviction-timestamp": FUTURE,
    }
    return await _flip(t, {}, times)


@reclaim("R12 delays of a year on the owner", NONE)
async def delays(t: Tenant) -> str:
    await _two(t)
    return await _flip(
        t, {}, {"kai.scheduler/preemption-delay": "8760h", "kai.scheduler/staleness-grace-period": "8760h"}
    )


# --- N: not in the lists above ---------------------------------------------------------------------------------------


def _claim(name: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": "c", "resourceClaimName": name}]}


async def _uncounted(t: Tenant, *, labels: dict[str, str] | None = None, **spec: Any) -> str:
    """Put a pod into the PodGroup that KAI's podgroup-controller may fail to add up, then lose the owner."""
    owner = await t.owner("o")
    await t.pod(
        "c", 0, owners=[owner], labels=labels, container={"resources": {"requests": {"cpu": "1m"}}}, **spec
    )
    await t.group_of("c")
    await asyncio.sleep(1)
    await t.pod("a", owners=[owner], labels={"kai.scheduler/task-priority": "100"})
    await t.runs("a", seconds=20)
    await _lose_owner(t, "a", "o")
    return await _next(t)


@attack(
    "N1 a pod with a claim that does not exist, owner deleted",
    "OVER",
    guarded="OVER",
    since="0.13.0",
    needs_optional=True,
)
async def missing_claim(t: Tenant) -> str:
    return await _uncounted(t, **_claim("none-such"))


@reclaim(
    "N2 a pod with a claim that does not exist, class changed",
    "kept",
    guarded="kept",
    since="0.13.0",
    needs_optional=True,
)
async def missing_claim_flip(t: Tenant) -> str:
    owner = await t.owner("o")
    await t.pod(
        "c", 0, owners=[owner], container={"resources": {"requests": {"cpu": "1m"}}}, **_claim("none-such")
    )
    await t.group_of("c")
    await asyncio.sleep(1)
    for name in ("a", "b"):
        await t.pod(name, owners=[owner], labels={"kai.scheduler/task-priority": "100"})
    await t.runs("a", "b", seconds=20)
    return await _flip(t, BUILD)


@attack(
    "N3 a claim deleted while its pod runs, owner deleted",
    "OVER",
    guarded="OVER",
    since="0.13.0",
    needs_optional=True,
)
async def deleted_claim(t: Tenant) -> str:
    await t.create("ResourceClaim", "gone", spec={"devices": {}})
    owner = await t.owner("o")
    await t.pod(
        "c", 0, owners=[owner], container={"resources": {"requests": {"cpu": "1m"}}}, **_claim("gone")
    )
    await t.runs("c", seconds=10)
    await t.patch("ResourceClaim", "gone", {"metadata": {"finalizers": None}})
    await t.delete("ResourceClaim", "gone")
    await asyncio.sleep(1)
    await t.pod("a", owners=[owner])
    await t.runs("a", seconds=20)
    await _lose_owner(t, "a", "o")
    return await _next(t)


@attack("N4 a class that does not exist, owner deleted", "OVER")
async def missing_class(t: Tenant) -> str:
    await t.pod(
        "a",
        owners=[await t.owner("o", labels={"priorityClassName": "none-such"})],
        labels={"priorityClassName": "none-such"},
    )
    await t.runs("a", seconds=20)
    await _lose_owner(t, "a", "o")
    return await _next(t)


@attack("N5 gpu-memory instead of a fraction, owner deleted", "OVER", limit=1, gpus=2)
async def memory_owner(t: Tenant) -> str:
    async def run(name: str) -> None:
        await t.pod(name, 0, annotations={"gpu-memory": "18000"}, owners=[await t.owner(f"o-{name}")])
        t.requested[name] = 0.78
        await t.runs(name, seconds=20)
        await _lose_owner(t, name, f"o-{name}")

    await run("a")
    await run("b")
    return await t.over()


@attack("N6 gpu-memory, owner deleted between KAI's decision and the binding", "OVER", gpus=3)
async def memory_raced(t: Tenant) -> str:
    for index in range(4):
        name, owner = f"a{index}", f"o{index}"
        await t.pod(name, 0, annotations={"gpu-memory": "18000"}, owners=[await t.owner(owner)])
        t.requested[name] = 0.78
        if not await t.until(partial(_is_decided, t, index + 1), 8):
            break
        await t.own(name)
        await t.delete("ConfigMap", owner)
        await asyncio.sleep(1)
    return await t.over()


@attack("N7 Job deleted with its pods orphaned", NONE)
async def orphaned(t: Tenant) -> str:
    await t.create("Job", "j", spec={"template": t.pod_template(1, restartPolicy="Never")})
    await asyncio.sleep(3)
    (pod,) = (item["metadata"]["name"] for item in await t.objects("Pod"))
    t.requested[pod] = 1
    await t.runs(pod)
    await t.delete("Job", "j", propagationPolicy="Orphan")
    await asyncio.sleep(4)
    return await _next(t)


@attack("N8 Deployment deleted with its pods orphaned, then adopted by another", NONE)
async def adopted(t: Tenant) -> str:
    template = t.pod_template(1, labels={"app": "x"})
    spec = {"selector": {"matchLabels": {"app": "x"}}, "replicas": 1, "template": template}
    await t.create("ReplicaSet", "one", spec=spec)
    await asyncio.sleep(3)
    (pod,) = (item["metadata"]["name"] for item in await t.objects("Pod"))
    t.requested[pod] = 1
    await t.runs(pod)
    await t.delete("ReplicaSet", "one", propagationPolicy="Orphan")
    await asyncio.sleep(2)
    await t.create("ReplicaSet", "two", labels={**BUILD, "kai.scheduler/queue": ""}, spec=spec)
    await asyncio.sleep(4)
    return await _next(t)


@attack("N9 queue label of a CronJob", NONE)
async def cron_job(t: Tenant) -> str:
    spec = {
        "schedule": "0 0 1 1 *",
        "suspend": True,
        "jobTemplate": {"spec": {"template": t.pod_template(1, restartPolicy="Never")}},
    }
    await t.create("CronJob", "cj", labels=_door(t), spec=spec)
    await t.create(
        "Job", "by-hand", owners=[await t.reference("CronJob", "cj")], spec=spec["jobTemplate"]["spec"]
    )
    await asyncio.sleep(3)
    return await t.queue_of(*(pod["metadata"]["name"] for pod in await t.objects("Pod")))


@reclaim("N10 running pods adopted by a ReplicaSet of another class", "kept")
async def adopted_class(t: Tenant) -> str:
    for name in ("a", "b"):
        await t.pod(name, labels={"adopt": "me"})
    await t.runs("a", "b")
    template = t.pod_template(1, labels={"adopt": "me"})
    spec = {"selector": {"matchLabels": {"adopt": "me"}}, "replicas": 2, "template": template}
    await t.create("ReplicaSet", "rs", labels={**KEEPS, **BUILD}, spec=spec)
    await asyncio.sleep(4)
    return await t.reclaimed()


@attack("N11 PodGroups written by alice", NONE)
async def group_written(t: Tenant) -> str:
    await t.pod("a")
    await t.runs("a")
    group = await t.group_of("a")
    await t.patch("PodGroup", group, {"metadata": {"finalizers": ["example.com/x"], "ownerReferences": None}})
    await t.patch("PodGroup", group, {"spec": {"queue": t.other}, "status": {"resourcesStatus": None}})
    await t.send(
        "PATCH",
        f"{t.path('PodGroup', group)}/status",
        {"status": None},
        content_type="application/merge-patch+json",
    )
    await t.delete("PodGroup", group)
    await t.create("PodGroup", "mine", spec={"queue": t.other, "minMember": 1})
    return (
        "stored" if await t.get("PodGroup", "mine") or not await t.get("PodGroup", group) else await _next(t)
    )


@attack("N12 pods evicted that run on", "OVER", guarded="OVER", needs_optional=True)
async def evicted(t: Tenant) -> str:
    await t.pod("a", annotations={HANGS: ""})
    await t.runs("a")
    await t.send(
        "POST", f"{t.path('Pod', 'a')}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}, "deleteOptions": {"gracePeriodSeconds": 99_999}},
    )  # fmt: skip
    return await _next(t)


@reclaim("N13 reclaimed pods that run on", "kept", guarded="kept", needs_optional=True)
async def evicted_by_kai(t: Tenant) -> str:
    for name in ("a", "b"):
        await t.pod(name, annotations={HANGS: ""}, terminationGracePeriodSeconds=99_999)
    await t.runs("a", "b", seconds=15)
    return await t.reclaimed()


@reclaim("N14 Job suspended, its class changed, resumed at once", NONE)
async def resumed(t: Tenant) -> str:
    spec = {"parallelism": 2, "completions": 2, "template": t.pod_template(1, restartPolicy="Never")}
    await t.create("Job", "j", spec=spec)
    await asyncio.sleep(5)
    for suspend in (True, False, True, False):
        await t.patch("Job", "j", {"metadata": {"labels": {**KEEPS, **BUILD}}, "spec": {"suspend": suspend}})
        await asyncio.sleep(0.5)
    await asyncio.sleep(4)
    return await t.reclaimed()


@reclaim("N15 class changed while scheduling gates hold the pods", "kept")
async def gated_flip(t: Tenant) -> str:
    owner = await t.owner("o")
    await t.pod("a", owners=[owner])
    await t.runs("a")
    await t.pod("b", owners=[owner], schedulingGates=[{"name": "example.com/gate"}])
    await t.set_labels("ConfigMap", "o", BUILD)
    await t.touch("b")
    await asyncio.sleep(2)
    await t.patch("Pod", "b", {"spec": {"schedulingGates": []}})
    await t.runs("b", seconds=8)
    return await t.reclaimed()


@attack("N16 gated pods without owner, owner deleted, gates removed", NONE, gpus=3)
async def gated_orphans(t: Tenant) -> str:
    for name in ("a", "b"):
        await t.pod(name, owners=[await t.owner(f"o-{name}")], schedulingGates=[{"name": "example.com/gate"}])
        await t.group_of(name)
        await _lose_owner(t, name, f"o-{name}")
        await t.patch("Pod", name, {"spec": {"schedulingGates": []}})
        await t.runs(name, seconds=8)
    return await t.over()


@attack("N17 queue label changed on a running pod, owner replaced", "other", guarded=NONE)
async def relabelled(t: Tenant) -> str:
    await t.pod("a", owners=[await t.owner("o")])
    await t.runs("a")
    await t.set_labels("Pod", "a", {"kai.scheduler/queue": t.other})
    await t.own("a", await t.owner("p"))
    await asyncio.sleep(2)
    return await t.queue_of("a")


@attack("N18 owner labelled while its pods run", NONE)
async def owner_labelled(t: Tenant) -> str:
    owner = await t.owner("o")
    await t.pod("a", owners=[owner])
    await t.runs("a")
    await t.set_labels("ConfigMap", "o", {**_door(t), "kai.scheduler/queue": t.other})
    await t.touch("a")
    await asyncio.sleep(2)
    await t.pod("b", owners=[owner])
    return await t.queue_of("a", "b")


@attack("N19 annotation skip-podgrouper of the owner, owner replaced", "OVER", since="0.13.0", guarded=NONE)
async def skipped(t: Tenant) -> str:
    await t.pod("a", owners=[await t.owner("o")])
    await t.runs("a")
    await t.annotate("ConfigMap", "o", {"kai.scheduler/skip-podgrouper": "true"})
    group = await t.group_of("a")
    keep = await t.owner("k", annotations={"kai.scheduler/skip-podgrouper": "true"})
    await t.own("a", keep)
    await t.delete("ConfigMap", "o")
    await t.is_gone("PodGroup", group)
    return await _next(t)


@attack("N20 two Spark applications, the driver owns both", "OVER")
async def spark_driver(t: Tenant) -> str:
    labels = {_SPARK_NAME: "x", _SPARK: f"spark-{t.name}-one"}
    await t.pod("driver", 0, labels=labels)
    await t.group_of("driver")
    driver = await t.reference("Pod", "driver")
    await t.pod("a", owners=[driver], labels=labels)
    await t.runs("a")
    await t.set_labels("Pod", "a", {_SPARK: f"spark-{t.name}-two"})
    group = await t.group_of("a")
    await asyncio.sleep(2)
    await t.own("a")
    await t.delete("Pod", "driver")
    await t.is_gone("PodGroup", group)
    return await _next(t)


@attack("N21 generated names and a half: owner in the foreground", NONE)
async def foreground(t: Tenant) -> str:
    await t.pod("a", 0.7, owners=[{**await t.owner("o"), "blockOwnerDeletion": True}, await t.owner("k")])
    await t.runs("a")
    group = await t.group_of("a")
    await t.delete("ConfigMap", "o", propagationPolicy="Foreground")
    await t.own("a", await t.reference("ConfigMap", "k"))
    await t.is_gone("PodGroup", group)
    return await _next(t, 0.7)


@reclaim("N22 a class that does not exist, then a class of KAI", "kept")
async def missing_class_flip(t: Tenant) -> str:
    await t.create("ConfigMap", "o", labels={"priorityClassName": "none-such"})
    owner = await t.reference("ConfigMap", "o")
    for name in ("a", "b"):
        await t.pod(name, owners=[owner], labels={"priorityClassName": "none-such"})
    await t.runs("a", "b", seconds=20)
    return await _flip(t, BUILD)


@attack("N23 all objects of the namespace deleted but the pod", "OVER")
async def everything_deleted(t: Tenant) -> str:
    await t.pod("a", owners=[await t.owner("o")])
    await t.runs("a")
    group = await t.group_of("a")
    await t.own("a")
    for kind in ("ConfigMap", "ServiceAccount", "Event", "PodGroup"):
        await t.send("DELETE", t.path(kind))
    await t.is_gone("PodGroup", group)
    return await _next(t)


@attack(
    "N24 podgroup-controller does not run, owner deleted",
    "OVER",
    guarded="OVER",
    needs_optional=True,
    is_alone=True,
)
async def nothing_counted(t: Tenant, cluster: KaiCluster) -> str:
    await asyncio.to_thread(cluster.stop, "podgroupcontroller")
    await t.pod("a", owners=[await t.owner("o")])
    await t.runs("a")
    await _lose_owner(t, "a", "o")
    effect = await _next(t)
    await asyncio.to_thread(cluster.start, "podgroupcontroller")
    return effect
