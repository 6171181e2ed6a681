"""Reads all GPUs of a node through a Driver, and recovers from failures: a GpuSource for any Driver."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from gpuagent.gpus.device import Device
from gpuagent.gpus.driver import (
    CallFailed,
    Driver,
    DriverGone,
    NotOffered,
    NotPermitted,
    explained,
)
from gpuagent.gpus.reading import Gpu, GpuReading, LostGpu
from gpuagent.problems import Cause, Problem
from service.backoff import Backoff

RECOUNT_SECONDS: Final = 60.0
"""Interval of reading the number of GPUs, and minimum time between two initialisations for missing GPUs."""
_LONGEST_WAIT_SECONDS: Final = 3600.0


class GpuReader:
    """Reads all GPUs, skips those that do not respond, and initialises the driver again if necessary.

    A GPU that responded once is reported as lost while the driver does not list it.

    The set of GPUs is fixed when NVML is initialised. A GPU that was reset, returned by vfio, or slow to
    start appears only after a new initialisation. NVML is therefore initialised again when the number of GPUs
    changes (checked every minute), and while GPUs are missing: one is lost, or the node's label has another
    number than the driver. Since missing GPUs may stay missing, the interval grows from 1, 2 and 4 minutes to
    an hour, and restarts when the set of missing GPUs changes. The thread that calls `read` makes all driver
    calls, so no initialisation can invalidate a handle during a call.
    """

    def __init__(self, *, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._devices: list[Device] | None = None
        self._known: dict[str, LostGpu] = {}
        """Every GPU that has responded, by UUID, as it is reported if it gets lost."""
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
            reading = GpuReading(
                gpus=(),
                problems=(Problem(Cause.NVML, "", explained(failed)),),
                lost=_by_index(self._known.values()),
                driver_version=self._version,
                restart_may_help=not isinstance(failed, DriverGone) and self._may_be_mended(failed),
            )
        if reading.gpus:
            self._retry.reset()
        else:
            self._shut_down()
            self._retry.back_off(now)
            self._nothing = reading
        return reading

    def close(self) -> None:
        """Shut the driver down; a later read starts it again."""
        self._shut_down()

    def _shut_down(self) -> None:
        self._devices = None
        self._driver.stop()

    def _start(self, now: float) -> list[Device]:
        self._driver.start()
        try:
            self._version = self._driver.version()
        except DriverGone:
            raise
        except CallFailed:  # the version is optional
            self._version = ""
        by_index = {gpu.index: uuid for uuid, gpu in self._known.items()}
        devices = [
            Device(driver=self._driver, index=index, uuid=by_index.get(index, ""))
            for index in range(self._driver.count())
        ]
        self._recount_at = now + RECOUNT_SECONDS
        self._devices = devices
        return devices

    def _recounted(self, devices: list[Device], now: float) -> list[Device]:
        """Return the devices to read, after a new initialisation if it is due."""
        if now < self._recount_at:
            return devices
        self._recount_at = now + RECOUNT_SECONDS
        if self._count() not in (None, len(devices)) or self._is_missing_some(devices, now):
            return self._restarted(devices, now)
        return devices

    def _count(self) -> int | None:
        """Return the driver's number of GPUs; None if unknown."""
        try:
            return self._driver.count()
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
        """Initialise the driver again. Failed devices keep their back-off."""
        self._shut_down()
        started = self._start(now)
        for index, device in enumerate(devices[: len(started)]):
            device.reset()
            started[index] = device
        return started

    def _sweep(self, devices: list[Device], now: float) -> GpuReading:
        gpus: dict[str, Gpu] = {}
        problems: list[Problem] = []
        failed: list[Device] = []
        for device in devices:
            gpu, more = device.read(now)
            if gpu is None:
                failed.append(device)
            elif gpu.uuid in gpus:
                problems.append(Problem(Cause.NVML, device.place, "the GPU has the same UUID as another GPU"))
            else:
                problems.extend(more)
                gpus[gpu.uuid] = gpu
                self._known[gpu.uuid] = LostGpu(gpu.index, gpu.uuid, gpu.model)
        lost = self._unanswered(failed, gpus)
        problems.extend(device.problem(gpu.scope) for device, gpu in zip(failed, lost, strict=True))
        listed = {device.scope for device in devices}
        problems.extend(
            Problem(Cause.NVML, uuid, "the driver no longer lists this GPU")
            for uuid in self._known
            if uuid not in listed
        )
        named = {gpu.uuid for gpu in lost} | gpus.keys()
        all_lost = _by_index([*lost, *(gpu for uuid, gpu in self._known.items() if uuid not in named)])
        if not gpus:
            return self._without_gpus(devices, all_lost)
        return GpuReading(
            gpus=tuple(gpus.values()), problems=tuple(problems), lost=all_lost, driver_version=self._version
        )

    def _unanswered(self, failed: Iterable[Device], gpus: Collection[str]) -> list[LostGpu]:
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

    def _without_gpus(self, devices: list[Device], lost: tuple[LostGpu, ...]) -> GpuReading:
        failures = [(device.scope, device.failure) for device in devices if device.failure]
        why = "; ".join(f"{scope}: {explained(failure)}" for scope, failure in failures)
        return GpuReading(
            gpus=(),
            problems=(Problem(Cause.NVML, "", why or "the driver lists no GPU"),),
            lost=lost,
            driver_version=self._version,
            restart_may_help=any(self._may_be_mended(failure) for _, failure in failures)
            or bool(self._known and not failures),
        )

    def _may_be_mended(self, failure: CallFailed) -> bool:
        """Whether a restart may help; not if the driver refuses a call that never worked in this process."""
        if isinstance(failure, NotPermitted):
            return bool(self._known)  # the container had device files before, so a new one may get them again
        return not isinstance(failure, NotOffered)


def _by_index(gpus: Iterable[LostGpu]) -> tuple[LostGpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid)))
