"""Ordinary work that the guard must let through, as KAI's own programs run it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.kai_programs import steps as do
from tests.kai_programs.steps import Step
from tests.support.kai_programs import ENDS, KaiCluster
from tests.support.kai_tenant import GPU, Object, Tenant

SOON: Final = 20.0
"""Seconds after which garbage is gone at the latest."""
_FOREGROUND: Final = {"propagationPolicy": "Foreground"}
_SPARK: Final = {"spark-app-name": "x", "spark-app-selector": "spark-$name"}
_INFERENCE: Final = {"priorityClassName": "inference"}


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


def work(title: str, *steps: Step, **row: Any) -> Work:
    return Work(title=title, steps=partial(do.take, steps), **row)


# --- What must hold --------------------------------------------------------------------------------------------------


def _holds(what: str, condition: Callable[[Tenant], Awaitable[Any]], seconds: float = 60) -> Step:
    async def step(t: Tenant) -> None:
        assert await t.until(partial(condition, t), seconds), (
            f"{t.name}: not so: {what}; refused: {t.refusals}"
        )

    return step


async def _running(t: Tenant, count: int) -> list[str]:
    """Wait until so many pods of alice run, and no others exist; return their names."""
    names: list[str] = []

    async def is_so() -> bool:
        pods = await t.objects("Pod")
        pods = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
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


def running(count: int) -> Step:
    return lambda t: _running(t, count)


async def _is_clean(t: Tenant) -> bool:
    return not await t.objects("Pod") and not await t.objects("PodGroup")


def clean() -> Step:
    return _holds("no pod and no PodGroup of alice is left", _is_clean)


def gone(target: str, seconds: float = SOON) -> Step:
    kind, _, name = target.rpartition("/")

    async def step(t: Tenant) -> None:
        assert await t.is_gone(kind or "Pod", name, seconds), f"{target} is still there"

    return step


def nothing_refused() -> Step:
    async def step(t: Tenant) -> None:
        assert not t.refusals

    return step


def rolled(target: str, count: int, part: str, keys: dict[str, str]) -> Step:
    """Write labels or annotations into a workload's template, and wait until so many pods, and no others, have them."""

    async def has_rolled(t: Tenant) -> bool:
        pods = await t.objects("Pod")
        return len(pods) == count and all(pod["metadata"][part].keys() >= keys.keys() for pod in pods)

    change = do.patch(target, {"spec": {"template": {"metadata": {part: keys}}}})
    return partial(do.take, (change, _holds(f"{count} pods have {keys}", has_rolled), running(count)))


def scaled(target: str, replicas: int) -> Step:
    return partial(do.take, (do.patch(target, {"spec": {"replicas": replicas}}), running(replicas)))


def _workload(t: Tenant, replicas: int, gpus: float = 1, **template: Any) -> Object:
    selected = {"run": "me"}
    pods = t.pod_template(gpus, labels=selected, **template)
    return {"replicas": replicas, "selector": {"matchLabels": selected}, "template": pods}


def workload(
    target: str,
    replicas: int,
    gpus: float = 1,
    annotations: dict[str, str] | None = None,
    *,
    policy: str = "Parallel",
) -> Step:
    kind, _, name = target.partition("/")
    own = {"serviceName": name, "podManagementPolicy": policy} if kind == "StatefulSet" else {}
    return lambda t: t.create(
        kind, name, annotations=annotations, spec={**own, **_workload(t, replicas, gpus)}
    )


# --- Rows that have steps of their own -------------------------------------------------------------------------------


async def _nothing_allocated(t: Tenant) -> bool:
    answer = await t.asker.send("GET", f"/apis/scheduling.run.ai/v2/queues/{t.queue}")
    return answer.body.get("status", {}).get("allocated", {}).get(GPU, "0") in ("0", "0m")


async def _delete_a_pod(t: Tenant) -> None:
    (first, *_) = await _running(t, 3)
    await t.delete("Pod", first)
    assert await t.is_gone("Pod", first, SOON)


async def _short_job(t: Tenant) -> None:
    template = t.pod_template(0.5, annotations={ENDS: ""}, restartPolicy="Never")
    await t.create("Job", "j", spec={"completions": 2, "parallelism": 2, "template": template})


async def _is_complete(t: Tenant) -> bool:
    return bool((await t.get("Job", "j"))["status"].get("succeeded") == 2)


async def _class_is_build(t: Tenant) -> None:
    (pod,) = await _running(t, 1)
    group = await t.get("PodGroup", await t.group_of(pod))
    assert group["spec"]["priorityClassName"] == "build"


async def _waits(t: Tenant) -> None:
    await asyncio.sleep(3)
    assert not await t.runs("master", seconds=0.1), "the gang is not whole"


async def _has_no_group(t: Tenant) -> bool:
    return not await t.objects("PodGroup")


async def _reclaimed(t: Tenant) -> None:
    assert await t.reclaimed() == "."


async def _label_project(t: Tenant) -> None:
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


async def _queue_moved(t: Tenant) -> None:
    (old,) = await _running(t, 1)
    labels = {"kai.scheduler/queue": t.other, "kaishare.dev/mode": "enforce"}
    await t.asker.merge(f"/api/v1/namespaces/{t.name}", {"metadata": {"labels": labels}})
    await asyncio.sleep(1)
    await t.touch(old)
    await asyncio.sleep(2)
    assert await t.runs(old), "running pods stay in the old queue"
    await t.patch("Deployment", "d", {"spec": {"template": {"metadata": {"labels": labels}}}})


async def _is_moved(t: Tenant) -> bool:
    return [group["spec"]["queue"] for group in await t.objects("PodGroup")] == [t.other]


async def _namespace_is_gone(t: Tenant) -> bool:
    return (await t.asker.send("GET", f"/api/v1/namespaces/{t.name}")).status == 404


async def _owner_first(t: Tenant) -> None:
    group = await t.group_of("a")
    await t.delete("ConfigMap", "o")
    assert not await t.is_gone("PodGroup", group, 6)
    await t.delete("Pod", "a")
    assert await t.is_gone("PodGroup", group, 60)


async def _failing_job(t: Tenant) -> None:
    spec = {"backoffLimit": 3, "template": t.pod_template(0.5, restartPolicy="Never")}
    await t.create("Job", "j", spec=spec)
    (pod,) = await _running(t, 1)
    await t.asker.merge(f"{t.path('Pod', pod)}/status", {"status": {"phase": "Failed"}})

    async def is_replaced() -> bool:
        pods = await t.objects("Pod")
        others = (item for item in pods if item["metadata"]["name"] != pod)
        return any(item["status"].get("phase") == "Running" for item in others)

    assert await t.until(is_replaced, 90)


def _ray(replicas: int) -> Object:
    group = {"groupName": "w", "replicas": replicas, "minReplicas": 0, "template": {}}
    return {"spec": {"headGroupSpec": {"template": {}}, "workerGroupSpecs": [group]}}


_ray_worker: Final = do.pod(
    "worker", 1, ["RayCluster/rc"], labels={"ray.io/group": "w", "ray.io/node-type": "worker"}
)


async def _gang_owner(t: Tenant, role: str) -> None:
    owner = {**await t.reference("PyTorchJob", "pj"), "controller": True, "blockOwnerDeletion": True}
    await t.pod(role, owners=[owner], labels={"training.kubeflow.org/replica-type": role})


async def _says_why(t: Tenant) -> bool:
    words = [word for name in ("s-0", "s-1") for word in await t.words(name)]
    return any("priority and preemptibility stay" in word for word in words)


async def _restarted(t: Tenant, cluster: KaiCluster) -> None:
    await do.take(
        (workload("Deployment/d", 2, 0.5), do.pod("owned", 0.5, ["o"]), running(3), do.own("owned")), t
    )
    await asyncio.to_thread(cluster.kill)
    await t.delete("ConfigMap", "o")  # the garbage collector works on, KAI does not
    await asyncio.sleep(2)
    await asyncio.to_thread(cluster.start)

    async def may_create() -> bool:
        probe = {"metadata": {"name": "probe"}, "spec": t.pod_template(0)["spec"]}
        return (await t.asker.send("POST", t.path("Pod"), probe, dry_run=True)).status < 300

    await t.until(may_create, 60)
    await t.patch("Deployment", "d", {"spec": {"replicas": 3}})
    await _running(t, 4)
    assert await t.get("PodGroup", await t.group_of("owned")), "the PodGroup of a running pod stays"
    await do.take((do.delete("Deployment/d", **_FOREGROUND), do.delete("owned"), clean()), t)


async def _uncounted(t: Tenant, cluster: KaiCluster) -> None:
    await do.take((do.pod("a", 1, ["o"]), do.all_run("a")), t)
    group = await t.group_of("a")

    async def is_counted() -> bool:
        item = await t.get("PodGroup", group)
        return bool(item["status"].get("resourcesStatus", {}).get("allocated"))

    await t.until(is_counted, SOON)
    await asyncio.to_thread(cluster.stop, "podgroupcontroller")
    await t.own("a")
    await t.delete("ConfigMap", "o")
    assert not await t.is_gone("PodGroup", group, 6), "the PodGroup's status is the last one that was written"
    await t.delete("Pod", "a")
    assert await t.is_gone("Pod", "a", SOON)
    refused = await t.asker.send("DELETE", t.path("PodGroup", group))
    assert refused.status == 403, "the status still has the pod"
    freed = await t.asker.merge(f"{t.path('PodGroup', group)}/status", {"status": {"resourcesStatus": None}})
    assert freed.status == 200, freed.message
    await t.asker.send("DELETE", t.path("PodGroup", group))
    assert await t.is_gone("PodGroup", group, SOON)
    await asyncio.to_thread(cluster.start, "podgroupcontroller")


WORK: Final[list[Work]] = [
    work(
        "W1 whole GPU, half and gpu-memory run, are counted, and go",
        do.pod("whole"), do.pod("half", 0.5), do.pod("memory", 0, annotations={"gpu-memory": "5000"}), running(3),
        do.delete("whole"), do.delete("half"), do.delete("memory"), clean(), _holds("the queue has 0 GPUs", _nothing_allocated, 30), is_short=True,
    ),
    work(
        "W2 Deployment: scaled, a pod deleted, rolled with another class, deleted in the foreground",
        workload("Deployment/d", 1, 0.4), running(1), scaled("Deployment/d", 3), _delete_a_pod, running(3),
        rolled("Deployment/d", 3, "labels", _INFERENCE), do.delete("Deployment/d", **_FOREGROUND), clean(), is_short=True,
    ),
    work(
        "W3 Job completes, and is deleted in the foreground",
        _short_job, _holds("the Job is complete", _is_complete), do.delete("Job/j", **_FOREGROUND), clean(), is_short=True,
    ),
    work(
        "W4 Job suspended, its class changed, resumed",
        do.job(), running(1), do.patch("Job/j", {"spec": {"suspend": True}}), running(0), do.label("Job/j", {"priorityClassName": "build"}),
        do.patch("Job/j", {"spec": {"suspend": False}}), running(1), _class_is_build, do.delete("Job/j", propagationPolicy="Background"), clean(),
    ),
    work(
        "W5 StatefulSet: scaled, rolled, to zero, and back with another class",
        workload("StatefulSet/s", 2, 0.4), running(2), scaled("StatefulSet/s", 3), rolled("StatefulSet/s", 3, "annotations", {"rolled": "yes"}),
        scaled("StatefulSet/s", 0), do.patch("StatefulSet/s", {"spec": {"replicas": 2, "template": {"metadata": {"labels": _INFERENCE}}}}),
        running(2), do.delete("StatefulSet/s", **_FOREGROUND), clean(),
    ),
    work(
        "W6 gang of two ranks waits, runs, and goes in the foreground",
        do.create("PyTorchJob/pj", spec={"pytorchReplicaSpecs": {role: {"replicas": 1, "template": {}} for role in ("Master", "Worker")}}),
        partial(_gang_owner, role="master"), _waits, partial(_gang_owner, role="worker"), running(2),
        do.delete("PyTorchJob/pj", **_FOREGROUND), clean(), is_short=True,
    ),
    work(
        "W7 preemption within the queue by a higher class",
        do.pod("low", 2), do.all_run("low"), do.pod("high", 2, labels={"priorityClassName": "build"}), do.all_run("high"), gone("low", 0), limit=2,
    ),
    work(
        "W8 reclaim for the other queue's quota",
        do.pod("a"), do.pod("b"), running(2), _reclaimed, _holds("no PodGroup is left", _has_no_group, SOON), quota=0,
    ),
    work("W9 DaemonSet and Deployment with the label project, without KAI", _label_project, nothing_refused()),
    work("W10 pod of KAI without GPU, with queue and label project", do.pod("a", 0, labels={"project": "website"}), do.pod("b", 0), running(2)),
    work(
        "W11 annotations that only look like KAI's",
        workload("Deployment/d", 1, 0.5, {"gpu-memory-note": "8 GB", "run.ai/project": "x"}), running(1),
        do.annotate("Deployment/d", {"gpu-fraction": "0.5"}), do.annotate("Deployment/d", {"gpu-fraction": None, "gpu-memory-note": "10 GB"}),
        rolled("Deployment/d", 1, "annotations", {"gpu-memory-note": "10 GB"}), nothing_refused(),
    ),
    work(
        "W12 pods from before the guard: changed, ended, deleted",
        do.enforced(again=False), do.pod("bare", 0.5), do.pod("owned", 0.5, ["o"]), workload("Deployment/d", 1, 0.5), running(3),
        do.enforced(again=True), do.wait(1), do.label("bare", {"team": "a"}), do.patch("bare", {"metadata": {"finalizers": ["example.com/f"]}}),
        do.patch("bare", {"metadata": {"finalizers": None}}), do.touch("owned"), do.patch("Deployment/d", {"spec": {"replicas": 2}}), running(4),
        do.delete("bare"), do.delete("owned"), do.delete("ConfigMap/o"), do.delete("Deployment/d", **_FOREGROUND), nothing_refused(), clean(),
    ),
    work(
        "W13 queue label of the namespace changed while pods run",
        workload("Deployment/d", 1), _queue_moved, _holds("the PodGroup is in the other queue", _is_moved), running(1), quota=1,
    ),
    work(
        "W14 namespace deleted with its pods, owners and shares",
        workload("Deployment/d", 2, 0.4), do.pod("owned", 0.5, ["o"]), do.pod("bare", 0.5), running(4),
        lambda t: t.asker.send("DELETE", f"/api/v1/namespaces/{t.name}"), _holds("the namespace is gone", _namespace_is_gone, 90), is_short=True,
    ),
    work("W15 owner deleted before its pod, which is deleted later", do.pod("a", 1, ["o", "k"]), do.all_run("a"), _owner_first),
    work("W16 Job whose pod fails and is created again", _failing_job, do.delete("Job/j", **_FOREGROUND), clean()),
    work(
        "W17 Ray: a worker group scaled to zero and back",
        do.create("RayCluster/rc", **_ray(1)),
        do.pod("head", 1, ["RayCluster/rc"], labels={"ray.io/group": "headgroup", "ray.io/node-type": "head"}), _ray_worker, running(2),
        do.patch("RayCluster/rc", _ray(0)), do.delete("worker"), do.touch("head"), do.wait(5), running(1),
        do.patch("RayCluster/rc", _ray(1)), _ray_worker, running(2), do.delete("RayCluster/rc"), clean(),
    ),
    work(
        "W18 Spark: driver, executors, application ended",
        do.pod("driver", 0, labels=_SPARK), do.all_run("driver"), do.pod("executor-1", 1, ["Pod/driver"], labels=_SPARK),
        do.pod("executor-2", 1, ["Pod/driver"], labels=_SPARK), running(3), do.delete("driver"), clean(),
    ),
    work(
        "W19 pods that ask for less than a GPU, many at once",
        *(do.pod(f"many-{index}", 0.5) for index in range(8)), running(8), *(do.delete(f"many-{index}") for index in range(8)), clean(), gpus=4,
    ),
    work(
        "W20 StatefulSet rolled to a class that is never reclaimed: waits until its old pods are gone",
        workload("StatefulSet/s", 2, 0.4, policy="OrderedReady"), running(2), do.patch("StatefulSet/s", {"spec": {"template": {"metadata": {"labels": _INFERENCE}}}}),
        _holds("KAI's words say why", _says_why), scaled("StatefulSet/s", 0), scaled("StatefulSet/s", 2), quota=2,
    ),
    Work(title="W21 KAI's programs restarted while pods run, wait and go", steps=_restarted, is_alone=True),
    Work(
        title="W22 podgroup-controller stopped: PodGroups with pods stay, and an administrator can free them",
        steps=_uncounted, is_alone=True,
    ),
]  # fmt: skip
