"""kaishare's own labels and annotations, and the values of those that both services read.

The webhook validates the labels for pods above their share; the agent applies them.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

# Labels of namespaces.
PREFIX: Final = "kaishare.dev/"
SCHEDULER: Final = "kaishare.dev/scheduler"
FRACTION: Final = "kaishare.dev/gpu-fraction"
MEMORY: Final = "kaishare.dev/gpu-memory"
SHARE_FOR: Final = "kaishare.dev/share-for"
MAX_FRACTION: Final = "kaishare.dev/max-gpu-fraction"
MAX_MEMORY: Final = "kaishare.dev/max-gpu-memory"
PRIORITY: Final = "kaishare.dev/priority"
TOLERATION: Final = "kaishare.dev/gpu-toleration"
ANNOUNCE: Final = "kaishare.dev/announce"
OVER_SHARE: Final = "kaishare.dev/over-share"
OVER_SHARE_GRACE: Final = "kaishare.dev/over-share-grace"
MODE: Final = "kaishare.dev/mode"
DISTRIBUTED: Final = "kaishare.dev/distributed"
FRAMEWORK_MEMORY: Final = "kaishare.dev/framework-memory"
"""On a pod an annotation: what the webhook set, or `FRAMEWORK_KEPT` of the author to keep it from that."""
FRAMEWORK_KEPT: Final = "keep"
VCLUSTER: Final = "kaishare.dev/vcluster"
"""Label of a host namespace in which only a vCluster's syncer creates pods."""
VCLUSTER_HOST: Final = "true"  # the only value of `VCLUSTER`

SIZE_PREFIX: Final = "size.kaishare.dev/"
"""Prefix of a size's label on a namespace, and of the annotation with the size's selector."""

# Labels and annotations of pods.
INJECT: Final = "kaishare.dev/inject"
GPU_MARK: Final = "kaishare.dev/gpu"
GPU_SHARED: Final = "shared"  # the only value of the label `GPU_MARK`
WHOLE_GPU: Final = "kaishare.dev/whole-gpu"
SIZE: Final = "kaishare.dev/size"
"""As a label it selects a size. As an annotation it names the size that the pod got."""
REASON: Final = "kaishare.dev/reason"
"""Annotation that the webhook writes: the code of its decision. Nothing is decided by it."""
SIMULATE: Final = "kaishare.dev/simulate"
"""Annotation with the memory of a pod's made-up process, as a percentage of its share. Only an agent with
`--gpus simulated` reads it."""
POD_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INJECT: "a label",
        GPU_MARK: "a label",
        SIZE: "a label",
        WHOLE_GPU: "an annotation",
        REASON: "an annotation",
        SIMULATE: "an annotation",
        FRAMEWORK_MEMORY: "an annotation",
    }
)

EVICTED_OWNER: Final = "kaishare.dev/evicted-owner"
"""Annotation of the agent's Events in its own namespace: a digest of the evicted pod's owner."""

MODE_OFF: Final = "off"
"""Value of `MODE` that switches kaishare off for a namespace: pods are neither changed nor evicted."""
GRACE_FORM: Final = "an integer and s, m or h, from 30s to 24h"

LONGEST_SIZE_NAME: Final = 40
_SIZE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
SIZE_NAME_FORM: Final = _SIZE_NAME.pattern


def is_size_name(name: str) -> bool:
    """Whether a size may have this name: a DNS label of at most 40 characters."""
    return len(name) <= LONGEST_SIZE_NAME and _SIZE_NAME.fullmatch(name) is not None


_GRACE = re.compile(r"([0-9]{1,9})([smh])")
GRACE_PATTERN: Final = _GRACE.pattern
GRACE_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
SHORTEST_GRACE: Final = 30  # seconds, as the label `OVER_SHARE_GRACE` may say
LONGEST_GRACE: Final = 86400


class OverShare(StrEnum):
    """Action of the agent on a pod above its share."""

    REPORT = "report"
    EVICT = "evict"


def read_over_share(value: str) -> OverShare | None:
    """Read the label `OVER_SHARE`; return None if the value is not allowed."""
    return OverShare(value) if value in tuple(OverShare) else None


def read_grace(value: str) -> int | None:
    """Read the label `OVER_SHARE_GRACE`; return seconds, or None if the value is not allowed."""
    match = _GRACE.fullmatch(value)
    seconds = int(match[1]) * GRACE_UNITS[match[2]] if match else 0
    return seconds if SHORTEST_GRACE <= seconds <= LONGEST_GRACE else None


EXCLUDED_NAMESPACES: Final = frozenset(
    {
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "kai-scheduler",
        "kai-resource-reservation",
        "kai-scale-adjust",
        "gpu-operator",
        "nvidia-gpu-operator",
        "kaishare",
        "kaishare-agent",
    }
)
"""Namespaces that both services ignore by default; the option `--exclude-namespaces` replaces the set.

NVIDIA's operator is in `nvidia-gpu-operator` on OpenShift (its ClusterServiceVersion's suggested namespace).
"""

AGENT_EXCLUDED_NAMESPACES: Final = EXCLUDED_NAMESPACES | {"nvidia-device-plugin"}
"""Default of the agent's `--exclude-namespaces`. NVIDIA's device plugin without the operator is installed in
`nvidia-device-plugin` (NVIDIA/k8s-device-plugin, README.md), where the MPS control daemon uses GPUs without a
share. The webhook needs no such rule, as it changes pods only in namespaces with a queue."""
