"""Generated manifests, each with the pods that its controller creates from it.

The pods are written from the controllers' sources, and independent of `console.explain`.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kai import kaishare_keys, keys
from tests.support import operator_jobs, size_oracle
from tests.support.kube_user import account
from tests.support.operator_jobs import UID, generated_template
from tests.support.pod_strategies import MIG, pods
from tests.support.pods import GPU

Json = dict[str, Any]

USER: Final = "jane"
_NUMBER: Final = "29000000"
"""The number of a CronJob's Job."""
_HASH: Final = "6b9f7c"


@dataclass(frozen=True, kw_only=True)
class CreatedPod:
    """A pod as a controller or a user sends it to the API server."""

    pod: Json
    user: str = USER


@dataclass(frozen=True, kw_only=True)
class Written:
    """A manifest, and the first pod of each of its templates by path.

    Of the workers' template of a LeaderWorkerSet it is the first worker, if there is one.
    """

    manifest: Json
    pods: Mapping[str, CreatedPod]


@dataclass(frozen=True, kw_only=True)
class GeneratedWorkload:
    """A workload that can be written again with another pod template."""

    kind: str
    template: Json
    write: Callable[[Json], Written]


def generated_workloads(number: int, count: int) -> list[GeneratedWorkload]:
    """Return workloads and bare pods; the same number gives the same ones."""
    chance = random.Random(number)
    odd = iter(_odd_pods(number, count))
    return [_generated(chance, odd) for _ in range(count)]


def _odd_pods(number: int, count: int) -> list[Json]:
    """Return pods of the strategy of property tests, of which the API server refuses a part."""
    collected: list[Json] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(pods(), st.integers(0, 1 << 30))
    def collect(pod: Json, _: int) -> None:
        if not _has_huge_amount(pod):
            collected.append(pod)

    collect()
    chance = random.Random(number)
    while len(collected) < count:
        collected.append(copy.deepcopy(chance.choice(collected)))
    chance.shuffle(collected)
    return collected


def _has_huge_amount(pod: Json) -> bool:
    """Whether a container has an amount that the API server passes on as another one.

    Kubernetes 1.36.3 writes 10**30 as `1`, because its canonical form has no suffix for it.
    """
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    init = spec.get("initContainers") if isinstance(spec, dict) else None
    return any(
        isinstance(amount, int | str) and len(str(amount)) > _LONGEST_AMOUNT
        for container in [*(containers or ()), *(init or ())]
        for amounts in (container.get("resources") or {}).values()
        if isinstance(amounts, dict)
        for amount in amounts.values()
    )


_LONGEST_AMOUNT: Final = 18


def _generated(chance: random.Random, odd: Iterator[Json]) -> GeneratedWorkload:
    if chance.random() < 0.3:
        pod = _with_valid_owners(next(odd)) if chance.random() < 0.55 else _plain_pod(chance)
        return GeneratedWorkload(kind="Pod", template=pod, write=_bare_pod)
    if chance.random() < 0.08:
        pods = _group_pods(chance)
        return GeneratedWorkload(kind="Pod", template=chance.choice(pods), write=_bare_pod)
    if chance.random() < 0.4:
        kind = chance.choice(sorted(_OPERATORS))
        template = generated_template(chance) if chance.random() < 0.5 else _plain_template(chance)
        return GeneratedWorkload(kind=kind, template=template, write=_OPERATORS[kind](chance))
    kind = chance.choice(sorted(_KINDS))
    if chance.random() < 0.3:
        template = _template_of(next(odd))
    else:
        template = generated_template(chance) if chance.random() < 0.3 else _plain_template(chance)
    name = chance.choice(("case", "case", "case", "with.dot", "c" * 40))
    return GeneratedWorkload(kind=kind, template=template, write=_KINDS[kind](name, chance))


def _bare_pod(pod: Json) -> Written:
    return Written(manifest={"apiVersion": "v1", "kind": "Pod", **pod}, pods={"": CreatedPod(pod=pod)})


def _group_pods(chance: random.Random) -> list[Json]:
    template = generated_template(chance)
    if chance.random() < 0.5:
        return operator_jobs.train_job_pods(template, chance.randint(1, 3))
    return operator_jobs.kueue_group_pods(template, chance.randint(1, 3), serves=chance.random() < 0.3)


def _with_valid_owners(pod: Json) -> Json:
    """Return a pod whose owner references have what the API server requires."""
    metadata = pod.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    if not isinstance(owners, list):
        return pod
    complete = [{"apiVersion": "apps/v1", "name": "owner", **owner, "uid": UID} for owner in owners]
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": complete}}


def _template_of(pod: Json) -> Json:
    """Return a pod as the template of a workload."""
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        return {key: pod[key] for key in ("metadata", "spec") if key in pod}
    kept = {key: metadata[key] for key in ("labels", "annotations", "name") if key in metadata}
    return {"metadata": kept, "spec": pod.get("spec")}


_RESOURCES: Final[Sequence[Json | None]] = (
    *[{"limits": {GPU: "1"}}] * 6, *[None] * 3, {"limits": {GPU: 1, "cpu": "1"}}, {"limits": {GPU: "2"}},
    {"limits": {GPU: "1"}, "requests": {GPU: "1", "cpu": "1"}}, {"limits": {GPU: "0"}}, {"requests": {"cpu": "1"}},
    {"limits": {GPU: "1", "memory": None}}, {"limits": {}, "requests": {}}, {"limits": {MIG: "1"}},
    {"limits": {"amd.com/gpu": "1"}}, {"limits": {"nvidia.com/gpu.shared": "1"}}, {"limits": None},
    {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}, {"limits": {GPU: "1000m"}}, {"requests": {GPU: "1"}},
    {"limits": {"nvidia.com/gpu.shared": "1", "amd.com/gpu": "1"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {GPU: None}},
)  # fmt: skip
_LABELS: Final[Mapping[str, Sequence[str]]] = {
    **size_oracle.POD_LABELS,
    "job-name": ("case",),
    keys.QUEUE_LABEL: ("queue-a", "mine"),
    keys.PRIORITY_LABEL: ("train",),
    kaishare_keys.GPU_MARK: ("shared", "shared", "Shared"),
    kaishare_keys.INJECT: ("false", "true"),
    keys.GPU_GROUP: ("group",),
}
_ANNOTATIONS: Final[Mapping[str, Sequence[str]]] = {
    keys.GPU_FRACTION: ("0.25", "0.5", "2"),
    keys.GPU_MEMORY: ("2000",),
    keys.NUM_DEVICES: ("2",),
    keys.CONTAINER_NAME: ("tensorflow", "other"),
    keys.MIRROR_POD: ("5f3a",),
    keys.SHARED_GPU_CONFIGMAP: ("taken",),
    kaishare_keys.WHOLE_GPU: ("true", "yes"),
    kaishare_keys.REASON: ("mine",),
    "example.com/team": ("blue",),
}


def _entries(chance: random.Random, table: Mapping[str, Sequence[str]]) -> dict[str, str]:
    chosen = chance.sample(sorted(table), chance.choice((0, 0, 0, 0, 1, 1, 2)))
    return {key: chance.choice(table[key]) for key in chosen}


def _plain_template(chance: random.Random) -> Json:
    """Return a template that the API server admits, apart from its amounts."""
    containers = [_container(chance, name) for name in ("tensorflow", "side", "more")]
    spec: Json = {"restartPolicy": "Never", "containers": containers[: chance.choice((1, 1, 1, 2, 3))]}
    if chance.random() < 0.2:
        init = _container(chance, "init")
        if chance.random() < 0.5:
            init["restartPolicy"] = "Always"
        spec["initContainers"] = [init]
    rare: Sequence[tuple[str, Any]] = (
        ("schedulerName", "kai-scheduler"), ("schedulerName", "volcano"), ("schedulerName", ""),
        ("schedulerName", "default-scheduler"), ("nodeName", "node-1"), ("priorityClassName", "usual"),
        ("priorityClassName", "inference"), ("priorityClassName", ""), ("tolerations", []),
        ("tolerations", [{"operator": "Exists"}]), ("tolerations", [{"key": "a", "value": "b"}]),
        ("resourceClaims", [{"name": "gpu", "resourceClaimName": "mine"}]),
        ("resources", {"limits": {"cpu": "4"}}),
    )  # fmt: skip
    if chance.random() < 0.4:
        spec.update([chance.choice(rare)])
    metadata: Json = {}
    if labels := _entries(chance, _LABELS):
        metadata["labels"] = labels
    if annotations := _entries(chance, _ANNOTATIONS):
        metadata["annotations"] = annotations
    if chance.random() < 0.2:
        metadata["name"] = chance.choice(("named", "named.with.dots"))
    return copy.deepcopy({"metadata": metadata, "spec": spec})


def _container(chance: random.Random, name: str) -> Json:
    made: Json = {"name": name, "image": "example.invalid/image"}
    amounts = chance.choice(_RESOURCES if name == "tensorflow" else (None, None, None, *_RESOURCES))
    if amounts is not None:
        made["resources"] = amounts
    if chance.random() < 0.15:
        made["env"] = [{"name": "WORLD_SIZE", "value": chance.choice(("1", "4", "many"))}]
    return made


def _plain_pod(chance: random.Random) -> Json:
    pod = _plain_template(chance)
    names: Sequence[Json] = (
        {"name": "case"},
        {"name": "case"},
        {"generateName": "case-"},
        {"name": "with.dot"},
    )
    pod["metadata"] = {**pod["metadata"], **chance.choice(names)}
    if chance.random() < 0.5:
        owners: Sequence[tuple[str, str]] = (
            ("apps/v1", "ReplicaSet"), ("batch/v1", "Job"), ("apps/v1", "DaemonSet"), ("v1", "Node"),
            ("example.com/v1", "Fleet"),
            ("example.com/v1", "Fleet"), ("example.com/v1", "Crew"), ("kubeflow.org/v2beta1", "MPIJob"),
        )  # fmt: skip
        pod["metadata"]["ownerReferences"] = [_owner(*chance.choice(owners), "owner")]
    return pod


def _owner(version: str, kind: str, name: str) -> Json:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": UID, "controller": True}


def _created(
    template: Json,
    owner: Json,
    *,
    name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """Return the pod of a template, as GetPodFromTemplate does (pkg/controller/controller_utils.go).

    Of the template's metadata only labels, annotations and finalizers count.
    """
    written = template.get("metadata") or {}
    metadata: Json = {"name": name} if name else {"generateName": f"{owner['name']}-"}
    for part, added in (("labels", labels), ("annotations", annotations)):
        entries = {**(written.get(part) or {}), **(added or {})}
        if entries:
            metadata[part] = entries
    metadata["ownerReferences"] = [owner]
    return copy.deepcopy(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec")}
    )


Writer = Callable[[Json], Written]


def _manifest(version: str, kind: str, name: str, spec: Json) -> Json:
    return copy.deepcopy({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})


def _one(manifest: Json, path: str, pod: Json, controller: str = "") -> Written:
    user = account("kube-system", controller) if controller else USER
    return Written(manifest=manifest, pods={path: CreatedPod(pod=pod, user=user)})


def _deployment(name: str, chance: random.Random) -> Writer:
    labels, owner = {"pod-template-hash": _HASH}, _owner("apps/v1", "ReplicaSet", f"{name}-{_HASH}")
    return lambda template: _one(
        _manifest("apps/v1", "Deployment", name, {"template": template}),
        "spec.template",
        _created(template, owner, labels=labels),
        "replicaset-controller",
    )


def _replica_set(name: str, chance: random.Random) -> Writer:
    version, kind = chance.choice((("apps/v1", "ReplicaSet"), ("v1", "ReplicationController")))
    return lambda template: _one(
        _manifest(version, kind, name, {"template": template}),
        "spec.template",
        _created(template, _owner(version, kind, name)),
        "replicaset-controller",
    )


def _stateful_set(name: str, chance: random.Random) -> Writer:
    labels = {
        "apps.kubernetes.io/pod-index": "0",
        "controller-revision-hash": f"{name}-{_HASH}",
        "statefulset.kubernetes.io/pod-name": f"{name}-0",
    }
    owner = _owner("apps/v1", "StatefulSet", name)
    return lambda template: _one(
        _manifest("apps/v1", "StatefulSet", name, {"serviceName": name, "template": template}),
        "spec.template",
        _created(template, owner, name=f"{name}-0", labels=labels),
        "statefulset-controller",
    )


def _daemon_set(name: str, chance: random.Random) -> Writer:
    labels = {"controller-revision-hash": _HASH, "pod-template-generation": "1"}
    return lambda template: _one(
        _manifest("apps/v1", "DaemonSet", name, {"template": template}),
        "spec.template",
        _created(template, _owner("apps/v1", "DaemonSet", name), labels=labels),
        "daemon-set-controller",
    )


def _job_pod(template: Json, name: str, *, is_indexed: bool) -> Json:
    labels = {
        "batch.kubernetes.io/controller-uid": UID,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": UID,
        "job-name": name,
    }
    index = {"batch.kubernetes.io/job-completion-index": "0"} if is_indexed else {}
    owner = _owner("batch/v1", "Job", name)
    pod = _created(template, owner, labels=labels | index, annotations=index)
    if is_indexed:
        pod["metadata"]["generateName"] = f"{name}-0-"
    return pod


def _job_spec(template: Json, *, is_indexed: bool) -> Json:
    more: Json = {"completionMode": "Indexed", "completions": 2, "parallelism": 2} if is_indexed else {}
    return {"template": template, **more}


def _job(name: str, chance: random.Random) -> Writer:
    is_indexed = chance.random() < 0.4
    return lambda template: _one(
        _manifest("batch/v1", "Job", name, _job_spec(template, is_indexed=is_indexed)),
        "spec.template",
        _job_pod(template, name, is_indexed=is_indexed),
        "job-controller",
    )


def _cron_job(name: str, chance: random.Random) -> Writer:
    is_indexed = chance.random() < 0.2

    def write(template: Json) -> Written:
        job = {"spec": _job_spec(template, is_indexed=is_indexed)}
        return _one(
            _manifest("batch/v1", "CronJob", name, {"schedule": "0 * * * *", "jobTemplate": job}),
            "spec.jobTemplate.spec.template",
            _job_pod(template, f"{name}-{_NUMBER}", is_indexed=is_indexed),
            "job-controller",
        )

    return write


def _app_wrapper(name: str, chance: random.Random) -> Writer:
    """An object that embeds a Job."""

    def write(template: Json) -> Written:
        job = _manifest("batch/v1", "Job", name, _job_spec(template, is_indexed=False))
        return _one(
            _manifest(
                "workload.codeflare.dev/v1beta2", "AppWrapper", "wrapper", {"components": [{"template": job}]}
            ),
            "spec.template",
            _job_pod(template, name, is_indexed=False),
            "job-controller",
        )

    return write


def _knative(name: str, chance: random.Random) -> Writer:
    """A Service of Knative, without the container queue-proxy and the labels that Knative adds."""

    def write(template: Json) -> Written:
        made = copy.deepcopy(template)
        containers = (made.get("spec") or {}).get("containers")
        if isinstance(containers, list) and len(containers) == 1:
            containers[0].pop("name", None)
        manifest = _manifest("serving.knative.dev/v1", "Service", name, {"template": copy.deepcopy(made)})
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            if not container.get("name"):
                container["name"] = "user-container" if len(containers) == 1 else f"user-container-{index}"
        owner = _owner("apps/v1", "ReplicaSet", f"{name}-00001-deployment-{_HASH}")
        return _one(manifest, "spec.template", _created(made, owner), "replicaset-controller")

    return write


def _ray_cluster(name: str, chance: random.Random) -> Writer:
    """A kind whose templates are found by structure, without the labels that its controller adds."""
    owner = _owner("ray.io/v1", "RayCluster", name)
    return lambda template: _one(
        _manifest("ray.io/v1", "RayCluster", name, {"headGroupSpec": {"template": template}}),
        "spec.headGroupSpec.template",
        _created(template, owner, name=f"{name}-head"),
        "",
    )


_KINDS: Final[Mapping[str, Callable[[str, random.Random], Writer]]] = {
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
    "DaemonSet": _daemon_set,
    "Job": _job,
    "CronJob": _cron_job,
    "AppWrapper": _app_wrapper,
    "Knative Service": _knative,
    "RayCluster": _ray_cluster,
}


def _operator(build: Callable[[Json], operator_jobs.OperatorJob]) -> Writer:
    def write(template: Json) -> Written:
        given = {**template, "metadata": dict(template.get("metadata") or {})}
        job = build(given)
        pods: dict[str, CreatedPod] = {}
        for path, pod in sorted(job.pods, key=_is_leader_of_workers):
            pods.setdefault(path, CreatedPod(pod=pod))
        return Written(manifest=job.manifest, pods=pods)

    return write


def _is_leader_of_workers(entry: tuple[str, Json]) -> bool:
    path, pod = entry
    group = "leaderworkerset.sigs.k8s.io/group-key"
    return path.endswith(".workerTemplate") and group not in pod["metadata"]["labels"]


def _py_torch(chance: random.Random) -> Writer:
    workers, processes = chance.randint(0, 3), chance.choice((None, "1", "2", "auto"))
    if chance.random() < 0.3:
        elastic = chance.choice((None, {}, {"minReplicas": 1, "maxReplicas": 3}))
        return _operator(
            lambda t: operator_jobs.py_torch_job(t, {"Worker": max(workers, 1)}, elastic=elastic)
        )
    both = {"Master": 1, "Worker": workers}
    return _operator(lambda t: operator_jobs.py_torch_job(t, both, processes=processes))


def _tf(chance: random.Random) -> Writer:
    ranks, dynamic = chance.randint(1, 3), chance.random() < 0.3
    replicas = {"Worker": ranks, **({"PS": 1} if ranks > 1 else {})}
    return _operator(lambda t: operator_jobs.tf_job(t, replicas, dynamic=dynamic))


def _mpi(chance: random.Random) -> Writer:
    workers, version = chance.randint(0, 3), chance.choice(("v1", "v2beta1"))
    also = chance.random() < 0.3 and version != "v1"
    return _operator(lambda t: operator_jobs.mpi_job(t, workers, version=version, also_worker=also))


def _of_ranks(
    build: Callable[[Json, Mapping[str, int]], operator_jobs.OperatorJob],
) -> Callable[[random.Random], Writer]:
    def of(chance: random.Random) -> Writer:
        ranks = chance.randint(1, 3)
        return _operator(lambda t: build(t, {"Worker": ranks}))

    return of


def _xg_boost(chance: random.Random) -> Writer:
    replicas = {"Master": 1, "Worker": chance.randint(0, 3)}
    return _operator(lambda t: operator_jobs.xg_boost_job(t, replicas))


def _job_set(chance: random.Random) -> Writer:
    replicas = [chance.randint(1, 3) for _ in range(chance.choice((1, 1, 2)))]
    return _operator(lambda t: operator_jobs.job_set(t, replicas))


def _leader_worker_set(chance: random.Random) -> Writer:
    size, own_leader = chance.choice((None, 1, 2, 3)), chance.random() < 0.3
    return _operator(lambda t: operator_jobs.leader_worker_set(t, size, own_leader=own_leader))


_OPERATORS: Final[Mapping[str, Callable[[random.Random], Writer]]] = {
    "PyTorchJob": _py_torch,
    "TFJob": _tf,
    "XGBoostJob": _xg_boost,
    "JAXJob": _of_ranks(operator_jobs.jax_job),
    "PaddleJob": _of_ranks(operator_jobs.paddle_job),
    "MPIJob": _mpi,
    "JobSet": _job_set,
    "LeaderWorkerSet": _leader_worker_set,
}
