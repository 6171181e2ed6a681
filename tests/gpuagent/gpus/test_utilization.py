"""Utilisation by process: the binding over a library that keeps samples as a driver does."""

import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.device_figures import UtilizationReader
from gpuagent.gpus.driver import FigureFailed, UtilizationSample
from gpuagent.gpus.gpu_reading import Gpu
from tests.support.scenarios import causes, node, process

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, SUCCESS = 3, 4, 6, 13, 0
OLDER, NEWER = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"
S = 1_000_000
BOOT = 1_600_000_000 * S
"""The driver's clock when the test's clock shows 1000."""
HOUR = 3600 * S


class SampledGpu:
    """The first GPU of a node with the processes 100 and 101, and the samples that its driver keeps."""

    def __init__(self, gpus: Any, answers: Any, clock: Any) -> None:
        self.gpus, self._answers, self._clock = gpus, answers, clock
        self.kept: list[tuple[int, int, int]] = []
        self.offset = BOOT
        self.empty = NOT_FOUND
        self.repeats = self.races = 0
        self.failures: list[str] = []

    @property
    def time(self) -> int:
        """The time on the driver's clock."""
        return self.offset + round((self._clock.now - 1000) * S)

    def use(self, *percents: tuple[int, int], ago: float = 0.5) -> None:
        """Add a sample for each process."""
        self.kept += [(pid, self.time - round(ago * S), percent) for pid, percent in percents]

    def read(self) -> Gpu:
        lines = [f"sample 0 {pid} {time} {percent}" for pid, time, percent in self.kept]
        self._answers.show(
            more=[f"samples 0 {self.repeats} {self.races} {self.empty}", *lines, *self.failures]
        )
        reading = self.gpus.read()
        assert causes(reading) == []  # utilisation never suspends a verdict
        return reading.gpus[0]

    def after(self, seconds: float, *percents: tuple[int, int]) -> Any:
        """Use the GPU after so many seconds; return the utilisation by PID."""
        self._clock.now += seconds
        self.use(*percents)
        return self.read().utilization


@pytest.fixture
def sampled(driven, clock) -> Callable[..., SampledGpu]:
    def make(*, mig: Any = (), kind: str = "compute") -> SampledGpu:
        places = [each["uuid"] for each in mig] or [0]
        processes = (process(100, gpu=places[0], kind=kind), process(101, gpu=places[0]))
        return SampledGpu(*driven(node(*processes, mig=mig)), clock)

    return make


@pytest.fixture
def gpu(sampled) -> SampledGpu:
    """A GPU whose first reading is done."""
    made = sampled()
    assert made.read().utilization is None
    return made


def test_the_first_reading_has_no_interval(sampled) -> None:
    gpu = sampled()
    gpu.use((100, 90))
    assert gpu.read().utilization is None
    assert gpu.after(5) == {}  # the sample of before the first reading does not count later
    assert gpu.after(5, (101, 40)) == {101: 40}


@pytest.mark.parametrize("empty", [NOT_FOUND, SUCCESS])
def test_each_interval_has_its_own_samples(gpu, empty: int) -> None:
    gpu.empty = empty  # the answer of an idle GPU, which is no error
    assert gpu.after(5, (100, 70), (101, 20)) == {100: 70, 101: 20}
    gpu.repeats = 1  # the driver may answer with samples again; each counts once
    assert gpu.after(5, (101, 30), (4711, 50)) == {101: 30, 4711: 50}
    assert gpu.after(5) == {}
    assert gpu.after(5) == {}
    assert gpu.after(5, (100, 100)) == {100: 100}
    assert gpu.gpus.errors == {}


def test_samples_that_count(gpu) -> None:
    """The newest one of a process; none of PID 0, and none with an impossible percentage."""
    gpu.after(5)
    for percent, ago in ((11, -1.0), (12, -3.0), (13, -2.0)):
        gpu.use((100, percent), ago=ago)
    assert gpu.after(5) == {100: 12}
    assert gpu.after(5, (0, 50), (100, 101), (101, 20)) == {100: None, 101: 20}
    assert gpu.after(5, (0, 50), (100, 4_294_967_295)) == {100: None}
    gpu.use((100, 200), ago=1.0)
    assert gpu.after(5, (100, 60)) == {100: 60}


def test_an_interval_longer_than_the_driver_keeps_samples_is_unknown(gpu) -> None:
    assert gpu.after(5, (100, 10)) == {100: 10}
    assert gpu.after(12.5, (100, 20)) is None
    assert gpu.after(5, (100, 30)) == {100: 30}
    assert gpu.after(12, (100, 40)) == {100: 40}


def test_samples_in_quick_succession_repeat_the_last_answer(gpu) -> None:
    assert gpu.after(5, (100, 70)) == {100: 70}
    gpu.kept.clear()
    for _ in range(19):
        assert gpu.after(0.1) == {100: 70}
    assert gpu.after(0.2) == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_time_stamp_far_in_the_future_blinds_for_no_longer_than_one_sample(sampled, is_first: bool) -> None:
    gpu = sampled()
    future = (100, BOOT + 24 * HOUR, 5)
    if is_first:
        gpu.kept = [future]
    gpu.read()
    if not is_first:
        gpu.after(5, (101, 80))
        gpu.kept.append(future)
        assert gpu.after(5, (101, 80)) == {100: None, 101: 80}
    values = [gpu.after(5, (101, 80)) for _ in range(4)]
    assert values[-1] == {101: 80}
    assert values.count(None) <= 1
    assert all(value[101] == 80 for value in values if value is not None)


def test_a_list_that_grows_is_asked_for_again(gpu) -> None:
    gpu.races = 2
    assert gpu.after(5, (100, 70)) == {100: 70}
    assert gpu.gpus.errors == {(OLDER, "InsufficientSize"): 2}
    gpu.races = -1
    gpu._clock.now += 5
    gpu.use((100, 80))
    first = gpu.read()
    assert (first.utilization, first.utilization_unknown) == (None, f"{OLDER}: InsufficientSize")
    assert len(first.processes) == 2
    gpu.races = 0
    assert gpu.after(5, (101, 10)) == {100: 80, 101: 10}  # the interval since the last answer


@pytest.mark.parametrize("call", [OLDER, NEWER])
@pytest.mark.parametrize("number", [(1 << 14) + 1, 200_000_000, (1 << 32) - 1])
def test_a_list_of_impossible_length_takes_no_memory_and_no_other_figure(gpu, call: str, number: int) -> None:
    gpu.failures = [f"fail {OLDER} 0 {NOT_SUPPORTED}"] if call == NEWER else []
    gpu.failures.append(f"lie {call} 0 {number} 7")
    gpu._clock.now += 5
    tracemalloc.start()
    try:
        first = gpu.read()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (first.utilization, first.utilization_unknown) == (None, f"{call}: Garbage")
    assert len(first.processes) == 2
    assert set(gpu.gpus.errors) == {(call, "Garbage")}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_a_refusal_is_unknown_and_repeated_after_a_minute(gpu, code: int) -> None:
    gpu.failures = [f"fail {name} 0 {code}" for name in (OLDER, NEWER)]
    assert gpu.after(5, (100, 70)) is None
    first = gpu.read()
    assert first.utilization_unknown.startswith(OLDER)
    assert {each.pid: each.used_bytes for each in first.processes} == {100: 1 << 30, 101: 1 << 30}
    assert gpu.gpus.errors == ({(OLDER, "NoPermission"): 1} if code == NO_PERMISSION else {})
    gpu.failures = []
    for _ in range(11):
        assert gpu.after(5, (100, 70)) is None
    assert gpu.after(5, (100, 70)) is None  # asked again: the first answer has no interval
    assert gpu.after(5, (100, 70)) == {100: 70}
    assert gpu.read().utilization_unknown == ""


def test_the_newer_call_serves_where_the_older_one_is_missing(sampled) -> None:
    gpu = sampled()
    gpu.failures = [f"fail {OLDER} 0 {NOT_SUPPORTED}"]
    gpu.read()
    assert gpu.after(5, (100, 70), (101, 20)) == {100: 70, 101: 20}
    assert gpu.after(5) == {}
    assert gpu.gpus.errors == {}


def test_a_gpu_in_mig_mode_is_never_asked(sampled) -> None:
    gpu = sampled(mig=({"uuid": "MIG-1", "memory": "5Gi"},))
    gpu.failures = [f"fail {name} 0 999" for name in (OLDER, NEWER)]
    for _ in range(3):
        assert gpu.after(5, (100, 70)) is None
    assert gpu.read().utilization_unknown == "NVML does not report it in MIG mode"
    assert gpu.gpus.errors == {}


def test_an_mps_client_without_a_sample_is_unknown(sampled) -> None:
    gpu = sampled(kind="compute+mps")
    gpu.read()
    assert gpu.after(5, (101, 20)) == {100: None, 101: 20}
    assert gpu.after(5, (100, 30)) == {100: 30}


def test_after_a_restart_of_the_driver_the_first_answer_has_no_interval(gpu) -> None:
    assert gpu.after(5, (100, 70)) == {100: 70}
    gpu._answers.write([])
    gpu.gpus.read()
    gpu._clock.now += 5
    gpu.kept, gpu.offset = [], 0
    assert gpu.after(1, (100, 60)) is None
    assert gpu.after(5, (100, 50)) == {100: 50}


class SampleBuffer:
    """A driver that keeps the newest sample of each process."""

    def __init__(self) -> None:
        self.kept: dict[int, UtilizationSample] = {}
        self.fails = False

    def utilization(self, device: object, since: int) -> list[UtilizationSample]:
        if self.fails:
            raise FigureFailed(OLDER, "Unknown")
        return [sample for sample in self.kept.values() if sample.time > since]


steps = st.fixed_dictionaries(
    {
        "seconds": st.sampled_from([0.1, 2.0, 5.0, 7.0, 12.0, 13.0, 3600.0]),
        "used": st.dictionaries(st.integers(1, 4), st.integers(1, 100), max_size=3),
        "jump": st.sampled_from([0, 0, 0, 0, -HOUR, HOUR, 24 * HOUR]),
        "ended": st.sets(st.integers(1, 4), max_size=1),
        "fails": st.sampled_from([False, False, False, True]),
    }
)


@given(st.lists(steps, max_size=12))
def test_a_process_that_used_the_gpu_is_never_reported_as_idle(history: Iterable[dict[str, Any]]) -> None:
    """Clocks that jump, processes that end and calls that fail lead to unknown, not to a wrong figure.

    The exception is the interval of the jump itself, if another process has a sample of before the jump in it.
    """
    buffer, reader = SampleBuffer(), UtilizationReader(None)
    reader._driver = buffer
    now, offset = 1000.0, 10 * HOUR
    reader.read(None, now)
    used: dict[int, int] = {}
    has_jumped = False
    for step in history:
        now += step["seconds"]
        offset += step["jump"]
        has_jumped |= step["jump"] != 0
        for pid in step["ended"]:
            buffer.kept.pop(pid, None)
            used.pop(pid, None)
        for pid, percent in step["used"].items():
            buffer.kept[pid] = UtilizationSample(pid, offset + round(now * S) - 1, percent)
        used |= step["used"]
        buffer.fails = step["fails"]
        before = reader._answered_at
        percents = reader.read(None, now)
        if reader._answered_at == before:
            continue
        if percents is not None:
            known = {pid: percent for pid, percent in percents.items() if percent is not None}
            assert known.items() <= used.items()
            assert has_jumped or used.keys() <= percents.keys()
        used, has_jumped = {}, False
