"""What controllers add to the pods of a template: Kubernetes' own, and training and serving operators.

The additions are those of the first pod of each template, read from the sources that each row of `OPERATORS`
names. Labels are complete, with stand-ins for uids and hashes; those of the built-in kinds were verified with
the controllers of Kubernetes 1.36.3 (tests/cluster/test_controller_labels.py). Variables and annotations are
only those that `webhook.policy.distributed` reads; addresses in them are stand-ins. Pure.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final, NamedTuple

from webhook.policy.pod_parts import as_list, as_map, with_containers

UID: Final = "00000000-0000-0000-0000-000000000000"
HASH: Final = "0"  # like UID a stand-in for one that exists only in a cluster
STATEFUL_SET_POD: Final = "statefulset.kubernetes.io/pod-name"
_MOST_TASKS: Final = 2_000  # of a `TF_CONFIG`; a longer one does not fit into an object of the API server
Place = tuple[str | int, ...]  # keys and indexes that lead from an object to one of its parts
_JOB: Final = ("batch/v1", "Job")
_STATEFUL_SET: Final = ("apps/v1", "StatefulSet")
_TRAINING: Final = "training.kubeflow.org"
_LWS: Final = "leaderworkerset.sigs.k8s.io"


def group_of(api_version: str) -> str:
    """Return the API group of an apiVersion; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def stateful_set_labels(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the StatefulSet controller adds to the first pod."""
    first = as_map(spec.get("ordinals")).get("start")
    ordinal = str(first) if isinstance(first, int) else "0"
    return {
        "apps.kubernetes.io/pod-index": ordinal,
        "controller-revision-hash": f"{name}-{HASH}",
        STATEFUL_SET_POD: f"{name}-{ordinal}",
    }


def job_labels(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the Job controller adds to the first pod."""
    labels = {"controller-uid": UID, "job-name": name}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    if spec.get("completionMode") == "Indexed":
        labels["batch.kubernetes.io/job-completion-index"] = "0"
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What a controller adds to a pod of a template."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)  # they follow those of the template
    only_container: str | None = None  # name of the only container with the variables; None for all
    owner: tuple[str, str] | None = None  # apiVersion and kind of the owner; None: the workload


class _Workload(NamedTuple):
    """A workload with the place of one of its pod templates."""

    kind: str
    name: str
    namespace: str
    api_version: str
    spec: Mapping[str, Any]
    path: Place


def additions_of(holder: Mapping[str, Any], path: Place) -> Additions | None:
    """Return what the controller of a workload adds to the pods of a template; None if it is not known."""
    api_version, kind = str(holder.get("apiVersion")), str(holder.get("kind"))
    additions = OPERATORS.get((group_of(api_version), kind))
    if additions is None:
        return None
    metadata = as_map(holder.get("metadata"))
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    namespace, spec = str(metadata.get("namespace") or ""), as_map(holder.get("spec"))
    return additions(_Workload(kind, name, namespace, api_version, spec, path))


def with_variables(spec: Any, added: Additions) -> Any:
    """Return a pod's spec with the variables in its containers; the given spec is not changed."""
    variables = [{"name": name, "value": value} for name, value in added.variables.items()]

    def changed(container: dict[str, Any]) -> dict[str, Any]:
        has_them = added.only_container in (None, container.get("name"))
        if not has_them or not isinstance(container.get("env") or [], list):
            return container
        return {**container, "env": [*(container.get("env") or ()), *variables]}

    return with_containers(spec, changed, ("containers",))


def with_names(spec: Any, api_version: str) -> Any:
    """Return a pod's spec with the names that a controller gives to containers without one.

    Only Knative Serving is known to do so (v1.12 pkg/apis/serving/v1/revision_defaults.go, by default).
    """
    if group_of(api_version) != "serving.knative.dev":
        return spec
    count = len(as_list(as_map(spec).get("containers")))
    names = iter(["user-container"] if count == 1 else [f"user-container-{n}" for n in range(count)])

    def named(container: dict[str, Any]) -> dict[str, Any]:
        name = next(names)
        return {**container, "name": container.get("name") or name}

    return with_containers(spec, named, ("containers",))


def _count(value: Any, default: int = 1) -> int:
    """Return a number of replicas; the API server refuses other types, which count as absent."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


_TYPES: Final = {kind.lower(): kind for kind in ("Master", "Worker", "Launcher", "PS", "Chief", "Evaluator")}


class _Replicas(NamedTuple):
    """The replica types of a training job, and the one of the template."""

    job: _Workload
    kind: str  # type of the template, such as `Worker`
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def world(self, processes: int = 1) -> dict[str, str]:
        """Return the variables of a job whose ranks find each other by a master."""
        rank = self.counts.get("Master", 0) if self.kind == "Worker" else 0
        size = str(self.total * processes)
        return {"MASTER_ADDR": f"{self.job.name}-master-0", "WORLD_SIZE": size, "RANK": str(rank)}


def _kind_of(name: Any) -> str:
    """Return a replica type, which the operator accepts in any case."""
    return _TYPES.get(str(name).lower(), str(name))


def _training_job(
    key: str,
    variables: Callable[[_Replicas], Mapping[str, str]] = lambda _replicas: {},
    *,
    masters: Collection[str] = ("Master",),
    or_worker: bool = False,
    only_container: str | None = None,
) -> Callable[[_Workload], Additions | None]:
    """Return what adds to the templates of a job with replica types below a key of its spec.

    The pods of `masters` have the role of a master; with `or_worker` those of a Worker, if there is no such.
    """

    def added(job: _Workload) -> Additions | None:
        if len(job.path) != 4 or (*job.path[:2], job.path[3]) != ("spec", key, "template"):
            return None
        counts = {
            _kind_of(name): _count(as_map(each).get("replicas"))
            for name, each in as_map(job.spec.get(key)).items()
        }
        replicas = _Replicas(job, _kind_of(job.path[2]), counts)
        labels = {
            f"{_TRAINING}/operator-name": f"{job.kind.lower()}-controller",
            f"{_TRAINING}/job-name": job.name,
            f"{_TRAINING}/replica-type": replicas.kind.lower(),
            f"{_TRAINING}/replica-index": "0",
        }
        roles = ("Worker",) if or_worker and not counts.keys() & masters else masters
        labels |= {f"{_TRAINING}/job-role": "master"} if replicas.kind in roles else {}
        return Additions(labels=labels, variables=variables(replicas), only_container=only_container)

    return added


def _py_torch_variables(replicas: _Replicas) -> dict[str, str]:
    spec, nodes = replicas.job.spec, str(replicas.total)
    processes = str(spec.get("nprocPerNode") or "")
    is_number = processes.isascii() and processes.isdigit() and len(processes) < 10
    world = replicas.world(int(processes) if is_number else 1) if "Master" in replicas.counts else {}
    if isinstance(elastic := spec.get("elasticPolicy"), dict):
        workers = replicas.counts.get("Worker", 1)
        fewest, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
        nodes = f"{_count(fewest, _count(most, workers))}:{_count(most, _count(fewest, workers))}"
    return {**world, "PET_NNODES": nodes}


def _tf_variables(replicas: _Replicas) -> dict[str, str]:
    if replicas.total == 1:
        return {}
    job, cluster = replicas.job, dict[str, Any]()
    left = _MOST_TASKS
    for kind, count in replicas.counts.items():
        name = f"{job.name}-{kind.lower()}"
        tasks = [f"{name}-{index}.{job.namespace}.svc:2222" for index in range(min(count, left))]
        cluster[kind.lower()] = tasks
        left -= len(tasks)
    if job.spec.get("enableDynamicWorker") is True:
        workers = dict(enumerate(cluster.get("worker", ())[:1])) if replicas.kind == "Worker" else {}
        cluster = {"worker": workers, "ps": cluster.get("ps") or None}
    task = {"type": replicas.kind.lower(), "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


_by_training_operator: Final = _training_job("mpiReplicaSpecs", masters=("Launcher",))


def _mpi_job(job: _Workload) -> Additions | None:
    added = _by_training_operator(job)
    if added is None:
        return None
    is_launcher, index = _kind_of(job.path[2]) == "Launcher", f"{_TRAINING}/replica-index"
    if not job.api_version.endswith("/v2beta1"):
        kept = {key: value for key, value in added.labels.items() if key != index or not is_launcher}
        return Additions(labels=kept)
    labels = {
        f"{_TRAINING}/operator-name": "mpi-operator",
        f"{_TRAINING}/job-name": job.name,
        f"{_TRAINING}/job-role": _kind_of(job.path[2]).lower(),
    }
    also_worker = job.spec.get("runLauncherAsWorker") is True
    if also_worker or not is_launcher:
        labels[index] = "1" if also_worker and not is_launcher else "0"
    if not is_launcher:
        return Additions(labels=labels)
    return Additions(labels=labels | job_labels(f"{job.name}-launcher", {}), owner=_JOB)


def _job_set(workload: _Workload) -> Additions | None:
    jobs, path = workload.spec.get("replicatedJobs"), workload.path
    if path[:2] != ("spec", "replicatedJobs") or path[3:] != ("template", "spec", "template"):
        return None
    if not isinstance(jobs, list) or not isinstance(path[2], int):
        return None
    index, job = path[2], as_map(jobs[path[2]])
    name, group = str(job.get("name") or ""), str(job.get("groupName") or "default")
    replicas = [_count(as_map(other).get("replicas")) for other in jobs]
    is_of_group = [str(as_map(other).get("groupName") or "default") == group for other in jobs]
    entries = {
        "jobset-name": workload.name,
        "jobset-uid": UID,
        "replicatedjob-name": name,
        "replicatedjob-replicas": str(replicas[index]),
        "global-replicas": str(sum(replicas)),
        "restart-attempt": "0",
        "job-index": "0",
        "job-global-index": str(sum(replicas[:index])),
        "job-key": HASH,
        "group-name": group,
        "group-replicas": str(sum(compress(replicas, is_of_group))),
        "job-group-index": str(sum(compress(replicas[:index], is_of_group))),
    }
    coordinator = workload.spec.get("coordinator")
    if isinstance(coordinator, dict):
        pod = [workload.name, coordinator.get("replicatedJob") or ""]
        pod += [coordinator.get(index) or 0 for index in ("jobIndex", "podIndex")]
        network = as_map(workload.spec.get("network"))
        entries["coordinator"] = f"{'-'.join(map(str, pod))}.{network.get('subdomain') or workload.name}"
    entries = {f"jobset.sigs.k8s.io/{key}": text for key, text in entries.items()}
    spec = as_map(as_map(job.get("template")).get("spec"))
    by_job = job_labels(f"{workload.name}-{name}-0", {"completionMode": "Indexed", **spec})
    return Additions(labels=entries | by_job, annotations=entries, owner=_JOB)


def _leader_worker_set(workload: _Workload) -> Additions | None:
    groups = as_map(workload.spec.get("leaderWorkerTemplate"))
    size = _count(groups.get("size"))
    is_leader = workload.path == ("spec", "leaderWorkerTemplate", "leaderTemplate")
    is_worker = workload.path == ("spec", "leaderWorkerTemplate", "workerTemplate")
    if is_leader or (is_worker and size == 1 and groups.get("leaderTemplate") is None):
        # The leader of a group without workers is made from their template.
        labels = {f"{_LWS}/worker-index": "0", **stateful_set_labels(workload.name, {})}
    elif is_worker:
        by_set = stateful_set_labels(f"{workload.name}-0", {"ordinals": {"start": 1}})
        labels = {f"{_LWS}/group-index": "0", f"{_LWS}/group-key": HASH, **by_set}
    else:
        return None
    labels |= {f"{_LWS}/name": workload.name, f"{_LWS}/template-revision-hash": HASH}
    return Additions(labels=labels, annotations={f"{_LWS}/size": str(size)}, owner=_STATEFUL_SET)


OPERATORS: Final[Mapping[tuple[str, str], Callable[[_Workload], Additions | None]]] = {
    # training-operator v1.9.0 pkg/controller.v1: pytorch/envvar.go, pytorch/elastic.go,
    # tensorflow/tensorflow.go, tensorflow/util.go, xgboost/xgboost.go, jax/envvar.go, paddlepaddle/envvar.go
    ("kubeflow.org", "PyTorchJob"): _training_job("pytorchReplicaSpecs", _py_torch_variables, or_worker=True),
    ("kubeflow.org", "TFJob"): _training_job(
        "tfReplicaSpecs",
        _tf_variables,
        masters=("Chief", "Master"),
        or_worker=True,
        only_container="tensorflow",
    ),
    ("kubeflow.org", "XGBoostJob"): _training_job("xgbReplicaSpecs", _Replicas.world),
    ("kubeflow.org", "JAXJob"): _training_job(
        "jaxReplicaSpecs", lambda replicas: {"NUM_PROCESSES": str(replicas.total)}, or_worker=True
    ),
    ("kubeflow.org", "PaddleJob"): _training_job(
        "paddleReplicaSpecs", lambda replicas: {"PADDLE_NNODES": str(replicas.total)}
    ),
    # the same, mpi; mpi-operator v0.8.0 pkg/controller/mpi_job_controller.go
    ("kubeflow.org", "MPIJob"): _mpi_job,
    # JobSet v0.12.0 pkg/controllers/jobset_controller.go
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    # LeaderWorkerSet v0.10.0 pkg/controllers/leaderworkerset_controller.go, pod_controller.go
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
}
"""What the controllers add, by API group and kind; None for a place without a pod template of the kind.

A TrainJob names a runtime, whose templates are not in its manifest. Volcano's plugins are not followed: its
Jobs have their own scheduler.
"""


def scheduler_of(holder: Mapping[str, Any], path: Place, spec: Mapping[str, Any]) -> str:
    """Return the scheduler of a template's pods that their workload names in a field of its own; else empty.

    Volcano's controller fills in the Job's `schedulerName` where a template has none, and its webhook fills
    in `volcano` where the Job has none (pkg/controllers/job job_controller_util.go,
    pkg/webhooks/admission/jobs/mutate). KubeRay writes the scheduler of the label ray.io/scheduler-name
    (ray-operator controllers/ray/batchscheduler), and the Spark operator `batchScheduler`, else
    `schedulerName` of driver or executor (internal/webhook addSchedulerName), over the template's. A
    `spec.schedulerName` of another kind can be for its pods only.
    """
    group, kind = group_of(str(holder.get("apiVersion"))), str(holder.get("kind"))
    own, name = as_map(holder.get("spec")), spec.get("schedulerName")
    if group == "batch.volcano.sh":
        job = as_map(as_map(own.get("jobTemplate")).get("spec")) if kind == "CronJob" else own
        name = name or job.get("schedulerName") or "volcano"
    elif group == "ray.io":
        label = as_map(as_map(holder.get("metadata")).get("labels")).get("ray.io/scheduler-name")
        name = _RAY_SCHEDULERS.get(label, label) if isinstance(label, str) and label else name
    elif group == "sparkoperator.k8s.io":
        application = as_map(own.get("template")) if kind == "ScheduledSparkApplication" else own
        role = as_map(application.get(str(path[-2]))) if len(path) > 1 else {}
        name = application.get("batchScheduler") or role.get("schedulerName") or name
    else:  # such as NVIDIA's NIMService
        name = name or own.get("schedulerName")
    return name if isinstance(name, str) else ""


_RAY_SCHEDULERS: Final = {"scheduler-plugins": "scheduler-plugins-scheduler"}  # by KubeRay's name of a plugin
