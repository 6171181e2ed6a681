"""Reads all GPUs of a node through a Driver, and recovers from failures: a GpuSource for any Driver."""

import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from gpuagent.gpus.calls import Call, CallThread
from gpuagent.gpus.device import Device
from gpuagent.gpus.device_reader import Answer, DeviceReader
from gpuagent.gpus.driver import (
    CallFailed,
    CallTimedOut,
    Driver,
    DriverGone,
    NotOffered,
    NotPermitted,
    ThreadNotStarted,
    explained,
)
from gpuagent.gpus.gpu_reading import DriverReplaced, Gpu, GpuReading, LostGpu
from gpuagent.gpus.health import HealthReader, NewestXids
from gpuagent.problems import Cause, Problem
from service.backoff import Backoff

RECOUNT_SECONDS: Final = 60.0
"""Interval of reading the number of GPUs, and minimum time between two initialisations for missing GPUs."""
_LONGEST_WAIT_SECONDS: Final = 3600.0

DEADLINE_SECONDS: Final = 10.0
"""Default deadline of each GPU. Opening a GPU takes seconds without the driver's persistence mode."""
_TURN_SECONDS: Final = 0.05
"""Time for which a GPU is read alone. Threads that read at once would wait for each other's locks, in the
driver and in Python. A GPU that takes longer delays the next ones by this much and no more."""


class GpuReader:
    """Reads all GPUs, skips those that do not respond, and initialises the driver again if necessary.

    A GPU that responded once is reported as lost while the driver does not list it.

    The set of GPUs is fixed when NVML is initialised. A GPU that was reset, returned by vfio, or slow to
    start appears only after a new initialisation. NVML is therefore initialised again when the number of GPUs
    changes (checked every minute), and while GPUs are missing: one is lost, or the node's label has another
    number than the driver. Since missing GPUs may stay missing, the interval grows from 1, 2 and 4 minutes to
    an hour, and restarts when the set of missing GPUs changes.

    Each GPU has a thread and a deadline of its own (`DeviceReader`), and a second thread for its sensors and
    errors (`HealthReader`). The calls that concern the node have another thread with the same deadline. A
    call that is unanswered at the deadline is left alone: its thread gets no other call until the answer, and
    `read` no longer waits for it. An initialisation invalidates all handles, so there is none while a call is
    unanswered.
    """

    def __init__(
        self, *, driver: Driver, clock: Callable[[], float], deadline: float = DEADLINE_SECONDS
    ) -> None:
        """Set the driver, the clock of back-offs, and the deadline in seconds of real time."""
        self._driver = driver
        self._clock = clock
        self._deadline = deadline
        self._node_thread = CallThread("driver")
        self._device_threads: list[CallThread] = []
        """By index; the threads of GPUs that are gone remain, without a call."""
        self._health_threads: list[CallThread] = []
        """Likewise, for the calls whose failure leaves the figures of the GPU known."""
        self._starting: Call[tuple[str, int]] | None = None
        """An initialisation that is unanswered, or was answered after its deadline."""
        self._devices: list[DeviceReader] | None = None
        self._known: dict[str, LostGpu] = {}
        """Every GPU that has responded, by UUID, as it is reported if it gets lost."""
        self._newest_xids = NewestXids()
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
        return any(thread.is_busy for thread in self._threads)

    @property
    def _threads(self) -> tuple[CallThread, ...]:
        return (self._node_thread, *self._device_threads, *self._health_threads)

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
            devices = self._start(now) if self._devices is None else self._recounted(self._devices, now)
            reading = self._sweep(devices, now)
        except CallFailed as failed:
            is_hanging = self.is_hanging
            reading = GpuReading(
                gpus=(),
                problems=(Problem(Cause.NVML, "", explained(failed)),),
                lost=self._reported(self._known.values()),
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

    def close(self) -> None:
        """Shut the driver down, and end the threads; a later read starts them again.

        While a call is unanswered, the driver is left alone.
        """
        if self.is_hanging:
            return
        self._shut_down()
        for thread in self._threads:
            thread.stop()

    def _shut_down(self) -> None:
        self._devices = self._starting = None
        with contextlib.suppress(ThreadNotStarted):
            self._node_thread.begin(self._driver.stop).wait(self._deadline)

    def _start(self, now: float) -> list[DeviceReader]:
        version, count = self._initialised()
        by_index = {gpu.index: uuid for uuid, gpu in self._known.items()}
        while len(self._device_threads) < count:
            self._health_threads.append(CallThread(f"gpu-{len(self._health_threads)}-health"))
            self._device_threads.append(CallThread(f"gpu-{len(self._device_threads)}"))
        self._version = version
        self._recount_at = now + RECOUNT_SECONDS
        self._devices = [
            DeviceReader(
                Device(
                    driver=self._driver,
                    index=index,
                    uuid=by_index.get(index, ""),
                    health=HealthReader(
                        driver=self._driver,
                        newest_xids=self._newest_xids,
                        thread=self._health_threads[index],
                        deadline=self._deadline,
                    ),
                ),
                self._device_threads[index],
                deadline=self._deadline,
            )
            for index in range(count)
        ]
        return self._devices

    def _initialised(self) -> tuple[str, int]:
        """Initialise the driver, or take the result of an initialisation that was late.

        Returns:
            The driver's version and number of GPUs.

        Raises:
            CallTimedOut: the initialisation has not returned; a later call asks for its result.
            ThreadNotStarted: the initialisation was not begun.
        """
        if self._starting is None:
            if self._node_thread.is_busy:
                raise CallTimedOut("nvmlShutdown", self._deadline)
            self._starting = self._node_thread.begin(self._initialise)
            self._starting.wait(self._deadline)
        if not self._starting.is_answered:
            raise CallTimedOut("nvmlInit", self._deadline)
        call, self._starting = self._starting, None
        return call.result()

    def _initialise(self) -> tuple[str, int]:
        self._driver.start()
        try:
            version = self._driver.version()
        except DriverGone:
            raise
        except CallFailed:  # the version is optional
            version = ""
        return version, self._driver.count()

    def _recounted(self, devices: list[DeviceReader], now: float) -> list[DeviceReader]:
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
            call = self._node_thread.begin(self._driver.count)
            return call.result() if call.wait(self._deadline) else None
        except DriverGone:
            raise
        except CallFailed:
            return None

    def _is_missing_some(self, readers: list[DeviceReader], now: float) -> bool:
        """Whether GPUs are missing that a new initialisation may find, and an attempt is due."""
        devices = [reader.device for reader in readers]
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

    def _restarted(self, devices: list[DeviceReader], now: float) -> list[DeviceReader]:
        """Initialise the driver again. Failed devices keep their back-off."""
        self._shut_down()
        started = self._start(now)
        for index, device in enumerate(devices[: len(started)]):
            device.reset()
            started[index] = device
        return started

    def _answers(self, readers: list[DeviceReader], now: float) -> list[Answer]:
        """Read all GPUs; return an answer without a GPU for each one that does not respond in time.

        Raises:
            DriverGone, DriverReplaced: the driver as a whole failed.
        """
        for reader in readers:
            reader.begin(now)
            call = reader.wait(_TURN_SECONDS)
            if call is not None and call.error is not None:
                break  # the driver as a whole failed
        calls = [reader.finish() for reader in readers]
        for kind in (DriverReplaced, BaseException):
            for call in calls:
                if call is not None and isinstance(call.error, kind):
                    call.result()
        return [(None, ()) if call is None else call.result() for call in calls]

    def _sweep(self, devices: list[DeviceReader], now: float) -> GpuReading:
        gpus: dict[str, Gpu] = {}
        problems: list[Problem] = []
        failed: list[DeviceReader] = []
        for reader, (gpu, more) in zip(devices, self._answers(devices, now), strict=True):
            if gpu is None:
                failed.append(reader)
            elif gpu.uuid in gpus:
                problems.append(
                    Problem(Cause.NVML, reader.device.place, "the GPU has the same UUID as another GPU")
                )
            else:
                problems.extend(more)
                gpus[gpu.uuid] = gpu
                self._known[gpu.uuid] = LostGpu(gpu.index, gpu.uuid, gpu.model)
        lost = self._lost([reader.device for reader in failed], gpus)
        problems.extend(reader.problem(gpu.scope) for reader, gpu in zip(failed, lost, strict=True))
        listed = {reader.device.scope for reader in devices}
        problems.extend(
            Problem(Cause.NVML, uuid, "the driver no longer lists this GPU")
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
        with_errors = (replace(gpu, xid=self._newest_xids.of(gpu.uuid)) for gpu in lost)
        return tuple(sorted(with_errors, key=lambda gpu: (gpu.index, gpu.uuid)))

    def _without_gpus(self, readers: list[DeviceReader], lost: tuple[LostGpu, ...]) -> GpuReading:
        failures = [(reader.device.scope, reader.failure) for reader in readers if reader.failure]
        why = "; ".join(f"{scope}: {explained(failure)}" for scope, failure in failures)
        is_hanging = self.is_hanging
        may_be_mended = any(self._may_be_mended(failure) for _, failure in failures)
        return GpuReading(
            gpus=(),
            problems=(Problem(Cause.NVML, "", why or "the driver lists no GPU"),),
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
