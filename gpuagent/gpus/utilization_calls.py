"""NVML's two calls for the utilisation by process, with a bounded array.

The binding's own functions allocate an array of any length that the driver names, and fill it with zeros. A
wrong length would take the memory of the agent's container.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from gpuagent.gpus.driver import UtilizationSample
from gpuagent.gpus.library import library_function

PROCESSES_UTILIZATION_INFO: Final = "nvmlDeviceGetProcessesUtilizationInfo"
_PROCESS_UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"
_MOST_SAMPLES: Final = 1 << 14
"""Longest credible list of utilisation samples. A driver keeps 72 samples
(NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL in NVIDIA's open kernel modules)."""


def process_utilization(handle: Any, since: int) -> list[UtilizationSample]:
    """Return the samples of a GPU after a time, by `nvmlDeviceGetProcessUtilization`.

    Raises:
        pynvml.NVMLError: the call failed.
        MemoryError: the driver names an impossible number of samples.
    """
    function, count = library_function(_PROCESS_UTILIZATION), ctypes.c_uint(0)

    def call(rows: Any) -> int:
        return int(function(handle, rows, ctypes.byref(count), ctypes.c_ulonglong(since)))

    return _samples(call, lambda: count.value, pynvml.c_nvmlProcessUtilizationSample_t)


def processes_utilization_info(handle: Any, since: int) -> list[UtilizationSample]:
    """Return the samples of a GPU after a time, by `nvmlDeviceGetProcessesUtilizationInfo`.

    Raises:
        pynvml.NVMLError: the call failed.
        MemoryError: the driver names an impossible number of samples.
    """
    function, info = (
        library_function(PROCESSES_UTILIZATION_INFO),
        pynvml.c_nvmlProcessesUtilizationInfo_v1_t(),
    )
    info.version = pynvml.ProcessesUtilizationInfo_v1
    info.lastSeenTimeStamp = since

    def call(rows: Any) -> int:
        info.procUtilArray = rows
        return int(function(handle, ctypes.byref(info)))

    return _samples(call, lambda: int(info.processSamplesCount), pynvml.c_nvmlProcessUtilizationInfo_v1_t)


def _samples(call: Callable[[Any], int], count: Callable[[], int], kind: Any) -> list[UtilizationSample]:
    """Ask for the number of samples, and then for the samples."""
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
