"""Samples the GPUs in a thread of its own, at times that no pod can predict.

The time to the next sample is a fifth of the interval plus an exponential time. The exponential distribution
has no memory: however long the last sample is ago, the next one is equally likely in each of the following
moments. A pod that sees the time of every sample can therefore use at most the fixed part, a fifth of the
time, without being seen. A fixed interval with a little jitter would leave it most of the time.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final, TypeVar

from gpuagent.gpus.gpu_reading import DriverReplaced, GpuSource
from gpuagent.gpus.memory_limits import NO_LIMITS
from gpuagent.sampling.container_limits import ContainerLimits
from gpuagent.sampling.processes import Lookup, ProcessLookup, ticks_since_boot
from gpuagent.sampling.sample import Sample
from service.log import JsonLog

SHORTEST_GAP: Final = 0.2
LONGEST_GAP: Final = 2.5
"""Limits of the time to the next sample, in intervals; a longer time is cut."""
MEAN_EXPONENTIAL: Final = 0.8590552487
"""Mean of the exponential time in intervals, before it is cut. With m for this figure and c for
`LONGEST_GAP - SHORTEST_GAP`, the mean after the cut is m(1 - exp(-c/m)) = 1 - `SHORTEST_GAP`. The mean time
to the next sample is therefore one interval."""

SHORTEST_DEADLINE_SECONDS: Final = 2.0


def answer_deadline(interval: float) -> float:
    """Return the seconds in which a GPU must answer to be in a sample."""
    return max(interval, SHORTEST_DEADLINE_SECONDS)


def longest_gap(interval: float) -> float:
    """Return the seconds after which a sample is too old, and time between two samples is not observed.

    A sample that waits for a hanging call takes one deadline, and two if a call for the node hangs, too.
    """
    return LONGEST_GAP * interval + 2 * answer_deadline(interval)


def next_gap(interval: float, chance: float) -> float:
    """Return the seconds to the next sample; their mean is the interval if `chance` is uniform in [0, 1)."""
    exponential = -MEAN_EXPONENTIAL * math.log1p(-chance)
    return interval * min(SHORTEST_GAP + exponential, LONGEST_GAP)


class Schedule:
    """The time of the next regular sample."""

    def __init__(self, *, interval: float, random: Callable[[], float], now: float) -> None:
        """Schedule a first sample at once; `random` returns unpredictable numbers, uniform in [0, 1)."""
        self._interval = interval
        self._random = random
        self._due = now

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until the next regular sample; 0 if it is due."""
        return max(0.0, self._due - now)

    def is_due(self, now: float) -> bool:
        """Whether a sample that begins now is the regular one."""
        return now >= self._due

    def sampled(self, began: float, ended: float) -> None:
        """Schedule the sample after a regular one.

        The time counts from the begin of the last sample. It counts from the end of one that took longer than
        the shortest time, since a sample that followed at once would be predictable.
        """
        took_long = ended - began > SHORTEST_GAP * self._interval
        self._due = (ended if took_long else began) + next_gap(self._interval, self._random())


_T = TypeVar("_T")
_LOOK_WHILE_AWAY_SECONDS: Final = 0.5
_LEAVE_SECONDS: Final = 0.2


UNPREDICTABLE: Final = SystemRandom().random
"""Numbers from 0 to 1 without 1, by the system: other generators can be reconstructed from the published
times of their samples."""


class Sampler:
    """Samples at unpredictable times, and passes each sample to the event loop.

    A driver call can hang in the kernel, where nothing can end it. Killing the process in the middle of a
    call has frozen GPUs (dcgm-exporter #84). All threads are therefore daemons that do not delay the exit. A
    GPU that hangs is missing in the samples, and is no reason for a restart. `/healthz` asks for a restart
    if no GPU responds for long because calls hang.

    While no GPU responds, the source is read every half second, or at each interval if that is shorter. The
    source itself limits the calls to the driver.
    """

    def __init__(  # noqa: PLR0913 - three of them are for tests
        self,
        *,
        source: GpuSource,
        look_up: Callable[..., Lookup],
        interval: float,
        log: JsonLog,
        cgroup_root: Path | None = None,
        give_up_after: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = UNPREDICTABLE,
    ) -> None:
        """Set the parts, the average seconds between two samples, and those without any GPU at which to end.

        Without `cgroup_root` the driver is not asked for the limits of containers.
        """
        self._source = source
        self._limits = None
        if cgroup_root is not None:
            self._limits = ContainerLimits(
                cgroup_root, source.memory_limits, deadline=answer_deadline(interval)
            )
        self._lookup = ProcessLookup(look_up, deadline=answer_deadline(interval))
        self._interval, self._random = interval, random
        self._give_up_after = give_up_after
        self._log = log
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._call_began: float | None = None
        self._hanging_since: float | None = None
        self._lost_since: float | None = None
        self._crashes: Counter[tuple[str, str]] = Counter()
        self._last_crash = ""

    def start(self, *, on_sample: Callable[[Sample], None], on_fatal: Callable[[str], None]) -> None:
        """Start sampling; the first sample is taken at once.

        `on_sample` receives each sample in the running event loop. `on_fatal` receives one line there, at
        most once and after the last sample, when only a new process can help: the driver was replaced, or no
        GPU has responded for too long.
        """
        pass_on = partial(self._hand_over, asyncio.get_running_loop())
        receivers = partial(pass_on, on_sample), partial(pass_on, on_fatal)
        self._thread = threading.Thread(target=self._run, args=receivers, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling. Returns at once, even while a driver call hangs."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def sample_now(self) -> None:
        """Request a sample that begins after this call, without waiting for the next regular one.

        Its `taken_at` is not before the time of this call. The regular samples stay as they are scheduled.
        """
        self._wake.set()

    @property
    def seconds_since_start_of_call(self) -> float:
        """Duration of the sample in progress, in seconds; 0 between samples."""
        began = self._call_began
        return 0.0 if began is None else self._clock() - began

    @property
    def seconds_hanging(self) -> float:
        """Seconds for which no GPU has responded because driver calls hang; 0 if one responds."""
        since = self._hanging_since
        return 0.0 if since is None else self._clock() - since

    @property
    def has_unanswered_call(self) -> bool:
        """Whether a thread is in a call: the sample in progress, or a hanging one of an earlier sample."""
        return self._call_began is not None or self._source.is_hanging

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """Number of errors by (call, error): those of the driver, and unexpected ones as call `sample`."""
        return self._source.errors | self._crashes.copy()

    def _run(self, on_sample: Callable[[Sample], None], on_fatal: Callable[[str], None]) -> None:
        try:
            self._sample_until_stopped(on_sample, on_fatal)
        finally:
            self._call_began = self._clock()
            self._source.close()
            self._lookup.close()
            if self._limits is not None:
                self._limits.close()
            self._call_began = None

    def _sample_until_stopped(
        self, on_sample: Callable[[Sample], None], on_fatal: Callable[[str], None]
    ) -> None:
        schedule = Schedule(interval=self._interval, random=self._random, now=self._clock())
        while not self._stopping:
            began = self._clock()
            is_regular = schedule.is_due(began)
            try:
                sample = self._sample(is_extra=not is_regular)
            except DriverReplaced as replaced:
                on_fatal(str(replaced))
                return
            if sample is not None:
                on_sample(sample)
                self._hanging_since = _since(self._hanging_since, sample, holds=sample.reading.is_hanging)
                if reason := self._why_lost(sample):
                    on_fatal(reason)
                    return
            now = self._clock()
            if is_regular:
                schedule.sampled(began, now)
            seconds = schedule.seconds_until_due(now)
            is_away = sample is not None and not sample.reading.gpus
            self._wake.wait(min(seconds, _LOOK_WHILE_AWAY_SECONDS) if is_away else seconds)
            self._wake.clear()

    def _sample(self, *, is_extra: bool) -> Sample | None:
        """Take one sample; None after an unexpected error."""
        began, wall_time = self._clock(), time.time()
        self._call_began = began
        # The processes of a simulated node started at times of their own.
        began_ticks = None if self._source.is_simulated else ticks_since_boot()
        try:
            reading = self._source.read()
            origins, problems = self._lookup.look_up(reading, began=began_ticks)
            limits = self._limits.read(reading, origins) if self._limits else NO_LIMITS
        except DriverReplaced:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the next sample may go well
            self._crashes["sample", type(error).__name__] += 1
            before, self._last_crash = self._last_crash, repr(error)
            if self._last_crash != before:  # logged unless the previous sample failed with the same error
                self._log.failure("sample failed", error)
            return None
        finally:
            self._call_began = None
        self._last_crash = ""
        return Sample(
            reading=reading,
            origins=origins,
            taken_at=began,
            wall_time=wall_time,
            seconds=self._clock() - began,
            is_extra=is_extra,
            problems=problems,
            limits=limits,
        )

    def _hand_over(self, loop: asyncio.AbstractEventLoop, callback: Callable[[_T], None], value: _T) -> None:
        try:
            loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            if not loop.is_closed():
                raise
            self._stopping = True

    def _why_lost(self, sample: Sample) -> str:
        """Return one line if no GPU has responded for too long; else an empty string."""
        is_lost = not sample.reading.gpus and sample.reading.restart_may_help
        self._lost_since = _since(self._lost_since, sample, holds=is_lost)
        lost_for = 0.0 if self._lost_since is None else sample.taken_at - self._lost_since
        if not is_lost or lost_for < self._give_up_after:
            return ""
        details = "; ".join(problem.detail for problem in sample.reading.problems)
        return f"no GPU answered for {lost_for:.0f} s: {details}"


def _since(before: float | None, sample: Sample, *, holds: bool) -> float | None:
    """Return the start of an uninterrupted condition, in monotonic seconds; None if it does not hold."""
    if not holds:
        return None
    return sample.taken_at if before is None else before
