"""Real processes on a real GPU: the agent's figures beside nvidia-smi's and beside what was allocated."""

import time

import pynvml
import pytest

from gpuagent.gpus.gpu_reader import NvmlGpus
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


def figures(source):
    reading = source.read()
    assert reading.problems == ()
    return {process.pid: process.used_bytes for process in reading.gpus[0].processes}


def visible(source, holders):
    """The figures of our processes; skips where this container's PIDs are not the driver's."""
    figures_now = figures(source)
    if not figures_now.keys() & {holder.pid for holder in holders}:
        pytest.skip("the driver names PIDs of another PID namespace; the agent itself runs with hostPID")
    return figures_now


def test_each_process_holds_what_it_allocated(gpus, holders):
    before = visible(gpus, holders)
    amounts = dict(zip(holders, (64, 512, 1024), strict=True))
    for holder, mib in amounts.items():
        holder.hold(mib)
    after = figures(gpus)
    for holder, mib in amounts.items():
        grown = after[holder.pid] - before[holder.pid]
        assert 0 <= grown - mib * MIB <= GRANULE
    holders[0].hold(256)
    grown = figures(gpus)[holders[0].pid] - after[holders[0].pid]
    assert 0 <= grown - 256 * MIB <= GRANULE


def test_used_is_total_less_free_less_reserved(gpus, holders):
    gpu = gpus.read().gpus[0]
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    newer = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    difference = newer.total - newer.free - newer.reserved
    assert (gpu.total_bytes, gpu.reserved_bytes) == (newer.total, newer.reserved)
    assert abs(gpu.used_bytes - difference) <= 64 * MIB  # two moments
    assert difference in (newer.used, newer.used - newer.reserved)


def test_the_utilisation_is_that_of_the_process_that_runs_kernels(gpus, holders):
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
    assert percents[-1][busy.pid] > 50
    assert all(not percents[-1].get(holder.pid) for holder in idle)
    for _ in range(2):
        time.sleep(4)
        after = gpus.read().gpus[0].utilization
    assert not after.get(busy.pid)
