"""The driver through NVIDIA's binding pynvml: probes call versions, and classifies errors."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

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
from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS, GpuReader
from gpuagent.gpus.gpu_reading import DriverReplaced
from gpuagent.gpus.health import EventSets
from gpuagent.gpus.list_calls import (
    PROCESSES_UTILIZATION_INFO,
    ProcessListCall,
    process_utilization,
    processes_utilization_info,
)
from gpuagent.problems import OF_WHOLE_DRIVER

_KIND: Final[dict[int, type[CallFailed]]] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuLost,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuLost,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: GpuLost,
    pynvml.NVML_ERROR_UNINITIALIZED: CallFailed,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: CallFailed,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: CallFailed,
    pynvml.NVML_ERROR_NOT_READY: CallFailed,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: CallFailed,
    pynvml.NVML_ERROR_NO_PERMISSION: NotPermitted,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotOffered,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotOffered,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NotOffered,
}

_INIT: Final = "nvmlInit"
_COUNT: Final = "nvmlDeviceGetCount"
_NODE_CALLS: Final = (_INIT, _COUNT)
"""Calls whose errors may concern the whole driver. An error of any other call concerns its device alone."""
_MOST_GPUS: Final = 128
"""Largest credible number of GPUs, each of which gets a thread. The driver supports 32 (NV_MAX_DEVICES,
nvlimits.h of NVIDIA's open kernel modules)."""
_LIST_VERSIONS: Final[tuple[str, ...]] = ("_v3", "_v2")
"""Versions of the process lists, newest first. Their entries have the same layout."""
_MOST_ATTEMPTS_AT_SIZE: Final = 4
_NO_SAMPLES: Final = ("NotFound", "Code0")
"""Errors of the utilisation calls if no process used the GPU. The driver returns NotFound, or an empty list,
for which the binding raises an NVMLError with the code 0 (success)."""
_MISSING: Final = ("NotSupported", "FunctionNotFound", "ArgumentVersionMismatch")
_READS_BETWEEN_MEMORY_PROBES: Final = 12


_TEMPERATURE_V: Final = "nvmlDeviceGetTemperatureV"


@dataclass(slots=True)
class _Device:
    handle: Any
    index: int = -1
    """Index of the GPU; -1 for a MIG device."""
    plain_memory_reads: int = 0
    """Number of reads with the first version of the memory call before the second version is tried again."""
    has_utilization_info: bool = False
    """Whether only the newer of the two utilisation calls works."""
    has_old_temperature: bool = False
    """Whether only the older of the two temperature calls works."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.list_call = ProcessListCall()


class NvmlDriver:
    """The Driver of the node. Once loaded, the library stays loaded until the process ends.

    NVML is thread-safe (its reference, "Thread Safety"). Each thread opens the handle that it uses. NVML does
    not promise that a hanging call leaves the calls on other GPUs alone: the driver serialises some of them
    by locks of its own.
    """

    def __init__(self) -> None:
        self.errors = ErrorCounts()
        self._of_thread = _OfThread()
        self._list_versions = dict.fromkeys(ProcessList, _LIST_VERSIONS)
        self._event_sets = EventSets(self._call)

    def start(self) -> None:
        """Initialise NVML."""
        self._call(_INIT, pynvml.nvmlInit)

    def stop(self) -> None:
        """Shut NVML down. A failure is only counted, since a lost driver cannot be shut down."""
        try:
            self._event_sets.free()
            self._call("nvmlShutdown", pynvml.nvmlShutdown, expected=("Uninitialized",))
        except (CallFailed, DriverReplaced):
            return

    def version(self) -> str:
        """Return the version of the kernel driver."""
        return str(self._call("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion))

    def count(self) -> int:
        """Return the number of GPUs in NVML's list."""
        count = int(self._call(_COUNT, pynvml.nvmlDeviceGetCount))
        if count > _MOST_GPUS:
            self.errors.add(_COUNT, "Garbage")
            raise FigureFailed(_COUNT, "Garbage")
        return count

    def open(self, index: int) -> _Device:
        """Return a handle of the GPU at an index. Keep it, since opening may wake the GPU."""
        handle = self._call("nvmlDeviceGetHandleByIndex", pynvml.nvmlDeviceGetHandleByIndex, index)
        return _Device(handle, index)

    def uuid(self, device: _Device) -> str:
        """Return `GPU-…` or `MIG-…`."""
        return str(self._call("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, device.handle))

    def name(self, device: _Device) -> str:
        """Return the product name."""
        return str(self._call("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, device.handle))

    def memory(self, device: _Device) -> DeviceMemory:
        """Return the memory, by the second version of the call or else by the first."""
        if device.plain_memory_reads == 0:
            try:
                info = self._call(
                    MEMORY_INFO, pynvml.nvmlDeviceGetMemoryInfo, device.handle, pynvml.nvmlMemory_v2
                )
            except NotOffered:
                device.plain_memory_reads = _READS_BETWEEN_MEMORY_PROBES
            else:
                return DeviceMemory(total=info.total, free=info.free, reserved=info.reserved)
        device.plain_memory_reads -= 1
        info = self._call(MEMORY_INFO, pynvml.nvmlDeviceGetMemoryInfo, device.handle)
        return DeviceMemory(total=info.total, free=info.free, reserved=None)

    def processes(self, device: _Device, which: ProcessList) -> list[ListedProcess]:
        """Return one process list, by the newest version of the call in this library."""
        newest, *older = self._list_versions[which]
        try:
            return self._list(which, newest, device)
        except NotOffered as missing:
            if not older:
                raise
            entries = self._list(which, older[0], device)
            if missing.error == "FunctionNotFound":  # a loaded library does not gain symbols
                self._list_versions[which] = tuple(older)
            return entries

    def _list(self, which: ProcessList, version: str, device: _Device) -> list[ListedProcess]:
        return self._sized(which.value, self._of_thread.list_call.read, which.value + version, device.handle)

    def utilization(self, device: _Device, since: int) -> list[UtilizationSample]:
        """Return the utilisation samples after a time, by the older of two calls or else by the newer one.

        On Blackwell GPUs some drivers support only the newer call (HAMi-core #218), which drivers before 550
        do not have.
        """
        if not device.has_utilization_info:
            try:
                return self._samples(PROCESS_UTILIZATION, process_utilization, device, since)
            except NotOffered as refused:
                older = refused
            try:
                samples = self._samples(PROCESSES_UTILIZATION_INFO, processes_utilization_info, device, since)
            except NotOffered:
                raise older from None
            device.has_utilization_info = True
            return samples
        return self._samples(PROCESSES_UTILIZATION_INFO, processes_utilization_info, device, since)

    def _samples(
        self, name: str, function: Callable[..., Any], device: _Device, since: int
    ) -> list[UtilizationSample]:
        """Return the samples of one call. A missing call is not counted: vGPUs never have it."""
        try:
            return self._sized(name, function, device.handle, since, expected=(*_NO_SAMPLES, *_MISSING))
        except CallFailed as failed:
            if failed.error in _NO_SAMPLES:
                return []
            raise

    def sensor(self, device: _Device, which: Sensor) -> int:
        """Return one figure of a GPU. A missing call is not counted: virtual GPUs have no sensors."""
        match which:
            case Sensor.UTILIZATION:
                rates = self._optional(which, pynvml.nvmlDeviceGetUtilizationRates, device.handle)
                return int(rates.gpu)
            case Sensor.TEMPERATURE:
                return self._temperature(device)
            case Sensor.POWER:
                return int(self._optional(which, pynvml.nvmlDeviceGetPowerUsage, device.handle))
            case Sensor.POWER_LIMIT:
                return int(self._optional(which, pynvml.nvmlDeviceGetEnforcedPowerLimit, device.handle))

    def _temperature(self, device: _Device) -> int:
        """Return the temperature, by the newer call, whose result has a sign, or else by the older one."""
        if not device.has_old_temperature:
            try:
                return int(
                    self._optional(
                        _TEMPERATURE_V,
                        pynvml.nvmlDeviceGetTemperatureV,
                        device.handle,
                        pynvml.NVML_TEMPERATURE_GPU,
                    )
                )
            except NotOffered:
                device.has_old_temperature = True
        return int(
            self._optional(
                Sensor.TEMPERATURE,
                pynvml.nvmlDeviceGetTemperature,
                device.handle,
                pynvml.NVML_TEMPERATURE_GPU,
            )
        )

    def _optional(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._call(str(name), function, *arguments, expected=_MISSING)

    def xids(self, device: _Device, most: int) -> list[int]:
        """Return the codes of the errors that NVML queued for a GPU."""
        return self._event_sets.codes(device.index, device.handle, most)

    def _sized(
        self, name: str, function: Callable[..., Any], *arguments: Any, expected: tuple[str, ...] = ()
    ) -> list[Any]:
        """Return a list of the driver; repeat the call if the list outgrows the array (InsufficientSize)."""
        attempts = 1
        while True:
            try:
                entries: list[Any] = self._call(name, function, *arguments, expected=expected)
            except CallFailed as failed:
                if failed.error != "InsufficientSize" or attempts == _MOST_ATTEMPTS_AT_SIZE:
                    raise
                attempts += 1
            else:
                return entries

    def is_mig(self, device: _Device) -> bool:
        """Whether MIG mode is on; a device without MIG returns NotSupported."""
        try:
            current, _ = self._call(
                "nvmlDeviceGetMigMode",
                pynvml.nvmlDeviceGetMigMode,
                device.handle,
                expected=("NotSupported", "FunctionNotFound"),
            )
        except NotOffered:
            return False
        return bool(current)

    def mig_places(self, device: _Device) -> int:
        """Return the maximum number of MIG devices; 0 on a GPU without MIG."""
        function = pynvml.nvmlDeviceGetMaxMigDeviceCount
        return int(self._call("nvmlDeviceGetMaxMigDeviceCount", function, device.handle))

    def instance(self, device: _Device, place: int) -> _Device | None:
        """Return the MIG device at a place; None if NVML returns NotFound."""
        try:
            handle = self._call(
                "nvmlDeviceGetMigDeviceHandleByIndex",
                pynvml.nvmlDeviceGetMigDeviceHandleByIndex,
                device.handle,
                place,
                expected=("NotFound",),
            )
        except CallFailed as failed:
            if failed.error != "NotFound":
                raise
            return None
        return _Device(handle)

    def _call(
        self, name: str, function: Callable[..., Any], *arguments: Any, expected: tuple[str, ...] = ()
    ) -> Any:
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            value: int = error.value
            label = _label(error)
        except pynvml.NVMLLibraryMismatchError:
            value, label = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "FunctionNotFound"
        except UnicodeDecodeError:
            value, label = pynvml.NVML_ERROR_UNKNOWN, "NotUtf8"
        except MemoryError:  # the driver names an impossible length of a list
            value, label = pynvml.NVML_ERROR_UNKNOWN, "Garbage"
        if label not in expected:
            self.errors.add(name, label)
        if name in _NODE_CALLS and label == "LibRmVersionMismatch":
            raise DriverReplaced(
                f"{name}: the NVIDIA driver and its library libnvidia-ml.so.1 are of different versions"
                " (the driver was replaced): the agent must restart to load the new library"
            )
        if name in _NODE_CALLS and label in OF_WHOLE_DRIVER:
            raise DriverGone(name, label)
        raise _KIND.get(value, FigureFailed)(name, label)


def _label(error: pynvml.NVMLError) -> str:
    """Return the error's name: `GpuIsLost`, or `Code31` for a code that the binding does not know."""
    name = type(error).__name__
    return name.removeprefix("NVMLError_") if name != "NVMLError" else f"Code{error.value}"


class NvmlGpus(GpuReader):
    """A GpuSource with NVIDIA's library. Makes no call before the first read."""

    is_simulated = False

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, deadline: float = DEADLINE_SECONDS
    ) -> None:
        """Set the clock, and the seconds until a GPU counts as unanswered."""
        super().__init__(driver=NvmlDriver(), clock=clock, deadline=deadline)
