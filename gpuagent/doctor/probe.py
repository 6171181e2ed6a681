"""Reads GPUs and their processes once, as the agent does, and records all errors."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuagent.doctor.worker import Hung, Worker
from gpuagent.gpus.reading import DriverReplaced, Gpu, GpuProcess, GpuReading, GpuSource
from gpuagent.problems import Problem
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import LookupResult, Origin

LOOK_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """GPUs, processes and errors of one reading."""

    reading: GpuReading = field(default_factory=lambda: GpuReading(gpus=()))
    """Empty if the driver was replaced or hangs."""
    origins: Mapping[int, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Problems of the look-up in /proc."""
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of failed driver calls by (call, error)."""
    replaced: str = ""
    """Message that the driver was replaced, so that only a new process can read the GPUs; else empty."""
    is_hung: bool = False

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs that responded."""
        return self.reading.gpus

    @property
    def lookup_counts(self) -> Counter[LookupResult]:
        """Number of processes by look-up result."""
        return Counter(origin.result for origin in self.origins.values())


class Probe:
    """Reads the GPUs from one thread, with a deadline for all of them."""

    def __init__(self, *, source: GpuSource, processes: Processes, seconds: float = LOOK_SECONDS) -> None:
        self._source = source
        self._processes = processes
        self._seconds = seconds
        self._worker = Worker("driver")

    @property
    def is_hung(self) -> bool:
        """Whether a driver call has not returned."""
        return self._worker.is_hung or self._source.is_hanging

    def observe(self) -> Observation:
        """Read the GPUs and their processes once."""
        try:
            return self._worker.call(self._observe, seconds=self._seconds)
        except Hung:
            return Observation(is_hung=True)

    def close(self) -> None:
        """Shut the driver down, unless it hangs."""
        try:
            self._worker.call(self._source.close, seconds=self._seconds)
        except Hung:
            return
        self._worker.stop()

    def _observe(self) -> Observation:
        try:
            reading = self._source.read()
        except DriverReplaced as replaced:
            return Observation(replaced=str(replaced), errors=self._source.errors)
        origins, problems = self._processes.look_up(reading)
        return Observation(reading=reading, origins=origins, problems=problems, errors=self._source.errors)


def processes_of(gpu: Gpu) -> Iterator[GpuProcess]:
    """Yield every process on a GPU, including those on its MIG devices."""
    yield from gpu.processes or ()
    for instance in gpu.instances:
        yield from instance.processes or ()
