"""Generated clusters and pods for the comparison of the webhook with the admission policies."""

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kai import kaishare_keys, keys
from tests.comparisons.generated_clusters import CLASS, GeneratedCluster, generated_cluster
from tests.support.operator_jobs import generated_pods
from tests.support.pod_strategies import pods
from tests.support.pods import GPU
from webhook.policy.verify import DAEMON_SET_CONTROLLERS

Json = dict[str, Any]
_OWNER: Final = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": "u", "controller": True}


@dataclass(frozen=True, kw_only=True)
class CreatedPod:
    """A pod as a controller or a user sends it to the API server."""

    pod: Json
    user: str = "jane"


_LIMITS: Final = ("none", "cpu", "one GPU", "two GPUs", "no GPU", "cpu request", "two ranges", "another GPU", "a MIG device")  # fmt: skip
"""LimitRanges that refuse no pod: a refusal depends on whether a GPU was converted before."""
RESTORING: Final = ("one GPU", "two GPUs", "no GPU", "two ranges")


def generated(number: int, count: int) -> list[CreatedPod]:
    """Return pods of operators and users, and odd ones, of which the API server refuses a part.

    The same number gives the same ones.
    """
    odd = [_with_valid_owners(pod) for pod in _odd_pods(number, count // 2)]
    made = [*odd, *generated_pods(number, count - len(odd))]
    return [CreatedPod(pod=pod) for pod in made if isinstance(pod.get("metadata", {}), dict)]


def _odd_pods(number: int, count: int) -> list[Json]:
    """Return pods of the strategy of property tests, of which the API server refuses a part."""
    collected: list[Json] = []

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(pods(), st.integers(0, 1 << 30))
    def collect(pod: Json, _: int) -> None:
        if not _has_huge_amount(pod):
            collected.append(pod)

    collect()
    return collected


def _has_huge_amount(pod: Json) -> bool:
    """Whether a container has an amount that the API server passes on as another one.

    Kubernetes 1.36.3 writes 10**30 as `1`, because its canonical form has no suffix for it.
    """
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    init = spec.get("initContainers") if isinstance(spec, dict) else None
    return any(
        isinstance(amount, int | str) and len(str(amount)) > 18
        for container in [*(containers or ()), *(init or ())]
        for amounts in (container.get("resources") or {}).values()
        if isinstance(amounts, dict)
        for amount in amounts.values()
    )


def _with_valid_owners(pod: Json) -> Json:
    """Return a pod whose owner references have what the API server requires."""
    metadata = pod.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    if not isinstance(owners, list):
        return pod
    complete = [{"apiVersion": "apps/v1", "name": "owner", **owner, "uid": "u"} for owner in owners]
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": complete}}


def directed(chance: random.Random, count: int) -> list[CreatedPod]:
    """Return pods for the reasons that generated pods seldom have."""
    made = []
    for _ in range(count):
        rows = _directed(chance)
        pod = chance.choice([pod for weight, pod in rows for _ in range(weight)])
        owners = pod["metadata"]["ownerReferences"]
        is_by_controller = bool(owners) and owners[0]["kind"] == "DaemonSet" and chance.random() < 0.6
        made.append(
            CreatedPod(pod=pod, user=min(DAEMON_SET_CONTROLLERS)) if is_by_controller else CreatedPod(pod=pod)
        )
    return made


def _container(name: str = "main", gpus: str | None = "1", **fields: Any) -> Json:
    resources = {} if gpus is None else {"resources": {"limits": {GPU: gpus}}}
    return {"name": name, "image": "image", **resources, **fields}


def _pod(metadata: Json, *containers: Json, **spec: Any) -> Json:
    return {
        "metadata": {"name": "case", "ownerReferences": [_OWNER], **metadata},
        "spec": {"restartPolicy": "Never", "containers": list(containers) or [_container()], **spec},
    }


def _directed(chance: random.Random) -> list[tuple[int, Json]]:
    """Return pods, and how often each is chosen."""
    pick = chance.choice
    sizes = ("train", "serve", "s-2", "n00", "n01", "n01", "n01", "n02", "n03", "n15", "n16", "none-such", "x" * 41, "a.b")  # fmt: skip
    shares = ((keys.GPU_FRACTION, "0.5"), (keys.GPU_FRACTION, "0.25"), (keys.GPU_MEMORY, "2000"), (keys.GPU_MEMORY, "8192"))  # fmt: skip
    daemon_set = {**_OWNER, "apiVersion": "apps/v1", "kind": "DaemonSet"}
    other_owner = {"apiVersion": "v1", "kind": pick(("Namespace", "Node")), "name": "owner", "uid": "u"}
    rank = [{"name": "WORLD_SIZE", "value": "2"}]
    mig = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    sidecars = [
        _container(f"i{index}", pick(("0", "1", "1")), **pick(({}, {"restartPolicy": "Always"})))
        for index in range(chance.randint(1, 3))
    ]
    # The evidence is before or after what is read of a command line.
    long_texts = _container(
        args=[pick(("", "x" * 17_000)), "torchrun", "--nnodes", "2"],
        env=[{"name": "WORLD_SIZE", "value": pick(("2", "0" * 300_000 + "2"))}],
    )
    unnamed = {"generateName": "case-", "name": "", "ownerReferences": []}
    return [
        (3, _pod({"labels": {kaishare_keys.SIZE: pick(sizes)}})),
        (2, _pod({"labels": {kaishare_keys.SIZE: "n01"}})),
        (5, _pod({"labels": {"app": "web"}})),
        (5, _pod({"annotations": {**dict([pick(shares)]), keys.CONTAINER_NAME: pick(("main", "main", "other"))}})),
        (1, _pod({"annotations": {kaishare_keys.WHOLE_GPU: "true"}})),
        (1, _pod({"annotations": {keys.CONTAINER_NAME: "other"}})),
        (1, _pod({"annotations": {f"example.com/k{index}": "x" for index in range(pick((990, 1001)))}})),
        (1, _pod({"labels": pick(({}, {kaishare_keys.GPU_MARK: "shared"}, {kaishare_keys.GPU_MARK: "shared"}))}, _container(gpus=None))),
        (1, _pod({}, _container("first", None), _container("second"))),
        (1, _pod({}, *(_container(f"c{index}", "0" if index else "1") for index in range(pick((256, 257, 260, 300)))))),
        (1, _pod({}, _container(resources=mig))),
        (1, _pod({}, _container(resources={"limits": {GPU: "1", pick(_ACCELERATORS): pick(("0", "1"))}}))),
        (1, _pod({}, _container(resources={"limits": {pick(_ACCELERATORS): pick(("0", "1", "2"))}}))),
        (1, _pod({}, nodeSelector=dict([pick(_NODE_LABELS)]))),
        (1, _pod({}, affinity=_affinity(chance))),
        (1, _pod({}, runtimeClassName=pick(("nvidia", "nvidia-cdi")))),
        (1, _pod({"labels": {keys.VCLUSTER_MANAGED_BY: "team"}}, _container(gpus=pick(("0", "1", None))))),
        (2, _pod({}, _container(**_torch(chance)))),
        (2, _pod({}, _container(env=rank))),
        (2, _pod({}, _container(gpus=pick(("0", "1"))), initContainers=sidecars)),
        (1, _pod({}, long_texts)),
        (1, _pod({}, priorityClassName=pick((CLASS, "inference")))),
        (1, _pod({}, nodeName="node-1")),
        (1, _pod({"annotations": {keys.MIRROR_POD: "1"}, "ownerReferences": []}, nodeName="node")),
        (2, _pod({"ownerReferences": [daemon_set], "annotations": pick(({}, {keys.GPU_FRACTION: "0.5"}))}, _container(gpus=pick(("1", None, None))))),
        (1, _pod({"ownerReferences": [other_owner]})),
        (2, _pod(pick((unnamed, {"name": "with.dot", "ownerReferences": []})))),
        (1, _pod({"annotations": {"vcluster.loft.sh/object-name": "name"}, "labels": pick(({}, {keys.VCLUSTER_MANAGED_BY: "team"}))})),
    ]  # fmt: skip


_ACCELERATORS: Final = (
    "amd.com/gpu", "google.com/tpu", "nvidia.com/gpumem", "nvidia.com/mig-1g.5gb", "example.com/dongle",
    "rdma/hca", "intel.com/sriov_net", "github.com/fuse", "nvidia.com/hostdev",
)  # fmt: skip
_NODE_LABELS: Final = (
    (keys.NODE_GPU_PRODUCT, "NVIDIA-A100-MIG-1g.5gb"), (keys.NODE_GPU_PRODUCT, "NVIDIA-A100"),
    ("nvidia.com/mig.strategy", "single"), ("nvidia.com/mig.strategy", "none"), ("nvidia.com/mig.capable", "false"),
    ("cloud.google.com/gke-gpu-partition-size", "1g.5gb"), ("zone", "a"),
)  # fmt: skip


def _affinity(chance: random.Random) -> Json:
    """Return a required node affinity of one or two alternatives."""
    terms = []
    for _ in range(chance.randint(1, 2)):
        lines = []
        for key, value in chance.sample(_NODE_LABELS, chance.randint(1, 2)):
            operator = chance.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
            values = [value] if "Exist" not in operator else None
            lines.append({"key": key, "operator": operator} | ({"values": values} if values else {}))
        terms.append({"matchExpressions": lines})
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _torch(chance: random.Random) -> Json:
    """Return command and environment of a container that torchrun starts."""
    nodes = chance.choice(
        ("--nnodes=1", "--nnodes=2", "--nnodes 4", "--nnodes=1:3", "--nnodes=$(NODES)", "$(OPTIONS)", "")
    )
    words = ["torchrun", *nodes.split(), "train.py", *chance.choice(([], ["--nnodes=8"]))]
    command = chance.choice(
        (words, ["sh", "-c", " ".join(words)], ["python", "-m", "torch.distributed.run", *words[1:]])
    )
    cluster = '{"cluster": {"worker": ["a:1"]}}'
    environments: list[dict[str, str]] = [
        {}, {"NODES": "2"}, {"TF_CONFIG": cluster}, {"MASTER_ADDR": "a", "RANK": "0"}, {"WORLD_SIZE": "1"},
    ]  # fmt: skip
    env = [{"name": name, "value": value} for name, value in chance.choice(environments).items()]
    return {"command": command, "env": env}


def form_cluster(chance: random.Random, number: int, prefix: str, count: int) -> GeneratedCluster:
    """Return a cluster in which more pods get a share than in one of `generated_cluster`."""
    cluster = generated_cluster(chance, number, prefix, count)
    made = []
    for index, namespace in enumerate(cluster.namespaces):
        labels = dict(namespace.labels)
        kind = chance.random()
        if kind < 0.75:
            labels.pop(kaishare_keys.MODE, None)
        if kind < 0.2:
            labels[kaishare_keys.MODE] = "enforce"
        annotations = namespace.annotations if chance.random() < 0.2 else {}
        limits = chance.choice(("none", "none", chance.choice(_LIMITS)))
        made.append(replace(namespace, labels=labels, annotations=annotations, limits=limits))
        if index % 10 in (7, 9):
            made[-1] = replace(made[-1], labels=labels | _SEVENTEEN, annotations={})
        elif index % 10 == 4:
            made[-1] = replace(
                made[-1], labels=labels | _AMBIGUOUS, annotations=dict.fromkeys(_AMBIGUOUS, "app=web")
            )
    mode = "default" if number % 4 else cluster.settings.default_mode
    shares = number % 7 != 3
    changed = replace(cluster.settings, default_mode=mode, inject_shares=shares)
    return replace(cluster, namespaces=made, settings=changed)


_SEVENTEEN: Final = {
    **{f"{kaishare_keys.SIZE_PREFIX}n{number:02}": "0.25" for number in range(17)},
    f"{kaishare_keys.SIZE_PREFIX}n01": "1",
    f"{kaishare_keys.SIZE_PREFIX}n02": "2000Mi",
    f"{kaishare_keys.SIZE_PREFIX}n03": "8Gi",
}
_AMBIGUOUS: Final = {f"{kaishare_keys.SIZE_PREFIX}{name}": "0.25" for name in ("web", "api")}
