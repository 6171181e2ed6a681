"""GPUs that come, go and come back while the agent runs: through NVML's own binding, on a clock of the test's."""

import threading
from collections.abc import Callable

import pytest

from gpuagent.gpus.driver import Sensor
from gpuagent.gpus.nvml import NvmlGpus
from gpuagent.problems import Cause
from tests.support.scenarios import GIB, A, B, causes, node, process

C = "GPU-cccccccc-0000-0000-0000-000000000000"


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


def test_a_gpu_that_leaves_the_count_is_lost_and_indices_move(driven, clock) -> None:
    gpus, answers = driven(node())
    assert uuids(gpus) == [A, B]
    answers.write([gpu(0, B)])
    clock.now += 60
    reading = gpus.read()
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(0, B)]
    assert causes(reading) == [(Cause.NVML, A)]
    answers.write([gpu(0, A), gpu(1, B)])
    clock.now += 60
    reading = gpus.read()
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(0, A), (1, B)]
    assert causes(reading) == []


def test_a_failing_index_is_not_the_gpu_that_responds_at_another(driven, clock) -> None:
    gpus, answers = driven(node())
    assert uuids(gpus) == [A, B]
    answers.write([gpu(0, B), gpu(1, C), gpu(2, A), "fail nvmlDeviceGetHandleByIndex 1 15"])
    clock.now += 60
    reading = gpus.read()
    assert [gpu.uuid for gpu in reading.gpus] == [B, A]
    assert causes(reading) == [(Cause.NVML, "index-1")]


def test_two_gpus_of_one_uuid_count_once_and_are_a_problem(driven) -> None:
    gpus, answers = driven(node())
    answers.write([gpu(0, A), gpu(1, A)])
    reading = gpus.read()
    assert [gpu.uuid for gpu in reading.gpus] == [A]
    assert causes(reading) == [(Cause.NVML, "index-1")]


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


@pytest.mark.parametrize("expected", [None, 2])
def test_without_a_difference_nvml_is_never_initialised_again(driven, clock, starts, expected) -> None:
    gpus, _ = driven(node())
    uuids(gpus)
    gpus.expect(expected)
    calls = starts(gpus)
    for _ in range(2000):
        clock.now += 5
        uuids(gpus)
    assert calls == []


def test_on_mig_nodes_the_label_counts_mig_devices_and_is_not_compared(driven, clock, starts) -> None:
    gpus, _ = driven(node(mig=({"uuid": "MIG-1", "memory": "5Gi"},)))
    uuids(gpus)
    gpus.expect(7)
    calls = starts(gpus)
    for _ in range(100):
        clock.now += 60
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


def test_a_gpu_that_may_not_be_opened_is_no_reason_to_initialise_again(driven, clock, starts) -> None:
    gpus, answers = driven(node())
    answers.show(more=["fail nvmlDeviceGetHandleByIndex 1 3"])
    assert uuids(gpus) == [A]
    calls = starts(gpus)
    for _ in range(100):
        clock.now += 60
        uuids(gpus)
    assert calls == []


@pytest.mark.parametrize("count", [129, (1 << 32) - 1])
def test_an_impossible_count_is_a_failed_call(driven, clock, count) -> None:
    gpus, answers = driven(node(process(100)))
    answers.show(more=[f"lie nvmlDeviceGetCount - {count} 0"])
    threads = threading.active_count()
    reading = gpus.read()
    assert reading.gpus == ()
    assert reading.problems[0].detail == "nvmlDeviceGetCount: Garbage"
    answers.show()
    clock.now += 2
    assert uuids(gpus) == [A, B]
    answers.show(more=[f"lie nvmlDeviceGetCount - {count} 0"])
    clock.now += 60
    assert uuids(gpus) == [A, B]
    assert threading.active_count() <= threads + 5  # the driver's, and two for each GPU


def test_a_refused_count_keeps_the_known_gpus(driven, clock) -> None:
    gpus, answers = driven(node(process(100)))
    uuids(gpus)
    for code in (4, 3, 999):
        answers.show(more=[f"fail nvmlDeviceGetCount - {code}"])
        clock.now += 60
        reading = gpus.read()
        assert [gpu.uuid for gpu in reading.gpus] == [A, B]
        assert causes(reading) == []


def test_an_initialisation_that_fails_is_tried_again_and_blinds_for_no_longer(driven, clock) -> None:
    gpus, answers = driven(node())
    answers.write([gpu(0, A)])
    uuids(gpus)
    answers.write([gpu(0, A), gpu(1, B), "fail nvmlInit - 27"])
    clock.now += 60
    assert uuids(gpus) == []
    answers.write([gpu(0, A), gpu(1, B)])
    clock.now += 1
    assert uuids(gpus) == [A, B]


def test_each_gpu_has_two_threads_and_the_node_has_one(driven, clock, monkeypatch) -> None:
    """`expect`, from another thread, makes no call, and an initialisation makes no new threads."""
    gpus, _ = driven(node())
    driver, threads = gpus._driver, {}
    call = driver._call
    sensors = {*(sensor.value for sensor in Sensor), "nvmlDeviceGetTemperatureV"}

    def noted(name, *arguments, **options):
        of_device = name.startswith("nvmlDevice") and name != "nvmlDeviceGetCount"
        kind = "health" if name in sensors else "device" if of_device else "node"
        threads.setdefault(threading.get_ident(), set()).add(kind)
        return call(name, *arguments, **options)

    monkeypatch.setattr(driver, "_call", noted)
    for expected in (2, 3, 4):
        thread = threading.Thread(target=gpus.expect, args=(expected,))
        thread.start()
        thread.join()
        clock.now += 60
        gpus.read()
    assert sorted(map(sorted, threads.values())) == [
        ["device"],
        ["device"],
        ["health"],
        ["health"],
        ["node"],
    ]
    assert threading.get_ident() not in threads


def test_a_new_library_found_at_a_new_initialisation_asks_for_a_new_process(driven, clock) -> None:
    from gpuagent.gpus.gpu_reading import DriverReplaced

    gpus, answers = driven(node())
    uuids(gpus)
    gpus.expect(3)
    answers.show(more=["fail nvmlInit - 18"])
    clock.now += 60
    with pytest.raises(DriverReplaced):
        gpus.read()
