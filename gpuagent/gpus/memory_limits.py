"""The GPU memory limits that the driver holds cgroups to (`nvmlDeviceGetMemoryLimits_v1`, since r615).

The function and its codes are described in NVIDIA's NVML API reference (nvmlGetMemoryLimits_v1_t), its two
back-ends in "MPS v3 Memory Partitioning" of the drivers 615 and 620: the dmem controller of cgroups, and a
fallback in the driver ("misc"), which keeps no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from msgspec import Struct

MEMORY_LIMITS: Final = "nvmlDeviceGetMemoryLimits"
NO_LIMIT: Final = (1 << 64) - 1
"""`NVML_DEVICE_MEMORY_LIMIT_MAX`. 0 is a limit of nothing."""


class LimitKind(Enum):
    """What one answer means for one cgroup."""

    LIMIT = "limit"
    """The cgroup has a limit: its own, or that of an ancestor."""
    NONE = "none"
    """No limit. With dmem, an ancestor's limit still binds the cgroup."""
    NOT_SUPPORTED = "not-supported"
    """No limit here and above (misc), or the driver limits nothing on the GPU."""
    NOT_FOUND = "not-found"
    NO_FILES = "no-dmem-files"
    """Not found: the cgroup exists without the files of dmem, while others have them."""
    GONE = "gone"
    """The cgroup does not exist: the container has ended."""
    TOO_OLD = "too-old"
    """The driver is older than r615."""
    UNKNOWN = "unknown"


class LimitAnswer(Struct, frozen=True, gc=False):
    """The driver's answer for one cgroup on one GPU."""

    kind: LimitKind
    soft_bytes: int = 0
    hard_bytes: int = 0
    used_bytes: int = 0
    """Charged memory. It tells an inherited answer from one of its own, and is no figure of use: misc does
    not count memory from before the limit."""


LimitAnswers = Mapping[tuple[str, str], LimitAnswer]
"""By UUID of the GPU and path of the cgroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The driver's answers in one sample."""

    groups: Mapping[str, str] = field(default_factory=dict)
    """Path of a container's cgroup below `--cgroup-root`, by its path in /proc."""
    answers: LimitAnswers = field(default_factory=dict)
    """Without entry: the driver was not asked, or has not answered in time."""
    unknown: "LimitsUnknown | None" = None
    """Why no limit of the node can be known; None if limits can be known."""


class LimitsUnknown(Enum):
    """Why the limits of a node cannot be known."""

    TOO_OLD = "too-old"
    CGROUP_V1 = "cgroup-v1"
    NO_CGROUP_TREE = "no-cgroup-tree"
    NO_ANSWER = "no-answer"

    @property
    def line(self) -> str:
        """The reason for a person, and the remedy if there is one."""
        return _LINES[self]


_LINES: Final = {
    LimitsUnknown.TOO_OLD: "the driver has no such limits (they came with 615)",
    LimitsUnknown.CGROUP_V1: "the node has cgroup v1, for which the driver has no limits",
    LimitsUnknown.NO_CGROUP_TREE: "no container's cgroup is below --cgroup-root: the agent needs the host's"
    " cgroup tree (the chart's agent.cgroupRoot)",
    LimitsUnknown.NO_ANSWER: "the search for the containers' cgroups has not ended in time",
}


NO_LIMITS: Final = NodeLimits()

_BY_ERROR: Final = {
    "NotSupported": LimitKind.NOT_SUPPORTED,
    "NotFound": LimitKind.NOT_FOUND,
    "FunctionNotFound": LimitKind.TOO_OLD,
}
EXPECTED_ERRORS: Final = (*_BY_ERROR, "InvalidArgument")
"""Errors that are answers. InvalidArgument means a MIG device, or a path outside of cgroups."""


def answer_of_error(error: str) -> LimitAnswer:
    """Return what a failed call means."""
    return LimitAnswer(_BY_ERROR.get(error, LimitKind.UNKNOWN))


def parent_of(group: str) -> str:
    """Return the cgroup above one, which is that of the pod for a container's."""
    return group.rpartition("/")[0]
