"""Generated clusters and pods for the comparison of the webhook with the admission policies."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from console.explain.manifest_pods import find_pods
from console.explain.pod_documents import as_json
from kai import kaishare_keys, keys
from service.documents import DocumentError, flatten_lists, load_file
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


_LIMITS: Final = (
    "none",
    "cpu",
    "one GPU",
    "two GPUs",
    "no GPU",
    "cpu request",
    "two ranges",
    "another GPU",
    "a MIG device",
)
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


def of_folder(folder: Path) -> list[CreatedPod]:
    pods: list[CreatedPod] = []
    for file in sorted(folder.rglob("*.yaml")):
        try:
            documents = load_file(file)
        except DocumentError:
            continue  # a template of another tool
        for document in flatten_lists(documents):
            pods += [
                CreatedPod(pod=_creatable(json.loads(as_json(pod.as_created("default")))))
                for pod in find_pods(document)
            ]
    return pods


def _creatable(pod: Json) -> Json:
    """Return a pod of a manifest with what the API server requires besides."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        owner.setdefault("uid", "u")
    for group in ("containers", "initContainers"):
        for container in pod["spec"].get(group) or ():
            container.setdefault("image", "image")
    return pod


_DAEMON_SETS: Final = min(DAEMON_SET_CONTROLLERS)


def directed(chance: random.Random, count: int) -> list[CreatedPod]:
    """Return pods for the reasons that generated pods seldom have."""
    made = []
    for _ in range(count):
        pod = chance.choice(_DIRECTED)(chance)
        of_daemon_set = pod["metadata"]["ownerReferences"][:1]
        is_by_controller = (
            bool(of_daemon_set) and of_daemon_set[0]["kind"] == "DaemonSet" and chance.random() < 0.6
        )
        made.append(CreatedPod(pod=pod, user=_DAEMON_SETS) if is_by_controller else CreatedPod(pod=pod))
    return made


def _pod(metadata: Json, **spec: Any) -> Json:
    container = {"name": "main", "image": "image", "resources": {"limits": {GPU: "1"}}}
    return {
        "metadata": {"name": "case", "ownerReferences": [_OWNER], **metadata},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def _many_containers(chance: random.Random) -> Json:
    count = chance.choice((256, 257, 260, 300))
    containers = [
        {"name": f"c{index}", "image": "image", "resources": {"limits": {GPU: "0" if index else "1"}}}
        for index in range(count)
    ]
    return _pod({}, containers=containers)


def _sized(chance: random.Random) -> Json:
    names = (
        "train",
        "serve",
        "s-2",
        "n00",
        "n01",
        "n01",
        "n01",
        "n02",
        "n03",
        "n15",
        "n16",
        "none-such",
        "x" * 41,
        "a.b",
    )
    return _pod({"labels": {kaishare_keys.SIZE: chance.choice(names)}})


def _whole_size(chance: random.Random) -> Json:
    return _pod({"labels": {kaishare_keys.SIZE: "n01"}})


def _selected(chance: random.Random) -> Json:
    return _pod({"labels": {"app": "web"}})


def _dotted(chance: random.Random) -> Json:
    return _pod(
        {"name": "with.dot", "ownerReferences": []}
        if chance.random() < 0.5
        else {"generateName": "case-", "name": "", "ownerReferences": []}
    )


def _on_node(chance: random.Random) -> Json:
    return _pod({}, nodeName="node-1")


def _settled(chance: random.Random) -> Json:
    """A pod with a share that a policy may have given it, and a GPU."""
    key, value = chance.choice(
        ((keys.GPU_FRACTION, "0.5"), (keys.GPU_FRACTION, "0.25"), (keys.GPU_MEMORY, "2000"), (keys.GPU_MEMORY, "8192"))
    )  # fmt: skip
    return _pod({"annotations": {key: value, keys.CONTAINER_NAME: chance.choice(("main", "main", "other"))}})


def _kept(chance: random.Random) -> Json:
    return _pod({"annotations": {kaishare_keys.WHOLE_GPU: "true"}})


def _conflict(chance: random.Random) -> Json:
    return _pod({"annotations": {keys.CONTAINER_NAME: "other"}})


def _second(chance: random.Random) -> Json:
    gpu = {"name": "second", "image": "image", "resources": {"limits": {GPU: "1"}}}
    return _pod({}, containers=[{"name": "first", "image": "image"}, gpu])


def _marked(chance: random.Random) -> Json:
    labels = {kaishare_keys.GPU_MARK: "shared"} if chance.random() < 0.7 else {}
    return _pod({"labels": labels}, containers=[{"name": "main", "image": "image"}])


def _mig(chance: random.Random) -> Json:
    resources = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    return _pod({}, containers=[{"name": "main", "image": "image", "resources": resources}])


def _torch(chance: random.Random) -> Json:
    nodes = chance.choice(
        ("--nnodes=1", "--nnodes=2", "--nnodes 4", "--nnodes=1:3", "--nnodes=$(NODES)", "$(OPTIONS)", "")
    )
    words = ["torchrun", *nodes.split(), "train.py", *chance.choice(([], ["--nnodes=8"]))]
    command = chance.choice(
        (words, ["sh", "-c", " ".join(words)], ["python", "-m", "torch.distributed.run", *words[1:]])
    )
    container: Json = {"name": "main", "image": "image", "command": command}
    container["resources"] = {"limits": {GPU: "1"}}
    environments: list[list[Json]] = [
        [], [{"name": "NODES", "value": "2"}], [{"name": "TF_CONFIG", "value": '{"cluster": {"worker": ["a:1"]}}'}],
         [{"name": "MASTER_ADDR", "value": "a"}, {"name": "RANK", "value": "0"}], [{"name": "WORLD_SIZE", "value": "1"}],
    ]  # fmt: skip
    container["env"] = chance.choice(environments)
    return _pod({}, containers=[container])


def _large(chance: random.Random) -> Json:
    return _pod(
        {"annotations": {f"example.com/k{index}": "x" for index in range(chance.choice((990, 1001)))}}
    )


def _mirror(chance: random.Random) -> Json:
    return _pod({"annotations": {keys.MIRROR_POD: "1"}, "ownerReferences": []}, nodeName="node")


def _of_daemon_set(chance: random.Random) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "owner", "uid": "u", "controller": True}
    annotations = chance.choice(({}, {keys.GPU_FRACTION: "0.5"}))
    containers = [{"name": "main", "image": "image"}]
    spec = chance.choice(({}, {"containers": containers}, {"containers": containers}))
    return _pod({"ownerReferences": [owner], "annotations": annotations}, **spec)


def _of_vcluster(chance: random.Random) -> Json:
    key = {"vcluster.loft.sh/object-name": "name"}
    labels = chance.choice(({}, {keys.VCLUSTER_MANAGED_BY: "team"}))
    return _pod({"annotations": key, "labels": labels})


def _with_class(chance: random.Random) -> Json:
    return _pod({}, priorityClassName=chance.choice((CLASS, "inference")))


def _rank(chance: random.Random) -> Json:
    environment = [{"name": "WORLD_SIZE", "value": "2"}]
    container = {"name": "main", "image": "image", "env": environment, "resources": {"limits": {GPU: "1"}}}
    return _pod({}, containers=[container])


def _of_namespace(chance: random.Random) -> Json:
    kind = chance.choice(("Namespace", "Node"))
    return _pod({"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "owner", "uid": "u"}]})


def _with_sidecars(chance: random.Random) -> Json:
    """A pod with GPUs in init containers, some of them sidecars, to compare with a cap."""
    sidecars = [
        {
            "name": f"i{index}",
            "image": "image",
            "resources": {"limits": {GPU: chance.choice(("0", "1", "1"))}},
            **chance.choice(({}, {"restartPolicy": "Always"})),
        }
        for index in range(chance.randint(1, 3))
    ]
    main = {"name": "main", "image": "image", "resources": {"limits": {GPU: chance.choice(("0", "1"))}}}
    return _pod({}, containers=[main], initContainers=sidecars)


def _with_long_texts(chance: random.Random) -> Json:
    """A pod whose evidence is before or after what is read of a command line."""
    container = {
        "name": "main",
        "image": "image",
        "args": [chance.choice(("", "x" * 17_000)), "torchrun", "--nnodes", "2"],
        "env": [{"name": "WORLD_SIZE", "value": chance.choice(("2", "0" * 300_000 + "2"))}],
        "resources": {"limits": {GPU: "1"}},
    }
    return _pod({}, containers=[container])


_DIRECTED: Final = (
    _many_containers, _sized, _sized, _settled, _settled, _kept, _conflict, _second, _marked, _mig, _torch, _torch,
    _mirror, _of_daemon_set, _of_daemon_set, _of_namespace, _with_sidecars, _with_sidecars, _with_long_texts, _of_vcluster, _with_class, _rank, _rank, _large, _sized, _whole_size, _settled, _selected, _selected, _selected, _selected, _selected, _whole_size, _settled, _settled, _dotted, _dotted, _on_node,
)  # fmt: skip


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
