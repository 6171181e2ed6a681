"""GPUs that come, go, are lost and come back: through NVML's own binding, on a clock of the test's."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.gpus.gpu_reader import NvmlGpus
from gpuagent.gpus.gpu_reading import DriverReplaced, LostGpu
from gpuagent.problems import NOT_LISTED, Cause
from tests.support.scenarios import GIB, A, B, node, process

C = "GPU-cccccccc-0000-0000-0000-000000000000"
LOST = "fail nvmlDeviceGetHandleByIndex 1 15"


def gpu(index: int, uuid: str) -> str:
    return f"gpu {index} {uuid} {16 * GIB} 0 {GIB} NVIDIA A10"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[NvmlGpus], list[str]]:
    """Every initialisation and shutdown of NVML from now on, in order."""

    def watch(gpus: NvmlGpus) -> list[str]:
        calls: list[str] = []
        driver = gpus._driver
        for name in ("start", "stop"):
            function = getattr(driver, name)

            def called(function: Callable[[], None] = function, name: str = name) -> None:
                calls.append(name)
                function()

            monkeypatch.setattr(driver, name, called)
        return calls

    return watch


def uuids(gpus: NvmlGpus) -> list[str]:
    return [gpu.uuid for gpu in gpus.read().gpus]


def test_a_gpu_that_appears_is_seen_within_a_minute(driven, clock, starts) -> None:
    gpus, answers = driven(node())
    answers.write([gpu(0, A)])
    assert uuids(gpus) == [A]
    calls = starts(gpus)
    answers.write([gpu(0, A), gpu(1, B)])
    clock.now += 59
    assert uuids(gpus) == [A]
    assert calls == []
    clock.now += 1
    assert uuids(gpus) == [A, B]
    assert calls == ["stop", "start"]
    for _ in range(100):  # and no more initialisations once they agree
        clock.now += 60
        assert uuids(gpus) == [A, B]
    assert calls == ["stop", "start"]


def test_the_gpu_count_of_the_library_is_compared_with_the_label(driven, clock, starts) -> None:
    gpus, answers = driven(node())
    answers.write([gpu(0, A), "sticky"])
    assert uuids(gpus) == [A]
    answers.write([gpu(0, A), gpu(1, B), "sticky"])
    clock.now += 60
    assert uuids(gpus) == [A]  # the library does not tell
    gpus.expect(2)
    clock.now += 60
    calls = starts(gpus)
    assert uuids(gpus) == [A, B]
    assert calls == ["stop", "start"]


def test_a_label_that_always_differs_is_retried_with_back_off(driven, clock, starts) -> None:
    gpus, _ = driven(node())
    assert uuids(gpus) == [A, B]
    gpus.expect(8)
    calls, times = starts(gpus), []
    began = clock.now
    for _ in range(24 * 240):  # a day
        clock.now += 15
        assert uuids(gpus) == [A, B]
        if calls.count("start") > len(times):
            times.append(clock.now - began)
    assert times[:6] == [60, 120, 240, 480, 960, 1920]
    assert 24 <= len(times) <= 30
    gpus.expect(7)  # another difference is tried soon
    clock.now += 60
    uuids(gpus)
    assert calls.count("start") == len(times) + 1


@pytest.mark.parametrize(
    ("scenario", "lines", "expected"),
    [
        (node(), [], None),
        (node(), [], 2),
        (node(mig=({"uuid": "MIG-1", "memory": "5Gi"},)), [], 7),
        (node(), ["fail nvmlDeviceGetHandleByIndex 1 3"], None),
    ],
    ids=["no label", "no difference", "the label counts MIG devices", "a GPU that may not be opened"],
)
def test_nothing_else_initialises_nvml_again(driven, clock, starts, scenario, lines, expected) -> None:
    gpus, answers = driven(scenario)
    answers.show(more=lines)
    uuids(gpus)
    gpus.expect(expected)
    calls = starts(gpus)
    for _ in range(300):
        clock.now += 35
        uuids(gpus)
    assert calls == []


def test_a_lost_gpu_comes_back_by_a_new_initialisation_while_others_answer(driven, clock, starts) -> None:
    """The reset GPU answers no handle before NVML is initialised again; the other GPU is read at every sample."""
    gpus, answers = driven(node(process(101, gpu=1)))
    assert uuids(gpus) == [A, B]
    calls = starts(gpus)
    answers.show(more=["fail * 0 15"])
    began = clock.now
    at: list[float] = []
    while clock.now < began + 4000:
        clock.now += 5
        assert uuids(gpus) == [B]
        if calls.count("start") > len(at):
            at.append(clock.now - began)
    assert at[:5] == [60, 120, 240, 480, 960]
    answers.show()
    clock.now += 3600
    assert uuids(gpus) == [A, B]


def test_a_new_library_found_at_a_new_initialisation_asks_for_a_new_process(driven, clock) -> None:
    gpus, answers = driven(node())
    uuids(gpus)
    gpus.expect(3)
    answers.show(more=["fail nvmlInit - 18"])
    clock.now += 60
    with pytest.raises(DriverReplaced):
        gpus.read()


def test_a_gpu_without_a_uuid_is_a_failed_call(driven, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, _ = driven(node())
    monkeypatch.setattr(gpus._driver, "uuid", lambda _handle: "")
    assert (uuids(gpus), [lost.error for lost in gpus.read().lost]) == ([], ["Empty", "Empty"])


BOTH = [gpu(0, A), gpu(1, B)]
MOVED = [gpu(0, B), gpu(1, C), gpu(2, A), LOST]
SEEN = ([A, B], (), [])
LOST_A, LOST_B = LostGpu(0, A, "NVIDIA A10"), LostGpu(1, B, "NVIDIA A10")
# seconds, the library's answers, and then the GPUs that are read, those that are lost, and the scopes of the problems
Step = tuple[float, list[str], tuple[list[str], tuple[LostGpu, ...], list[str]]]
HISTORIES: dict[str, list[Step]] = {
    "a GPU that stops responding keeps index, UUID and model": [
        (0, BOTH, SEEN), *[(5, [*BOTH, "fail * 1 15"], ([A], (LOST_B,), [B]))] * 3, (600, BOTH, SEEN),
    ],
    "one that leaves the count keeps its last index, and indices move": [
        (0, BOTH, SEEN), (60, [gpu(0, B)], ([B], (LOST_A,), [A])), (60, BOTH, SEEN),
    ],
    "a failing index is not the GPU that responds at another, nor that of a second failing index": [
        (0, BOTH, SEEN), (60, MOVED, ([B, A], (LostGpu(1),), ["index-1"])),
        (5, [*MOVED, "fail * 0 15"], ([A], (LostGpu(0, B, "NVIDIA A10"), LostGpu(1)), [B, "index-1"])),
    ],
    "all GPUs are lost while the driver does not respond, also within the back-off": [
        (0, BOTH, SEEN), *[(seconds, ["fail * 0 15", "fail * 1 15", *BOTH], ([], (LOST_A, LOST_B), [""])) for seconds in (5, 0.1)],
    ],
    "two GPUs of one UUID count once and are a problem": [(0, [gpu(0, A), gpu(1, A)], ([A], (), ["index-1"]))],
    "a refused count keeps the known GPUs": [
        (0, BOTH, SEEN), *[(60, [*BOTH, f"fail nvmlDeviceGetCount - {code}"], SEEN) for code in (4, 3, 999)],
    ],
    "an initialisation that fails is tried again and blinds for no longer": [
        (0, [gpu(0, A)], ([A], (), [])), (60, [*BOTH, "fail nvmlInit - 27"], ([], (LOST_A,), [""])), (1, BOTH, SEEN),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", HISTORIES.values(), ids=HISTORIES)
def test_gpus_that_are_read_and_lost(driven, clock, steps: list[Step]) -> None:
    gpus, answers = driven(node())
    for seconds, lines, expected in steps:
        clock.now += seconds
        answers.write(lines)
        reading = gpus.read()
        assert (
            [gpu.uuid for gpu in reading.gpus],
            tuple(replace(lost, error=NOT_LISTED) for lost in reading.lost),
            [p.gpu_uuid for p in reading.problems],
        ) == expected
        assert {problem.cause for problem in reading.problems} <= {Cause.NVML}
        assert {gpu(each.index, each.uuid) for each in reading.gpus} <= set(lines)


def error_of(reading: Any, uuid: str) -> int | None:
    (lost,) = [gpu for gpu in reading.lost if gpu.uuid == uuid]
    return lost.xid.code if lost.xid else None


@pytest.mark.parametrize("call", ["*", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetHandleByIndex"])
def test_the_error_with_which_a_gpu_is_lost_is_read(driven, clock, call: str) -> None:
    gpus, answers = driven(node())
    assert gpus.read().lost == ()
    calls = [call, "nvmlDeviceGetMemoryInfo"]
    answers.write([gpu(0, A), gpu(1, B), "xid 1 1 79", *(f"fail {each} 1 15" for each in calls)])
    clock.now += 5
    reading = gpus.read()
    assert error_of(reading, B) == 79
    assert [present.sensors.xid for present in reading.gpus] == [None]


def test_an_error_that_comes_after_the_gpu_was_lost_is_read(driven, clock) -> None:
    gpus, answers = driven(node())
    gpus.read()
    lines = [gpu(0, A), gpu(1, B), "fail * 1 15"]
    answers.write(lines)
    clock.now += 5
    assert error_of(gpus.read(), B) is None
    answers.write([*lines, "xid 1 1 79"])
    clock.now += 0.1  # within the back-off of the GPU
    assert error_of(gpus.read(), B) == 79


def test_the_error_of_a_lost_gpu_survives_an_initialisation_of_the_driver(driven, clock) -> None:
    gpus, answers = driven(node())
    gpus.read()
    answers.write([gpu(0, A), gpu(1, B), "xid 1 1 79", "fail * 1 15"])
    clock.now += 5
    gpus.read()
    answers.write([gpu(0, A), gpu(1, B), "fail * 1 15"])
    clock.now += 120
    assert error_of(gpus.read(), B) == 79
    answers.write([gpu(0, A)])
    clock.now += 120
    assert error_of(gpus.read(), B) == 79, "the driver no longer lists the GPU"
    answers.write(["fail * - 15"])
    clock.now += 120
    assert error_of(gpus.read(), B) == 79, "no GPU responds"
