"""Data types of driver calls: their answers, and the types of failures."""

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec


class CallFailed(Exception):
    """A driver call failed, for one device, or for the node if the call has no device."""

    def __init__(self, call: str, error: str) -> None:
        super().__init__(call, error)
        self.call = call
        """Name of the function without its version, as in NVIDIA's reference: `nvmlDeviceGetMemoryInfo`."""
        self.error = error
        """Name of the error as in the binding: `GpuIsLost`, `NotSupported`, `Unknown`."""

    def __str__(self) -> str:
        return f"{self.call}: {self.error}"


class FigureFailed(CallFailed):
    """A call failed for one figure; the other figures of the device may still be read."""


class GpuLost(CallFailed):
    """The device is lost or needs a reset; other devices work (GpuIsLost, ResetRequired, GpuNotFound)."""


class DriverGone(CallFailed):
    """The whole driver failed, and must be initialised again: `nvmlInit` or the count of GPUs says so."""


class NotOffered(FigureFailed):
    """The driver or device does not support the call (NotSupported, FunctionNotFound)."""


class NotPermitted(FigureFailed):
    """The agent's container has no permission (NoPermission). A new process would not get it, either."""


class CallTimedOut(CallFailed):
    """A call did not return in time. It may still hang, and then no other call may follow in its thread.

    `call` is empty for the calls that read a GPU.
    """

    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(call, "NoAnswer")
        self._seconds = seconds

    def __str__(self) -> str:
        where = f"{self.call}: " if self.call else ""
        return f"{where}no answer within {self._seconds:g} s"


class ThreadNotStarted(CallFailed):
    """A call was not made, since its thread could not be started. Another try may succeed."""

    def __init__(self, thread: str) -> None:
        super().__init__(f"thread {thread}", "NotStarted")


REFUSALS: Final = (NotOffered, NotPermitted)
"""Failures that persist until the node is changed. They affect one figure, and not the whole device."""


_HINTS: Final = {
    "LibraryNotFound": "libnvidia-ml.so.1 not found: this node has no NVIDIA driver, or the container"
    " does not get it (runtimeClassName nvidia, NVIDIA_DRIVER_CAPABILITIES utility)",
    "DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NoPermission": "no permission to open the driver's device files",
    "OperatingSystem": "the system blocks this container from the driver's device files",
    "GpuIsLost": "the GPU fell off the bus; see XID 79 in the kernel log",
    "ResetRequired": "the GPU must be reset",
    "NotStarted": "the limit of threads of the agent's container or of the node is reached",
    "NoAnswer": "driver or GPU hang; see XID and hung tasks in the kernel log",
    "Unknown": "often the container has lost its device files, for example by systemctl daemon-reload",
}


def explained(failure: CallFailed) -> str:
    """Return the failure in one line, with its usual cause if known."""
    hint = _HINTS.get(failure.error)
    return f"{failure} ({hint})" if hint else str(failure)


class ProcessList(StrEnum):
    """The driver's process lists, by the names of their calls."""

    COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
    GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
    MPS = "nvmlDeviceGetMPSComputeRunningProcesses"


class Sensor(StrEnum):
    """The figures of a whole GPU beside its memory, by the names of their calls."""

    UTILIZATION = "nvmlDeviceGetUtilizationRates"
    """Part of the last measuring period in which a kernel ran, in percent."""
    TEMPERATURE = "nvmlDeviceGetTemperature"
    """Temperature of the chip, in degrees Celsius."""
    POWER = "nvmlDeviceGetPowerUsage"
    """Power draw, in milliwatts."""
    POWER_LIMIT = "nvmlDeviceGetEnforcedPowerLimit"
    """Enforced limit of the power, in milliwatts."""


MEMORY_INFO = "nvmlDeviceGetMemoryInfo"
PROCESS_UTILIZATION = "nvmlDeviceGetProcessUtilization"

MOST_DEVICE_BYTES: Final = 1 << 50
"""1 PiB, more than any GPU has. Larger figures are garbage, and sums of smaller ones fit into 64 bits."""

MOST_LISTED: Final = 950
"""Longest list of the driver, which truncates it silently (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT)."""

NO_INSTANCE = 0xFFFFFFFF
"""GPU instance or compute instance of a process outside of MIG."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device, in bytes."""

    total: int
    free: int
    reserved: int | None
    """None if the driver has only the first version of the call; reserved memory then counts as used."""

    @property
    def used(self) -> int:
        """The rest: total - free - reserved."""
        return self.total - self.free - (self.reserved or 0)


class ListedProcess(msgspec.Struct, frozen=True, gc=False):
    """An entry of a process list. A msgspec Struct, since there are many and it is cheap to create."""

    pid: int
    used_bytes: int | None
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class UtilizationSample(msgspec.Struct, frozen=True, gc=False):
    """Use of a GPU by one process, as the driver sampled it."""

    pid: int
    time: int
    """End of the sample in microseconds, on the driver's clock."""
    percent: int
    """Percentage of the time in which the process had a kernel running; the driver may return impossible
    values."""


class ErrorCounts:
    """Number of failed calls by call and error. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def add(self, call: str, error: str) -> None:
        """Count one failure."""
        with self._lock:
            self._counts[call, error] = self._counts.get((call, error), 0) + 1

    def copy(self) -> dict[tuple[str, str], int]:
        """Return the counts by (call, error)."""
        return self._counts.copy()


Handle: TypeAlias = Any
"""A device or MIG device of the driver; opaque to callers."""
