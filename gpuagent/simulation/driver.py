"""A Driver that responds as a scenario defines, including failures."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from gpuagent.gpus.driver import (
    MEMORY_INFO,
    PROCESS_UTILIZATION,
    CallFailed,
    DeviceMemory,
    DriverGone,
    ErrorCounts,
    FigureFailed,
    GpuLost,
    ListedProcess,
    NotOffered,
    NotPermitted,
    ProcessList,
    Sensor,
    UtilizationSample,
)
from gpuagent.gpus.reading import DriverReplaced
from gpuagent.simulation.scenario import Scenario
from gpuagent.simulation.state import DeviceMoment, DriverState

_HANG_STEP_SECONDS: Final = 0.05
_ERRORS: Final[dict[int, tuple[type[CallFailed], str]]] = {
    1: (DriverGone, "Uninitialized"),
    3: (NotOffered, "NotSupported"),
    4: (NotPermitted, "NoPermission"),
    7: (FigureFailed, "InsufficientSize"),
    9: (DriverGone, "DriverNotLoaded"),
    12: (DriverGone, "LibraryNotFound"),
    13: (NotOffered, "FunctionNotFound"),
    15: (GpuLost, "GpuIsLost"),
    16: (GpuLost, "ResetRequired"),
    17: (FigureFailed, "OperatingSystem"),
    27: (DriverGone, "NotReady"),
    999: (FigureFailed, "Unknown"),
}
_REPLACED: Final = 18


@dataclass(frozen=True, slots=True)
class _Device:
    index: int
    place: int | None = None
    """Place of a MIG device in its GPU."""


class SimulatedDriver:
    """Responds with the state at the last refresh.

    The fault `hang` blocks the caller, as a real driver does.
    """

    def __init__(
        self,
        *,
        scenario: Scenario,
        look: Callable[[], DriverState],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.errors = ErrorCounts()
        self._scenario = scenario
        self._look = look
        self._sleep = sleep
        self._now = look()
        self._xids_read: dict[int, int] = {}
        """Number of errors that were returned, by index of the GPU."""

    def refresh(self) -> None:
        """Update the state to the current time."""
        self._now = self._look()

    def start(self) -> None:
        """Initialise."""
        self._enter("nvmlInit")

    def stop(self) -> None:
        """Do nothing; there are no resources."""

    def version(self) -> str:
        """Return the scenario's driver version."""
        self._enter("nvmlSystemGetDriverVersion")
        return self._scenario.node.driver

    def count(self) -> int:
        """Return the scenario's number of GPUs."""
        self._enter("nvmlDeviceGetCount")
        return len(self._scenario.gpus)

    def open(self, index: int) -> _Device:
        """Return the GPU at an index."""
        self._enter("nvmlDeviceGetHandleByIndex", index)
        return _Device(index)

    def uuid(self, device: _Device) -> str:
        """Return the UUID of a GPU or MIG device."""
        self._enter("nvmlDeviceGetUUID", device.index)
        return self._at(device).uuid

    def name(self, device: _Device) -> str:
        """Return the scenario's GPU model."""
        self._enter("nvmlDeviceGetName", device.index)
        return self._scenario.gpus[device.index].model

    def memory(self, device: _Device) -> DeviceMemory:
        """Return the memory; without reserved memory while the scenario simulates an old driver."""
        version = "_v2"
        try:
            self._enter(MEMORY_INFO, device.index, version)
        except NotOffered:
            version = ""
            self._enter(MEMORY_INFO, device.index)
        now = self._at(device)
        free = now.total - now.reserved - now.used
        return DeviceMemory(total=now.total, free=free, reserved=now.reserved if version else None)

    def processes(self, device: _Device, which: ProcessList) -> list[ListedProcess]:
        """Return one list."""
        self._enter(which.value, device.index)
        if self._now.races & {None, device.index}:
            self._fail(which.value, 7)
        return self._at(device).lists[which]

    def utilization(self, device: _Device, since: int) -> list[UtilizationSample]:
        """Return the samples at the state's time, if that is after `since`.

        Not offered in MIG mode, and without utilisation in the state; not counted, as by the real driver.
        """
        self._enter(PROCESS_UTILIZATION, device.index)
        gpu = self._at(device)
        if gpu.instances or gpu.percents is None:
            raise NotOffered(PROCESS_UTILIZATION, "NotSupported")
        time = self._now.time_stamp
        return [
            UtilizationSample(pid, time, percent) for pid, percent in gpu.percents.items() if time > since
        ]

    def sensor(self, device: _Device, which: Sensor) -> int:
        """Return a sensor of the scenario's GPU; not offered, and not counted, if the GPU has none."""
        self._enter(which.value, device.index)
        value = self._at(device).sensors.get(which)
        if value is None:
            raise NotOffered(which.value, "NotSupported")
        return value

    def xids(self, device: _Device, most: int) -> list[int]:
        """Return the scenario's errors since the last call."""
        self._enter("nvmlEventSetWait", device.index)
        done = self._xids_read.get(device.index, 0)
        codes = self._at(device).xids[done : done + most]
        self._xids_read[device.index] = done + len(codes)
        return list(codes)

    def is_mig(self, device: _Device) -> bool:
        """Whether the scenario has MIG devices on the GPU."""
        self._enter("nvmlDeviceGetMigMode", device.index)
        return bool(self._at(device).instances)

    def mig_places(self, device: _Device) -> int:
        """Return the scenario's number of MIG devices on the GPU."""
        self._enter("nvmlDeviceGetMaxMigDeviceCount", device.index)
        return len(self._at(device).instances)

    def instance(self, device: _Device, place: int) -> _Device | None:
        """Return one MIG device of a GPU."""
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex", device.index)
        return _Device(device.index, place)

    def _at(self, device: _Device) -> DeviceMoment:
        gpu = self._now.devices[device.index]
        return gpu if device.place is None else gpu.instances[device.place]

    def _enter(self, call: str, gpu: int | None = None, version: str = "") -> None:
        while self._now.hangs:
            self._sleep(_HANG_STEP_SECONDS)
            self.refresh()
        for failure in self._now.failures:
            if failure.call in ("*", call, call + version) and failure.gpu in (None, gpu):
                self._fail(call, failure.code)

    def _fail(self, call: str, code: int) -> NoReturn:
        if code == _REPLACED:
            self.errors.add(call, "LibRmVersionMismatch")
            raise DriverReplaced(f"{call}: simulated: the driver and its library are of different versions")
        kind, error = _ERRORS[code]
        self.errors.add(call, error)
        raise kind(call, error)
