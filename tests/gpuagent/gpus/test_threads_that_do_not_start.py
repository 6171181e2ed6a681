"""A thread that cannot be started for a moment (EAGAIN: pids.max) is missed in that sample, and not for ever."""

import threading
from collections.abc import Callable

import pytest

from gpuagent.gpus.gpu_reading import GpuReading, LostGpu
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.processes import Lookup, ProcessLookup
from gpuagent.sampling.sample import LookupResult, Origin
from tests.support.nvml_fixtures import Clock, Driven
from tests.support.samples import gpu
from tests.support.scenarios import A, B, node

WHY = "NotStarted (the limit of threads of the agent's container or of the node is reached)"
EVERY = frozenset({"driver", "gpu-0", "gpu-0-health", "gpu-1", "gpu-1-health", "proc"})


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads that do not start, as long as they are in this set."""
    names: set[str] = set()
    start = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
    return names


def test_a_gpu_whose_thread_does_not_start_is_lost_for_that_sample(
    driven: Callable[..., Driven], clock: Clock, refused: set[str]
) -> None:
    gpus, _ = driven(node())
    refused.add("gpu-1")
    for _ in range(2):
        reading = gpus.read()
        assert [gpu.uuid for gpu in reading.gpus] == [A]
        assert reading.lost == (LostGpu(1, error="NotStarted"),)
        assert reading.problems == (Problem(Cause.NVML, "index-1", f"thread gpu-1: {WHY}", "NotStarted"),)
        clock.now += 5
    refused.clear()
    reading = gpus.read()
    assert ([gpu.uuid for gpu in reading.gpus], reading.lost, reading.problems) == ([A, B], (), ())


def test_sensors_whose_thread_does_not_start_are_unknown_for_that_sample(
    driven: Callable[..., Driven], refused: set[str]
) -> None:
    gpus, answers = driven(node())
    answers.show(more=[f"sensor {index} nvmlDeviceGetTemperature 61" for index in (0, 1)])
    refused.add("gpu-1-health")

    def temperatures() -> list[float | None]:
        reading = gpus.read()
        assert reading.problems == ()
        return [gpu.sensors.temperature_celsius for gpu in reading.gpus]

    assert temperatures() == [61, None]
    refused.clear()
    assert temperatures() == [61, 61]


def test_without_any_thread_no_gpu_responds_until_threads_start_again(
    driven: Callable[..., Driven], clock: Clock, refused: set[str]
) -> None:
    gpus, _ = driven(node())
    refused |= EVERY
    for _ in range(3):
        reading = gpus.read()
        assert (reading.gpus, reading.restart_may_help, reading.is_hanging) == ((), False, False)
        assert reading.problems == (Problem(Cause.NVML, "", f"thread driver: {WHY}", "NotStarted"),)
        clock.now += 60
    refused.remove("driver")
    reading = gpus.read()
    assert (reading.gpus, reading.restart_may_help) == ((), False)
    clock.now += 60
    refused.clear()
    assert [gpu.uuid for gpu in gpus.read().gpus] == [A, B]


def test_a_driver_that_cannot_be_asked_for_the_number_of_gpus_keeps_those_that_answer(
    driven: Callable[..., Driven], clock: Clock, refused: set[str]
) -> None:
    gpus, _ = driven(node())
    gpus.read()
    gpus._node_call.stop()
    refused.add("driver")
    for _ in range(2):
        clock.now += 60
        assert [gpu.uuid for gpu in gpus.read().gpus] == [A, B]
    refused.clear()


def test_owners_are_unknown_in_a_sample_in_which_the_look_up_does_not_start(refused: set[str]) -> None:
    class HostProcesses:
        def look_up(self, reading: object, *, began: int | None = None) -> Lookup:
            return {10: Origin(result=LookupResult.HOST)}, ()

    device = gpu((10, 1))
    lookup = ProcessLookup(HostProcesses(), deadline=20.0)  # type: ignore[arg-type]
    refused.add("proc")
    origins, problems = lookup.look_up(GpuReading(gpus=(device,)))
    assert origins == {10: Origin(result=LookupResult.DENIED)}
    assert problems == (Problem(Cause.PROC_DENIED, device.uuid, f"/proc: thread proc: {WHY}"),)
    refused.clear()
    assert lookup.look_up(GpuReading(gpus=(device,))) == ({10: Origin(result=LookupResult.HOST)}, ())
    lookup.close()
