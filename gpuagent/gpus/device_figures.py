"""Reads figures of one device: its memory, and how much of the last interval each process used it.

The driver keeps the newest samples of a GPU, and returns those after a given time stamp, merged by process. A
process without a sample in that time used nothing.
"""

import math
from collections.abc import Iterable
from typing import Final

from gpuagent.gpus.driver import (
    MEMORY_INFO,
    MOST_DEVICE_BYTES,
    REFUSALS,
    CallFailed,
    DeviceMemory,
    FigureFailed,
    Handle,
    UtilizationSample,
)
from gpuagent.gpus.gpu_reading import Percents
from gpuagent.gpus.nvml import NvmlDriver
from service.backoff import Backoff


class MemoryReader:
    """Reads the memory of one GPU or MIG device.

    NVML refuses it permanently in two cases. A GPU in MIG mode reports it only to containers with the MIG
    monitor capability (NoPermission). GPUs with unified memory, such as GB10, do not have the call
    (NotSupported). A refused call is repeated after 1 to 10 minutes, a failed one at every sample.
    """

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._retry = Backoff(first=60, most=600)
        self.failure: CallFailed | None = None
        """Why the memory is unknown; None while it is known."""

    @property
    def is_refused(self) -> bool:
        """Whether the driver refuses the figures, as opposed to a failed call."""
        return isinstance(self.failure, REFUSALS)

    def read(self, device: Handle, now: float) -> DeviceMemory | None:
        """Return the figures of a GPU or MIG device; None if unknown, with the reason in `failure`.

        Raises:
            GpuLost: more than the memory is unknown.
        """
        if not self._retry.is_due(now):
            return None
        try:
            memory = self._ask(device)
        except FigureFailed as failed:
            self.failure = failed.with_traceback(None)
            if self.is_refused:
                self._retry.back_off(now)
            return None
        self._retry.reset()
        self.failure = None
        return memory

    def _ask(self, device: Handle) -> DeviceMemory:
        memory = self._driver.memory(device)
        if not 0 < memory.total <= MOST_DEVICE_BYTES or memory.used < 0:
            self._driver.errors.add(MEMORY_INFO, "Garbage")
            raise FigureFailed(MEMORY_INFO, "Garbage")
        return memory


_KEPT_SECONDS: Final = 12.0
"""Time for which every driver keeps samples: 72 samples (NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL in
NVIDIA's open kernel modules) of at least 1/6 s each (NVML's reference, nvmlUtilization_t)."""
_SHORTEST_SECONDS: Final = 2.0
"""Shortest interval between two questions. A sample lasts up to 1 s (nvmlUtilization_t), so a shorter
interval may contain no complete sample, and a busy GPU would look idle."""
_MOST_PERCENT: Final = 100
"""Largest possible percentage; drivers sometimes return larger ones (nvtop #110)."""
_MICROSECONDS: Final = 1_000_000
_MOST_PROCESSES: Final = 4096
"""Number of remembered processes above which those of earlier answers are forgotten."""


class UtilizationReader:
    """Reads the utilisation of one GPU by process.

    Each question asks for the samples after the newest time stamp returned so far. The first answer after a
    start, a gap of more than 12 s or a refusal only yields that time stamp, since its samples may be older
    than the interval.

    Time stamps are compared with each other, and never with a clock of the agent: they count from 1970 on
    some drivers and from the boot on others. They jump when the node's clock is set. After a jump back the
    driver returns nothing, as if the GPU were idle. Therefore an empty answer counts as idle only if the
    driver keeps no sample that is unknown to the reader. Otherwise the interval is unknown, and the reader
    continues from the newest unknown sample. A time stamp further ahead than the elapsed time plus 12 s is
    ignored.

    A refused call is repeated after 1 to 10 minutes, a failed one at the next sample.
    """

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._retry = Backoff(first=60, most=600)
        self.failure: CallFailed | None = None
        """Why the driver does not report the utilisation; None while it does."""
        self._answered_at: float | None = None
        self._percents: Percents | None = None
        self._since = 0
        """Newest time stamp so far; 0 while the driver has no samples."""
        self._since_at = 0.0
        """When that time stamp was returned, in monotonic seconds."""
        self._times: dict[int, int] = {}
        """Newest time stamp of each process, as far as the driver may still keep its sample."""

    def read(self, device: Handle, now: float) -> Percents | None:
        """Return the percentages of the processes that used the GPU since the last answer; None if unknown.

        Within 2 s of an answer its percentages are returned again. The GPU is not in MIG mode.

        Raises:
            GpuLost: more than the utilisation is unknown.
        """
        if not self._retry.is_due(now):
            return None
        if self._answered_at is not None and now - self._answered_at < _SHORTEST_SECONDS:
            return self._percents
        try:
            self._percents = self._ask(device, now)
        except FigureFailed as failed:
            self.failure = failed.with_traceback(None)
            if isinstance(failed, REFUSALS):
                self._retry.back_off(now)
                self._answered_at = None
            return None
        self._answered_at = now
        self._retry.reset()
        self.failure = None
        return self._percents

    def _ask(self, device: Handle, now: float) -> Percents | None:
        if self._answered_at is None or now - self._answered_at > _KEPT_SECONDS:
            self._times = {}
            self._continue_from(self._driver.utilization(device, 0), now)
            return None
        answer = self._driver.utilization(device, self._since)
        percents = self._newer(answer, now)
        if percents is None and self._since:
            answer = self._driver.utilization(device, 0)
            percents = self._newer(answer, now)
        if percents is not None:
            return percents
        if self._has_unknown(answer):
            self._continue_from(answer, now)
            return None
        if not answer:
            self._since = 0
        return {
            sample.pid: None
            for sample in answer
            if sample.pid and sample.percent > _MOST_PERCENT and sample.time > self._since
        }

    def _newer(self, answer: Iterable[UtilizationSample], now: float) -> Percents | None:
        """Return the percentages of the new samples, and keep the newest time stamp; None without samples."""
        latest = math.inf
        if self._since:
            latest = self._since + (now - self._since_at + _KEPT_SECONDS) * _MICROSECONDS
        percents: dict[int, int | None] = {}
        newest: dict[int, int] = {}
        future: dict[int, int] = {}
        since = self._since
        for sample in answer:
            pid, time = sample.pid, sample.time
            if not pid or time <= since:
                continue
            if sample.percent > _MOST_PERCENT:
                percents.setdefault(pid, None)
            elif time > latest:
                if self._times.get(pid) != time:
                    percents.setdefault(pid, None)
                    future[pid] = time
            elif time > newest.get(pid, 0):
                newest[pid] = time
                percents[pid] = sample.percent
        if not newest:
            return None
        self._since = max(newest.values())
        self._since_at = now
        before = {} if len(self._times) > _MOST_PROCESSES else self._times
        self._times = {**before, **newest, **future}
        return percents

    def _has_unknown(self, kept: Iterable[UtilizationSample]) -> bool:
        """Whether the driver keeps a sample that is unknown to the reader."""
        return any(self._times.get(pid) != time for pid, time in _times(kept).items())

    def _continue_from(self, kept: Iterable[UtilizationSample], now: float) -> None:
        """Take the newest unknown time stamp as the start of the next interval."""
        times = _times(kept)
        unknown = [time for pid, time in times.items() if self._times.get(pid) != time]
        self._since = max(unknown, default=0)
        self._since_at = now
        self._times = times


def _times(samples: Iterable[UtilizationSample]) -> dict[int, int]:
    """Return the newest time stamp of each process, without impossible samples."""
    times: dict[int, int] = {}
    for sample in samples:
        if sample.pid and sample.percent <= _MOST_PERCENT:
            times[sample.pid] = max(sample.time, times.get(sample.pid, 0))
    return times
