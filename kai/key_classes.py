"""The labels and annotations of pods that belong to KAI, and which of them users may write.

A key below one of `KAI_KEYS` belongs to KAI alone unless `TABLE` has a row for it, which protects the keys of
releases to come. `verify` and docs/guard.md use the table; a test compares it with the guard's policy.

Source: every read of a label or annotation of a pod in KAI v0.9.8, v0.13.4 and v0.17.0. The words of other
projects that KAI copies from a workload to its PodGroup are not here: the guard judges the PodGroup.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kai import keys


class KeyClass(StrEnum):
    """When users may write a key of KAI."""

    CREATION = "creation"
    """When they create the pod; later only KAI's components write it."""
    FREE = "free"
    """At any time: it changes only the order or the placement of their own pods."""


class KeyKind(StrEnum):
    """The map of an object's metadata that has the key."""

    LABEL = "label"
    ANNOTATION = "annotation"


@dataclass(frozen=True, slots=True)
class KaiKey:
    """A label or annotation of KAI that users may write."""

    kind: KeyKind
    key: str  # the key, or the beginning of each key if `is_prefix`
    rule: KeyClass
    since: str  # the oldest of the releases 0.9.8, 0.13.4, 0.17.0 and 0.18 (not covered) that reads the key
    effect: str  # what a user gains by changing the key later; for a free key, what it sets

    @property
    def is_prefix(self) -> bool:
        """Whether the row stands for all keys that begin with `key`."""
        return self.key.endswith(_OPEN)


_OPEN: Final = ("/", "-", ".")  # the ends of texts that are beginnings of keys, not keys

KAI_KEYS: Final = (
    "kai.scheduler/",
    "runai/",
    "run.ai/",
    keys.GPU_GROUP,
    keys.GPU_GROUP_PREFIX,
    keys.GPU_FRACTION,
    keys.NUM_DEVICES,
    keys.CONTAINER_NAME,
    keys.FRACTION_LIMIT,
    keys.GPU_MEMORY,
    keys.MEMORY_LIMIT,
    keys.RECEIVED_RESOURCE_TYPE,
    keys.POD_GROUP_NAME,
    keys.MIG_PREFIX,
    keys.CONTAINER_PREFIX,
    "shared-gpu-pod-",
)
"""KAI's keys. A text that ends in `/`, `-` or `.` stands for all keys that begin with it."""

SCALING_APP: Final = "scaling-pod"
"""Value of `app` on the pods of KAI's node-scale-adjuster (`utility_pods.go`, all releases)."""
RESERVED_APPS: Final = (keys.RESERVATION_APP, SCALING_APP)
"""Values of the label `app` by which KAI's scheduler recognizes its own pods, in every namespace. It does not
count the GPUs of such pods on their node."""

_OWN_ORDER: Final = "order and gang of own pods"
_OWN_PLACE: Final = "placement of own pods"
_MORE_THAN_COUNTED: Final = "holds more of a GPU than KAI counts"
_LABEL, _ANNOTATION = KeyKind.LABEL, KeyKind.ANNOTATION
_CREATION, _FREE = KeyClass.CREATION, KeyClass.FREE

TABLE: Final = (
    KaiKey(_ANNOTATION, keys.GPU_FRACTION, _CREATION, "0.9.8", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.GPU_MEMORY, _CREATION, "0.9.8", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.NUM_DEVICES, _CREATION, "0.9.8", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.CONTAINER_NAME, _CREATION, "0.13.4", "the ConfigMap of another container"),
    KaiKey(_ANNOTATION, keys.FRACTION_LIMIT, _CREATION, "0.18", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.MEMORY_LIMIT, _CREATION, "0.18", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.CONTAINER_PREFIX, _CREATION, "0.18", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.CONTAINER_PORTION_PREFIX, _CREATION, "0.18", _MORE_THAN_COUNTED),
    KaiKey(_ANNOTATION, keys.SHARED_GPU_CONFIGMAP, _CREATION, "0.9.8", "the ConfigMap of another pod"),
    KaiKey(_LABEL, keys.QUEUE_LABEL, _CREATION, "0.9.8", "another queue"),
    KaiKey(_LABEL, keys.NODE_POOL_LABEL, _CREATION, "0.9.8", "another shard of the scheduler"),
    KaiKey(_LABEL, keys.PREEMPTIBILITY, _CREATION, "0.13.4", "pods above the quota are not reclaimed"),
    KaiKey(_ANNOTATION, keys.SEGMENT_SIZE, _CREATION, "0.13.4", "another gang"),
    KaiKey(_LABEL, keys.TASK_PRIORITY, _FREE, "0.9.8", _OWN_ORDER),
    KaiKey(_ANNOTATION, "kai.scheduler/topology", _FREE, "0.9.8", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/topology-required-placement", _FREE, "0.9.8", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/topology-preferred-placement", _FREE, "0.9.8", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/segment-topology-required-placement", _FREE, "0.13.4", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/segment-topology-preferred-placement", _FREE, "0.13.4", _OWN_PLACE),
    KaiKey(_ANNOTATION, "kai.scheduler/batch-min-member", _FREE, "0.17.0", _OWN_ORDER),
    KaiKey(_ANNOTATION, "kai.scheduler/preemption-delay", _FREE, "0.17.0", _OWN_ORDER),
    KaiKey(_ANNOTATION, "kai.scheduler/staleness-grace-period", _FREE, "0.17.0", _OWN_ORDER),
)
"""The keys below `KAI_KEYS` that users may write."""

FREE_KEYS: Final = tuple(row.key for row in TABLE if row.rule is _FREE)
CREATION_KEYS: Final = tuple(row.key for row in TABLE if row.rule is _CREATION and not row.is_prefix)
KAI_PREFIXES: Final = tuple(text for text in KAI_KEYS if text.endswith(_OPEN))
KAI_NAMES: Final = tuple(text for text in KAI_KEYS if not text.endswith(_OPEN))
_NAMES: Final = frozenset(KAI_NAMES)
_USERS: Final = frozenset(FREE_KEYS + CREATION_KEYS)
USER_PREFIXES: Final = tuple(row.key for row in TABLE if row.is_prefix)
"""Beginnings of keys below KAI's prefixes that users may set when they create the pod."""


def is_of_kai(key: str) -> bool:
    """Whether a label or annotation of this name belongs to KAI."""
    return key in _NAMES or key.startswith(KAI_PREFIXES)


def is_written_by_kai_only(key: str) -> bool:
    """Whether users may not set a label or annotation of this name, not even when they create the pod."""
    return is_of_kai(key) and key not in _USERS and not key.startswith(USER_PREFIXES)


def reserved_values(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each label of a pod with a value that only KAI's own pods have: the key and the value."""
    app = labels.get(keys.APP_LABEL)
    if app in RESERVED_APPS:
        yield keys.APP_LABEL, app
