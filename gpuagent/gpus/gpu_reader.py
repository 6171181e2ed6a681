"""Reads all GPUs of a node by NVIDIA's library, and recovers from failures."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from gpuagent.gpus.device import Answer, Device
from gpuagent.gpus.driver import (
    CallFailed,
    CallTimedOut,
    DriverGone,
    Handle,
    NotOffered,
    NotPermitted,
    ThreadNotStarted,
    explained,
)
from gpuagent.gpus.gpu_reading import Gpu, GpuReading, LostGpu, Sensors
from gpuagent.gpus.health import HealthReader, NewestXids
from gpuagent.gpus.memory_limits import LimitAnswer, LimitAnswers, LimitKind
from gpuagent.gpus.nvml import NvmlDriver
from gpuagent.gpus.supervised_call import SupervisedCall
from gpuagent.problems import NOT_LISTED, OF_WHOLE_DRIVER, Cause, Problem
from service.backoff import Backoff

RECOUNT_SECONDS: Final = 60.0
"""Interval of reading the number of GPUs, and minimum time between two initialisations for missing GPUs."""
_LONGEST_WAIT_SECONDS: Final = 3600.0

DEADLINE_SECONDS: Final = 10.0
"""Default deadline of each GPU. Opening a GPU takes seconds without the driver's persistence mode."""
_TURN_SECONDS: Final = 0.05
"""Time for which a GPU is read alone. Threads that read at once would wait for each other's locks, in the
driver and in Python. A GPU that takes longer delays the next ones by this much and no more."""


_PART_OF_DEADLINE: Final = 0.25
"""Longest wait for answers without which the figures of a GPU are known, as a part of its deadline."""


class _GpuCalls(NamedTuple):
    """The supervised calls of one GPU."""

    figures: SupervisedCall[Answer]
    health: SupervisedCall[Sensors]
    limits: SupervisedCall[dict[str, LimitAnswer]]


class NvmlGpus:
    """A GpuSource with NVIDIA's library. It skips GPUs that do not respond.

    A GPU that responded once is reported as lost while the driver does not list it.

    The set of GPUs is fixed when NVML is initialised. A GPU that was reset, returned by vfio, or slow to
    start appears only after a new initialisation. NVML is therefore initialised again when the number of GPUs
    changes (checked every minute), and while GPUs are missing: one is lost, or the node's label has another
    number than the driver. Since missing GPUs may stay missing, the interval grows from 1, 2 and 4 minutes to
    an hour, and restarts when the set of missing GPUs changes.

    Each GPU has a SupervisedCall, so that one that hangs delays no other, and a second one for its sensors
    and errors (`HealthReader`). After a late answer it is read again after 1, 2, 4 and at last 60 s. The
    calls that concern the node have another one with the same deadline. An initialisation invalidates all
    handles, so there is none while a call is unanswered.
    """

    is_simulated = False

    def __init__(
        self,
        *,
        driver: NvmlDriver | None = None,
        clock: Callable[[], float] = time.monotonic,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        """Set the clock of back-offs, and the deadline in seconds of real time; make no call yet."""
        self._driver = driver or NvmlDriver()
        self._clock = clock
        self._deadline = deadline
        self._node_call: SupervisedCall[Any] = SupervisedCall("driver", deadline=deadline)
        self._gpu_calls: list[_GpuCalls] = []
        """By index; those of GPUs that are gone remain, without a call."""
        self._starting: Future[tuple[str, int]] | None = None
        """An initialisation that is unanswered, or was answered after its deadline."""
        self._devices: list[Device] | None = None
        self._known: dict[str, LostGpu] = {}
        """Every GPU that has responded, by UUID, as it is reported if it gets lost."""
        self._newest_xids: NewestXids = {}
        self._version = ""
        self._retry = Backoff()
        self._nothing = GpuReading(gpus=())
        self._expected: int | None = None
        self._recount_at = 0.0
        self._restart = Backoff(first=RECOUNT_SECONDS, most=_LONGEST_WAIT_SECONDS)
        self._missing: tuple[object, ...] = ()

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """Number of failed driver calls by (call, error)."""
        return self._driver.errors.copy()

    @property
    def is_hanging(self) -> bool:
        """Whether a driver call is unanswered. Thread-safe."""
        return any(call.is_unanswered for call in self._calls)

    @property
    def _calls(self) -> tuple[SupervisedCall[Any], ...]:
        return (self._node_call, *(call for calls in self._gpu_calls for call in calls))

    def expect(self, count: int | None) -> None:
        """Set the number of GPUs from the node's label; None if unknown. Thread-safe."""
        self._expected = count

    def read(self) -> GpuReading:
        """Read every GPU. Without any GPU, the reading has the reason, and a later read tries again.

        Raises:
            DriverReplaced: only a new process can help.
        """
        now = self._clock()
        if self._devices is None and not self._retry.is_due(now):
            return self._nothing
        try:
            if self._devices is None:
                for call in self._calls:
                    call.reset()
                devices = self._start(now)
            else:
                devices = self._recounted(self._devices, now)
            reading = self._sweep(devices, now)
        except CallFailed as failed:
            is_hanging = self.is_hanging
            reading = GpuReading(
                gpus=(),
                problems=(Problem(Cause.NVML, "", explained(failed), failed.error),),
                lost=self._reported(replace(gpu, error=failed.error) for gpu in self._known.values()),
                driver_version=self._version,
                restart_may_help=not is_hanging
                and not isinstance(failed, DriverGone)
                and self._may_be_mended(failed),
                is_hanging=is_hanging,
            )
        if reading.gpus:
            self._retry.reset()
        elif not reading.is_hanging and self._starting is None:
            self._shut_down()
            self._retry.back_off(now)
            self._nothing = reading
        return reading

    def memory_limits(self, groups: Mapping[str, Collection[str]]) -> LimitAnswers:
        """Ask for the limits of cgroups, by UUID of the GPU, after `read`; late answers are missing."""
        asked = [
            (device, self._gpu_calls[device.index].limits, sorted(groups[device.uuid]))
            for device in self._devices or ()
            if device.handle is not None and groups.get(device.uuid)
        ]
        for device, call, paths in asked:
            call.begin(partial(_limits, self._driver, device.handle, paths), self._clock())
            call.wait(_TURN_SECONDS)
        answers: dict[tuple[str, str], LimitAnswer] = {}
        for device, call, _ in asked:
            answered = call.finish()
            if answered is not None and answered.exception() is None:
                answers |= {(device.uuid, path): answer for path, answer in answered.result().items()}
        return answers

    def close(self) -> None:
        """Shut the driver down, and end the threads; a later read starts them again.

        While a call is unanswered, the driver is left alone.
        """
        if self.is_hanging:
            return
        self._shut_down()
        for call in self._calls:
            call.stop()

    def _shut_down(self) -> None:
        self._devices = self._starting = None
        self._node_call.begin(self._driver.stop)
        self._node_call.finish()

    def _start(self, now: float) -> list[Device]:
        version, count = self._initialised()
        by_index = {gpu.index: uuid for uuid, gpu in self._known.items()}
        for index in range(len(self._gpu_calls), count):
            part = self._deadline * _PART_OF_DEADLINE
            self._gpu_calls.append(
                _GpuCalls(
                    SupervisedCall(f"gpu-{index}", deadline=self._deadline, retry=Backoff()),
                    SupervisedCall(f"gpu-{index}-health", deadline=part, retry=Backoff()),
                    SupervisedCall(f"gpu-{index}-limits", deadline=part, retry=Backoff()),
                )
            )
        self._version = version
        self._recount_at = now + RECOUNT_SECONDS
        self._devices = [
            Device(
                driver=self._driver,
                index=index,
                uuid=by_index.get(index, ""),
                health=HealthReader(self._driver, self._newest_xids, self._gpu_calls[index].health),
            )
            for index in range(count)
        ]
        return self._devices

    def _initialised(self) -> tuple[str, int]:
        """Return the driver's version and number of GPUs, after an initialisation that may have been late.

        Raises:
            CallTimedOut: the initialisation has not returned; a later call asks for its result.
            ThreadNotStarted: the initialisation was not begun.
        """
        if self._starting is None:
            if self._node_call.is_unanswered:
                raise CallTimedOut("nvmlShutdown", self._deadline)
            self._starting = self._node_call.begin(self._initialise)
            if self._starting is None:
                raise self._node_call.failure or CallTimedOut("nvmlInit", self._deadline)
            self._node_call.wait()
        if not self._starting.done():
            raise CallTimedOut("nvmlInit", self._deadline)
        call, self._starting = self._starting, None
        return call.result()

    def _initialise(self) -> tuple[str, int]:
        self._driver.start()
        try:
            version = self._driver.version()
        except CallFailed:  # the version is optional
            version = ""
        return version, self._driver.count()

    def _recounted(self, devices: list[Device], now: float) -> list[Device]:
        """Return the devices to read, after a new initialisation if it is due."""
        if now < self._recount_at:
            return devices
        self._recount_at = now + RECOUNT_SECONDS
        if self.is_hanging:
            return devices
        is_other = self._count() not in (None, len(devices))
        if (is_other or self._is_missing_some(devices, now)) and not self.is_hanging:
            return self._restarted(devices, now)
        return devices

    def _count(self) -> int | None:
        """Return the driver's number of GPUs; None if unknown."""
        try:
            return int(self._node_call.result(self._driver.count))
        except DriverGone:
            raise
        except CallFailed:
            return None

    def _is_missing_some(self, devices: list[Device], now: float) -> bool:
        """Whether GPUs are missing that a new initialisation may find, and an attempt is due."""
        expected = None if any(device.is_mig for device in devices) else self._expected
        listed = {device.scope for device in devices}
        lost = [
            *(device.scope for device in devices if device.failure and self._may_be_mended(device.failure)),
            *(uuid for uuid in self._known if uuid not in listed),
        ]
        is_other = expected not in (None, len(devices))
        missing = (expected if is_other else None, *sorted(lost))
        if not lost and not is_other:
            self._missing = ()
            self._restart.reset()
            return False
        if missing != self._missing:
            self._missing = missing
            self._restart.reset()
        if not self._restart.is_due(now):
            return False
        self._restart.back_off(now)
        return True

    def _restarted(self, devices: list[Device], now: float) -> list[Device]:
        """Initialise the driver again, and retry all devices at once. Failed ones keep their back-off."""
        self._shut_down()
        started = self._start(now)
        for call in self._calls:
            call.end_wait()
        for index, device in enumerate(devices[: len(started)]):
            device.reset()
            started[index] = device
        return started

    def _answers(self, devices: list[Device], now: float) -> list[Answer]:
        """Read all GPUs; return an answer without a GPU for each one that does not respond in time."""
        supervised = [calls.figures for calls in self._gpu_calls[: len(devices)]]
        for device, call in zip(devices, supervised, strict=True):
            call.begin(partial(device.read, now), now)
            call.wait(_TURN_SECONDS)
        answers = [call.finish() for call in supervised]
        return [(None, ()) if answer is None else answer.result() for answer in answers]

    def _failure(self, device: Device) -> CallFailed | None:
        """Return why a GPU is not in the sample; None if it is. Either the device or its call has failed."""
        return self._gpu_calls[device.index].figures.failure or device.failure

    def _sweep(self, devices: list[Device], now: float) -> GpuReading:
        """Read all GPUs once; raise DriverGone or DriverReplaced if the driver as a whole failed."""
        gpus: dict[str, Gpu] = {}
        problems: list[Problem] = []
        failed: list[Device] = []
        for device, (gpu, more) in zip(devices, self._answers(devices, now), strict=True):
            if gpu is None:
                failed.append(device)
            elif gpu.uuid in gpus:
                problems.append(Problem(Cause.NVML, device.place, "the GPU has the same UUID as another GPU"))
            else:
                problems.extend(more)
                gpus[gpu.uuid] = gpu
                self._known[gpu.uuid] = LostGpu(gpu.index, gpu.uuid, gpu.model)
        failures = [failure for device in failed if (failure := self._failure(device))]
        if any(failure.error in OF_WHOLE_DRIVER for failure in failures) and not self.is_hanging:
            self._count()
        lost = [
            replace(gpu, error=failure.error)
            for gpu, failure in zip(self._lost(failed, gpus), failures, strict=True)
        ]
        problems += [
            Problem(Cause.NVML, gpu.scope, explained(failure), failure.error)
            for gpu, failure in zip(lost, failures, strict=True)
        ]
        listed = {device.scope for device in devices}
        problems.extend(
            Problem(Cause.NVML, uuid, "the driver no longer lists this GPU", NOT_LISTED)
            for uuid in self._known
            if uuid not in listed
        )
        named = {gpu.uuid for gpu in lost} | gpus.keys()
        all_lost = self._reported([*lost, *(gpu for uuid, gpu in self._known.items() if uuid not in named)])
        if not gpus:
            return self._without_gpus(devices, all_lost)
        return GpuReading(
            gpus=tuple(gpus.values()), problems=tuple(problems), lost=all_lost, driver_version=self._version
        )

    def _lost(self, failed: Iterable[Device], gpus: Collection[str]) -> list[LostGpu]:
        """Return a lost GPU for each device that failed, given the UUIDs that responded.

        A failed device takes the UUID of the GPU that last responded at its index. Indices move when a GPU is
        removed, so that this GPU may respond at another index, or two failed devices may have one UUID. The
        UUID of a device is then unknown.
        """
        taken = set(gpus)
        lost = []
        for device in failed:
            is_unknown = device.uuid in taken
            lost.append(
                LostGpu(device.index)
                if is_unknown
                else self._known.get(device.uuid, LostGpu(device.index, device.uuid))
            )
            taken.add(device.uuid)
        return lost

    def _reported(self, lost: Iterable[LostGpu]) -> tuple[LostGpu, ...]:
        """Return lost GPUs by index, each with its newest error."""
        with_errors = (replace(gpu, xid=self._newest_xids.get(gpu.uuid)) for gpu in lost)
        return tuple(sorted(with_errors, key=lambda gpu: (gpu.index, gpu.uuid)))

    def _without_gpus(self, devices: list[Device], lost: tuple[LostGpu, ...]) -> GpuReading:
        failures = [(device.scope, failure) for device in devices if (failure := self._failure(device))]
        error = failures[0][1].error if failures else NOT_LISTED if self._known else ""
        why = "; ".join(f"{scope}: {explained(failure)}" for scope, failure in failures)
        is_hanging = self.is_hanging
        may_be_mended = any(self._may_be_mended(failure) for _, failure in failures)
        return GpuReading(
            gpus=(),
            problems=(Problem(Cause.NVML, "", why or "the driver lists no GPU", error),),
            lost=lost,
            driver_version=self._version,
            restart_may_help=not is_hanging and (may_be_mended or bool(self._known and not failures)),
            is_hanging=is_hanging,
        )

    def _may_be_mended(self, failure: CallFailed) -> bool:
        """Whether a restart may help; not if the driver refuses a call that never worked in this process."""
        if isinstance(failure, NotPermitted):
            return bool(self._known)  # the container had device files before, so a new one may get them again
        return not isinstance(failure, NotOffered | CallTimedOut | ThreadNotStarted)


def _limits(driver: NvmlDriver, device: Handle, groups: Iterable[str]) -> dict[str, LimitAnswer]:
    """Ask for the limits of cgroups on one GPU, in the thread of its call."""
    answers: dict[str, LimitAnswer] = {}
    for group in groups:
        answers[group] = answer = driver.memory_limit(device, group)
        if answer.kind is LimitKind.TOO_OLD:
            break
    return answers
