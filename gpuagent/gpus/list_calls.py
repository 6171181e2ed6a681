"""Calls of NVML with bounded arrays, by the library that the binding has loaded.

The binding's own functions allocate an array of any length that the driver names. A wrong length would take
the memory of the agent's container.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from gpuagent.gpus.driver import PROCESS_UTILIZATION, ListedProcess, UtilizationSample
from gpuagent.gpus.memory_limits import MEMORY_LIMITS, NO_LIMIT, LimitAnswer, LimitKind

_ENTRY: Final = pynvml.c_nvmlProcessInfo_v2_t
"""`nvmlProcessInfo_t` of nvml.h, the entry of versions 2 and 3 of the calls."""
# ctypes' own descriptors: the binding's attribute access takes four times as long.
_PID: Final = _ENTRY.pid.__get__
_USED: Final = _ENTRY.usedGpuMemory.__get__
_GPU_INSTANCE: Final = _ENTRY.gpuInstanceId.__get__
_COMPUTE_INSTANCE: Final = _ENTRY.computeInstanceId.__get__
_UNKNOWN: Final = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_FIRST_ROOM: Final = 1024
"""Entries; the driver lists at most 950 processes (`driver.MOST_LISTED`)."""
_MOST_ROOM: Final = 1 << 14
PROCESSES_UTILIZATION_INFO: Final = "nvmlDeviceGetProcessesUtilizationInfo"
_MOST_SAMPLES: Final = 1 << 14
"""Longest credible list of utilisation samples. A driver keeps 72 samples
(NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL in NVIDIA's open kernel modules)."""


class ProcessListCall:
    """Reads process lists into one reused array. Not thread-safe: each thread needs its own.

    The binding's own function calls the driver twice, first for the size of the list, and copies each entry
    into a Python object with a dictionary. For 512 processes that takes six times as long.
    """

    def __init__(self) -> None:
        self._entries = _array(_FIRST_ROOM)

    def read(self, symbol: str, handle: Any) -> list[ListedProcess]:
        """Return the process list of a GPU or MIG device, by a function of the library.

        Raises:
            pynvml.NVMLError: the call failed. With InsufficientSize the array has grown, so another call may
                succeed.
        """
        function = _library_function(symbol)
        room = len(self._entries)
        count = ctypes.c_uint(room)
        code = function(handle, ctypes.byref(count), self._entries)
        if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            self._grow(count.value)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        if count.value > room:  # nothing was written there
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        entries = self._entries[: count.value]
        listed = [
            ListedProcess(
                _PID(entry),
                None if (used := _USED(entry)) == _UNKNOWN else used,
                _GPU_INSTANCE(entry),
                _COMPUTE_INSTANCE(entry),
            )
            for entry in entries
        ]
        # A driver that counts more entries than it writes must not repeat those of an earlier list.
        ctypes.memset(self._entries, 0, count.value * ctypes.sizeof(_ENTRY))
        return listed

    def _grow(self, needed: int) -> None:
        """Make room for twice the number of entries that the driver asks for, up to a limit."""
        room = min(2 * needed, _MOST_ROOM)
        if room > len(self._entries):
            self._entries = _array(room)


def _array(room: int) -> Any:
    """Return an array in memory of its own, of which only the pages that the driver writes are resident."""
    entries = _ENTRY * room
    return entries.from_buffer(mmap.mmap(-1, ctypes.sizeof(entries)))


def process_utilization(handle: Any, since: int) -> list[UtilizationSample]:
    """Return the samples of a GPU after a time, by `nvmlDeviceGetProcessUtilization`; raise as `_samples`."""
    function, count = _library_function(PROCESS_UTILIZATION), ctypes.c_uint(0)

    def call(rows: Any) -> int:
        return int(function(handle, rows, ctypes.byref(count), ctypes.c_ulonglong(since)))

    return _samples(call, lambda: count.value, pynvml.c_nvmlProcessUtilizationSample_t)


def processes_utilization_info(handle: Any, since: int) -> list[UtilizationSample]:
    """Return the samples by `nvmlDeviceGetProcessesUtilizationInfo`; raise as `_samples`."""
    function, info = (
        _library_function(PROCESSES_UTILIZATION_INFO),
        pynvml.c_nvmlProcessesUtilizationInfo_v1_t(),
    )
    info.version = pynvml.ProcessesUtilizationInfo_v1
    info.lastSeenTimeStamp = since

    def call(rows: Any) -> int:
        info.procUtilArray = rows
        return int(function(handle, ctypes.byref(info)))

    return _samples(call, lambda: int(info.processSamplesCount), pynvml.c_nvmlProcessUtilizationInfo_v1_t)


def _samples(call: Callable[[Any], int], count: Callable[[], int], kind: Any) -> list[UtilizationSample]:
    """Ask for the number of samples, and then for the samples.

    Raises:
        pynvml.NVMLError: the call failed.
        MemoryError: the driver names an impossible number of samples.
    """
    code = call(None)
    if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        raise pynvml.NVMLError(code)  # Code0: no samples
    room = count()
    if room > _MOST_SAMPLES:
        raise MemoryError
    rows = (kind * room)()
    code = call(rows)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    # ctypes' own descriptors: the binding's attribute access takes four times as long.
    pid, time_stamp, percent = kind.pid.__get__, kind.timeStamp.__get__, kind.smUtil.__get__
    return [UtilizationSample(pid(row), time_stamp(row), percent(row)) for row in rows[: count()]]


class _GetMemoryLimits(ctypes.Structure):
    """`nvmlGetMemoryLimits_v1_t` of nvml.h of CUDA 13.4, which has no version field."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
        ("currentUsed", ctypes.c_ulonglong),
    )


def memory_limits(handle: Any, group: str) -> LimitAnswer:
    """Ask the library for the limit of a cgroup on a GPU; raise NVMLError if the call failed."""
    limits = _GetMemoryLimits(os.fsencode(group))
    code = _library_function(f"{MEMORY_LIMITS}_v1")(handle, ctypes.byref(limits))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    soft, hard, used = limits.softLimit, limits.hardLimit, limits.currentUsed
    return LimitAnswer(LimitKind.NONE if hard == NO_LIMIT else LimitKind.LIMIT, soft, hard, used)


def _library_function(symbol: str) -> Any:
    """Return the library's function; raise NVMLError if there is no library or no such function."""
    library = pynvml.nvmlLib
    if library is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    try:
        return getattr(library, symbol)
    except AttributeError:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
