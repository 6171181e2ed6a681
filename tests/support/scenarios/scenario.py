"""Data types of a scenario file: GPUs, pods, processes over time and faults.

Times are seconds since the start of the simulation. Amounts of memory are bytes or Kubernetes quantities.
"""

import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from gpuagent.gpus.driver import ProcessList
from gpuagent.gpus.health import MOST_CODE
from kai import keys
from kai.numbers import parse_quantity
from kai.share import Share
from service.text import quoted

_MOST_NUMBER: Final = 100_000


class Bytes(int):
    """An amount of memory in a scenario. The simulated driver answers in plain integers, as the real one."""


class Steps(tuple[tuple[float, int], ...]):
    """An amount over time, in bytes unless specified: pairs of start second and amount, sorted by time."""

    __slots__ = ()

    def at(self, time: float) -> int:
        """Return the bytes at a time; before the first time, the first amount counts."""
        amount = self[0][1]
        for since, later in self:
            if since > time:
                break
            amount = later
        return amount


class PercentSteps(Steps):
    """Utilisation over time, in percent."""

    __slots__ = ()


class NumberSteps(Steps):
    """A whole number over time, in the unit of its field."""

    __slots__ = ()


class Kinds(frozenset[ProcessList]):
    """The process lists that contain a process."""


def decode_value(kind: type, value: Any) -> Any:
    """Decode a value from YAML; a hook for msgspec.

    Raises:
        ValueError: the value is invalid; the message shows the allowed form.
    """
    if kind is Bytes:
        return Bytes(_bytes(value))
    if kind is Steps:
        return Steps(_steps(value, _bytes, "memory over time", "{0: 1Gi, 30: 2Gi}"))
    if kind is PercentSteps:
        return PercentSteps(_steps(value, _percent, "utilization over time", "{0: 20, 30: 90}"))
    if kind is NumberSteps:
        return NumberSteps(_steps(value, _number, "a figure over time", "{0: 41, 30: 78}"))
    if kind is Kinds:
        return _kinds(value)
    raise NotImplementedError(kind)


def _bytes(value: Any) -> int:
    try:
        amount = parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{error}; allowed: bytes, or a quantity such as 4Gi") from None
    if amount < 0 or amount.denominator != 1:
        raise ValueError(f'"{value}" is not a whole number of bytes')
    return int(amount)


def _percent(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ValueError(f"{quoted(str(value))} is not a percentage; allowed: whole numbers from 0 to 100")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_NUMBER:
        raise ValueError(
            f"{quoted(str(value))} is not a figure; allowed: whole numbers from 0 to {_MOST_NUMBER}"
        )
    return value


def _steps(value: Any, amount_of: Callable[[Any], int], name: str, example: str) -> list[tuple[float, int]]:
    if not isinstance(value, dict):
        return [(0.0, amount_of(value))]
    if not value or not all(
        isinstance(second, int | float) and not isinstance(second, bool) and second >= 0 for second in value
    ):
        raise ValueError(f"{name} is a mapping of seconds to amounts, such as {example}")
    return sorted((float(second), amount_of(amount)) for second, amount in value.items())


def _kinds(value: Any) -> Kinds:
    names = {which.name.lower(): which for which in ProcessList}
    parts = str(value).split("+")
    if not set(parts) <= names.keys():
        raise ValueError(f'"{value}" is not a kind; allowed: {", ".join(names)}, or several joined by +')
    return Kinds(names[word] for word in parts)


MOST_PROCESSES: Final = 10_000


class FaultKind(StrEnum):
    """Faults of a simulated driver."""

    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    UNINITIALIZED = "uninitialized"
    NOT_READY = "not-ready"
    LIBRARY_MISSING = "library-missing"
    DRIVER_REPLACED = "driver-replaced"
    NO_PERMISSION = "no-permission"
    BLOCKED = "blocked"
    UNKNOWN_ERROR = "unknown-error"
    NOT_SUPPORTED = "not-supported"
    OLD_DRIVER = "old-driver"
    SIZE_RACE = "size-race"
    MEMORY_UNKNOWN = "memory-unknown"
    GARBAGE = "garbage"
    PID_NAMESPACE = "pid-namespace"
    HANG = "hang"


_OF_ONE_GPU: Final = frozenset(
    {FaultKind.GPU_LOST, FaultKind.RESET_REQUIRED, FaultKind.GARBAGE, FaultKind.NOT_SUPPORTED}
)
_OF_A_GPU_OR_ALL: Final = _OF_ONE_GPU | {
    FaultKind.NO_PERMISSION,
    FaultKind.BLOCKED,
    FaultKind.UNKNOWN_ERROR,
    FaultKind.OLD_DRIVER,
    FaultKind.SIZE_RACE,
}


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of all mappings in the file; unknown fields are errors."""


class _Passing(_Part, frozen=True, kw_only=True):
    """Base of entries with a start and an end."""

    start: float = msgspec.field(name="from", default=0.0)
    until: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < math.inf or (self.until is not None and self.until <= self.start):
            raise ValueError("`from` must be 0 or more and before `until`")

    def is_at(self, time: float) -> bool:
        """Whether the entry is active at a time; `until` is exclusive."""
        return self.start <= time and (self.until is None or time < self.until)


class SimulatedNode(_Part, frozen=True, kw_only=True):
    """The node itself."""

    name: str = "simulated"
    labels: dict[str, str] = {}
    driver: str = "580.65.06"


class SimulatedMig(_Part, frozen=True, kw_only=True):
    """One MIG device of a GPU."""

    uuid: str
    memory: Bytes


class SimulatedXid(_Part, frozen=True, kw_only=True):
    """An error that the driver reports once for a GPU."""

    code: int
    at: float = 0.0
    """Seconds."""

    def __post_init__(self) -> None:
        if not 0 < self.code <= MOST_CODE or not 0 <= self.at < math.inf:
            raise ValueError(f"`code` must be from 1 to {MOST_CODE}, and `at` 0 or more")


class SimulatedGpu(_Part, frozen=True, kw_only=True):
    """A GPU; its index is its place in the list."""

    uuid: str
    memory: Bytes
    reserved: Bytes = Bytes(0)
    unaccounted: Bytes = Bytes(0)
    """Used memory without a process, such as page tables and the driver's own memory."""
    model: str = "Simulated GPU"
    mig: tuple[SimulatedMig, ...] = ()
    utilization: PercentSteps | None = None
    """Percentage of the time in which a kernel runs on the GPU. Without this or another sensor, the driver
    does not report it."""
    temperature: NumberSteps | None = None
    """Degrees Celsius."""
    power: NumberSteps | None = None
    """Watts."""
    power_limit: NumberSteps | None = None
    """Watts."""
    xid: tuple[SimulatedXid, ...] = ()

    def __post_init__(self) -> None:
        if not self.uuid:
            raise ValueError("`uuid` must not be empty")


class SimulatedPod(_Part, frozen=True, kw_only=True):
    """Short form of a pod; the objects that KAI creates for it are added."""

    name: str
    """`namespace/name`."""
    queue: str = ""
    fraction: str | float | None = None
    memory: int | None = None
    """`gpu-memory`, MiB."""
    whole: int = 0
    """Whole GPUs instead of a share."""
    gpu: int | tuple[int, ...] = ()
    """Indices of the GPUs on which KAI placed the share; without it, KAI has not placed the pod."""
    reservation: bool = True
    """Whether a reservation pod holds the GPU for the pod's group."""
    containers: tuple[str, ...] = ("main",)
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    """Override the annotations of the share, like an edit after binding."""
    phase: str = "Running"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/]+/[^/]+", self.name):
            raise ValueError("`name` must be namespace/name")
        if (self.fraction is not None) + (self.memory is not None) + (self.whole > 0) > 1:
            raise ValueError("only one of `fraction`, `memory` and `whole` is allowed")
        Share.from_annotations(self.share_annotations)
        if not self.containers:
            raise ValueError("`containers` must name at least one")

    @property
    def share_annotations(self) -> dict[str, str]:
        """Return the annotations that a user writes for this share."""
        annotations = {keys.GPU_FRACTION: self.fraction, keys.GPU_MEMORY: self.memory}
        if len(self.gpus) > 1:
            annotations[keys.NUM_DEVICES] = len(self.gpus)
        return {key: str(value) for key, value in annotations.items() if value is not None}

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the indices of the GPUs on which KAI placed the share."""
        return (self.gpu,) if isinstance(self.gpu, int) else self.gpu


class SimulatedProcess(_Passing, frozen=True, kw_only=True):
    """A process on one GPU; entries with the same PID are one process on several GPUs."""

    pid: int
    gpu: int | str
    """Index, or the UUID of a MIG device."""
    memory: Steps
    utilization: PercentSteps | None = None
    """Percentage of the time in which the process has a kernel running. If no process of the scenario has
    one, the driver does not report utilisation; else a process without one uses 0."""
    kind: Kinds = Kinds({ProcessList.COMPUTE})
    pod: str = ""
    """`namespace/name`; empty for a host process."""
    container: str = ""
    """Empty for the pod's first container."""
    name: str = "python"
    cgroup: str = ""
    """Content of the cgroup file; overrides the one of pod and container."""
    count: int = 1
    """Number of processes with consecutive PIDs from `pid` on, each with that memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (1 <= self.count <= MOST_PROCESSES and 3 <= self.pid <= (1 << 22) - self.count):
            raise ValueError(
                f"`pid` must be from 3 to {1 << 22} (1 and 2 belong to the system),"
                f" and `count` from 1 to {MOST_PROCESSES}"
            )


class SimulatedFault(_Passing, frozen=True, kw_only=True):
    """A temporary fault."""

    fault: FaultKind
    gpu: int | None = None
    """Index of the GPU. Some faults require it, some are for all GPUs without it, and others concern the
    node."""
    pid: int | None = None
    """The process whose memory is unknown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fault in _OF_ONE_GPU and self.gpu is None:
            raise ValueError(f"{self.fault} needs `gpu`")
        if self.fault not in _OF_A_GPU_OR_ALL and self.gpu is not None:
            raise ValueError(f"{self.fault} takes no `gpu`")
        if (self.fault is FaultKind.MEMORY_UNKNOWN) != (self.pid is not None):
            raise ValueError(f"`pid` belongs to {FaultKind.MEMORY_UNKNOWN}, which needs it")


class Scenario(_Part, frozen=True, kw_only=True):
    """Root of a scenario file."""

    node: SimulatedNode = SimulatedNode()
    gpus: tuple[SimulatedGpu, ...]
    pods: tuple[SimulatedPod, ...] = ()
    objects: tuple[dict[str, Any], ...] = ()
    """Literal Kubernetes objects; missing fields of running pods are added."""
    processes: tuple[SimulatedProcess, ...] = ()
    faults: tuple[SimulatedFault, ...] = ()
