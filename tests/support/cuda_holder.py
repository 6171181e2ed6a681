"""Holds GPU memory: each line of standard input is an amount in MiB to allocate, each answer a line.

A line `busy 4` runs kernels for 4 s; one kernel follows the other, so the GPU is never idle meanwhile. A line
`fault` runs a kernel that writes to the address 0; its answer is the error, and ends the program, which else ends
with its input. It uses the driver's API directly (libcuda.so.1), so that the allocated amount is exact and
includes nothing of a framework.
"""

import ctypes
import sys
import time

SPIN = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [cycles];
    mov.u64 %rd2, %clock64;
AGAIN:
    mov.u64 %rd3, %clock64;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra AGAIN;
    ret;
}
"""
FAULT = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fault()
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    mov.u64 %rd1, 0;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
CYCLES = 50_000_000  # about 30 ms


def answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def checked(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code:
        answer(f"{name} failed with CUDA error {code}")
        sys.exit(1)


def loaded(code: bytes, name: bytes) -> ctypes.c_void_p:
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    checked("cuModuleLoadData", ctypes.byref(module), code)
    checked("cuModuleGetFunction", ctypes.byref(kernel), module, name)
    return kernel


def write_to_address_0() -> None:
    """Cause an error of the GPU that a program causes, which ends this program."""
    checked("cuLaunchKernel", loaded(FAULT, b"fault"), 1, 1, 1, 1, 1, 1, 0, None, None, None)
    checked("cuCtxSynchronize")


def work(seconds: float) -> None:
    kernel = loaded(SPIN, b"spin")
    cycles = ctypes.c_uint64(CYCLES)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(4):
            checked("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        checked("cuCtxSynchronize")


cuda = ctypes.CDLL("libcuda.so.1")
device = ctypes.c_int()
context = ctypes.c_void_p()
checked("cuInit", 0)
checked("cuDeviceGet", ctypes.byref(device), int(sys.argv[1]))
checked("cuCtxCreate_v2", ctypes.byref(context), 0, device)
answer("ready")
for line in sys.stdin:
    if line.startswith("busy "):
        answer("busy")
        work(float(line.removeprefix("busy ")))
        continue
    if line == "fault\n":
        write_to_address_0()
    address = ctypes.c_uint64()
    checked("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(int(line) << 20))
    answer("held")
