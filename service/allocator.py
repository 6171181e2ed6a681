"""Settings of the C library's allocator for a process that runs for months and renders large responses."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Parameters of glibc's mallopt(3)."""
_LARGE_BYTES: Final = 128 * 1024


def return_freed_memory() -> None:
    """Make freed blocks of 128 KiB or more go back to the kernel, and let all threads share one arena.

    By default glibc raises that size to the largest freed block, up to 32 MiB. Rendered responses of 1 MiB
    then leave holes between small objects. Python's threads take turns, so that one arena is enough. Call the
    function before the first thread starts. A C library without mallopt keeps its own settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in (
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, _LARGE_BYTES),
        (_M_ARENA_MAX, 1),
    ):
        mallopt(parameter, value)
