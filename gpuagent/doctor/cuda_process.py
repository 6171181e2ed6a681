"""A process that holds a little memory of one GPU, for finding it again. Run as a file, by itself.

Speaks to libcuda.so.1 alone. Prints `held` and waits for the end of its input, or prints why it cannot.
The GPU is the first that CUDA_VISIBLE_DEVICES lets it see; its argument is the bytes to hold.
"""

import ctypes
import sys


def main() -> int:
    """Hold memory; return 0, or 1 if that failed."""
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
