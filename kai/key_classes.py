"""The labels and annotations that KAI reads from objects which users can write, with the rule for each.

`verify`, the guard's policies, `doctor` and docs/guard.md are made from this table. KAI reads more keys with
each release. A key below one of KAI's own prefixes (`PREFIXES`) that the table does not name therefore counts
as KAI's, and a release that the table does not cover is treated as the newest one.

Source: every read of a label or annotation in KAI v0.9.8, v0.13.4 and v0.17.0. The command
`python -m tests.project.kai_reads FOLDER` compares a checkout of KAI with the table.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Final

from kai import keys


class KeyClass(StrEnum):
    """Who may write a key, and when."""

    KAI_ONLY = "kai-only"
    """Only KAI's components write it."""
    FIXED = "fixed"
    """Users may set it when they create the object; later only KAI's components write it."""
    VALUE = "value"
    """Users may write it at any time, except for some values."""
    FREE = "free"
    """Users may write it at any time: it changes only the order or the placement of their own pods."""


class KeyKind(StrEnum):
    """The map of an object's metadata that has the key."""

    LABEL = "label"
    ANNOTATION = "annotation"


class On(Flag):
    """The objects on which KAI reads a key."""

    POD = auto()
    OWNER = auto()
    """Any other object that can own pods. KAI copies all labels and annotations of a pod's topmost owner to
    the PodGroup (`default_grouper.go`, all releases)."""
    CLAIM = auto()
    """A ResourceClaim."""


@dataclass(frozen=True, slots=True)
class KaiKey:
    """One label or annotation that KAI reads."""

    kind: KeyKind
    key: str
    """The key, or the beginning of each key if `is_prefix`."""
    rule: KeyClass
    on: On
    since: str
    """The oldest of the releases 0.9.8, 0.13.4, 0.17.0 and 0.18 (not covered) that reads the key."""
    effect: str
    """What a user gains by writing the key against its rule; for a free key, what it sets."""
    writer: str = ""
    """The component that writes the key on the objects of `on`; empty for none."""
    is_prefix: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the key is below one of KAI's own prefixes."""
        return self.key.startswith(PREFIXES)


PREFIXES: Final = (
    "kai.scheduler/",
    "runai/",
    "run.ai/",
    "runai-gpu-group",
    "gpu-fraction",
    "gpu-memory",
    "received-resource-type",
    "pod-group-name",
    "nvidia.com/mig-",
    "shared-gpu-pod-",
)
"""Prefixes of labels and annotations that belong to KAI, unlike `nvidia.com/` and `gpu-`."""

SCALING_APP: Final = "scaling-pod"
"""Value of `app` on the pods of KAI's node-scale-adjuster (`utility_pods.go`, all releases)."""
RESERVED_APPS: Final = (keys.RESERVATION_APP, SCALING_APP)
"""Values of the label `app` by which KAI's scheduler recognizes its own pods, in every namespace. It does not
count the GPUs of such pods on their node."""
SPARK_APP: Final = "spark-app-name"
SPARK_SELECTOR: Final = "spark-app-selector"
SPARK_APP_PREFIX: Final = "spark-"
"""Beginning of the application IDs that Spark writes. KAI takes the label as the name of the PodGroup."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
CONFIG_MAP_NAME: Final = r"-shared-gpu-i?[0-9]+(-evar)?$"
"""Regular expression: the end of the names of KAI's ConfigMaps, with the index of a container, or of an init
container after an `i` (`gpusharingconfigmap/config_map.go`; recorded on v0.9.8)."""

_OWN_ORDER: Final = "order and gang of own pods"
_OWN_PLACE: Final = "placement of own pods"
_SHAPE: Final = "changes the gang; running pods of a subgroup that disappears are not counted"
_NOT_RECLAIMED: Final = "running pods above the queue's quota are not reclaimed"
_MORE_THAN_COUNTED: Final = "holds more of a GPU than KAI counts"
_FALSE_PLACEMENT: Final = "false NUMA placement"

_LABEL, _ANNOTATION = KeyKind.LABEL, KeyKind.ANNOTATION
_ANY: Final = On.POD | On.OWNER


_ONLY, _FIXED, _VALUE, _FREE = KeyClass.KAI_ONLY, KeyClass.FIXED, KeyClass.VALUE, KeyClass.FREE

TABLE: Final = (
    # Written by KAI only.
    KaiKey(_ANNOTATION, keys.MIG_PREFIX, _ONLY, On.POD, "0.9.8",
           "replaces the pod's GPU request in KAI's count; 0 counts as none", is_prefix=True),
    KaiKey(_LABEL, keys.SUBGROUP_NAME, _ONLY, On.POD, "0.9.8",
           "a pod of an unknown subgroup is not counted in its queue", "pod-grouper"),
    KaiKey(_ANNOTATION, keys.POD_GROUP_NAME, _ONLY, On.POD, "0.9.8",
           "the pod joins another PodGroup and its queue, in any namespace", "pod-grouper"),
    KaiKey(_LABEL, keys.GPU_GROUP, _ONLY, On.POD, "0.9.8",
           "a GPU is allocated twice, or another pod is deleted", "binder"),
    KaiKey(_LABEL, keys.GPU_GROUP_PREFIX, _ONLY, On.POD, "0.9.8",
           "a GPU is allocated twice, or another pod is deleted", "binder", is_prefix=True),
    KaiKey(_ANNOTATION, keys.RECEIVED_RESOURCE_TYPE, _ONLY, On.POD, "0.9.8",
           "false status and metrics of the queue", "binder"),
    KaiKey(_ANNOTATION, keys.LAST_START, _ONLY, _ANY, "0.9.8",
           "with a date in the future the pods are never reclaimed or preempted"),
    KaiKey(_ANNOTATION, keys.STALE_POD_GROUP, _ONLY, _ANY, "0.9.8",
           "with a date in the future an incomplete gang is never evicted"),
    KaiKey(_ANNOTATION, keys.LAST_EVICTION, _ONLY, _ANY, "0.17.0", "delays the preemption of own pods"),
    KaiKey(_ANNOTATION, keys.TOP_OWNER_METADATA, _ONLY, On.OWNER, "0.9.8", "false record on the PodGroup"),
    KaiKey(_ANNOTATION, keys.SKIP_POD_GROUPER, _ONLY, _ANY, "0.17.0",
           "freezes priority and gang of the PodGroup", "an administrator"),
    KaiKey(_ANNOTATION, keys.NUMA_OBSERVED, _ONLY, On.POD, "0.17.0", _FALSE_PLACEMENT, "NUMA exporter"),
    KaiKey(_ANNOTATION, keys.NUMA_PREDICTED, _ONLY, On.POD, "0.17.0", _FALSE_PLACEMENT, "binder"),
    KaiKey(_ANNOTATION, keys.RESERVED_GPU, _ONLY, On.POD, "0.9.8",
           "chooses the GPU of a group", "the reservation pod's own service account"),
    KaiKey(_LABEL, keys.SCALING_POD_NAME, _ONLY, On.POD, "0.9.8",
           "false owner of a scaling pod", "node-scale-adjuster"),
    KaiKey(_LABEL, keys.SCALING_POD_NAMESPACE, _ONLY, On.POD, "0.9.8",
           "false owner of a scaling pod", "node-scale-adjuster"),
    KaiKey(_ANNOTATION, EXTENDED_RESOURCE_CLAIM, _ONLY, On.CLAIM, "0.17.0",
           "the GPUs of a claim in use are not counted", "binder, kube-scheduler"),
    KaiKey(_LABEL, keys.ACCOUNTING, _ONLY, On.OWNER, "0.13.4",
           "on a ServiceMonitor or PrometheusRule: false history of a queue in KAI's Prometheus",
           "operator"),
    # Set by users at creation, and fixed afterwards.
    KaiKey(_ANNOTATION, keys.GPU_FRACTION, _FIXED, On.POD, "0.9.8", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.GPU_MEMORY, _FIXED, On.POD, "0.9.8", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.NUM_DEVICES, _FIXED, On.POD, "0.9.8", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.CONTAINER_NAME, _FIXED, On.POD, "0.13.4", "the ConfigMap of another container"),
    KaiKey(_ANNOTATION, keys.CONTAINER_PREFIX, _FIXED, On.POD, "0.18", _MORE_THAN_COUNTED, is_prefix=True),
    KaiKey(_LABEL, keys.QUEUE_LABEL, _FIXED, _ANY | On.CLAIM, "0.9.8", "uses another queue"),
    KaiKey(_LABEL, keys.NODE_POOL_LABEL, _FIXED, _ANY, "0.9.8", "uses another shard of the scheduler"),
    KaiKey(_LABEL, keys.PREEMPTIBILITY, _FIXED, _ANY, "0.13.4", _NOT_RECLAIMED),
    KaiKey(_LABEL, keys.PRIORITY_LABEL, _FIXED, _ANY, "0.9.8", _NOT_RECLAIMED),
    KaiKey(_LABEL, "ray.io/priority-class-name", _FIXED, On.OWNER, "0.13.4", _NOT_RECLAIMED),
    KaiKey(_LABEL, SPARK_APP, _FIXED, On.POD, "0.9.8", "the pod joins another PodGroup and its queue"),
    KaiKey(_LABEL, SPARK_SELECTOR, _FIXED, On.POD, "0.9.8",
           "the pod joins the PodGroup of this name and its queue, in any namespace"),
    KaiKey(_LABEL, "serving.knative.dev/revision", _FIXED, On.POD, "0.9.8", "queue of another Revision"),
    KaiKey(_LABEL, "grove.io/podgang", _FIXED, On.POD, "0.9.8", "the pod joins another PodGang"),
    KaiKey(_LABEL, "leaderworkerset.sigs.k8s.io/group-index", _FIXED, On.POD, "0.9.8", _SHAPE),
    KaiKey(_LABEL, "leaderworkerset.sigs.k8s.io/worker-index", _FIXED, On.POD, "0.9.8", _SHAPE),
    KaiKey(_ANNOTATION, "leaderworkerset.sigs.k8s.io/size", _FIXED, On.POD, "0.9.8", _SHAPE),
    KaiKey(_LABEL, "jobset.sigs.k8s.io/replicatedjob-name", _FIXED, On.POD, "0.13.4", _SHAPE),
    KaiKey(_LABEL, "jobset.sigs.k8s.io/job-index", _FIXED, On.POD, "0.17.0", _SHAPE),
    KaiKey(_LABEL, "training.kubeflow.org/replica-type", _FIXED, On.POD, "0.13.4", _SHAPE),
    KaiKey(_LABEL, "training.kubeflow.org/replica-index", _FIXED, On.POD, "0.13.4", _SHAPE),
    KaiKey(_LABEL, "ray.io/group", _FIXED, On.POD, "0.13.4", _SHAPE),
    KaiKey(_ANNOTATION, keys.SEGMENT_SIZE, _FIXED, _ANY, "0.13.4", _SHAPE),
    # Some values are KAI's.
    KaiKey(_LABEL, keys.APP_LABEL, _VALUE, On.POD, "0.9.8",
           f"`{keys.RESERVATION_APP}` or `{SCALING_APP}`: the pod's GPUs are not counted on its node"),
    KaiKey(_LABEL, keys.PROJECT_LABEL, _VALUE, On.POD, "0.9.8", "the queue of a pod without a queue label"),
    KaiKey(_ANNOTATION, keys.SHARED_GPU_CONFIGMAP, _VALUE, On.POD, "0.9.8",
           "a name that KAI did not choose: the ConfigMap of another pod, and its GPU",
           "KAI's mutating webhook"),
    # Free.
    KaiKey(_LABEL, keys.TASK_PRIORITY, _FREE, On.POD, "0.9.8", _OWN_ORDER),
    KaiKey(_LABEL, "training.kubeflow.org/job-role", _FREE, On.POD, "0.9.8", _OWN_ORDER),
    KaiKey(_LABEL, "training.kubeflow.org/job-name", _FREE, On.POD, "0.9.8", _OWN_ORDER),
    KaiKey(_LABEL, "ray.io/node-type", _FREE, On.POD, "0.9.8", _OWN_ORDER),
    KaiKey(_ANNOTATION, "kai.scheduler/topology", _FREE, _ANY, "0.9.8", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/topology-required-placement", _FREE, _ANY, "0.9.8", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/topology-preferred-placement", _FREE, _ANY, "0.9.8", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/segment-topology-required-placement", _FREE, _ANY, "0.13.4",
           _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/segment-topology-preferred-placement", _FREE, _ANY, "0.13.4",
           _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/batch-min-member", _FREE, _ANY, "0.17.0", _OWN_ORDER),
    KaiKey(_ANNOTATION, "kai.scheduler/preemption-delay", _FREE, _ANY, "0.17.0", _OWN_ORDER),
    KaiKey(_ANNOTATION, "kai.scheduler/staleness-grace-period", _FREE, _ANY, "0.17.0", _OWN_ORDER),
    KaiKey(_ANNOTATION, keys.MPS, _FREE, On.POD, "0.9.8", "read at admission only"),
    KaiKey(_ANNOTATION, "autoscaling.knative.dev/min-scale", _FREE, On.OWNER, "0.9.8", _OWN_ORDER),
    KaiKey(_ANNOTATION, "grove.io/topology-name", _FREE, On.OWNER, "0.13.4", _OWN_PLACE),
    KaiKey(_LABEL, "user", _FREE, _ANY, "0.9.8", "copied to the PodGroup"),
    KaiKey(_ANNOTATION, "user", _FREE, On.POD, "0.9.8", "copied to the PodGroup"),
)  # fmt: skip
"""Every key, sorted by rule."""


def _own(*rules: KeyClass) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(row.key for row in TABLE if row.is_own and row.rule in rules and not row.is_prefix)
    )


FREE_KEYS: Final = _own(KeyClass.FREE)
"""Keys below KAI's prefixes that users may write at any time."""
CREATION_KEYS: Final = _own(KeyClass.FIXED, KeyClass.VALUE)
"""Keys below KAI's prefixes that users may set when they create an object."""
_USERS: Final = frozenset(FREE_KEYS + CREATION_KEYS)


def is_written_by_kai_only(key: str) -> bool:
    """Whether users may not set a label or annotation of this name, not even when they create an object."""
    return key.startswith(PREFIXES) and key not in _USERS


def fixed_keys(kind: KeyKind, on: On) -> tuple[str, ...]:
    """Return the keys of others than KAI that must not change after the creation of such an object."""
    return tuple(
        row.key
        for row in TABLE
        if row.rule is KeyClass.FIXED
        and row.kind is kind
        and row.on & on
        and not row.is_own
        and not row.is_prefix
    )


def removable_from_pods() -> str:
    """Return a regular expression for the keys of KAI that no component writes on pods.

    Users may remove them.
    """
    return _one_of(
        f"{row.key}{'' if row.is_prefix else '$'}"
        for row in TABLE
        if row.rule is KeyClass.KAI_ONLY and row.is_own and not (row.on & On.POD and row.writer)
    )


def kept_on_owners() -> tuple[str, ...]:
    """Return the keys that KAI or an administrator writes on owners: users may not remove them."""
    return tuple(
        row.key for row in TABLE if row.rule is KeyClass.KAI_ONLY and row.on & On.OWNER and row.writer
    )


def beginning_with(*prefixes: str) -> str:
    """Return a regular expression for the keys that begin with one of the prefixes."""
    return _one_of(prefixes)


def _one_of(patterns: Iterable[str]) -> str:
    return f"^({'|'.join(pattern.replace('.', '[.]') for pattern in patterns)})"


def reserved_values(labels: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each label of a pod whose value users may not write: key, value, and the owner of the value."""
    app = labels.get(keys.APP_LABEL)
    if app in RESERVED_APPS:
        yield keys.APP_LABEL, app, "KAI"
    selector = labels.get(SPARK_SELECTOR)
    if selector is not None and SPARK_APP in labels and not selector.startswith(SPARK_APP_PREFIX):
        yield SPARK_SELECTOR, selector, "Spark"
