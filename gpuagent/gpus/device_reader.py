"""Reads one GPU in a thread of its own, with a deadline: a GPU that hangs delays no other one."""

import math
import time
from typing import TypeAlias

from gpuagent.gpus.calls import Call, CallThread
from gpuagent.gpus.device import Device
from gpuagent.gpus.driver import CallFailed, CallTimedOut, ThreadNotStarted, explained
from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.problems import Cause, Problem
from service.backoff import Backoff

Answer: TypeAlias = tuple[Gpu | None, tuple[Problem, ...]]
"""The figures and their problems; the GPU is None if it does not respond."""


class DeviceReader:
    """Reads a Device in a thread of its own.

    The figures of a late answer are discarded, since they are of an earlier sample. The GPU is then read
    again after 1, 2, 4 and at last 60 s: each sample waits for it until the deadline.
    """

    def __init__(self, device: Device, thread: CallThread, *, deadline: float) -> None:
        """Set the seconds in which the driver must answer all calls of one reading."""
        self._device = device
        self._thread = thread
        self._deadline = deadline
        self._call: Call[Answer] | None = None
        self._ends_at = 0.0
        """Deadline of the current call in seconds of `time.monotonic`, as waiting takes real time."""
        self._is_late = False
        self._retry = Backoff()
        self._is_wait_set = False
        """Whether the wait after the last late answer has begun."""
        self._not_started: ThreadNotStarted | None = None
        """Why the last reading was not begun; None if it was."""

    @property
    def device(self) -> Device:
        """The GPU. While `is_unanswered`, its thread may change it."""
        return self._device

    @property
    def is_unanswered(self) -> bool:
        """Whether a call is unanswered, so that the GPU cannot be read."""
        return self._thread.is_busy

    @property
    def failure(self) -> CallFailed | None:
        """Why the GPU is not in the sample; None if it is."""
        if self._is_late:
            return CallTimedOut("", self._deadline)
        return self._not_started or self._device.failure

    def problem(self, scope: str) -> Problem:
        """Return the problem of a GPU that is not in the sample."""
        failure = self.failure
        why = explained(failure) if failure else "the GPU does not respond"
        return Problem(Cause.NVML, scope, why)

    def reset(self) -> None:
        """Retry at once after an initialisation of the driver, which invalidates the device's handle."""
        self._device.reset()
        self._retry.end_wait()

    def begin(self, now: float) -> None:
        """Begin to read the GPU, unless its last call is unanswered or was late a short time ago."""
        self._call = None
        if self.is_unanswered:
            return
        if self._is_late:
            if not self._is_wait_set:
                self._retry.back_off(now)
                self._is_wait_set = True
            if not self._retry.is_due(now):
                return
        self._ends_at = time.monotonic() + self._deadline
        self._not_started = None
        try:
            self._call = self._thread.begin(lambda: self._device.read(now))
        except ThreadNotStarted as error:
            self._not_started = error.with_traceback(None)

    def wait(self, seconds: float = math.inf) -> Call[Answer] | None:
        """Wait for the answer, at most until the deadline; return the call once it is answered."""
        call = self._call
        if call is None or not call.wait(min(seconds, self._ends_at - time.monotonic())):
            return None
        return call

    def finish(self) -> Call[Answer] | None:
        """Wait until the deadline; return the answered call, None if the GPU is not in the sample."""
        began, answered = self._call, self.wait()
        self._call = None
        if answered is not None:
            self._is_late = False
            self._retry.reset()
        elif began is not None:
            self._is_late = True
            self._is_wait_set = False
        return answered
