"""What controllers add to the pods of a template: Kubernetes' own, and training and serving operators.

The additions are those of the first pod of each template, read from the sources that each row of `OPERATORS`
names. Labels are complete, with stand-ins for uids and hashes; those of the built-in kinds were verified with
the controllers of Kubernetes 1.36.3 (tests/cluster/test_controller_labels.py). Variables and annotations are
only those that `webhook.policy.distributed` reads; addresses in them are stand-ins. Pure.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

from console.explain.pod_documents import as_list, as_map, with_containers
from service.documents import Place

UID: Final = "00000000-0000-0000-0000-000000000000"
HASH: Final = "0"
"""Stand-ins for a uid and a hash, which exist only in a cluster."""
STATEFUL_SET_POD: Final = "statefulset.kubernetes.io/pod-name"
_MOST_TASKS: Final = 20_000
"""Tasks that a `TF_CONFIG` lists at most. The real one would not fit into an object of the API server."""
_JOB: Final = ("batch/v1", "Job")
_STATEFUL_SET: Final = ("apps/v1", "StatefulSet")
_TRAINING: Final = "training.kubeflow.org"
_JOB_SET: Final = "jobset.sigs.k8s.io"
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
    labels = {
        "batch.kubernetes.io/controller-uid": UID,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": UID,
        "job-name": name,
    }
    if spec.get("completionMode") == "Indexed":
        labels["batch.kubernetes.io/job-completion-index"] = "0"
    return labels


def added_labels(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the controller of a built-in kind adds to a pod of a workload's `spec`."""
    match kind:
        case "Deployment":
            return {"pod-template-hash": HASH}
        case "DaemonSet":
            return {"controller-revision-hash": HASH, "pod-template-generation": "1"}
        case "StatefulSet":
            return stateful_set_labels(name, spec)
        case "Job":
            return job_labels(name, spec)
        case "CronJob":  # the number of its Job is a stand-in
            return job_labels(f"{name}-0", as_map(as_map(spec.get("jobTemplate")).get("spec")))
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What a controller adds to a pod of a template."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, which follow those of the template."""
    only_container: str | None = None
    """Name of the only container with the variables; None for every container."""
    owner: tuple[str, str] | None = None
    """apiVersion and kind of the pod's owner; None if the workload itself is the owner."""


@dataclass(frozen=True, slots=True)
class _Workload:
    """A workload with the place of one of its pod templates."""

    name: str
    namespace: str
    version: str
    """apiVersion."""
    spec: Mapping[str, Any]
    path: Place
    """Place of the template in the workload."""


def additions_of(holder: Mapping[str, Any], path: Place) -> Additions | None:
    """Return what the controller of a workload adds to the pods of a template; None if it is not known.

    Args:
        holder: the workload as written.
        path: the place of the template in it.
    """
    api_version, kind = holder.get("apiVersion"), holder.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    additions = OPERATORS.get((group_of(api_version), kind))
    if additions is None:
        return None
    metadata = as_map(holder.get("metadata"))
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    namespace = str(metadata.get("namespace") or "")
    return additions(_Workload(name, namespace, api_version, as_map(holder.get("spec")), path))


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

    Only Knative Serving is known to do so (v1.12 pkg/apis/serving/v1/revision_defaults.go; the name is that
    of its default configuration). The spec of another group is returned as it is.
    """
    if group_of(api_version) != _KNATIVE:
        return spec
    count = len(as_list(as_map(spec).get("containers")))
    names = iter([_USER_CONTAINER] if count == 1 else [f"{_USER_CONTAINER}-{n}" for n in range(count)])

    def named(container: dict[str, Any]) -> dict[str, Any]:
        name = next(names)
        return {**container, "name": container.get("name") or name}

    return with_containers(spec, named, ("containers",))


_KNATIVE: Final = "serving.knative.dev"
_USER_CONTAINER: Final = "user-container"


def _count(value: Any, default: int = 1) -> int:
    """Return a number of replicas; the API server refuses other types, which count as absent."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


@dataclass(frozen=True, slots=True)
class _Replicas:
    """The replica types of a training job, and the one of the template."""

    kind: str
    """Type of the template, such as `Worker`."""
    counts: Mapping[str, int]
    """Replicas by type."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


_TYPES: Final = ("Master", "Worker", "Launcher", "PS", "Chief", "Evaluator")


def _replicas(workload: _Workload, key: str, *, worker_default: int = 1) -> _Replicas | None:
    """Return the replica types below a key of the spec; None if the template is elsewhere."""
    if len(workload.path) != 4 or (*workload.path[:2], workload.path[3]) != ("spec", key, "template"):
        return None
    names = {name.lower(): name for name in _TYPES}  # the operator accepts any case
    counts = {}
    for name, replica_spec in as_map(workload.spec.get(key)).items():
        kind = names.get(str(name).lower(), str(name))
        default = worker_default if kind == "Worker" else 1
        counts[kind] = _count(as_map(replica_spec).get("replicas"), default)
    written = str(workload.path[2])
    return _Replicas(names.get(written.lower(), written), counts)


def _training_labels(
    workload: _Workload, replicas: _Replicas, controller: str, *, is_master: bool
) -> dict[str, str]:
    labels = {
        f"{_TRAINING}/operator-name": controller,
        f"{_TRAINING}/job-name": workload.name,
        f"{_TRAINING}/replica-type": replicas.kind.lower(),
        f"{_TRAINING}/replica-index": "0",
    }
    return labels | ({f"{_TRAINING}/job-role": "master"} if is_master else {})


def _rank(replicas: _Replicas) -> str:
    return str(replicas.counts.get("Master", 0) if replicas.kind == "Worker" else 0)


def _py_torch_job(workload: _Workload) -> Additions | None:
    replicas = _replicas(workload, "pytorchReplicaSpecs")
    if replicas is None:
        return None
    has_master = "Master" in replicas.counts
    variables = {}
    if has_master:
        processes = str(workload.spec.get("nprocPerNode") or "")
        each = int(processes) if processes.isascii() and processes.isdigit() and len(processes) < 10 else 1
        variables = {
            "MASTER_ADDR": f"{workload.name}-master-0",
            "WORLD_SIZE": str(replicas.total * each),
            "RANK": _rank(replicas),
        }
    elastic = workload.spec.get("elasticPolicy")
    if isinstance(elastic, dict):
        workers = replicas.counts.get("Worker", 1)
        fewest, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
        span = _count(fewest, _count(most, workers)), _count(most, _count(fewest, workers))
        variables["PET_NNODES"] = "{}:{}".format(*span)
    else:
        variables["PET_NNODES"] = str(replicas.total)
    is_master = replicas.kind == ("Master" if has_master else "Worker")
    labels = _training_labels(workload, replicas, "pytorchjob-controller", is_master=is_master)
    return Additions(labels=labels, variables=variables)


def _tf_job(workload: _Workload) -> Additions | None:
    replicas = _replicas(workload, "tfReplicaSpecs")
    if replicas is None:
        return None
    chiefs = [kind for kind in ("Chief", "Master") if kind in replicas.counts]
    labels = _training_labels(
        workload, replicas, "tfjob-controller", is_master=replicas.kind in (chiefs or ("Worker",))
    )
    if replicas.total == 1:
        return Additions(labels=labels)
    cluster: dict[str, Any] = {}
    left = _MOST_TASKS
    for kind, count in replicas.counts.items():
        name = f"{workload.name}-{kind.lower()}"
        tasks = [f"{name}-{index}.{workload.namespace}.svc:2222" for index in range(min(count, left))]
        cluster[kind.lower()] = tasks
        left -= len(tasks)
    if workload.spec.get("enableDynamicWorker") is True:
        servers = cluster.get("ps") or None
        cluster = {"worker": dict(enumerate(cluster.get("worker", ())[:1])), "ps": servers}
        if replicas.kind != "Worker":
            cluster["worker"] = {}
    config = {"cluster": cluster, "task": {"type": replicas.kind.lower(), "index": 0}}
    variables = {"TF_CONFIG": json.dumps(config)}
    return Additions(labels=labels, variables=variables, only_container="tensorflow")


def _xg_boost_job(workload: _Workload) -> Additions | None:
    replicas = _replicas(workload, "xgbReplicaSpecs")
    if replicas is None:
        return None
    variables = {
        "MASTER_ADDR": f"{workload.name}-master-0",
        "WORLD_SIZE": str(replicas.total),
        "RANK": _rank(replicas),
    }
    labels = _training_labels(
        workload, replicas, "xgboostjob-controller", is_master=replicas.kind == "Master"
    )
    return Additions(labels=labels, variables=variables)


def _jax_job(workload: _Workload) -> Additions | None:
    replicas = _replicas(workload, "jaxReplicaSpecs")
    if replicas is None:
        return None
    labels = _training_labels(workload, replicas, "jaxjob-controller", is_master=True)
    return Additions(labels=labels, variables={"NUM_PROCESSES": str(replicas.total)})


def _paddle_job(workload: _Workload) -> Additions | None:
    replicas = _replicas(workload, "paddleReplicaSpecs")
    if replicas is None:
        return None
    labels = _training_labels(workload, replicas, "paddlejob-controller", is_master=replicas.kind == "Master")
    return Additions(labels=labels, variables={"PADDLE_NNODES": str(replicas.total)})


def _mpi_job(workload: _Workload) -> Additions | None:
    replicas = _replicas(workload, "mpiReplicaSpecs", worker_default=0)
    if replicas is None:
        return None
    is_launcher = replicas.kind == "Launcher"
    if not workload.version.endswith("/v2beta1"):
        labels = _training_labels(workload, replicas, "mpijob-controller", is_master=is_launcher)
        if is_launcher:
            del labels[f"{_TRAINING}/replica-index"]
        return Additions(labels=labels)
    labels = {
        f"{_TRAINING}/operator-name": "mpi-operator",
        f"{_TRAINING}/job-name": workload.name,
        f"{_TRAINING}/job-role": replicas.kind.lower(),
    }
    also_worker = workload.spec.get("runLauncherAsWorker") is True
    if also_worker or not is_launcher:
        labels[f"{_TRAINING}/replica-index"] = "1" if also_worker and not is_launcher else "0"
    if not is_launcher:
        return Additions(labels=labels)
    return Additions(labels=labels | job_labels(f"{workload.name}-launcher", {}), owner=_JOB)


def _job_set(workload: _Workload) -> Additions | None:
    jobs = workload.spec.get("replicatedJobs")
    path = workload.path
    if path[:2] != ("spec", "replicatedJobs") or path[3:] != ("template", "spec", "template"):
        return None
    if not isinstance(jobs, list) or not isinstance(path[2], int):
        return None
    index, job = path[2], as_map(jobs[path[2]])
    name, group = str(job.get("name") or ""), str(job.get("groupName") or "default")
    replicas = [_count(as_map(other).get("replicas")) for other in jobs]
    is_of_group = [str(as_map(other).get("groupName") or "default") == group for other in jobs]
    entries = {
        f"{_JOB_SET}/jobset-name": workload.name,
        f"{_JOB_SET}/jobset-uid": UID,
        f"{_JOB_SET}/replicatedjob-name": name,
        f"{_JOB_SET}/replicatedjob-replicas": str(replicas[index]),
        f"{_JOB_SET}/global-replicas": str(sum(replicas)),
        f"{_JOB_SET}/restart-attempt": "0",
        f"{_JOB_SET}/job-index": "0",
        f"{_JOB_SET}/job-global-index": str(sum(replicas[:index])),
        f"{_JOB_SET}/job-key": HASH,
        f"{_JOB_SET}/group-name": group,
        f"{_JOB_SET}/group-replicas": str(sum(compress(replicas, is_of_group))),
        f"{_JOB_SET}/job-group-index": str(sum(compress(replicas[:index], is_of_group))),
    }
    coordinator = workload.spec.get("coordinator")
    if isinstance(coordinator, dict):
        pod = [workload.name, coordinator.get("replicatedJob") or ""]
        pod += [coordinator.get(index) or 0 for index in ("jobIndex", "podIndex")]
        network = as_map(workload.spec.get("network"))
        entries[f"{_JOB_SET}/coordinator"] = (
            f"{'-'.join(map(str, pod))}.{network.get('subdomain') or workload.name}"
        )
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
    annotations = {f"{_LWS}/size": str(size)}
    return Additions(labels=labels, annotations=annotations, owner=_STATEFUL_SET)


OPERATORS: Final[Mapping[tuple[str, str], Callable[[_Workload], Additions | None]]] = {
    # training-operator v1.9.0 pkg/controller.v1
    ("kubeflow.org", "PyTorchJob"): _py_torch_job,  # pytorch/envvar.go, elastic.go
    ("kubeflow.org", "TFJob"): _tf_job,  # tensorflow/tensorflow.go, util.go
    ("kubeflow.org", "XGBoostJob"): _xg_boost_job,  # xgboost/xgboost.go
    ("kubeflow.org", "JAXJob"): _jax_job,  # jax/envvar.go
    ("kubeflow.org", "PaddleJob"): _paddle_job,  # paddlepaddle/envvar.go
    # the same, mpi; mpi-operator v0.8.0 pkg/controller/mpi_job_controller.go
    ("kubeflow.org", "MPIJob"): _mpi_job,
    # JobSet v0.12.0 pkg/controllers/jobset_controller.go
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    # LeaderWorkerSet v0.10.0 pkg/controllers/leaderworkerset_controller.go, pod_controller.go
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
}
"""What the controllers add, by API group and kind; None for a place without a pod template of the kind.

A TrainJob names a runtime, whose templates are not in its manifest.
"""
