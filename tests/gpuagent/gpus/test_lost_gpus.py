"""A lost GPU is reported with its index, and with its UUID, model and newest error as far as they are known."""

from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import LostGpu
from tests.support.scenarios import GIB, A, B, node

C = "GPU-cccccccc-0000-0000-0000-000000000000"
LOST = "fail nvmlDeviceGetHandleByIndex 1 15"


def gpu(index: int, uuid: str) -> str:
    return f"gpu {index} {uuid} {16 * GIB} 0 {GIB} NVIDIA A10"


def test_a_gpu_that_stops_responding_keeps_index_uuid_and_model(driven, clock) -> None:
    gpus, answers = driven(node())
    assert gpus.read().lost == ()
    answers.write([gpu(0, A), gpu(1, B), "fail * 1 15"])
    for _ in range(3):
        clock.now += 5
        assert gpus.read().lost == (LostGpu(1, B, "NVIDIA A10", error="GpuIsLost"),)
    answers.write([gpu(0, A), gpu(1, B)])
    clock.now += 600
    assert gpus.read().lost == ()


def test_a_gpu_that_leaves_the_count_keeps_its_last_index(driven, clock) -> None:
    gpus, answers = driven(node())
    gpus.read()
    answers.write([gpu(0, B)])
    clock.now += 60
    reading = gpus.read()
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(0, B)]
    assert reading.lost == (LostGpu(0, A, "NVIDIA A10"),)


def test_after_a_restart_of_the_agent_the_uuid_is_unknown(driven) -> None:
    gpus, answers = driven(node())
    answers.write([gpu(0, A), gpu(1, B), LOST])
    assert gpus.read().lost == (LostGpu(1, error="GpuIsLost"),)
    assert LostGpu(1).scope == "index-1"


def test_a_failing_index_has_no_uuid_if_its_former_gpu_responds_elsewhere(driven, clock) -> None:
    gpus, answers = driven(node())
    gpus.read()
    answers.write([gpu(0, B), gpu(1, C), gpu(2, A), LOST])
    clock.now += 60
    assert gpus.read().lost == (LostGpu(1, error="GpuIsLost"),)


def test_two_failing_indices_that_one_gpu_had_are_not_the_same_gpu(driven, clock) -> None:
    gpus, answers = driven(node())
    gpus.read()
    answers.write([gpu(0, B), gpu(1, C), gpu(2, A), LOST])
    clock.now += 60
    gpus.read()
    answers.write([gpu(0, B), gpu(1, C), gpu(2, A), LOST, "fail * 0 15"])
    clock.now += 5
    reading = gpus.read()
    assert reading.lost == (
        LostGpu(0, B, "NVIDIA A10", error="GpuIsLost"),
        LostGpu(1, error="GpuIsLost"),
    )
    assert [problem.gpu_uuid for problem in reading.problems] == [B, "index-1"]


def test_all_gpus_are_lost_while_the_driver_does_not_respond(driven, clock) -> None:
    gpus, answers = driven(node())
    gpus.read()
    answers.write([gpu(0, A), gpu(1, B), "fail * 0 15", "fail * 1 15"])
    clock.now += 5
    reading = gpus.read()
    assert reading.gpus == ()
    assert [lost.index for lost in reading.lost] == [0, 1]
    clock.now += 0.1  # within the back-off
    assert [lost.index for lost in gpus.read().lost] == [0, 1]


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
