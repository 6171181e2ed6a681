"""Self-test process: allocates a little memory of one GPU. Run as a script of its own.

Uses only libcuda.so.1. Prints `held` and waits for the end of its input, or prints an error. Uses the first
GPU in CUDA_VISIBLE_DEVICES. The argument is the number of bytes to allocate.
"""

import ctypes
import sys


def main() -> int:
    """Allocate memory; return 0, or 1 after an error."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _say("libcuda.so.1 not found (NVIDIA_DRIVER_CAPABILITIES lacks compute)")
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for name, *arguments in (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
        ("cuCtxSetCurrent", context),
        ("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]))),
    ):
        code = getattr(cuda, name)(*arguments)
        if code:
            return _say(f"{name} failed with CUDA error {code}")
    _say("held")
    sys.stdin.read()
    return 0


def _say(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return 1


if __name__ == "__main__":
    sys.exit(main())
