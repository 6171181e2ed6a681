"""What is asked of the driver, and what its failures ask of us: the seam between policy and library."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

import msgspec


class CallFailed(Exception):
    """A call of the driver failed; said of one device, or of the node where the call names none."""

    def __init__(self, call: str, error: str) -> None:
        super().__init__(call, error)
        self.call = call
        """The function as NVIDIA's reference names it, without a version: `nvmlDeviceGetMemoryInfo`."""
        self.error = error
        """The error as the binding names it: `GpuIsLost`, `NotSupported`, `Unknown`."""

    def __str__(self) -> str:
        return f"{self.call}: {self.error}"


class GpuLost(CallFailed):
    """This device is gone, or must be reset first; others go on (GpuIsLost, ResetRequired, GpuNotFound)."""


class DriverGone(CallFailed):
    """The driver as a whole: nothing works before it is initialised anew.

    DriverNotLoaded, Uninitialized, NotReady, LibraryNotFound.
    """


class NotOffered(CallFailed):
    """This driver or device does not offer the call (NotSupported, FunctionNotFound)."""


class NotPermitted(CallFailed):
    """The agent's container may not have this answer (NoPermission); a new process may have it no more."""


REFUSALS: Final = (NotOffered, NotPermitted)
"""Answers that stay the same until somebody changes the node: they take away one figure, not the device."""


_HINTS: Final = {
    "LibraryNotFound": "libnvidia-ml.so.1 not found: this node has no NVIDIA driver, or the container"
    " does not get it (runtimeClassName nvidia, NVIDIA_DRIVER_CAPABILITIES utility)",
    "DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NoPermission": "no permission to open the driver's device files",
    "OperatingSystem": "the system blocks this container from the driver's device files",
    "GpuIsLost": "the GPU fell off the bus; see XID 79 in the kernel log",
    "ResetRequired": "the GPU must be reset",
    "Unknown": "often the container has lost its device files, for example by systemctl daemon-reload",
}


def explained(failure: CallFailed) -> str:
    """The failure in one line, with its usual reason where there is one."""
    hint = _HINTS.get(failure.error)
    return f"{failure} ({hint})" if hint else str(failure)


class ProcessList(StrEnum):
    """The lists of processes a driver keeps, under the names of their calls."""

    COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
    GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
    MPS = "nvmlDeviceGetMPSComputeRunningProcesses"


MEMORY_INFO = "nvmlDeviceGetMemoryInfo"

MOST_DEVICE_BYTES: Final = 1 << 50
"""No GPU has a PiB. Figures beyond are garbage, and sums of figures below stay within 64 bits."""

NO_INSTANCE = 0xFFFFFFFF
"""What the driver says for the GPU or compute instance of a process outside MIG."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device's memory, bytes."""

    total: int
    free: int
    reserved: int | None
    """None: the driver has only the first version of the call; then what is reserved counts as used."""


class ListedProcess(msgspec.Struct, frozen=True, gc=False):
    """One entry of one list. There are many, so it is of the kind that is made fastest."""

    pid: int
    used_bytes: int | None
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class ErrorCounts:
    """How often each call failed with each error."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, call: str, error: str) -> None:
        """Count one failure."""
        self._counts[call, error] = self._counts.get((call, error), 0) + 1

    def copy(self) -> dict[tuple[str, str], int]:
        """Return (call, error) to count; safe to ask from another thread."""
        return self._counts.copy()


Handle: TypeAlias = Any
"""A device, or a MIG device, as its driver knows it; opaque to everybody else."""


class Driver(Protocol):
    """The calls the agent makes, each of which raises CallFailed or one of its kinds, or DriverReplaced.

    All are made from one thread, and any of them may block for long.
    """

    errors: ErrorCounts
    """Failures are counted where they happen, expected answers left out."""

    def start(self) -> None:
        """Initialise."""

    def stop(self) -> None:
        """Shut down; every handle is void. Fails no caller."""

    def version(self) -> str:
        """Return the driver's version."""

    def count(self) -> int:
        """Return how many GPUs there are, lost ones included."""

    def open(self, index: int) -> Handle:
        """Return the GPU at an index."""

    def uuid(self, device: Handle) -> str:
        """Return the UUID of a GPU or MIG device."""

    def name(self, device: Handle) -> str:
        """Return the product name."""

    def memory(self, device: Handle) -> DeviceMemory:
        """Return total, free and reserved bytes."""

    def processes(self, device: Handle, which: ProcessList) -> list[ListedProcess]:
        """Return one list of processes, in no order; one process may stand in it more than once."""

    def is_mig(self, device: Handle) -> bool:
        """Whether the GPU is partitioned into MIG devices."""

    def mig_places(self, device: Handle) -> int:
        """Return how many MIG devices a GPU has room for; most of the places may be empty."""

    def instance(self, device: Handle, place: int) -> Handle | None:
        """Return the MIG device at a place; None if the place is empty."""
