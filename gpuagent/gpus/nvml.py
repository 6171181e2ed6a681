"""The driver through NVIDIA's binding pynvml: probes call versions, and classifies errors."""

import threading
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
from gpuagent.gpus.gpu_reading import DriverReplaced
from gpuagent.gpus.list_calls import (
    PROCESSES_UTILIZATION_INFO,
    ProcessListCall,
    memory_limits,
    process_utilization,
    processes_utilization_info,
)
from gpuagent.gpus.memory_limits import EXPECTED_ERRORS, MEMORY_LIMITS, LimitAnswer, answer_of_error
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
_NO_CALL: Final = ("NotSupported", "FunctionNotFound")
_MISSING: Final = (*_NO_CALL, "ArgumentVersionMismatch")
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


class EventSets:
    """The event sets of the GPUs, by index.

    A GPU has a set of its own, so that its thread alone waits for the driver, and an event needs no search
    for its GPU. `free` is called while no GPU is in use.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._sets: dict[int, Any] = {}
        self._registered: set[int] = set()

    def codes(self, index: int, handle: Any, most: int) -> list[int]:
        """Return the codes of a GPU's queued errors, oldest first, in so many events; never wait for one.

        Raises:
            CallFailed: the driver does not report errors for the GPU.
        """
        if index not in self._registered:
            self._register(index, handle)
        codes: list[int] = []
        wait, expected = pynvml.nvmlEventSetWait_v2, ("Timeout", *_NO_CALL)
        for _ in range(most):
            try:
                event = self._call("nvmlEventSetWait", wait, self._sets[index], 0, expected=expected)
            except CallFailed as failed:
                if failed.error != "Timeout" and not codes:
                    raise
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                codes.append(int(event.eventData))
        return codes

    def free(self) -> None:
        """Free all sets, before the driver is shut down. A failure is only counted."""
        while self._sets:
            _, events = self._sets.popitem()
            try:
                self._call("nvmlEventSetFree", pynvml.nvmlEventSetFree, events, expected=("Uninitialized",))
            except CallFailed:
                continue
        self._registered.clear()

    def _register(self, index: int, handle: Any) -> None:
        if index not in self._sets:
            self._sets[index] = self._call("nvmlEventSetCreate", pynvml.nvmlEventSetCreate, expected=_NO_CALL)
        function, kind = pynvml.nvmlDeviceRegisterEvents, pynvml.nvmlEventTypeXidCriticalError
        self._call("nvmlDeviceRegisterEvents", function, handle, kind, self._sets[index], expected=_NO_CALL)
        self._registered.add(index)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.list_call = ProcessListCall()


class NvmlDriver:
    """The driver calls that the agent makes. Each raises a CallFailed or DriverReplaced, or never returns.

    Calls for different GPUs come from different threads; those for one GPU and its MIG devices come from one.
    `start`, `stop`, `version` and `count` come from a thread of their own, and no device is in use during
    `start` and `stop`. Once loaded, the library stays loaded until the process ends. NVML is thread-safe (its
    reference, "Thread Safety"), but does not promise that a hanging call leaves the calls on other GPUs
    alone: the driver serialises some of them by locks of its own.
    """

    def __init__(self) -> None:
        self.errors = ErrorCounts()
        """Counts of failures; expected responses are not counted."""
        self._of_thread = _OfThread()
        self._list_versions = dict.fromkeys(ProcessList, _LIST_VERSIONS)
        self._event_sets = EventSets(self._call)

    def start(self) -> None:
        """Initialise NVML."""
        self._call(_INIT, pynvml.nvmlInit)

    def stop(self) -> None:
        """Shut NVML down, which invalidates all handles. A failure, as of a lost driver, only counts."""
        try:
            self._event_sets.free()
            self._call("nvmlShutdown", pynvml.nvmlShutdown, expected=("Uninitialized",))
        except (CallFailed, DriverReplaced):
            return

    def version(self) -> str:
        """Return the version of the kernel driver."""
        return str(self._call("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion))

    def count(self) -> int:
        """Return the number of GPUs, including lost ones."""
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
        """Return one process list, unordered, by the newest version of the call in this library.

        A process may occur more than once.
        """
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
        """Return the utilisation samples of a GPU after a time, by the older of two calls or else the newer.

        With the time 0 they are all that the driver keeps. The driver may return older ones, too. On
        Blackwell GPUs some drivers support only the newer call (HAMi-core #218), which drivers before 550 do
        not have.
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
        """Return one figure of a GPU, maybe an impossible one. A missing call, as on vGPUs, is no error."""
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
        place = device.handle, pynvml.NVML_TEMPERATURE_GPU
        if not device.has_old_temperature:
            try:
                return int(self._optional(_TEMPERATURE_V, pynvml.nvmlDeviceGetTemperatureV, *place))
            except NotOffered:
                device.has_old_temperature = True
        return int(self._optional(Sensor.TEMPERATURE, pynvml.nvmlDeviceGetTemperature, *place))

    def _optional(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._call(str(name), function, *arguments, expected=_MISSING)

    def xids(self, device: _Device, most: int) -> list[int]:
        """Return the codes of the errors that NVML queued for a GPU, oldest first; never wait for one.

        The first call after an initialisation of the driver begins to record errors.
        """
        return self._event_sets.codes(device.index, device.handle, most)

    def memory_limit(self, device: _Device, group: str) -> LimitAnswer:
        """Return the limit of a cgroup on a GPU. Without the call, as before r615, nothing is counted."""
        try:
            answer: LimitAnswer = self._call(
                MEMORY_LIMITS, memory_limits, device.handle, group, expected=EXPECTED_ERRORS
            )
        except CallFailed as failed:  # if the GPU or the driver is lost, the next memory call shows it
            return answer_of_error(failed.error)
        return answer

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
            function = pynvml.nvmlDeviceGetMigMode
            current, _ = self._call("nvmlDeviceGetMigMode", function, device.handle, expected=_NO_CALL)
        except NotOffered:
            return False
        return bool(current)

    def mig_places(self, device: _Device) -> int:
        """Return the maximum number of MIG devices; 0 on a GPU without MIG."""
        function = pynvml.nvmlDeviceGetMaxMigDeviceCount
        return int(self._call("nvmlDeviceGetMaxMigDeviceCount", function, device.handle))

    def instance(self, device: _Device, place: int) -> _Device | None:
        """Return the MIG device at a place; None if NVML returns NotFound."""
        name, function = "nvmlDeviceGetMigDeviceHandleByIndex", pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        try:
            handle = self._call(name, function, device.handle, place, expected=("NotFound",))
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
