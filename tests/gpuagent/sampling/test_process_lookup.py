"""A look-up in /proc that hangs: owners are unknown, figures of the GPUs remain, and nothing waits twice."""

import threading
import time
from collections.abc import Iterator

import pytest

from gpuagent.gpus.gpu_reading import GpuReading, MigInstance
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.processes import Lookup, ProcessLookup
from gpuagent.sampling.sample import LookupResult, Origin
from tests.support.samples import A, B, gpu

SOON = 20.0
DEADLINE = 0.2
HOST = Origin(result=LookupResult.HOST)
DENIED = Origin(result=LookupResult.DENIED)
MIG = MigInstance(uuid="MIG-1", total_bytes=1, processes=gpu((12, 1)).processes)
READING = GpuReading(
    gpus=(gpu((10, 1), (11, 1)), gpu(uuid=B, index=1), gpu(uuid="GPU-c", index=2, mig=True, instances=(MIG,)))
)


class StuckProcesses:
    """Look-ups that hang until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.calls = 0

    def look_up(self, reading: GpuReading, *, began: int | None = None) -> Lookup:
        self.calls += 1
        self.let_go.wait(SOON)
        return {process.pid: HOST for process in reading.gpus[0].processes or ()}, ()


@pytest.fixture
def processes() -> Iterator[StuckProcesses]:
    stuck = StuckProcesses()
    yield stuck
    stuck.let_go.set()


def test_a_look_up_that_hangs_makes_owners_unknown_and_is_awaited_once(processes: StuckProcesses) -> None:
    lookup = ProcessLookup(processes.look_up, deadline=DEADLINE)
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        origins, problems = lookup.look_up(READING)
        seconds.append(time.monotonic() - began)
        assert origins == dict.fromkeys((10, 11, 12), DENIED)
        detail = "/proc: no answer within 0.2 s (see hung tasks in the kernel log)"
        assert problems == tuple(Problem(Cause.PROC_DENIED, uuid, detail) for uuid in (A, "GPU-c"))
    assert seconds[0] >= DEADLINE
    assert max(seconds[1:]) < DEADLINE
    assert processes.calls == 1
    processes.let_go.set()
    until = time.monotonic() + SOON
    while lookup.look_up(READING) != ({10: HOST, 11: HOST}, ()):
        assert time.monotonic() < until
    lookup.close()
