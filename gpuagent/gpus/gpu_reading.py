"""Data types of a GPU reading, before processes are attributed.

All amounts are in bytes. None is a figure that the driver does not report.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from gpuagent.gpus.memory_limits import LimitAnswers
from gpuagent.problems import LOST, NOT_LISTED, Problem


class GpuProcess(Struct, frozen=True, gc=False):
    """A process on a device; its memory is the maximum of the compute, graphics and MPS lists.

    A msgspec Struct, since there are many and it is cheap to create.
    """

    pid: int
    """PID in the agent's PID namespace."""
    used_bytes: int | None


Percents = Mapping[int, int | None]
"""Percentage by PID; None if the driver reports an impossible one."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported for a GPU."""

    code: int
    time: float
    """Unix time at which the agent received it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensors:
    """Figures of a whole GPU beside its memory. None is a figure that the driver does not report."""

    utilization_ratio: float | None = None
    """Part of the driver's last measuring period in which a kernel ran, from 0 to 1."""
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    xid: Xid | None = None
    """The newest error since the agent started."""


NO_SENSORS = Sensors()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG device of a GPU: reported, never evaluated."""

    uuid: str
    total_bytes: int | None
    processes: tuple[GpuProcess, ...] | None
    used_bytes: int | None = None
    memory_unknown: str = ""
    """Why total and used memory are unknown, in one line; empty while they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU with its memory and processes."""

    index: int
    uuid: str
    model: str
    total_bytes: int | None
    """None, like `used_bytes`, if the driver refuses the figure; `memory_unknown` has the reason."""
    used_bytes: int | None
    """total − free − reserved, independent of whether the driver's own `used` includes reserved memory."""
    reserved_bytes: int | None
    processes: tuple[GpuProcess, ...] | None
    """None if the list is missing or implausible; a Problem has the reason. With MIG: the processes that
    no MIG device lists."""
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    memory_unknown: str = ""
    """Why total and used memory are unknown, in one line; empty while they are known."""
    utilization: Percents | None = None
    """Parts of the last interval in which a process had a kernel running. A process without an entry used
    nothing. None instead of the mapping: the driver does not report it."""
    utilization_unknown: str = ""
    """Why the driver does not report the utilisation, in one line; empty while it does."""
    sensors: Sensors = NO_SENSORS
    mps_clients: frozenset[int] | None = frozenset()
    """PIDs of the clients of MPS servers; None if the driver does not list them."""


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU that does not respond, or that the driver no longer lists."""

    index: int
    """Its index at its last response; without any response, its place in the driver's list."""
    uuid: str = ""
    """Empty if the GPU has not responded since the agent started."""
    model: str = ""
    xid: Xid | None = None
    """The newest error since the agent started."""
    error: str = NOT_LISTED
    """Why: the driver's error, such as GpuIsLost, or NOT_LISTED."""

    @property
    def is_lost(self) -> bool:
        """Whether the GPU itself is lost; else a driver, a container or a permission may be the cause."""
        return self.error in LOST

    @property
    def is_listed(self) -> bool:
        """Whether the driver lists the GPU."""
        return self.error != NOT_LISTED

    @property
    def scope(self) -> str:
        """The `gpu_uuid` of its problem: the UUID, or `index-3` if the UUID is unknown."""
        return self.uuid or f"index-{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Result of reading all GPUs once. Lost GPUs appear in `problems` and `lost`."""

    gpus: tuple[Gpu, ...]
    problems: tuple[Problem, ...] = ()
    lost: tuple[LostGpu, ...] = ()
    """GPUs that did not respond, by index. A GPU that the agent has never seen, and that the driver does not
    list, is not known to be lost."""
    driver_version: str = ""
    restart_may_help: bool = False
    """Whether no GPU responds although the driver is loaded; a new process may then see the GPUs."""
    is_hanging: bool = False
    """Whether no GPU responds and a driver call is unanswered; ending the process then may freeze a GPU."""


class DriverReplaced(Exception):
    """The versions of library and driver differ; only a new process can load the new library."""


class GpuSource(Protocol):
    """A source of the node's GPUs.

    `read` and `close` are called from one thread. `read` waits for a GPU until a deadline, and not at all
    for one whose last call is unanswered.
    """

    @property
    def is_simulated(self) -> bool:
        """Whether the figures are synthetic; every output is then marked."""

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """Number of failed driver calls by (call, error) since the start, for `nvml_errors_total`.

        Returns a copy, which another thread may keep.
        """

    @property
    def is_hanging(self) -> bool:
        """Whether a driver call is unanswered. Thread-safe."""

    def expect(self, count: int | None) -> None:
        """Set the number of GPUs from the node's label; None if unknown. Thread-safe."""

    def read(self) -> GpuReading:
        """Read every GPU; a failure is among the problems, and the next read tries again.

        Raises:
            DriverReplaced: only a new process can help.
        """

    def memory_limits(self, groups: Mapping[str, Collection[str]]) -> LimitAnswers:
        """Return the limits of cgroups, by UUID of the GPU; called after `read`, from the same thread."""

    def close(self) -> None:
        """Shut the driver down, unless a call is unanswered."""
