"""GPUs whose driver calls are slow or never return, and threads that do not start: the other GPUs are read."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuagent.gpus.driver import CallTimedOut
from gpuagent.gpus.gpu_reader import NvmlGpus
from gpuagent.gpus.gpu_reading import GpuReading, LostGpu
from gpuagent.gpus.supervised_call import SupervisedCall
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.processes import Lookup, ProcessLookup
from gpuagent.sampling.sample import LookupResult, Origin
from service.backoff import Backoff
from tests.support.nvml_fixtures import Driven
from tests.support.nvml_stub.build import Answers
from tests.support.samples import gpu
from tests.support.scenarios import GIB, A, B, node
from tests.support.waiting import wait_until

COUNT = 16
HANGING, FAILING, SLOW = 3, 7, 11
OTHERS = [index for index in range(COUNT) if index not in (HANGING, FAILING, SLOW)]
DEADLINE = 0.4
NO_WAIT = 0.2  # seconds, below the deadline
NO_ANSWER = "no answer within 0.4 s (driver or GPU hang; see XID and hung tasks in the kernel log)"
SOON = 20.0


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


GPUS = [f"gpu {index} {uuid(index)} {16 * GIB} 0 {GIB} NVIDIA A10" for index in range(COUNT)]


@contextmanager
def hanging(driven: Callable[..., Driven], *lines: str) -> Iterator[tuple[NvmlGpus, Answers]]:
    """16 GPUs, with further lines of the library from the start; at the end all calls return."""
    gpus, answers = driven(node(), deadline=DEADLINE)
    answers.write([*GPUS, *lines])
    try:
        yield gpus, answers
    finally:
        answers.write(GPUS)
        wait_until(lambda: not gpus.is_hanging)


def timed(gpus: NvmlGpus) -> tuple[GpuReading, float]:
    began = time.monotonic()
    return gpus.read(), time.monotonic() - began


def present(reading: GpuReading) -> list[int]:
    return [gpu.index for gpu in reading.gpus]


@pytest.mark.parametrize(
    "before_the_start", [True, False], ids=["from before the start", "after the first sample"]
)
def test_every_sample_has_the_gpus_that_answer(driven, clock, before_the_start: bool) -> None:
    """One GPU hangs for ever, one fails, and one takes 12 s a call."""
    faults = [f"delay {HANGING} -", f"fail * {FAILING} 15", f"delay {SLOW} 12000"]
    with hanging(driven, *(faults if before_the_start else ())) as (gpus, answers):
        if not before_the_start:
            assert present(gpus.read()) == list(range(COUNT))
            answers.write([*GPUS, *faults])
        names = [f"index-{index}" if before_the_start else uuid(index) for index in (3, 7, 11)]
        model = "" if before_the_start else "NVIDIA A10"
        seconds = []
        for _ in range(6):
            clock.now += 5
            reading, lasted = timed(gpus)
            seconds.append(lasted)
            assert present(reading) == OTHERS
            assert [(problem.cause, problem.gpu_uuid) for problem in reading.problems] == [
                (Cause.NVML, name) for name in names
            ]
            assert [problem.detail for problem in reading.problems][::2] == [NO_ANSWER] * 2
            assert reading.lost == tuple(
                LostGpu(index, "" if before_the_start else uuid(index), model, error=error)
                for index, error in ((3, "NoAnswer"), (7, "GpuIsLost"), (11, "NoAnswer"))
            )
            assert not reading.restart_may_help
            assert gpus.is_hanging
        assert seconds[0] >= DEADLINE
        assert max(seconds[1:]) < NO_WAIT, "an unanswered call is skipped"


def test_a_gpu_that_answers_again_is_back_after_a_wait(driven, clock) -> None:
    with hanging(driven, f"delay {SLOW} -") as (gpus, answers):
        assert present(gpus.read()) == [index for index in range(COUNT) if index != SLOW]
        answers.write([*GPUS, f"gpu {SLOW} {uuid(SLOW)} {16 * GIB} 0 {2 * GIB} NVIDIA A10"])
        wait_until(lambda: not gpus.is_hanging)
        assert SLOW not in present(gpus.read()), "the late answer is not of this sample"
        clock.now += 1
        reading = gpus.read()
        assert present(reading) == list(range(COUNT))
        assert reading.gpus[SLOW].used_bytes == 2 * GIB
        assert reading.problems == reading.lost == ()


def test_a_gpu_that_is_always_late_is_awaited_less_and_less_often(driven, clock) -> None:
    """A reading of it takes longer than the deadline, and every call returns."""
    before = threading.active_count()
    with hanging(driven, f"delay {SLOW} 150") as (gpus, _):
        waits, threads = [], before
        for _ in range(40):
            wait_until(lambda: not gpus.is_hanging)
            _, lasted = timed(gpus)
            waits.append(lasted >= DEADLINE)
            clock.now += 5
            threads = max(threads, threading.active_count())
        gaps = [number for number, waited in enumerate(waits) if waited]
        pauses = [later - earlier for earlier, later in itertools.pairwise(gaps)]
        assert pauses == sorted(pauses)
        assert 3 <= sum(waits) <= 10
        assert threads <= before + 2 * COUNT + 1, "sensors have a thread of their own for each GPU"


def test_no_thread_is_added_while_calls_hang(driven, clock) -> None:
    before = threading.active_count()
    with hanging(driven, *(f"delay {index} -" for index in range(COUNT))) as (gpus, _):
        for _ in range(100):
            gpus.read()
            clock.now += 30
        assert threading.active_count() <= before + COUNT + 1
    wait_until(lambda: not gpus.is_hanging)
    gpus.close()
    wait_until(lambda: threading.active_count() <= before)  # threads of an earlier test may have ended


def test_a_library_that_serialises_its_calls_is_not_awaited_either(driven, clock) -> None:
    """NVML does not promise that a hanging call leaves those on other GPUs alone."""
    with hanging(driven) as (gpus, answers):
        assert present(gpus.read()) == list(range(COUNT))
        answers.write([*GPUS, f"delay {HANGING} -", "serial"])
        clock.now += 5
        reading, lasted = timed(gpus)
        assert lasted < (COUNT + 1) * DEADLINE
        assert present(reading) == list(range(HANGING))
        for _ in range(5):
            clock.now += 5
            reading, lasted = timed(gpus)
            assert (reading.gpus, reading.is_hanging, reading.restart_may_help) == ((), True, False)
            assert lasted < NO_WAIT + DEADLINE
        answers.write(GPUS)
        wait_until(lambda: not gpus.is_hanging)
        gpus.read()
        clock.now += 60
        assert present(gpus.read()) == list(range(COUNT))


def test_a_hanging_initialisation_is_awaited_once_and_its_late_result_is_used(driven, clock) -> None:
    with hanging(driven, "hang") as (gpus, answers):
        reading, lasted = timed(gpus)
        assert DEADLINE <= lasted < SOON
        (problem,) = reading.problems
        assert (problem.gpu_uuid, problem.detail.partition(" (")[0]) == (
            "",
            "nvmlInit: no answer within 0.4 s",
        )
        assert (reading.is_hanging, reading.restart_may_help) == (True, False)
        for _ in range(3):
            clock.now += 5
            assert timed(gpus)[1] < NO_WAIT
        answers.write(GPUS)
        wait_until(lambda: not gpus.is_hanging)
        assert present(gpus.read()) == list(range(COUNT)), "at once, without a second initialisation"
        assert gpus.errors == {}


def test_no_initialisation_while_a_call_hangs(driven, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shutdown would invalidate the handle of the hanging call."""
    stops: list[str] = []
    with hanging(driven, f"delay {HANGING} -", f"fail * {FAILING} 15") as (gpus, answers):
        monkeypatch.setattr(gpus._driver, "stop", lambda: stops.append("stop"))
        for _ in range(20):
            gpus.read()
            clock.now += 60
        gpus.close()
        assert stops == []
        answers.write(GPUS)
        wait_until(lambda: not gpus.is_hanging)
        gpus.read()
        clock.now += 60
        assert present(gpus.read()) == list(range(COUNT))
        assert stops == ["stop"], "the lost GPU is looked for as soon as no call hangs"


def test_one_call_at_a_time_is_made_and_an_error_ends_nothing() -> None:
    call, go_on = SupervisedCall[Any]("test", deadline=SOON), threading.Event()
    hung = call.begin(lambda: go_on.wait(SOON))
    assert hung is not None
    assert call.wait(0.01) is None
    with pytest.raises(CallTimedOut):
        call.result(lambda: 1)
    go_on.set()
    assert hung.result(SOON) is True
    with pytest.raises(ZeroDivisionError):
        call.result(lambda: 1 / 0)
    for number in (1, 2):
        assert call.result(lambda number=number: number) == number
        call.stop()


def test_a_late_answer_is_discarded_and_the_next_call_waits_longer_each_time() -> None:
    call, go_on = SupervisedCall[int]("test", deadline=0.05, retry=Backoff()), threading.Event()
    now = 0.0
    for wait in (1.0, 2.0, 4.0):
        go_on.clear()
        late = call.begin(lambda: int(go_on.wait(SOON)), now)
        assert late is not None
        assert call.finish() is None
        assert isinstance(call.failure, CallTimedOut)
        go_on.set()
        assert late.result(SOON) == 1
        assert call.begin(lambda: 1, now) is None
        assert call.begin(lambda: 1, now + wait - 0.1) is None
        now += wait
    assert call.result(lambda: 3, now) == 3
    assert call.failure is None
    call.stop()


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


def test_a_gpu_whose_thread_does_not_start_is_lost_for_that_sample(driven, clock, refused: set[str]) -> None:
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


def test_without_threads_no_gpu_responds_until_they_start_again(driven, clock, refused: set[str]) -> None:
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


def test_owners_are_unknown_in_a_sample_in_which_the_look_up_does_not_start(refused: set[str]) -> None:
    def look_up(_reading: object, *, began: int | None = None) -> Lookup:
        return {10: Origin(result=LookupResult.HOST)}, ()

    device = gpu((10, 1))
    lookup = ProcessLookup(look_up, deadline=20.0)
    refused.add("proc")
    origins, problems = lookup.look_up(GpuReading(gpus=(device,)))
    assert origins == {10: Origin(result=LookupResult.DENIED)}
    assert problems == (Problem(Cause.PROC_DENIED, device.uuid, f"/proc: thread proc: {WHY}"),)
    refused.clear()
    assert lookup.look_up(GpuReading(gpus=(device,))) == ({10: Origin(result=LookupResult.HOST)}, ())
    lookup.close()
