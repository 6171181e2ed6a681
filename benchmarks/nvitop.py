"""A sample of the agent beside one of nvitop's Python API: the same driver library, the same processes.

The stand-in for NVIDIA's library of the tests (needs gcc) reports 8 GPUs with 64 processes each. The
processes are real ones of this machine that sleep, since both programs look them up in /proc: the agent reads
each process' cgroup and start time, nvitop its start time, and for a snapshot also its user, command and CPU.
CPU is the kernel's count for the whole process. The programs run at the same time, with a sample every 500 ms
each, so that the machine is the same for all; read the ratio.

nvitop is no dependency: make a virtual environment of its own (`python -m venv DIR`, `DIR/bin/pip install
nvitop`). Run: `python -m benchmarks.nvitop --python DIR/bin/python`.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.agent import (
    MIB,
    TOTAL_MIB,
    Start,
    agent,
    cpu_ms,
    gpu_uuid,
    machine,
    resident_mib,
    samples_so_far,
)
from benchmarks.processes import resident_mib as resident_now
from tests.support.nvml_stub.build import ANSWERS, built_library

GPUS: Final = 8
INTERVAL_MS: Final = 500
_PROGRAM: Final = """
import sys, time
import nvitop
snapshots, interval = sys.argv[1] == "snapshots", float(sys.argv[2])
devices = nvitop.Device.all()
due = time.monotonic()
while True:
    count = 0
    for device in devices:
        device.memory_info()
        processes = device.processes()
        if snapshots:
            processes = nvitop.GpuProcess.take_snapshots(processes.values(), failsafe=True)
        count += len(processes)
    print(count, flush=True)
    due += interval
    time.sleep(max(0, due - time.monotonic()))
"""


@contextlib.contextmanager
def sleeping(count: int) -> Iterator[list[int]]:
    """Run processes that sleep; yield their PIDs."""
    processes = [subprocess.Popen(["sleep", "900"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def write_driver(folder: Path, pids: Sequence[int]) -> None:
    """Write the answers of the driver library: each GPU has an equal part of the processes."""
    lines = ["driver 580.65.06"]
    lines += [
        f"gpu {index} {gpu_uuid(index)} {TOTAL_MIB * MIB} {500 * MIB} {70_000 * MIB} NVIDIA H100"
        for index in range(GPUS)
    ]
    lines += [
        f"process {number % GPUS} - 0 {pid} {1000 * MIB} 4294967295 4294967295"
        for number, pid in enumerate(pids)
    ]
    (folder / "answers").write_text("".join(f"{line}\n" for line in lines))
    (folder / "pods.json").write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    (folder / "proc").symlink_to("/proc")


@contextlib.contextmanager
def nvitop(python: Path, kind: str, library: Path, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run nvitop's loop; its output has a line for each sample."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library.parent),
        ANSWERS: f"{folder}/answers",
    }
    with (folder / kind).open("wb") as out, (folder / f"{kind}.errors").open("wb") as errors:
        command = [str(python), "-c", _PROGRAM, kind, str(INTERVAL_MS / 1000)]
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


async def measure(python: Path, processes: int, seconds: float) -> int:
    """Measure, print, and return the exit status."""
    print(machine())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kaishare-benchmark-")))
        library = built_library(folder)
        write_driver(folder, stack.enter_context(sleeping(processes)))
        kinds = ("lists", "snapshots")
        others = {kind: stack.enter_context(nvitop(python, kind, library, folder)) for kind in kinds}
        async with (
            agent(Start(folder, f"{folder}/pods.json"), library, INTERVAL_MS) as (process, url),
            aiohttp.ClientSession() as session,
        ):
            await asyncio.sleep(3)

            async def so_far() -> dict[str, tuple[int, float]]:
                count, _ = await samples_so_far(session, url)
                taken = {"agent": (count, cpu_ms(process))}
                for kind, other in others.items():
                    taken[kind] = len((folder / kind).read_text().splitlines()), cpu_ms(other)
                return taken

            before = await so_far()
            await asyncio.sleep(seconds)
            after = await so_far()
            memory = {"agent": resident_mib(process)}
            memory |= {kind: resident_now(other.pid) for kind, other in others.items()}
    print(f"{GPUS} GPUs, {processes} processes")
    base = 0.0
    for name, (count, cpu) in after.items():
        samples = count - before[name][0]
        if not samples:
            print(f"{name} took no sample: is nvitop installed for {python}?")
            return 1
        each = (cpu - before[name][1]) / samples
        base = base or each
        print(
            f"{name:10} {samples:5} samples, CPU {each:7.2f} ms a sample, {each / base:6.2f} x,"
            f" resident {memory[name]:6.1f} MiB"
        )
    return 0


def main() -> int:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nvitop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", type=Path, required=True, help="a Python that has nvitop")
    parser.add_argument("--processes", type=int, default=512, help="processes (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="duration (default %(default)s)")
    options = parser.parse_args()
    return asyncio.run(measure(options.python, options.processes, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
