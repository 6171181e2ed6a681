"""The one thread that asks the driver, so that a call which never returns holds up nobody else."""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import Final, TypeVar

from gpuagent.gpus.reading import DriverReplaced, GpuReading, GpuSource
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import Sample
from service.log import JsonLog

_T = TypeVar("_T")
_LOOK_WHILE_AWAY_SECONDS: Final = 0.5
_LEAVE_SECONDS: Final = 0.2
_JITTER: Final = 0.2
"""The most by which the time between two samples differs from the interval, as a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When to sample and when to give up, seconds, and the clocks to tell it by."""

    interval: float
    patience: float = 60.0
    """How long no GPU may answer though the driver does."""
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    random: Callable[[], float] = SystemRandom().random
    """Numbers from 0 to 1, evenly spread; they move each sample a little."""


@dataclass(frozen=True, slots=True)
class _Receiver:
    """The event loop and the callbacks that it runs for the sampler's thread."""

    loop: asyncio.AbstractEventLoop
    on_sample: Callable[[Sample], None]
    on_fatal: Callable[[str], None]


class Sampler:
    """Samples at a steady pace with a random part, and hands each sample to the event loop.

    A call of the driver can hang in the kernel, where nothing ends it, and killing the process in the middle
    of one has frozen GPUs (dcgm-exporter #84). So the thread is a daemon that no exit waits for, and how
    long the present call takes is there for readiness to see.

    While no GPU answers, the source is asked every half second (or at each interval, if that is shorter);
    it decides itself when to bother the driver.
    """

    def __init__(
        self,
        *,
        source: GpuSource,
        processes: Processes,
        timing: Timing,
        log: JsonLog,
    ) -> None:
        self._source = source
        self._processes = processes
        self._timing = timing
        self._log = log
        self._clock = timing.clock
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._call_began: float | None = None
        self._lost_since: float | None = None
        self._crashes: Counter[tuple[str, str]] = Counter()
        self._last_crash = ""

    def start(self, *, on_sample: Callable[[Sample], None], on_fatal: Callable[[str], None]) -> None:
        """Start sampling; the first sample is taken at once.

        Args:
            on_sample: receives each sample, in the running event loop.
            on_fatal: receives one line, at most once and in the same loop, when only a new process can help:
                the driver was replaced, or no GPU has answered for too long. No sample follows it.
        """
        receiver = _Receiver(asyncio.get_running_loop(), on_sample, on_fatal)
        self._thread = threading.Thread(target=self._run, args=(receiver,), name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples. Returns at once, even while a call of the driver hangs."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def sample_now(self) -> None:
        """Take a sample that begins after this call, without waiting for its time.

        Told from others by `taken_at`, which is not before the moment of asking.
        """
        self._wake.set()

    @property
    def seconds_since_start_of_call(self) -> float:
        """How long the sample being taken has taken so far; 0 between samples."""
        began = self._call_began
        return 0.0 if began is None else self._clock() - began

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """(call, error) to its count: the driver's, and under `sample` those that nobody foresaw."""
        return self._source.errors | self._crashes.copy()

    def _run(self, receiver: "_Receiver") -> None:
        try:
            self._sample_until_stopped(receiver)
        finally:
            self._source.close()

    def _sample_until_stopped(self, receiver: "_Receiver") -> None:
        due = self._clock()
        while not self._stopping:
            try:
                sample = self._sample()
            except DriverReplaced as replaced:
                self._hand_over(receiver, receiver.on_fatal, str(replaced))
                return
            if sample is not None:
                self._hand_over(receiver, receiver.on_sample, sample)
                reason = self._why_lost(sample)
                if reason:
                    self._hand_over(receiver, receiver.on_fatal, reason)
                    return
            now = self._clock()
            due = next_due(due, now, self._timing.interval, self._timing.random())
            is_away = sample is not None and not sample.reading.gpus
            self._wake.wait(min(due - now, _LOOK_WHILE_AWAY_SECONDS) if is_away else due - now)
            self._wake.clear()

    def _sample(self) -> Sample | None:
        """Take one sample; None if something went wrong that nobody foresaw."""
        began, wall_time = self._clock(), self._timing.wall_clock()
        self._call_began = began
        try:
            reading = self._source.read()
            origins, problems = self._processes.look_up(reading)
        except DriverReplaced:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the next sample may go well
            self._crashed(error)
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
            problems=problems,
        )

    def _hand_over(self, receiver: "_Receiver", callback: Callable[[_T], None], value: _T) -> None:
        try:
            receiver.loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            if not receiver.loop.is_closed():
                raise
            self._stopping = True

    def _crashed(self, error: Exception) -> None:
        """Count it, and log it unless the sample before ended the same way."""
        self._crashes["sample", type(error).__name__] += 1
        text = repr(error)
        if text != self._last_crash:
            self._log.failure("sample failed", error)
        self._last_crash = text

    def _why_lost(self, sample: Sample) -> str:
        """One line once no GPU has answered for too long; empty before."""
        if not _is_lost(sample.reading):
            self._lost_since = None
            return ""
        if self._lost_since is None:
            self._lost_since = sample.taken_at
        lost_for = sample.taken_at - self._lost_since
        if lost_for < self._timing.patience:
            return ""
        details = "; ".join(problem.detail for problem in sample.reading.problems)
        return f"no GPU answered for {lost_for:.0f} s: {details}"


def _is_lost(reading: GpuReading) -> bool:
    return not reading.gpus and reading.restart_may_help


def next_due(due: float, now: float, interval: float, chance: float = 0.5) -> float:
    """Return when the next sample is due: not before `now`, and one interval after `due` in the mean.

    A late sample shifts no later one. The jitter shifts all of them: the times of the samples so far do not
    tell those of later ones, so a pod cannot keep its memory out of sight of every sample.

    Args:
        due: when the last sample was due; a moment after `now` stays as it is.
        now: the present, on the same clock.
        interval: seconds between two samples in the mean.
        chance: from 0 to 1, evenly spread; 0.5 is no jitter.
    """
    if due > now:
        return due
    steps = math.floor((now - due) / interval) + 1
    return max(now, due + (steps + _JITTER * (2 * chance - 1)) * interval)
