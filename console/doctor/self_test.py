"""Self-test: checks that the agent attributes a process of its own to the right GPU and container."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from console.doctor import cuda_process
from console.doctor.check_results import CheckResult, ok, problem, unknown
from console.doctor.device_access import Host
from console.doctor.driver_checks import Observation
from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.sampling.processes import processes_of
from gpuagent.sampling.sample import LookupResult
from service.text import one_line
from service.units import size

HELD_BYTES: Final = 16 << 20
_CHECK: Final = "a process of its own"
_NEEDED_BYTES: Final = 2 << 30
"""Required free memory: a CUDA context takes up to 500 MiB, and the test must not starve a pod."""
_START_SECONDS: Final = 30.0
_LEAVE_SECONDS: Final = 5.0
PROGRAM: Final = (sys.executable, "-I", str(Path(cuda_process.__file__)))


def self_test_result(
    observation: Observation,
    observe_again: Callable[[], Observation],
    host: Host,
    *,
    program: Sequence[str] = PROGRAM,
    seconds: float = _START_SECONDS,
) -> CheckResult:
    """Start a process on the GPU with the most free memory, and check that it is found.

    Args:
        observation: a reading from before the test.
        observe_again: takes a new reading.
        host: this container.
        program: command of the test process; the number of bytes is appended.
        seconds: timeout of the allocation.
    """
    candidates = [gpu for gpu in observation.gpus if not gpu.mig]
    if not candidates:
        return unknown(_CHECK, "not checked: no GPU without MIG responds")
    gpu = max(candidates, key=_free)
    if gpu.used_bytes is None:
        return unknown(_CHECK, f"not checked: no GPU reports its free memory ({gpu.memory_unknown})")
    if _free(gpu) < _NEEDED_BYTES:
        return unknown(_CHECK, f"not checked: no GPU has {size(_NEEDED_BYTES)} free")
    with _started(program, gpu) as process:
        result = _tested(process, seconds, gpu, observe_again, host)
    if process.returncode is None:
        return problem(
            _CHECK,
            f"the test process cannot be killed: PID {process.pid} has not ended {_LEAVE_SECONDS:.0f} s after"
            f" SIGKILL; {result.what}",
            "the driver no longer responds to this process: look for Xid messages in the node's kernel log",
        )
    return result


def _tested(
    process: "subprocess.Popen[bytes]",
    seconds: float,
    gpu: Gpu,
    observe_again: Callable[[], Observation],
    host: Host,
) -> CheckResult:
    """Wait until the process holds memory, and check that it is found."""
    line = _first_line(process, seconds)
    if line != "held":
        return unknown(
            _CHECK,
            f"not checked: {line or f'the test process allocated no memory within {seconds:.0f} s'}",
        )
    return _judge(process.pid, gpu, observe_again(), host)


def _free(gpu: Gpu) -> int:
    """Return the free bytes; -1 if the GPU does not report its memory."""
    if gpu.total_bytes is None or gpu.used_bytes is None:
        return -1
    return gpu.total_bytes - gpu.used_bytes - (gpu.reserved_bytes or 0)


@contextmanager
def _started(program: Sequence[str], gpu: Gpu) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the process; afterwards `returncode` is None if it cannot be killed.

    `Popen` is no context manager here: its exit waits without a limit, as for a process in a system call of a
    driver that hangs (state D).
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    process = subprocess.Popen(  # noqa: S603 - our own program
        [*program, str(HELD_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        if not _has_ended(process):
            process.kill()
            _has_ended(process)
        if process.stdout is not None:
            process.stdout.close()


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Wait until the process has ended, or until the time limit."""
    try:
        process.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _first_line(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    """Return the first line of output; empty after the timeout."""
    if process.stdout is None or not select.select([process.stdout], [], [], seconds)[0]:
        return ""
    line = process.stdout.readline().decode("utf-8", "replace")
    return one_line(line) or "the test process ended without output"


def _judge(pid: int, gpu: Gpu, observation: Observation, host: Host) -> CheckResult:
    if observation.reading.is_hanging:
        return problem(_CHECK, "the driver no longer responds")
    gpu_now = next((current for current in observation.gpus if current.uuid == gpu.uuid), None)
    if gpu_now is None or gpu_now.processes is None:
        return unknown(_CHECK, f"GPU {gpu.index} no longer lists its processes")
    entry = next((process for process in processes_of(gpu_now) if process.pid == pid), None)
    if entry is None:
        return problem(
            _CHECK,
            f"PID {pid} uses memory of GPU {gpu.index}, but the driver does not list it",
            "the driver reports PIDs of another namespace than the agent's: set hostPID: true in its pod",
        )
    if entry.used_bytes is None or entry.used_bytes < HELD_BYTES:
        return problem(
            _CHECK,
            f"PID {pid} uses at least {size(HELD_BYTES)} of GPU {gpu.index}; the driver reports"
            f" {size(entry.used_bytes)}",
            "the figures of this driver are not reliable",
        )
    origin = observation.origins.get(pid)
    if origin is None or origin.result in (LookupResult.GONE, LookupResult.DENIED):
        return problem(
            _CHECK,
            f"the driver lists PID {pid}, but {host.proc_root} does not show it",
            "the agent needs /proc of its own PID namespace: remove --proc-root and set hostPID: true",
        )
    own = host.names
    if (origin.pod_uids, origin.container_id) != (own.pod_uids, own.container_id):
        return problem(
            _CHECK,
            f"PID {pid} is attributed to another container than the agent's",
            f"set --proc-root to the /proc of this PID namespace; it is {host.proc_root} now",
        )
    return ok(
        _CHECK,
        f"PID {pid} was found on GPU {gpu.index} with {size(entry.used_bytes)} and in the agent's container",
    )
