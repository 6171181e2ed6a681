"""Calls NVML's process lists by the library that the binding has loaded, into one reused array.

The binding's own functions call the driver twice, first for the size of the list. They allocate an array of
any size that the driver names, and copy each entry into a Python object with a dictionary. For 512 processes
that takes six times as long.
"""

import ctypes
import mmap
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from gpuagent.gpus.driver import ListedProcess
from gpuagent.gpus.library import library_function

_ENTRY: Final = pynvml.c_nvmlProcessInfo_v2_t
"""`nvmlProcessInfo_t` of nvml.h, the entry of versions 2 and 3 of the calls."""
# ctypes' own descriptors: the binding's attribute access takes four times as long.
_PID: Final = _ENTRY.pid.__get__
_USED: Final = _ENTRY.usedGpuMemory.__get__
_GPU_INSTANCE: Final = _ENTRY.gpuInstanceId.__get__
_COMPUTE_INSTANCE: Final = _ENTRY.computeInstanceId.__get__
_UNKNOWN: Final = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_FIRST_ROOM: Final = 1024
"""Entries; the driver lists at most 950 processes (`process_lists.MOST_LISTED`)."""
_MOST_ROOM: Final = 1 << 14


class ProcessListCall:
    """Reads process lists. Not thread-safe, since all lists share one array: each thread needs its own."""

    def __init__(self) -> None:
        self._entries = _array(_FIRST_ROOM)

    def read(self, symbol: str, handle: Any) -> list[ListedProcess]:
        """Return the process list of a device.

        Args:
            symbol: name of the library's function, with its version.
            handle: the binding's handle of a GPU or MIG device.

        Raises:
            pynvml.NVMLError: the call failed. With InsufficientSize the list is longer than the array; the
                array has grown, so that the next call may succeed.
        """
        function = library_function(symbol)
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
