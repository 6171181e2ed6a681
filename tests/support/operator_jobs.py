"""Jobs of training and serving operators, together with the pods that their controllers create.

Written from the sources that `webhook.policy.operators.OPERATORS` names, and independent of that module:
each controller's labels, annotations, variables and owners, for all ranks.
"""

import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Template = Mapping[str, Any]
Json = dict[str, Any]

UID = "5f0c1f1e-8d1b-4a53-9d6e-000000000001"
NAMESPACE = "team-a"
NAME = "job"


@dataclass(frozen=True)
class OperatorJob:
    """A manifest, and its pods with the path of their template in the manifest."""

    manifest: Json
    pods: Sequence[tuple[str, Json]]


def _pod(
    template: Template,
    name: str,
    *,
    owner: tuple[str, str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    only: str | None = None,
) -> Json:
    pod: Json = copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **template})
    metadata = pod.setdefault("metadata", {})
    metadata |= {"name": name, "namespace": NAMESPACE}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    if annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    version, kind, owner_name = owner
    metadata["ownerReferences"] = [
        {"apiVersion": version, "kind": kind, "name": owner_name, "uid": UID, "controller": True, "blockOwnerDeletion": True},
    ]  # fmt: skip
    for container in pod["spec"]["containers"]:
        if env and only in (None, container["name"]):
            added = [{"name": key, "value": value} for key, value in env.items()]
            container["env"] = [*(container.get("env") or []), *added]
    return pod


def _training(
    kind: str, key: str, replicas: Mapping[str, int], template: Template, version: str = "kubeflow.org/v1"
) -> Json:
    specs = {
        name: {"replicas": count, "template": copy.deepcopy(dict(template))}
        for name, count in replicas.items()
    }
    return {"apiVersion": version, "kind": kind, "metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {key: specs}}  # fmt: skip


def _labels(controller: str, kind: str, index: int, *, is_master: bool) -> dict[str, str]:
    labels = {
        "training.kubeflow.org/operator-name": controller,
        "training.kubeflow.org/job-name": NAME,
        "training.kubeflow.org/replica-type": kind.lower(),
        "training.kubeflow.org/replica-index": str(index),
    }
    return labels | ({"training.kubeflow.org/job-role": "master"} if is_master else {})


def _indexes(replicas: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(kind, index) for kind, count in replicas.items() for index in range(count)]


def py_torch_job(
    template: Template,
    replicas: Mapping[str, int],
    *,
    processes: str | None = None,
    elastic: Mapping[str, int] | None = None,
) -> OperatorJob:
    """Return a PyTorchJob with replicas by type (Master, Worker)."""
    manifest = _training("PyTorchJob", "pytorchReplicaSpecs", replicas, template)
    if processes is not None:
        manifest["spec"]["nprocPerNode"] = processes
    if elastic is not None:
        manifest["spec"]["elasticPolicy"] = dict(elastic)
    total = sum(replicas.values())
    pods = []
    for kind, index in _indexes(replicas):
        env = {"PYTHONUNBUFFERED": "1"}
        if "Master" in replicas:
            rank = str(index + (kind == "Worker"))
            size = total * int(processes) if processes and processes.isdigit() else total
            env |= {
                "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": f"{NAME}-master-0",
                "PET_MASTER_ADDR": f"{NAME}-master-0", "WORLD_SIZE": str(size), "RANK": rank, "PET_NODE_RANK": rank,
            }  # fmt: skip
        env["PET_NPROC_PER_NODE"] = processes or "auto"
        if elastic is None:
            env["PET_NNODES"] = str(total)
        else:
            least = elastic.get("minReplicas", elastic.get("maxReplicas", replicas.get("Worker")))
            most = elastic.get("maxReplicas", least)
            env |= {"PET_RDZV_BACKEND": "c10d", "PET_NNODES": f"{least}:{most}"}
        is_master = kind == "Master" if "Master" in replicas else index == 0
        labels = _labels("pytorchjob-controller", kind, index, is_master=is_master)
        name = f"{NAME}-{kind.lower()}-{index}"
        pod = _pod(template, name, owner=("kubeflow.org/v1", "PyTorchJob", NAME), labels=labels, env=env)
        pods.append((f"spec.pytorchReplicaSpecs.{kind}.template", pod))
    return OperatorJob(manifest, pods)


def tf_job(template: Template, replicas: Mapping[str, int], *, dynamic: bool = False) -> OperatorJob:
    """Return a TFJob with replicas by type (Chief, Master, PS, Worker, Evaluator)."""
    manifest = _training("TFJob", "tfReplicaSpecs", replicas, template)
    if dynamic:
        manifest["spec"]["enableDynamicWorker"] = True
    addresses = {
        kind.lower(): [f"{NAME}-{kind.lower()}-{n}.{NAMESPACE}.svc:2222" for n in range(count)]
        for kind, count in replicas.items()
    }
    pods = []
    for kind, index in _indexes(replicas):
        task, env = {"type": kind.lower(), "index": index}, {}
        if sum(replicas.values()) != 1:
            config: Json = {"cluster": addresses, "task": task, "environment": "cloud"}
            if dynamic and kind == "PS":
                config = {"cluster": {"worker": {}, "ps": [addresses["ps"][index]]}, "task": task}
            elif dynamic:
                workers = {str(index): addresses["worker"][index]} if kind == "Worker" else {}
                config = {"cluster": {"worker": workers, "ps": addresses.get("ps")}, "task": task}
            env = {"TF_CONFIG": json.dumps(config)}
        chiefs = {"Chief", "Master"} & set(replicas)
        is_master = kind in chiefs if chiefs else (kind == "Worker" and index == 0)
        labels = _labels("tfjob-controller", kind, index, is_master=is_master)
        name = f"{NAME}-{kind.lower()}-{index}"
        owner = ("kubeflow.org/v1", "TFJob", NAME)
        pod = _pod(template, name, owner=owner, labels=labels, env=env, only="tensorflow")
        pods.append((f"spec.tfReplicaSpecs.{kind}.template", pod))
    return OperatorJob(manifest, pods)


def _simple(
    kind: str, key: str, controller: str, template: Template, replicas: Mapping[str, int]
) -> OperatorJob:
    manifest = _training(kind, key, replicas, template)
    total, pods = sum(replicas.values()), []
    for role, index in _indexes(replicas):
        rank = str(index + (replicas.get("Master", 0) if role == "Worker" else 0))
        env = {
            "XGBoostJob": {"MASTER_PORT": "9999", "MASTER_ADDR": f"{NAME}-master-0", "WORLD_SIZE": str(total), "RANK": rank},
            "JAXJob": {"COORDINATOR_ADDRESS": f"{NAME}-worker-0", "NUM_PROCESSES": str(total), "PROCESS_ID": str(index)},
            "PaddleJob": {"PADDLE_JOB_ID": NAME, "PADDLE_NNODES": str(total), "PADDLE_MASTER": f"{NAME}-worker-0:36767"},
        }[kind]  # fmt: skip
        is_master = index == 0 if kind == "JAXJob" else role == "Master"
        labels = _labels(controller, role, index, is_master=is_master)
        name = f"{NAME}-{role.lower()}-{index}"
        pod = _pod(template, name, owner=("kubeflow.org/v1", kind, NAME), labels=labels, env=env)
        pods.append((f"spec.{key}.{role}.template", pod))
    return OperatorJob(manifest, pods)


def xg_boost_job(template: Template, replicas: Mapping[str, int]) -> OperatorJob:
    """Return an XGBoostJob with replicas by type (Master, Worker)."""
    return _simple("XGBoostJob", "xgbReplicaSpecs", "xgboostjob-controller", template, replicas)


def jax_job(template: Template, replicas: Mapping[str, int]) -> OperatorJob:
    """Return a JAXJob with replicas by type (Worker)."""
    return _simple("JAXJob", "jaxReplicaSpecs", "jaxjob-controller", template, replicas)


def paddle_job(template: Template, replicas: Mapping[str, int]) -> OperatorJob:
    """Return a PaddleJob with replicas by type (Master, Worker)."""
    return _simple("PaddleJob", "paddleReplicaSpecs", "paddlejob-controller", template, replicas)


def mpi_job(
    template: Template, workers: int, *, version: str = "v2beta1", also_worker: bool = False
) -> OperatorJob:
    """Return an MPIJob of the mpi-operator (v2beta1), or of the training-operator (v1)."""
    group = f"kubeflow.org/{version}"
    replicas = {"Launcher": 1, "Worker": workers}
    manifest = _training("MPIJob", "mpiReplicaSpecs", replicas, template, group)
    if also_worker:
        manifest["spec"]["runLauncherAsWorker"] = True
    pods = []
    for kind, index in _indexes(replicas):
        owner, role = (group, "MPIJob", NAME), kind.lower()
        if version == "v1":
            labels = _labels("mpijob-controller", kind, index, is_master=kind == "Launcher")
            if kind == "Launcher":
                del labels["training.kubeflow.org/replica-index"]
        else:
            labels = {
                "training.kubeflow.org/operator-name": "mpi-operator",
                "training.kubeflow.org/job-name": NAME,
                "training.kubeflow.org/job-role": role,
            }
            if kind == "Worker":
                labels["training.kubeflow.org/replica-index"] = str(index + also_worker)
            elif also_worker:
                labels["training.kubeflow.org/replica-index"] = "0"
            if kind == "Launcher":
                owner = ("batch/v1", "Job", f"{NAME}-launcher")
                labels |= _job_labels(f"{NAME}-launcher")
        name = f"{NAME}-{role}" + (f"-{index}" if kind == "Worker" else "")
        env = {"K_MPI_JOB_ROLE": role} if version != "v1" else {}
        pods.append(
            (
                f"spec.mpiReplicaSpecs.{kind}.template",
                _pod(template, name, owner=owner, labels=labels, env=env),
            )
        )
    return OperatorJob(manifest, pods)


def _job_labels(name: str) -> dict[str, str]:
    return {
        "batch.kubernetes.io/controller-uid": UID, "batch.kubernetes.io/job-name": name, "controller-uid": UID,
        "job-name": name,
    }  # fmt: skip


def job_set(template: Template, replicas: Sequence[int]) -> OperatorJob:
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "replicatedJobs": [
                {"name": f"r{n}", "replicas": count, "template": {"spec": {"template": copy.deepcopy(dict(template))}}}
                for n, count in enumerate(replicas)
            ]
        },
    }  # fmt: skip
    pods = []
    for n, count in enumerate(replicas):
        for index in range(count):
            job, before = f"{NAME}-r{n}-{index}", sum(replicas[:n]) + index
            values = {
                "jobset-name": NAME, "jobset-uid": UID, "replicatedjob-name": f"r{n}", "restart-attempt": "0",
                "replicatedjob-replicas": str(count), "global-replicas": str(sum(replicas)), "job-index": str(index),
                "job-key": "4bf1a6", "job-global-index": str(before), "group-name": "default",
                "group-replicas": str(sum(replicas)), "job-group-index": str(before),
            }  # fmt: skip
            entries = {f"jobset.sigs.k8s.io/{key}": value for key, value in values.items()}
            index_key = "batch.kubernetes.io/job-completion-index"
            pod = _pod(
                template, f"{job}-0-x7d2k", owner=("batch/v1", "Job", job),
                labels=entries | _job_labels(job) | {index_key: "0"}, annotations=entries | {index_key: "0"},
            )  # fmt: skip
            pods.append((f"spec.replicatedJobs.{n}.template.spec.template", pod))
    return OperatorJob(manifest, pods)


def leader_worker_set(
    template: Template, size: int | None, *, own_leader: bool = False, webhook_first: bool = False
) -> OperatorJob:
    """Return a LeaderWorkerSet; `webhook_first` adds what its own webhook writes, which may run before kaishare's."""
    groups: Json = {"workerTemplate": copy.deepcopy(dict(template))}
    if size is not None:
        groups["size"] = size
    if own_leader:
        groups["leaderTemplate"] = copy.deepcopy(dict(template))
    manifest = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"replicas": 2, "leaderWorkerTemplate": groups},
    }
    prefix, pods = "leaderworkerset.sigs.k8s.io", []
    for index in range(size or 1):
        is_leader = index == 0
        name = f"{NAME}-0" if is_leader else f"{NAME}-0-{index}"
        labels = {
            f"{prefix}/name": NAME, f"{prefix}/template-revision-hash": "6b9f", "controller-revision-hash": f"{NAME}-6b9f",
            "apps.kubernetes.io/pod-index": str(index), "statefulset.kubernetes.io/pod-name": name,
        }  # fmt: skip
        labels |= (
            {f"{prefix}/worker-index": "0"}
            if is_leader
            else {f"{prefix}/group-index": "0", f"{prefix}/group-key": "1a2b"}
        )
        annotations = {f"{prefix}/size": str(size or 1)}
        env = {}
        if webhook_first:
            labels[f"{prefix}/worker-index"] = str(index)
            env = {"LWS_GROUP_SIZE": str(size or 1), "LWS_WORKER_INDEX": str(index)}
        owner = ("apps/v1", "StatefulSet", NAME if is_leader else f"{NAME}-0")
        pod = _pod(template, name, owner=owner, labels=labels, annotations=annotations, env=env)
        path = "leaderTemplate" if is_leader and own_leader else "workerTemplate"
        pods.append((f"spec.leaderWorkerTemplate.{path}", pod))
    return OperatorJob(manifest, pods)


def train_job_pods(template: Template, nodes: int) -> list[Json]:
    """Return the pods of a TrainJob, which a JobSet with three jobs creates for it; its manifest has no pods."""
    pods = []
    for _, pod in job_set(template, [1, 1, 1]).pods[:1]:
        for container in pod["spec"]["containers"]:
            added = [{"name": "PET_NNODES", "value": str(nodes)}, {"name": "PET_NODE_RANK", "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}]  # fmt: skip
            container["env"] = [*(container.get("env") or []), *added]
        pods.append(pod)
    return pods


def kueue_group_pods(template: Template, count: int, *, serves: bool = False) -> list[Json]:
    annotations = {"kueue.x-k8s.io/pod-group-total-count": str(count)}
    if serves:
        annotations["kueue.x-k8s.io/pod-group-serving"] = "true"
    owner = ("apps/v1", "StatefulSet", NAME)
    labels = {"kueue.x-k8s.io/pod-group-name": "group", "kueue.x-k8s.io/managed": "true"}
    return [
        _pod(template, f"{NAME}-{n}", owner=owner, labels=labels, annotations=annotations)
        for n in range(count)
    ]


def generated_pods(seed: int, count: int) -> list[Json]:
    """Return pods as operators and users create them, with and without evidence of several ranks.

    The same seed gives the same pods.
    """
    chance = random.Random(seed)
    pods: list[Json] = []
    while len(pods) < count:
        template = generated_template(chance)
        pods += _generated(chance, template)
    return pods[:count]


def generated_template(chance: random.Random) -> Json:
    """Return a pod template with or without a GPU, and with or without evidence of several ranks."""
    env = chance.choice(
        (None, None, None, [{"name": "WORLD_SIZE", "value": "1"}], [{"name": "NNODES", "value": "2"}],
         [{"name": "WORLD_SIZE", "value": "many"}], [{"name": "NUM_PROCESSES", "value": "4"}],
         [{"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "MASTER_ADDR", "value": "a"}],
         [{"name": "OMPI_COMM_WORLD_SIZE", "value": "4"}], [{"name": "SLURM_NTASKS", "value": "1"}])
    )  # fmt: skip
    command = chance.choice(
        (None, None, ["torchrun", "--nnodes=2", "a.py"], ["sh", "-c", "torchrun --nnodes 1 a.py"])
    )
    amount = chance.choice(("1", "1", "1", "1", "2", None))
    main: Json = {"name": "tensorflow", "image": "example.invalid/image"}
    if env:
        main["env"] = env
    if command:
        main["command"] = command
    if amount:
        main["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    side: Json = {
        "name": "side",
        "image": "example.invalid/image",
        "env": [{"name": "WORLD_SIZE", "value": "8"}],
    }
    metadata = chance.choice(
        ({}, {}, {}, {"labels": {"app": "train"}}, {"labels": {"kaishare.dev/size": "train"}},
         {"labels": {"kaishare.dev/size": "unknown"}}, {"annotations": {"kaishare.dev/whole-gpu": "true"}},
         {"annotations": {"gpu-fraction": "0.25"}}, {"labels": {"kaishare.dev/inject": "false"}})
    )  # fmt: skip
    if (metadata.get("annotations") or {}).get("gpu-fraction"):
        main.pop("resources", None)
    containers = chance.choice(([main], [main], [main, side], [side, main]))
    return copy.deepcopy({"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": containers}})


def _generated(chance: random.Random, template: Json) -> list[Json]:
    workers = chance.choice((0, 0, 1, 2, 3))
    ranks = max(workers, 1)
    elastic = chance.choice((None, None, {"minReplicas": 1, "maxReplicas": ranks}))
    both = {"Master": 1, "Worker": workers}
    jobs = (
        lambda: py_torch_job(template, both, processes=chance.choice((None, "1", "2", "auto"))),
        lambda: py_torch_job(template, {"Worker": ranks}, elastic=elastic),
        lambda: tf_job(template, {"Worker": ranks, **({"PS": 1} if workers > 1 else {})}, dynamic=chance.random() < 0.3),
        lambda: xg_boost_job(template, both),
        lambda: jax_job(template, {"Worker": ranks}),
        lambda: paddle_job(template, {"Worker": ranks}),
        lambda: mpi_job(template, workers, version=chance.choice(("v1", "v2beta1"))),
        lambda: job_set(template, [ranks, *([1] if workers == 3 else [])]),
        lambda: leader_worker_set(template, ranks, webhook_first=chance.random() < 0.5),
    )  # fmt: skip
    kind = chance.randrange(len(jobs) + 3)
    if kind < len(jobs):
        return [pod for _, pod in jobs[kind]().pods]
    if kind == len(jobs):
        return train_job_pods(template, ranks)
    if kind == len(jobs) + 1:
        return kueue_group_pods(template, ranks, serves=chance.random() < 0.3)
    owner = chance.choice((("batch/v1", "Job", NAME), ("apps/v1", "ReplicaSet", NAME)))
    return [_pod(template, NAME, owner=owner, labels=_job_labels(NAME) if owner[1] == "Job" else {})]
