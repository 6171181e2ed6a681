"""Holds GPU memory: each line of standard input is an amount in MiB to allocate, each answer a line.

The program ends with its input. It uses the driver's API directly (libcuda.so.1), so that the allocated
amount is exact and includes nothing of a framework.
"""

import ctypes
import sys


def answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def checked(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code:
        answer(f"{name} failed with CUDA error {code}")
        sys.exit(1)


cuda = ctypes.CDLL("libcuda.so.1")
device = ctypes.c_int()
context = ctypes.c_void_p()
checked("cuInit", 0)
checked("cuDeviceGet", ctypes.byref(device), int(sys.argv[1]))
checked("cuCtxCreate_v2", ctypes.byref(context), 0, device)
answer("ready")
for line in sys.stdin:
    address = ctypes.c_uint64()
    checked("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(int(line) << 20))
    answer("held")
