"""Data types of a scenario file: GPUs, pods, processes over time and faults.
Times are seconds since the start of the simulation. Amounts of memory are bytes or Kubernetes quantities."""

from enum import StrEnum
from typing import Any

import msgspec

from gpuagent.gpus.driver import ProcessList
from kai import keys
from kai.numbers import parse_quantity


class Bytes(int):
    """An amount of memory in a scenario."""


class Steps(tuple[tuple[float, int], ...]):
    """Memory over time: pairs of start second and bytes, sorted by time."""

    __slots__ = ()

    def at(self, time: float) -> int:
        """Return the amount at a time; before the first time, the first amount counts."""
        return next((amount for since, amount in reversed(self) if since <= time), self[0][1])


class NumberSteps(Steps):
    __slots__ = ()


class Kinds(frozenset[ProcessList]):
    """The process lists that contain a process."""


def decode_value(kind: type, value: Any) -> Any:
    """Decode a value from YAML; a hook for msgspec."""
    if kind is Bytes:
        return Bytes(parse_quantity(value))
    if kind is Kinds:
        return Kinds(ProcessList[word.upper()] for word in value.split("+"))
    assert issubclass(kind, Steps)
    amounts = value if isinstance(value, dict) else {0: value}
    read = int if kind is NumberSteps else parse_quantity
    return kind(sorted((float(second), int(read(amount))) for second, amount in amounts.items()))


class FaultKind(StrEnum):
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


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of all mappings in the file; unknown fields are errors."""


class _Passing(_Part, frozen=True, kw_only=True):
    start: float = msgspec.field(name="from", default=0.0)
    until: float | None = None

    def is_at(self, time: float) -> bool:
        """Whether the entry is active at a time; `until` is exclusive."""
        return self.start <= time and (self.until is None or time < self.until)


class SimulatedNode(_Part, frozen=True, kw_only=True):
    name: str = "simulated"
    labels: dict[str, str] = {}
    driver: str = "580.65.06"


class SimulatedMig(_Part, frozen=True, kw_only=True):
    uuid: str
    memory: Bytes


class SimulatedXid(_Part, frozen=True, kw_only=True):
    """An error that the driver reports once for a GPU."""

    code: int
    at: float = 0.0


class SimulatedGpu(_Part, frozen=True, kw_only=True):
    """A GPU; its index is its place in the list."""

    uuid: str
    memory: Bytes
    reserved: Bytes = Bytes(0)
    unaccounted: Bytes = Bytes(0)
    """Used memory without a process, such as page tables and the driver's own memory."""
    model: str = "Simulated GPU"
    mig: tuple[SimulatedMig, ...] = ()
    utilization: NumberSteps | None = None
    """Percentage of the time in which a kernel runs on the GPU. Without this or another sensor, the driver
    does not report it."""
    temperature: NumberSteps | None = None
    """Degrees Celsius."""
    power: NumberSteps | None = None
    power_limit: NumberSteps | None = None
    xid: tuple[SimulatedXid, ...] = ()


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
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def share_annotations(self) -> dict[str, str]:
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
    utilization: NumberSteps | None = None
    """Percentage of the time in which the process has a kernel running. If no process of the scenario has
    one, the driver does not report utilisation; else a process without one uses 0."""
    kind: Kinds = Kinds({ProcessList.COMPUTE})
    pod: str = ""
    """`namespace/name`; empty for a host process."""
    name: str = "python"
    count: int = 1
    """Number of processes with consecutive PIDs from `pid` on, each with that memory."""

    @property
    def pids(self) -> range:
        return range(self.pid, self.pid + self.count)


class SimulatedFault(_Passing, frozen=True, kw_only=True):
    fault: FaultKind
    gpu: int | None = None
    """Index of the GPU. Some faults require it, some are for all GPUs without it, and others concern the
    node."""
    pid: int | None = None
    """The process whose memory is unknown."""


class Scenario(_Part, frozen=True, kw_only=True):
    node: SimulatedNode = SimulatedNode()
    gpus: tuple[SimulatedGpu, ...]
    pods: tuple[SimulatedPod, ...] = ()
    processes: tuple[SimulatedProcess, ...] = ()
    faults: tuple[SimulatedFault, ...] = ()
    objects: tuple[dict[str, Any], ...] = ()
    """Further objects of the cluster."""
