"""Every GPU of a node read through a driver, whatever goes wrong: a GpuSource over any Driver."""

from collections.abc import Callable
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
from gpuagent.gpus.reading import Gpu, GpuReading
from gpuagent.problems import Cause, Problem
from service.backoff import Backoff

RECOUNT_SECONDS: Final = 60.0
"""How often the driver is asked for the number of its GPUs, and the least time between two initialisations
for the sake of GPUs that are missing."""
_LONGEST_WAIT_SECONDS: Final = 3600.0


class GpuReader:
    """Reads all GPUs, leaves out those that do not answer, and starts over where the driver must.

    A GPU that answered once is reported as lost for as long as the driver leaves it out.

    GPUs come and go while NVML is initialised: a GPU that was reset, was handed back by vfio, or was slow to
    come up needs a new initialisation to be seen. So NVML is initialised anew when the number of GPUs changes
    (asked every minute), and while GPUs are missing: one is lost, or the node's label counts others than the
    driver. Missing GPUs may stay missing: then it is tried after 1, 2, 4, … minutes and at last every hour,
    and after a minute again as soon as something else is missing. Every call of the driver is made by the
    thread that calls `read`, so no initialisation can take a handle from under a call.
    """

    def __init__(self, *, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._devices: list[Device] | None = None
        self._known: dict[str, int] = {}
        self._version = ""
        self._retry = Backoff()
        self._nothing = GpuReading(gpus=())
        self._expected: int | None = None
        self._recount_at = 0.0
        self._restart = Backoff(first=RECOUNT_SECONDS, most=_LONGEST_WAIT_SECONDS)
        self._missing: tuple[object, ...] = ()

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """(call, error) of the driver to its count."""
        return self._driver.errors.copy()

    def expect(self, count: int | None) -> None:
        """Take the number of GPUs by the node's label; None if it is unknown. From any thread."""
        self._expected = count

    def read(self) -> GpuReading:
        """Read every GPU; without any, the reading says why, and the next tries again when it is time.

        Raises:
            DriverReplaced: nothing but a new process helps.
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
                driver_version=self._version,
                restart_may_help=not isinstance(failed, DriverGone) and self._may_be_mended(failed),
            )
        if reading.gpus:
            self._retry.succeeded()
        else:
            self._shut_down()
            self._retry.failed(now)
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
        except CallFailed:  # a driver without a version is a driver
            self._version = ""
        by_index = {index: uuid for uuid, index in self._known.items()}
        devices = [
            Device(driver=self._driver, index=index, uuid=by_index.get(index, ""))
            for index in range(self._driver.count())
        ]
        self._recount_at = now + RECOUNT_SECONDS
        self._devices = devices
        return devices

    def _recounted(self, devices: list[Device], now: float) -> list[Device]:
        """Return the devices to read: those of a new initialisation if it is time for one."""
        if now < self._recount_at:
            return devices
        self._recount_at = now + RECOUNT_SECONDS
        if self._count() not in (None, len(devices)) or self._is_missing_some(devices, now):
            return self._restarted(devices, now)
        return devices

    def _count(self) -> int | None:
        """Return the number of GPUs by the driver; None if it does not say."""
        try:
            return self._driver.count()
        except DriverGone:
            raise
        except CallFailed:
            return None

    def _is_missing_some(self, devices: list[Device], now: float) -> bool:
        """Whether GPUs are missing that a new initialisation may bring, and it is time to try one."""
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
            self._restart.succeeded()
            return False
        if missing != self._missing:
            self._missing = missing
            self._restart.succeeded()
        if not self._restart.is_due(now):
            return False
        self._restart.failed(now)
        return True

    def _restarted(self, devices: list[Device], now: float) -> list[Device]:
        """Initialise the driver anew. Devices that failed keep how long they wait between two attempts."""
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
                self._known[gpu.uuid] = gpu.index
        # Indices move when a GPU goes: a GPU that answers at another index is not the one that fails here.
        problems.extend(
            device.problem(device.place if device.uuid in gpus else device.scope) for device in failed
        )
        listed = {device.scope for device in devices}
        problems.extend(
            Problem(Cause.NVML, uuid, "the driver no longer lists this GPU")
            for uuid in self._known
            if uuid not in listed
        )
        if not gpus:
            return self._without_gpus(devices)
        return GpuReading(gpus=tuple(gpus.values()), problems=tuple(problems), driver_version=self._version)

    def _without_gpus(self, devices: list[Device]) -> GpuReading:
        failures = [(device.scope, device.failure) for device in devices if device.failure]
        why = "; ".join(f"{scope}: {explained(failure)}" for scope, failure in failures)
        return GpuReading(
            gpus=(),
            problems=(Problem(Cause.NVML, "", why or "the driver lists no GPU"),),
            driver_version=self._version,
            restart_may_help=any(self._may_be_mended(failure) for _, failure in failures)
            or bool(self._known and not failures),
        )

    def _may_be_mended(self, failure: CallFailed) -> bool:
        """Whether a new start may help: not where the driver refuses what it never gave this process."""
        if isinstance(failure, NotPermitted):
            return bool(self._known)  # the container's device files were there, and can be given to it again
        return not isinstance(failure, NotOffered)
