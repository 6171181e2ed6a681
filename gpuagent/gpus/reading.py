"""What a source of GPUs tells at one moment, before anybody asks whose the processes are.

Bytes throughout. None is what the driver could not tell.
"""

from dataclasses import dataclass
from typing import Protocol

from gpuagent.problems import Problem


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one device: the maximum over the compute, graphics and MPS lists."""

    pid: int
    """In the PID namespace of the agent."""
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG device of a GPU: reported, never judged."""

    uuid: str
    total_bytes: int | None
    processes: tuple[GpuProcess, ...] | None
    used_bytes: int | None = None
    memory_unknown: str = ""
    """Why total and used are unknown, in one line; empty while they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU."""

    index: int
    uuid: str
    model: str
    total_bytes: int | None
    """None, as `used_bytes`: the driver refuses to tell, and `memory_unknown` says why."""
    used_bytes: int | None
    """total − free − reserved: right whether or not the driver's own `used` includes what is reserved."""
    reserved_bytes: int | None
    processes: tuple[GpuProcess, ...] | None
    """None: no list could be believed; a Problem says why. With MIG: those that no MIG device lists."""
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    memory_unknown: str = ""
    """Why total and used are unknown, in one line; empty while they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Everything a source told in one go. A GPU that is lost is not in it, but in `problems`."""

    gpus: tuple[Gpu, ...]
    problems: tuple[Problem, ...] = ()
    driver_version: str = ""
    restart_may_help: bool = False
    """Whether no GPU answers although the driver is there: then a new process may see what this one lost."""


class DriverReplaced(Exception):
    """Library and driver are of different versions: only a new process can load the new library."""


class GpuSource(Protocol):
    """A node's GPUs. `read` and `close` are called from one thread only, and `read` may block for long."""

    @property
    def is_simulated(self) -> bool:
        """Whether the figures are made up; then everything that shows them says so."""

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """How often each (call, error) of the driver failed since the start: for `nvml_errors_total`.

        A copy that another thread may keep.
        """

    def expect(self, count: int | None) -> None:
        """Take the number of GPUs by the node's label, None if it is unknown. From any thread."""

    def read(self) -> GpuReading:
        """Read every GPU.

        Errors of the driver are in the reading's problems; the next read tries again by itself.

        Raises:
            DriverReplaced: nothing but a new process helps.
        """

    def close(self) -> None:
        """Let go of the driver."""
