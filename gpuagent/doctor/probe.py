"""Reads GPUs and their processes once, as the agent does, and records all errors."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.gpus.reader import DEADLINE_SECONDS
from gpuagent.gpus.reading import DriverReplaced, Gpu, GpuReading, GpuSource
from gpuagent.problems import Problem
from gpuagent.sampling.process_lookup import ProcessLookup
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import LookupResult, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """GPUs, processes and errors of one reading."""

    reading: GpuReading = field(default_factory=lambda: GpuReading(gpus=()))
    """Empty if the driver was replaced."""
    origins: Mapping[int, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Problems of the look-up in /proc."""
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of failed driver calls by (call, error)."""
    replaced: str = ""
    """Message that the driver was replaced, so that only a new process can read the GPUs; else empty."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs that responded."""
        return self.reading.gpus

    @property
    def lookup_counts(self) -> Counter[LookupResult]:
        """Number of processes by look-up result."""
        return Counter(origin.result for origin in self.origins.values())


class Probe:
    """Reads the GPUs and looks up their processes; both have deadlines of their own."""

    def __init__(self, *, source: GpuSource, processes: Processes) -> None:
        self._source = source
        self._lookup = ProcessLookup(processes, deadline=DEADLINE_SECONDS)

    def observe(self) -> Observation:
        """Read the GPUs and their processes once."""
        try:
            reading = self._source.read()
        except DriverReplaced as replaced:
            return Observation(replaced=str(replaced), errors=self._source.errors)
        origins, problems = self._lookup.look_up(reading)
        return Observation(reading=reading, origins=origins, problems=problems, errors=self._source.errors)

    def close(self) -> None:
        """Shut the driver down, unless it hangs."""
        self._source.close()
        self._lookup.close()
