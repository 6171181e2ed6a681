"""Real processes on a real GPU: the agent's figures beside nvidia-smi's and beside what was allocated."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from gpuagent.gpus.nvml import NvmlGpus
from gpuagent.problems import Cause
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import LookupResult
from tests.support.cuda_process import CudaProcess

MIB = 1 << 20
GRANULE = 2 * MIB  # the driver hands memory out in pages of this size


@pytest.fixture
def gpus():
    source = NvmlGpus()
    reading = source.read()
    if not reading.gpus:
        source.close()
        pytest.skip(f"no NVIDIA driver here: {'; '.join(problem.detail for problem in reading.problems)}")
    if any(gpu.mig for gpu in reading.gpus[:1]):
        source.close()
        pytest.skip("the first GPU is partitioned (MIG)")
    yield source
    source.close()


@pytest.fixture
def holders(gpus):
    made = [CudaProcess() for _ in range(3)]
    for holder in made:
        holder.wait_for_context()
    yield made
    for holder in made:
        holder.end()


@pytest.fixture
def say(capsys):
    """Prints also where tests' output is kept."""

    def write(text):
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return write


def figures(source):
    """Bytes by PID on the first GPU."""
    reading = source.read()
    assert reading.problems == ()
    return {process.pid: process.used_bytes for process in reading.gpus[0].processes}


def visible(source, holders):
    """The figures of our processes; skips where this container's PIDs are not the driver's."""
    figures_now = figures(source)
    if not figures_now.keys() & {holder.pid for holder in holders}:
        pytest.skip("the driver names PIDs of another PID namespace; the agent itself runs with hostPID")
    return figures_now


def test_each_process_holds_what_it_allocated(gpus, holders, say):
    before = visible(gpus, holders)
    amounts = dict(zip(holders, (64, 512, 1024), strict=True))
    for holder, mib in amounts.items():
        holder.hold(mib)
    after = figures(gpus)
    for holder, mib in amounts.items():
        grown = after[holder.pid] - before[holder.pid]
        say(
            f"PID {holder.pid}: context {before[holder.pid] / MIB:.0f} MiB, allocated {mib}, grown {grown / MIB:.0f}"
        )
        assert 0 <= grown - mib * MIB <= GRANULE
    holders[0].hold(256)
    grown = figures(gpus)[holders[0].pid] - after[holders[0].pid]
    assert 0 <= grown - 256 * MIB <= GRANULE


def test_the_figures_are_those_of_nvidia_smi(gpus, holders, say):
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not in the PATH")
    for holder, mib in zip(holders, (100, 200, 300), strict=True):
        holder.hold(mib)
    uuid = gpus.read().gpus[0].uuid
    ours = visible(gpus, holders)
    output = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    say(output)
    rows = [[word.strip() for word in line.split(",")] for line in output.splitlines()]
    theirs = {int(pid): int(mib) for gpu_uuid, pid, mib in rows if gpu_uuid == uuid}
    for holder in holders:
        assert ours[holder.pid] // MIB == theirs[holder.pid]


def test_used_is_total_less_free_less_reserved(gpus, holders, say):
    gpu = gpus.read().gpus[0]
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    newer = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    older = pynvml.nvmlDeviceGetMemoryInfo(handle)
    difference = newer.total - newer.free - newer.reserved
    of_processes = sum(process.used_bytes or 0 for process in gpu.processes)
    say(
        f"{gpu.model}: total {newer.total}, free {newer.free}, reserved {newer.reserved}\n"
        f"driver's used: {newer.used} (second version), {older.used} (first)\n"
        f"total - free - reserved: {difference}, the agent's: {gpu.used_bytes}\n"
        f"processes {of_processes}, unattributed {gpu.used_bytes - of_processes}"
    )
    assert (gpu.total_bytes, gpu.reserved_bytes) == (newer.total, newer.reserved)
    assert abs(gpu.used_bytes - difference) <= 64 * MIB  # two moments
    assert difference in (newer.used, newer.used - newer.reserved)


def test_our_processes_are_found_in_proc(gpus, holders):
    visible(gpus, holders)
    origins, problems = Processes(proc_root=Path("/proc")).look_up(gpus.read())
    assert [problem for problem in problems if problem.cause is Cause.PROC_DENIED] == []
    for holder in holders:
        assert origins[holder.pid].result in (LookupResult.CONTAINER, LookupResult.HOST)
        assert origins[holder.pid].name.startswith("python")


def test_the_utilisation_is_that_of_the_process_that_runs_kernels(gpus, holders, say):
    visible(gpus, holders)
    first = gpus.read().gpus[0]
    if first.utilization_unknown:
        pytest.skip(f"this GPU does not report utilisation by process: {first.utilization_unknown}")
    busy, *idle = holders
    busy.work(12)
    percents = []
    for _ in range(4):
        time.sleep(2.5)
        percents.append(gpus.read().gpus[0].utilization)
    say(f"busy PID {busy.pid}, utilisation of four intervals {percents}")
    assert percents[-1][busy.pid] > 50
    assert all(not percents[-1].get(holder.pid) for holder in idle)
    for _ in range(2):
        time.sleep(4)
        after = gpus.read().gpus[0].utilization
    assert not after.get(busy.pid)
