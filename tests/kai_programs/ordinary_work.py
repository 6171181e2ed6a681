"""Ordinary work that the guard must let through, as KAI's own programs run it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.support.kai_programs import ENDS, KaiCluster
from tests.support.kai_tenant import GPU, Object, Tenant


@dataclass(frozen=True, kw_only=True)
class Work:
    title: str
    steps: Callable[..., Awaitable[Any]]
    limit: float = -1
    quota: float = 2
    gpus: int = 2
    is_short: bool = False
    is_alone: bool = False
    """Whether the row runs alone, because it stops programs of KAI."""


WORK: list[Work] = []
_Steps = Callable[..., Awaitable[Any]]
SOON: Final = 20.0
"""Seconds after which garbage is gone at the latest."""


def work(title: str, **row: Any) -> Callable[[_Steps], _Steps]:
    def add(steps: _Steps) -> _Steps:
        WORK.append(Work(title=title, steps=steps, **row))
        return steps

    return add


async def _pods(t: Tenant, count: int, **having: Any) -> list[str]:
    """Wait until so many pods of alice run, and no others exist; return their names."""
    names: list[str] = []

    async def is_so() -> bool:
        pods = [
            pod for pod in await t.objects("Pod") if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        names[:] = [pod["metadata"]["name"] for pod in pods]
        return len(pods) == count and all(
            pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
            for pod in pods
        )

    waits = {
        pod["metadata"]["name"]: await t.words(pod["metadata"]["name"]) for pod in await t.objects("Pod")
    }
    assert await t.until(is_so), f"{t.name}: {count} pods do not run: {names} {waits} {t.refusals}"
    return names


async def _is_clean(t: Tenant) -> None:
    """Wait until no pod and no PodGroup of alice is left."""

    async def is_so() -> bool:
        return not await t.objects("Pod") and not await t.objects("PodGroup")

    assert await t.until(is_so, 60), f"{t.name}: left: {[g['metadata'] for g in await t.objects('PodGroup')]}"


async def _allocated(t: Tenant, gpus: str) -> None:
    """Wait until KAI counts so many GPUs in the queue."""

    async def is_so() -> bool:
        answer = await t.asker.send("GET", f"/apis/scheduling.run.ai/v2/queues/{t.queue}")
        amount = answer.body.get("status", {}).get("allocated", {}).get(GPU, "0")
        return bool(amount in (gpus, f"{int(float(gpus) * 1000)}m"))

    assert await t.until(is_so, 30), f"{t.name}: the queue does not have {gpus} GPUs"


async def _rolled(t: Tenant, count: int, part: str, key: str) -> bool:
    """Return whether there are so many pods, all with a label or an annotation."""
    pods = await t.objects("Pod")
    return len(pods) == count and all(key in pod["metadata"][part] for pod in pods)


def _workload(t: Tenant, replicas: int, gpus: float = 1, **template: Any) -> Object:
    labels = {"run": "me", **template.pop("labels", {})}
    return {
        "replicas": replicas,
        "selector": {"matchLabels": {"run": "me"}},
        "template": t.pod_template(gpus, labels=labels, **template),
    }


@work("W1 whole GPU, half and gpu-memory run, are counted, and go", is_short=True)
async def shares(t: Tenant) -> None:
    await t.pod("whole")
    await t.pod("half", 0.5)
    await t.pod("memory", 0, annotations={"gpu-memory": "5000"})
    await _pods(t, 3)
    for pod in ("whole", "half", "memory"):
        await t.delete("Pod", pod)
    await _is_clean(t)
    await _allocated(t, "0")


@work(
    "W2 Deployment: scaled, a pod deleted, rolled with another class, deleted in the foreground",
    is_short=True,
)
async def deployment(t: Tenant) -> None:
    await t.create("Deployment", "d", spec=_workload(t, 1, 0.4))
    await _pods(t, 1)
    await t.patch("Deployment", "d", {"spec": {"replicas": 3}})
    (first, *_) = await _pods(t, 3)
    await t.delete("Pod", first)
    assert await t.is_gone("Pod", first, SOON)
    await _pods(t, 3)
    await t.patch(
        "Deployment",
        "d",
        {"spec": {"template": {"metadata": {"labels": {"priorityClassName": "inference"}}}}},
    )
    assert await t.until(partial(_rolled, t, 3, "labels", "priorityClassName"))
    await _pods(t, 3)
    await t.delete("Deployment", "d", propagationPolicy="Foreground")
    await _is_clean(t)


@work("W3 Job completes, and is deleted in the foreground", is_short=True)
async def job(t: Tenant) -> None:
    template = t.pod_template(0.5, annotations={ENDS: ""}, restartPolicy="Never")
    await t.create("Job", "j", spec={"completions": 2, "parallelism": 2, "template": template})

    async def is_complete() -> bool:
        return bool((await t.get("Job", "j"))["status"].get("succeeded") == 2)

    assert await t.until(is_complete), t.refusals
    await t.delete("Job", "j", propagationPolicy="Foreground")
    await _is_clean(t)


@work("W4 Job suspended, its class changed, resumed")
async def suspended_job(t: Tenant) -> None:
    await t.create("Job", "j", spec={"template": t.pod_template(1, restartPolicy="Never")})
    await _pods(t, 1)
    await t.patch("Job", "j", {"spec": {"suspend": True}})
    await _pods(t, 0)
    await t.set_labels("Job", "j", {"priorityClassName": "build"})
    await t.patch("Job", "j", {"spec": {"suspend": False}})
    await _pods(t, 1)
    (group,) = [
        item
        for item in await t.objects("PodGroup")
        if item["metadata"]["name"] == await t.group_of((await _pods(t, 1))[0])
    ]
    assert group["spec"]["priorityClassName"] == "build"
    await t.delete("Job", "j", propagationPolicy="Background")
    await _is_clean(t)


@work("W5 StatefulSet: scaled, rolled, to zero, and back with another class")
async def stateful_set(t: Tenant) -> None:
    await t.create(
        "StatefulSet",
        "s",
        spec={"serviceName": "s", "podManagementPolicy": "Parallel", **_workload(t, 2, 0.4)},
    )
    await _pods(t, 2)
    await t.patch("StatefulSet", "s", {"spec": {"replicas": 3}})
    await _pods(t, 3)
    await t.patch(
        "StatefulSet", "s", {"spec": {"template": {"metadata": {"annotations": {"rolled": "yes"}}}}}
    )
    assert await t.until(partial(_rolled, t, 3, "annotations", "rolled"))
    await t.patch("StatefulSet", "s", {"spec": {"replicas": 0}})
    await _pods(t, 0)
    await t.patch(
        "StatefulSet",
        "s",
        {"spec": {"replicas": 2, "template": {"metadata": {"labels": {"priorityClassName": "inference"}}}}},
    )
    await _pods(t, 2)
    await t.delete("StatefulSet", "s", propagationPolicy="Foreground")
    await _is_clean(t)


@work("W6 gang of two ranks waits, runs, and goes in the foreground", is_short=True)
async def gang(t: Tenant) -> None:
    specs = {role: {"replicas": 1, "template": {}} for role in ("Master", "Worker")}
    await t.create("PyTorchJob", "pj", spec={"pytorchReplicaSpecs": specs})
    reference = {**await t.reference("PyTorchJob", "pj"), "controller": True, "blockOwnerDeletion": True}
    await t.pod("master", owners=[reference], labels={"training.kubeflow.org/replica-type": "master"})
    await asyncio.sleep(3)
    assert not await t.runs("master", seconds=0.1), "the gang is not whole"
    await t.pod("worker", owners=[reference], labels={"training.kubeflow.org/replica-type": "worker"})
    await _pods(t, 2)
    await t.delete("PyTorchJob", "pj", propagationPolicy="Foreground")
    await _is_clean(t)


@work("W7 preemption within the queue by a higher class", limit=2)
async def preemption(t: Tenant) -> None:
    await t.pod("low", 2)
    assert await t.runs("low")
    await t.pod("high", 2, labels={"priorityClassName": "build"})
    assert await t.runs("high"), await t.words("high")
    assert not await t.get("Pod", "low")


@work("W8 reclaim for the other queue's quota", quota=0)
async def reclaim(t: Tenant) -> None:
    await t.pod("a")
    await t.pod("b")
    await _pods(t, 2)
    assert await t.reclaimed() == "."
    assert await t.until(lambda: _has_none(t), SOON)


async def _has_none(t: Tenant) -> bool:
    return not await t.objects("PodGroup")


@work("W9 DaemonSet and Deployment with the label project, without KAI")
async def label_project(t: Tenant) -> None:
    plain = {"image": "x", "name": "main"}
    template = {"metadata": {"labels": {"run": "me", "project": "website"}}, "spec": {"containers": [plain]}}
    spec = {"selector": {"matchLabels": {"run": "me"}}, "template": template}
    await t.create("DaemonSet", "ds", spec=spec)
    await t.create("Deployment", "d", spec={**spec, "replicas": 2})
    await asyncio.sleep(4)
    deployed = await t.get("Deployment", "d")
    assert deployed["status"].get("replicas") == 2, deployed["status"]
    assert (await t.get("DaemonSet", "ds"))["status"].get("desiredNumberScheduled", 0) >= 1
    (pod, *_) = [item["metadata"]["name"] for item in await t.objects("Pod")]
    await t.set_labels("Pod", pod, {"another": "label", "project": "shop"})
    assert not t.refusals


@work("W10 pod of KAI without GPU, with queue and label project")
async def cpu_pod(t: Tenant) -> None:
    await t.pod("a", 0, labels={"project": "website"})
    await t.pod("b", 0)
    await _pods(t, 2)


@work("W11 annotations that only look like KAI's")
async def similar_keys(t: Tenant) -> None:
    await t.create(
        "Deployment",
        "d",
        annotations={"gpu-memory-note": "8 GB", "run.ai/project": "x"},
        spec=_workload(t, 1, 0.5),
    )
    await _pods(t, 1)
    await t.annotate("Deployment", "d", {"gpu-fraction": "0.5"})
    await t.annotate("Deployment", "d", {"gpu-fraction": None, "gpu-memory-note": "10 GB"})
    await t.patch(
        "Deployment", "d", {"spec": {"template": {"metadata": {"annotations": {"gpu-memory-note": "10 GB"}}}}}
    )
    assert await t.until(partial(_rolled, t, 1, "annotations", "gpu-memory-note")), t.refusals
    await _pods(t, 1)
    assert not t.refusals


@work("W12 pods from before the guard: changed, ended, deleted")
async def from_before(t: Tenant) -> None:
    await t.set_namespace(t.name, is_enforced=False)
    owner = await t.owner("o")
    await t.pod("bare", 0.5)
    await t.pod("owned", 0.5, owners=[owner])
    await t.create("Deployment", "d", spec=_workload(t, 1, 0.5))
    await _pods(t, 3)
    await t.set_namespace(t.name, is_enforced=True)
    await asyncio.sleep(1)
    await t.set_labels("Pod", "bare", {"team": "a"})
    await t.patch("Pod", "bare", {"metadata": {"finalizers": ["example.com/f"]}})
    await t.patch("Pod", "bare", {"metadata": {"finalizers": None}})
    await t.touch("owned")
    await t.patch("Deployment", "d", {"spec": {"replicas": 2}})
    await _pods(t, 4)
    for pod in ("bare", "owned"):
        await t.delete("Pod", pod)
    await t.delete("ConfigMap", "o")
    await t.delete("Deployment", "d", propagationPolicy="Foreground")
    assert not t.refusals
    await _is_clean(t)


@work("W13 queue label of the namespace changed while pods run", quota=1)
async def queue_moved(t: Tenant) -> None:
    await t.create("Deployment", "d", spec=_workload(t, 1))
    (old,) = await _pods(t, 1)
    labels = {"kai.scheduler/queue": t.other, "kaishare.dev/mode": "enforce"}
    await t.asker.merge(f"/api/v1/namespaces/{t.name}", {"metadata": {"labels": labels}})
    await asyncio.sleep(1)
    await t.touch(old)
    await asyncio.sleep(2)
    assert await t.runs(old), "running pods stay in the old queue"
    await t.patch("Deployment", "d", {"spec": {"template": {"metadata": {"labels": labels}}}})

    async def is_moved() -> bool:
        groups = await t.objects("PodGroup")
        return [group["spec"]["queue"] for group in groups] == [t.other]

    assert await t.until(is_moved), [group["spec"] for group in await t.objects("PodGroup")]
    await _pods(t, 1)


@work("W14 namespace deleted with its pods, owners and shares", is_short=True)
async def namespace_deleted(t: Tenant) -> None:
    await t.create("Deployment", "d", spec=_workload(t, 2, 0.4))
    await t.pod("owned", 0.5, owners=[await t.owner("o")])
    await t.pod("bare", 0.5)
    await _pods(t, 4)
    await t.asker.send("DELETE", f"/api/v1/namespaces/{t.name}")

    async def is_gone() -> bool:
        return (await t.asker.send("GET", f"/api/v1/namespaces/{t.name}")).status == 404

    assert await t.until(is_gone, 90), (await t.asker.send("GET", f"/api/v1/namespaces/{t.name}")).body[
        "status"
    ]


@work("W15 owner deleted before its pod, which is deleted later")
async def owner_first(t: Tenant) -> None:
    await t.pod("a", owners=[await t.owner("o"), await t.owner("k")])
    assert await t.runs("a")
    group = await t.group_of("a")
    await t.delete("ConfigMap", "o")
    assert not await t.is_gone("PodGroup", group, 6)
    await t.delete("Pod", "a")
    assert await t.is_gone("PodGroup", group, 60)


@work("W16 Job whose pod fails and is created again")
async def failing_job(t: Tenant) -> None:
    await t.create(
        "Job", "j", spec={"backoffLimit": 3, "template": t.pod_template(0.5, restartPolicy="Never")}
    )
    (pod,) = await _pods(t, 1)
    await t.asker.merge(f"{t.path('Pod', pod)}/status", {"status": {"phase": "Failed"}})

    async def is_replaced() -> bool:
        pods = await t.objects("Pod")
        return any(
            item["metadata"]["name"] != pod and item["status"].get("phase") == "Running" for item in pods
        )

    assert await t.until(is_replaced, 90)
    await t.delete("Job", "j", propagationPolicy="Foreground")
    await _is_clean(t)


@work("W17 Ray: a worker group scaled to zero and back")
async def ray(t: Tenant) -> None:
    def cluster(replicas: int) -> Object:
        group = {"groupName": "w", "replicas": replicas, "minReplicas": 0, "template": {}}
        return {"spec": {"headGroupSpec": {"template": {}}, "workerGroupSpecs": [group]}}

    await t.create("RayCluster", "rc", **cluster(1))
    owner = await t.reference("RayCluster", "rc")
    head = {"ray.io/group": "headgroup", "ray.io/node-type": "head"}
    worker = {"ray.io/group": "w", "ray.io/node-type": "worker"}
    await t.pod("head", owners=[owner], labels=head)
    await t.pod("worker", owners=[owner], labels=worker)
    await _pods(t, 2)
    await t.patch("RayCluster", "rc", cluster(0))
    await t.delete("Pod", "worker")
    await t.touch("head")
    await asyncio.sleep(5)
    await _pods(t, 1)
    await t.patch("RayCluster", "rc", cluster(1))
    await t.pod("worker", owners=[owner], labels=worker)
    await _pods(t, 2)
    await t.delete("RayCluster", "rc")
    await _is_clean(t)


@work("W18 Spark: driver, executors, application ended")
async def spark(t: Tenant) -> None:
    labels = {"spark-app-name": "x", "spark-app-selector": f"spark-{t.name}"}
    await t.pod("driver", 0, labels=labels)
    assert await t.runs("driver")
    driver = await t.reference("Pod", "driver")
    for name in ("executor-1", "executor-2"):
        await t.pod(name, owners=[driver], labels=labels)
    await _pods(t, 3)
    await t.delete("Pod", "driver")
    await _is_clean(t)


@work("W19 pods that ask for less than a GPU, many at once", gpus=4)
async def many(t: Tenant) -> None:
    for index in range(8):
        await t.pod(f"many-{index}", 0.5)
    await _pods(t, 8)
    for pod in await t.objects("Pod"):
        await t.delete("Pod", pod["metadata"]["name"])
    await _is_clean(t)


@work("W20 StatefulSet rolled to a class that is never reclaimed: waits until its old pods are gone", quota=2)
async def stateful_set_class(t: Tenant) -> None:
    await t.create("StatefulSet", "s", spec={"serviceName": "s", **_workload(t, 2, 0.4)})
    await _pods(t, 2)
    await t.patch(
        "StatefulSet",
        "s",
        {"spec": {"template": {"metadata": {"labels": {"priorityClassName": "inference"}}}}},
    )

    async def says_why() -> bool:
        words = [word for name in ("s-0", "s-1") for word in await t.words(name)]
        return any("priority and preemptibility stay" in word for word in words)

    assert await t.until(says_why)
    await t.patch("StatefulSet", "s", {"spec": {"replicas": 0}})
    await _pods(t, 0)
    await t.patch("StatefulSet", "s", {"spec": {"replicas": 2}})
    await _pods(t, 2)


@work("W21 KAI's programs restarted while pods run, wait and go", is_alone=True)
async def restarted(t: Tenant, cluster: KaiCluster) -> None:
    await t.create("Deployment", "d", spec=_workload(t, 2, 0.5))
    await t.pod("owned", 0.5, owners=[await t.owner("o")])
    await _pods(t, 3)
    await t.own("owned")
    await asyncio.to_thread(cluster.kill)
    await t.delete("ConfigMap", "o")  # the garbage collector works on, KAI does not
    await asyncio.sleep(2)
    await asyncio.to_thread(cluster.start)
    await t.until(lambda: _may_create(t), 60)
    await t.patch("Deployment", "d", {"spec": {"replicas": 3}})
    await _pods(t, 4)
    assert await t.get("PodGroup", await t.group_of("owned")), "the PodGroup of a running pod stays"
    await t.delete("Deployment", "d", propagationPolicy="Foreground")
    await t.delete("Pod", "owned")
    await _is_clean(t)


async def _may_create(t: Tenant) -> bool:
    answer = await t.asker.send(
        "POST", t.path("Pod"), {"metadata": {"name": "probe"}, "spec": t.pod_template(0)["spec"]}, dry_run=True
    )  # fmt: skip
    return answer.status < 300


@work(
    "W22 podgroup-controller stopped: PodGroups with pods stay, and an administrator can free them",
    is_alone=True,
)
async def uncounted(t: Tenant, cluster: KaiCluster) -> None:
    await t.pod("a", owners=[await t.owner("o")])
    assert await t.runs("a")
    group = await t.group_of("a")
    await t.until(lambda: _holds(t, group), SOON)
    await asyncio.to_thread(cluster.stop, "podgroupcontroller")
    await t.own("a")
    await t.delete("ConfigMap", "o")
    assert not await t.is_gone("PodGroup", group, 6), (
        "the status of the PodGroup is the last one that was written"
    )
    await t.delete("Pod", "a")
    assert await t.is_gone("Pod", "a", SOON)
    refused = await t.asker.send("DELETE", t.path("PodGroup", group))
    assert refused.status == 403, "the status still has the pod"
    freed = await t.asker.merge(f"{t.path('PodGroup', group)}/status", {"status": {"resourcesStatus": None}})
    assert freed.status == 200, freed.message
    await t.asker.send("DELETE", t.path("PodGroup", group))
    assert await t.is_gone("PodGroup", group, SOON)
    await asyncio.to_thread(cluster.start, "podgroupcontroller")


async def _holds(t: Tenant, group: str) -> bool:
    item = await t.get("PodGroup", group)
    return bool(item["status"].get("resourcesStatus", {}).get("allocated"))
