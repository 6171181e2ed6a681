"""Strategies for property tests: pods, policies and settings, regular and odd.
Odd values are rare at each single place, so that most pods still get a share."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kai import kaishare_keys as labels_of
from kai import keys
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.releases import Version
from tests.support import size_oracle
from tests.support.markers import scaled
from tests.support.pods import GPU
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import LABELS, NamespacePolicy

Json = Any
Draw = Callable[[st.SearchStrategy[Any]], Any]
Jsons = st.SearchStrategy[Json]

MANY = settings(
    deadline=None,
    max_examples=scaled(100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)

VERSIONS = tuple(Version.parse(text) for text in ("0.7.11", "0.9.8", "0.9.12", "0.13.0", "0.17.0"))
MIG = "nvidia.com/mig-1g.5gb"
ABSENT = "(absent)"
"""Marks an omitted field in tables."""

_ODD_TEXT = (
    "", " ", "~", "/", "~1", "a/b~c", "Ünïcödé", "模型", "🦜", "a\nb", "\x00", "\u2028", "\x1b[31m", "{container}",
    "x" * 300, "ﷺ" * 60,
)  # fmt: skip
odd_text = st.sampled_from(_ODD_TEXT) | st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | odd_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
    max_leaves=6,
)


def often(usual: tuple[Json, ...], odd: tuple[Json, ...], one_in: int) -> Jsons:
    """Return a usual value; an odd value in about one of `n` draws."""
    return st.sampled_from((*usual * (len(odd) * (one_in - 1) // len(usual) + 1), *odd))


@cache
def one_in(count: int) -> st.SearchStrategy[bool]:
    return st.sampled_from((False,) * (count - 1) + (True,))


def nested(depth: int, leaf: Json = None) -> Json:
    for level in range(depth):
        leaf = [leaf] if level % 2 else {"deeper": leaf}
    return leaf


_UNKNOWN: tuple[Json, ...] = (
    {"requests": {"cpu": "1"}}, nested(90), {"nvidia.com/gpu": "4"}, {"gpu-fraction": "0.5"}, [None, [], {}], 1e300,
    -0.0, 1 << 70, "x" * 5000, {f"key-{i}": i for i in range(2000)},
)  # fmt: skip
unknown_fields = st.dictionaries(
    st.sampled_from(("subdomain", "futureField", "fooV2", "status", "x~y/z", "Ünïcödé")),
    st.sampled_from(_UNKNOWN) | json_values,
    min_size=1,
    max_size=2,
)


def whole(count: Json) -> dict[str, Json]:
    return {"limits": {GPU: count}, "requests": {GPU: count}}


_ONE_GPU: tuple[Json, ...] = (
    whole("1"), whole("1"), whole(1), {"limits": {GPU: "1"}}, {"requests": {GPU: "1"}}, whole("1000m"), whole(1.0),
    {"limits": {"cpu": "2", GPU: "1", "example.com/nic": 1}, "claims": None}, {"limits": {GPU: "1"}, "requests": None},
    {"limits": {GPU: "1"}, "requests": {GPU: "2"}}, {"limits": {GPU: "0"}, "requests": {GPU: "1"}}, whole("1e0"),
)  # fmt: skip
_NO_GPU: tuple[Json, ...] = (
    ABSENT, ABSENT, None, {}, {"limits": None}, {"limits": {}, "requests": {"cpu": "500m"}}, {"claims": []},
    {"limits": {"cpu": 1, "memory": "4Gi"}}, whole("0"), whole(0), {"requests": {GPU: "0"}}, {"limits": {GPU: "0m"}},
)  # fmt: skip
_ODD_GPU: tuple[Json, ...] = (
    *map(whole, ("2", 8, "0.5", "1500m", "-1", "", "lots", "${N}", "1e400", "1 ", 10**30, "9" * 50, 2.5, "2m", "1Ki")),
    {"limits": {MIG: "1"}}, {"requests": {MIG: 1, GPU: "1"}}, {"claims": [{"name": "gpu"}]},
    {"limits": {"amd.com/gpu": "1"}}, {"limits": {"nvidia.com/gpumem": "3000"}},
    {"limits": {"nvidia.com/gpu.shared": "1", GPU: "1"}}, {"limits": {"nvidia.com/A100": "1"}},
    {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}, {"limits": {"nvidia.com/hostdev": "1"}},
)  # fmt: skip

_ENVIRONMENTS: tuple[Json, ...] = (
    None, [], [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], [{}], [None, 5], "text", {"name": "x"},
    [{"name": "GPU_PORTION", "valueFrom": {"configMapKeyRef": {"name": "taken-0", "key": "GPU_PORTION"}}}],
)  # fmt: skip
_RANK_ENVIRONMENTS: tuple[Json, ...] = (
    [{"name": "WORLD_SIZE", "value": "4"}], [{"name": "PET_NNODES", "value": "1:2"}], [{"name": "NNODES", "value": "2"}],
    [None, {"name": "SLURM_NTASKS", "value": "8"}], [{"name": "TF_CONFIG", "value": '{"cluster": {"worker": ["a", "b"]}}'}],
)  # fmt: skip
_RENDEZVOUS: Json = [{"name": "RANK", "value": "0"}, {"name": "MASTER_ADDR", "value": "a"}]
_ONE_RANK: Json = [{"name": "WORLD_SIZE", "value": "1"}]
_HARMLESS_ENVIRONMENTS: tuple[Json, ...] = (
    [{"name": "WORLD_SIZE", "value": "9999999"}], [{"name": ["RANK"]}], [{"name": "NNODES", "value": 2}],
    [{"name": "WORLD_SIZE", "value": "4"}, {"name": "WORLD_SIZE", "valueFrom": {}}],
    [{"name": "TF_CONFIG", "value": "{"}], [{"name": "NUM_PROCESSES", "value": "2"}],
)  # fmt: skip
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
_JOB_SET_JOBS = "jobset.sigs.k8s.io/global-replicas"
_OPERATOR = "training.kubeflow.org/operator-name"


def is_rank(document: Json, container: Json) -> bool:
    """Whether a generated pod, whose container has the GPU, carries evidence of more than one rank."""
    metadata = document.get("metadata") or {}
    labels, annotations = (metadata.get(part) or {} for part in ("labels", "annotations"))
    env, size = container.get("env"), annotations.get(_LWS_SIZE)
    is_mpi = any(owner.get("kind") == "MPIJob" for owner in metadata.get("ownerReferences") or [])
    if env in _RANK_ENVIRONMENTS or size == "2" or is_mpi or labels.get(_OPERATOR) == "mpi-operator":
        return True
    if env == _ONE_RANK or size == "1":  # a number of 1 overrules names without a number of ranks
        return False
    return bool(env == _RENDEZVOUS or labels.get(_JOB_SET_JOBS) == "3")


_TOLERATIONS: tuple[Json, ...] = (
    ABSENT, ABSENT, None, [], [{"operator": "Exists"}], [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
    [{"key": GPU, "operator": "Exists", "effect": "NoExecute"}], [{"key": GPU, "value": "present"}],
    [{"key": None, "operator": "Exists", "effect": None, "futureField": [1]}], [{}, {}],
)  # fmt: skip
_owners = st.sampled_from(
    (ABSENT, None, [], [{"kind": "ReplicaSet", "name": "case-5d4f", "uid": "u", "controller": True}],
     [{"kind": "Job", "name": "case"}], [{"kind": "ReplicaSet", "name": "case"}, {"kind": "Job", "name": "x.y"}],
     [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "case"}]),
)  # fmt: skip
_names = often(
    ({"name": "case"}, {"name": "case", "generateName": "case-"}),
    ({"generateName": "case-"}, {"name": "", "generateName": "case-"}, {"name": None}, {}),
    one_in=3,
)  # fmt: skip
_schedulers = often(
    ("default-scheduler", "default-scheduler", "kai-scheduler", ABSENT, "", None),
    ("other-scheduler", "volcano", "Ünïcödé\n"),
    one_in=12,
)  # fmt: skip

_ANNOTATIONS: Mapping[str, tuple[str | None, ...]] = {
    keys.GPU_FRACTION: ("0.5", "0.125", "0.004", "1.5", "", "NaN", "0x1p-1", "0.9", "½", "1e-400", None),
    keys.GPU_MEMORY: ("2000", "9223372036854775808", "2Gi", "0", "1\n", None),
    keys.NUM_DEVICES: ("2", "0", "18446744073709551615", "9" * 5000),
    keys.CONTAINER_NAME: ("c0", "c1", "init", "", "unknown", "unknown\nname", None),
    keys.MPS: ("true", "false"),
    labels_of.REASON: ("no-gpu", "", None),
    labels_of.SIZE: ("train", ""),
    labels_of.WHOLE_GPU: ("true", "false", "TRUE"),
    keys.MIRROR_POD: ("5f3a",),
    keys.SHARED_GPU_CONFIGMAP: ("taken", "other", None),
    "nvidia.com/container.c0.gpu-memory.request": ("2Gi", "1", "-1", "1e400", "lots"),
    "nvidia.com/container.c0.gpu-memory.limit": ("2Gi",),
    MIG: ("1",),
    keys.RECEIVED_RESOURCE_TYPE: ("Fraction",),
    "vcluster.loft.sh/object-name": ("case",),
    "vcluster.loft.sh/object-name\n": ("case",),
    "example.com/team": ("blue", "", None),
    _LWS_SIZE: ("2", "1", "many", None),
}
_LABELS: Mapping[str, tuple[str | None, ...]] = {
    keys.QUEUE_LABEL: ("mine", "", None), keys.PRIORITY_LABEL: ("train", "", None),
    labels_of.GPU_MARK: ("shared", "Shared"), labels_of.INJECT: ("false", "true", "no\nway"),
    **size_oracle.POD_LABELS, "pipelines.kubeflow.org/run": ("1",), keys.GPU_GROUP: ("group",),
    keys.GPU_GROUP_PREFIX + "x" * 200: ("group",), keys.VCLUSTER_MANAGED_BY: ("vc",), "app": ("case", ""),
    _JOB_SET_JOBS: ("3", "1"), _OPERATOR: ("mpi-operator", "pytorchjob-controller"),
}  # fmt: skip


def _entries(table: Mapping[str, tuple[str | None, ...]]) -> st.SearchStrategy[dict[str, str | None] | None]:
    """Return up to three entries of a table; rarely also an unknown key, thousands of keys, or null."""
    entry = st.sampled_from([(key, value) for key, values in table.items() for value in values])
    odd = st.tuples(odd_text, st.none() | odd_text)
    few = [st.lists(entry, min_size=size, max_size=size).map(dict) for size in (1, 2, 3)]
    many = {f"key-{i}": "x" for i in range(3000)}
    return st.one_of(*few, st.lists(odd, max_size=3).map(dict), st.sampled_from((None, {}, many)))


_TWISTS: tuple[tuple[tuple[str, ...], Json], ...] = (
    *[(("metadata", "labels", labels_of.GPU_MARK), "shared")] * 4,
    *[(("metadata", "labels", keys.PRIORITY_LABEL), "mine")] * 2,
    (("metadata", "labels", keys.QUEUE_LABEL), None),
    (("metadata", "labels", labels_of.INJECT), "false"),
    *[(("metadata", "annotations", labels_of.WHOLE_GPU), "true")] * 3,
    *[(("metadata", "annotations", keys.NUM_DEVICES), "2")] * 2,
    *[(("metadata", "annotations", keys.CONTAINER_NAME), name) for name in ("c0", "c1", "c1")],
    (("metadata", "annotations", keys.MPS), "true"),
    *[(("metadata", "annotations", keys.MIRROR_POD), "5f3a")] * 2,
    *[(("metadata", "ownerReferences"), [{"kind": "Job", "name": "case.dotted"}])] * 3,
    (("metadata", "ownerReferences"), [{"kind": "Job"}]),
    *[(("metadata", "ownerReferences"), [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "case"}])] * 3,
    (("metadata", "ownerReferences"), [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "DaemonSet", "name": "case"}]),
    (("metadata", "ownerReferences"), [{"apiVersion": "v1", "kind": "Namespace", "name": "team-b"}]),
    *[(("metadata", "ownerReferences"), [{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "case"}])] * 2,
    (("metadata", "name"), "case.dotted"),
    (("metadata", "name"), ""),
    (("metadata",), None),
    (("metadata",), {}),
    (("metadata",), ABSENT),
    *[(("spec", "priorityClassName"), name) for name in ("usual", "usual", "inference", "", None)],
    *[(("metadata", "annotations"), {keys.GPU_FRACTION: "0.5", keys.CONTAINER_NAME: "c0"})] * 4,
    (("metadata", "annotations"), {keys.GPU_MEMORY: "2000", keys.CONTAINER_NAME: "c1"}),
    *[(("spec", "nodeName"), "node-1")] * 3,
    (("spec", "resourceClaims"), [{"name": "gpu", "resourceClaimName": "mine"}]),
    (("spec", "containers"), []),
    (("spec", "initContainers"), None),
    *[(("spec", "schedulerName"), "volcano")] * 2,
)  # fmt: skip
"""Single changes to a pod that decide whether it gets a share."""

_twists = st.lists(st.sampled_from(_TWISTS), min_size=1, max_size=2)
_ENTRIES = {"labels": _entries(_LABELS), "annotations": _entries(_ANNOTATIONS)}


def put(document: Json, place: Sequence[str | int], value: Json) -> Json:
    """Return the document with one value replaced; create missing parents, and replace parents of another
    type."""
    if not place:
        return value
    step = place[0]
    if isinstance(step, int):
        inner = document[0] if isinstance(document, list) and document else None
        return [put(inner, place[1:], value)]
    known = document if isinstance(document, dict) else {}
    return {**known, step: put(known.get(step), place[1:], value)}


@st.composite
def containers(draw: Draw, name: str, gpu: Jsons) -> dict[str, Json]:
    made: dict[str, Json] = {"name": name, "image": "example.invalid/image", "resources": draw(gpu)}
    if made["resources"] == ABSENT:
        del made["resources"]
    if draw(one_in(24)):
        made["name"] = draw(st.sampled_from(("", None, "c0", "Ünïcödé", "x" * 300)))
    if name == "init" and draw(one_in(3)):
        made["restartPolicy"] = draw(st.sampled_from(("Always", "Never", None)))
    if draw(one_in(8)):
        made["env"] = draw(st.sampled_from(_ENVIRONMENTS))
    elif draw(one_in(8)):
        made["env"] = draw(
            st.sampled_from((*_RANK_ENVIRONMENTS, _RENDEZVOUS, _ONE_RANK, *_HARMLESS_ENVIRONMENTS))
        )
    if draw(one_in(16)):
        made |= draw(unknown_fields)
    return made


_one, _none, _odd = map(st.sampled_from, (_ONE_GPU, _NO_GPU, _ODD_GPU))
# Requests of the first container, of the others, and of init containers.
_LAYOUTS: Sequence[tuple[Jsons, Jsons, Jsons]] = (
    *((_one, _none, _none),) * 8, *((_none, _none, _none),) * 5,
    *((_none, _one, _none),) * 2, (_one, _one, _none), *((_odd, _none, _none),) * 3, (_none, _none, _one), (_none, _odd, _none),
    (_one, _none, _odd),
)  # fmt: skip


@st.composite
def pods(draw: Draw) -> dict[str, Json]:
    """Build documents that the API can decode as pods; some would not be admitted."""
    first, others, before = draw(st.sampled_from(_LAYOUTS))
    extra = draw(st.sampled_from((0, 0, 0, 1, 1, 2) if others is _none else (1, 2)))
    spec: dict[str, Json] = {
        "containers": [draw(containers(f"c{i}", others if i else first)) for i in range(extra + 1)],
        "schedulerName": draw(_schedulers),
        "tolerations": draw(st.sampled_from(_TOLERATIONS)),
    }
    if before is not _none or draw(one_in(4)):
        spec["initContainers"] = [draw(containers("init", before))]
    metadata: dict[str, Json] = dict(draw(_names))
    metadata["namespace"] = "team-a"
    metadata["ownerReferences"] = draw(_owners)
    for part, entries in _ENTRIES.items():
        if draw(one_in(3)):
            metadata[part] = draw(entries)
    made: dict[str, Json] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    for holder in (metadata, spec):
        for name in [name for name, value in holder.items() if value == ABSENT]:
            del holder[name]
    if draw(one_in(8)):
        draw(st.sampled_from((made, spec, metadata))).update(draw(unknown_fields))
    if draw(one_in(2)):
        for place, value in draw(_twists):
            made = put(made, place, value)
    return {name: value for name, value in made.items() if value != ABSENT}


_shares = often(
    ({labels_of.FRACTION: "0.5"}, {labels_of.FRACTION: "0.02"}, {labels_of.MEMORY: "2000"}),
    ({}, {labels_of.FRACTION: "0.99"}, {labels_of.FRACTION: "0.005"}, {labels_of.MEMORY: "2Gi"},
     {labels_of.FRACTION: "0.5", labels_of.MEMORY: "2000"}),
    one_in=6,
)  # fmt: skip
_queues = often(("queue-a", "team.a"), ("", "Not A Queue\n"), one_in=24)
_namespace_labels: Mapping[str, Jsons] = {
    labels_of.MODE: often(("default", "enforce"), ("observe", "off", "Default"), one_in=3),
    labels_of.SCHEDULER: often(("kai-scheduler",), ("other-scheduler", "default-scheduler", "Ünïcödé"), one_in=2),
    labels_of.SHARE_FOR: often(("all", "all", "marked", "whole-gpu"), ("none",), one_in=24),
    labels_of.MAX_FRACTION: often(("0.5", "1"), ("0.4", "1.5"), one_in=3),
    labels_of.MAX_MEMORY: often(("2000",), ("1", "2Gi"), one_in=3),
    labels_of.PRIORITY: often(("train", "inference"), ("-bad-",), one_in=4),
    labels_of.TOLERATION: often(("inject",), ("true",), one_in=8),
    labels_of.OVER_SHARE: st.just("evict"),
    labels_of.DISTRIBUTED: often(("share", "keep"), ("Share",), one_in=8),
    "kaishare.dev/unknown": st.just("x"),
    "example.com/team": st.just("blue"),
}  # fmt: skip


@st.composite
def namespace_labels(draw: Draw) -> dict[str, str]:
    labels = {keys.QUEUE_LABEL: draw(_queues), **draw(_shares)}
    for label, values in _namespace_labels.items():
        if label == labels_of.SHARE_FOR or draw(one_in(4)):
            labels[label] = draw(values)
    if draw(one_in(24)):
        labels[draw(st.sampled_from(sorted(LABELS)))] = draw(odd_text)
    return labels


_sizes = st.dictionaries(
    often(size_oracle.NAMES, size_oracle.BAD_NAMES, one_in=12),
    often((*size_oracle.VALUES, "1", "1"), size_oracle.BAD_VALUES, one_in=12),
    max_size=3,
)
_selectors = st.dictionaries(
    often(size_oracle.NAMES, (*size_oracle.BAD_NAMES, "orphan"), one_in=12),
    often(tuple(size_oracle.SELECTORS), size_oracle.BAD_SELECTORS, one_in=12),
    max_size=3,
)


def _keyed(texts: Mapping[str, str]) -> dict[str, str]:
    return {labels_of.SIZE_PREFIX + name: text for name, text in texts.items()}


@st.composite
def namespace_metadata(draw: Draw) -> tuple[dict[str, str], dict[str, str]]:
    """Build labels and annotations of a managed namespace; half of the namespaces have sizes."""
    labels = draw(namespace_labels())
    if not draw(one_in(2)):
        return labels, {}
    return labels | _keyed(draw(_sizes)), _keyed(draw(_selectors))


rules = st.builds(
    DecisionSettings,
    kai_version=st.sampled_from((None, None, *VERSIONS)),
    inject_shares=often((True,), (False,), one_in=12),
    default_priority_class=st.sampled_from((None, "usual")),
    excluded_namespaces=st.sampled_from((EXCLUDED_NAMESPACES, frozenset[str]())),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pod and a namespace's policy; its text can be pasted into a test."""

    labels: dict[str, str]
    document: Json
    annotations: dict[str, str] = field(default_factory=dict)
    namespace: str = "team-a"
    rules: DecisionSettings = field(default_factory=DecisionSettings)
    pretty: bool = False

    @property
    def policy(self) -> NamespacePolicy | None:
        return NamespacePolicy.from_labels(self.namespace, self.labels, self.annotations)

    @property
    def body(self) -> bytes:
        return json.dumps(self.document, ensure_ascii=self.pretty, indent=1 if self.pretty else None).encode()


def cases(documents: st.SearchStrategy[Json] | None = None) -> st.SearchStrategy[Case]:
    def case(metadata: tuple[dict[str, str], dict[str, str]], **options: Any) -> Case:
        return Case(labels=metadata[0], annotations=metadata[1], **options)

    return st.builds(
        case, namespace_metadata(), document=pods() if documents is None else documents,
        namespace=often(("team-a",), ("kube-system",), one_in=16), rules=rules, pretty=st.booleans(),
    )  # fmt: skip


_PLACES: tuple[tuple[str | int, ...], ...] = (
    (), ("metadata",), ("metadata", "name"), ("metadata", "labels"), ("metadata", "labels", "a"),
    ("metadata", "annotations"), ("metadata", "annotations", keys.GPU_FRACTION), ("metadata", "ownerReferences"),
    ("metadata", "ownerReferences", 0), ("spec",), ("spec", "containers"), ("spec", "containers", 0),
    ("spec", "containers", 0, "name"), ("spec", "containers", 0, "resources"),
    ("spec", "containers", 0, "resources", "limits"), ("spec", "containers", 0, "resources", "limits", GPU),
    ("spec", "containers", 0, "resources", "claims"), ("spec", "containers", 0, "env"), ("spec", "initContainers"),
    ("spec", "tolerations"), ("spec", "tolerations", 0), ("spec", "schedulerName"), ("spec", "nodeName"),
    ("spec", "resourceClaims"),
)  # fmt: skip
_WRONG: tuple[Json, ...] = (
    None, True, 5, -1.5, "text", "", [], {}, [None], [5], [[]], [{}], {"a": 5}, {"a": None}, {"a": {}}, {"": ""},
)  # fmt: skip


misshapen_pods = st.builds(put, pods(), st.sampled_from(_PLACES), st.sampled_from(_WRONG) | json_values)
"""Pods with a value of a wrong type; some are still valid."""


@st.composite
def corrupted(draw: Draw, bodies: st.SearchStrategy[bytes]) -> bytes:
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        cut = draw(st.sampled_from((0, 1, 1, 5, len(body))))
        body[at : at + cut] = draw(
            st.sampled_from((b"", b"\xff", b"\x00", b'"', b"}", b"[", b"\\ud800", b"9" * 30))
        )
    return bytes(body)


@st.composite
def reviews(draw: Draw) -> dict[str, Json]:
    """Build answerable AdmissionReviews, mostly of pods' creations."""
    request: dict[str, Json] = {
        "uid": draw(st.text(min_size=1, max_size=40)),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": draw(st.sampled_from(("team-a", "team-a", "team-b", "watched", "unmanaged", "failing", None))),
        "object": draw(st.sampled_from((pods(), pods(), pods(), misshapen_pods, json_values)).flatmap(lambda s: s)),
    }  # fmt: skip
    if draw(one_in(2)):
        rare: tuple[dict[str, Json], ...] = (
            {"operation": "UPDATE"}, {"subResource": "status"}, {"subResource": None}, {"kind": None}, {"dryRun": True},
            {"kind": {"group": "apps", "kind": "Pod"}}, {"userInfo": {"username": "Jäne\n"}}, {"userInfo": None},
            {"name": "case\n"}, {"oldObject": [[]], "futureField": {}},
        )  # fmt: skip
        request |= draw(st.sampled_from(rare))
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
