"""Sensors and errors (XID) of GPUs: the binding over a library that answers as a driver does."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import Sensors
from gpuagent.gpus.nvml import EventSets
from tests.support.scenarios import causes, node, process

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN, BLOCKS = 3, 4, 13, 999, -1
CALLS = {
    "utilization_ratio": ("nvmlDeviceGetUtilizationRates",),
    "temperature_celsius": ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
    "power_watts": ("nvmlDeviceGetPowerUsage",),
    "power_limit_watts": ("nvmlDeviceGetEnforcedPowerLimit",),
}
ALL = Sensors(
    utilization_ratio=0.37, temperature_celsius=61, power_watts=142.5, power_limit_watts=300.0, xid=None
)
LINES = [
    "sensor 0 nvmlDeviceGetUtilizationRates 37",
    "sensor 0 nvmlDeviceGetTemperature 61",
    "sensor 0 nvmlDeviceGetPowerUsage 142500",
    "sensor 0 nvmlDeviceGetEnforcedPowerLimit 300000",
]


class SensedGpu:
    """A node whose driver answers with further lines."""

    def __init__(self, gpus: Any, answers: Any, clock: Any) -> None:
        self.gpus, self._answers, self._clock = gpus, answers, clock

    def read(self, *lines: str, after: float = 5.0) -> Sensors:
        """Return the sensors of the first GPU, some seconds after the last reading."""
        self._clock.now += after
        self._answers.show(more=lines)
        reading = self.gpus.read()
        assert causes(reading) == []
        assert reading.gpus[0].processes
        return reading.gpus[0].sensors


@pytest.fixture
def sensed(driven, clock) -> SensedGpu:
    return SensedGpu(*driven(node(process(100))), clock)


def test_a_gpu_has_its_sensors(sensed) -> None:
    assert sensed.read() == Sensors()
    assert sensed.read(*LINES, after=61) == ALL
    assert sensed.read(after=1) == ALL, "an answer counts for 2 s"
    assert sensed.read(after=1) == Sensors()
    assert sensed.gpus.errors == {}


def test_an_older_driver_has_the_older_temperature_call(driven, clock) -> None:
    gpu = SensedGpu(*driven(node(process(100)), "-DWITHOUT_TEMPERATURE_V"), clock)
    assert gpu.read(*LINES) == ALL
    assert gpu.read(*LINES) == ALL
    assert gpu.gpus.errors == {}


@pytest.mark.parametrize("field", CALLS)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_a_refused_sensor_is_unknown_alone_and_asked_after_a_minute(sensed, field: str, code: int) -> None:
    refusals = [f"fail {call} 0 {code}" for call in CALLS[field]]
    without = sensed.read(*LINES, *refusals)
    assert getattr(without, field) is None
    assert [name for name in CALLS if getattr(without, name) is None] == [field]
    assert getattr(sensed.read(*LINES, after=50), field) is None, "it is not asked yet"
    assert sensed.read(*LINES, after=11) == ALL


@pytest.mark.parametrize("field", CALLS)
@pytest.mark.parametrize("code", [UNKNOWN, 1, 15], ids=["unknown", "driver lost", "GPU lost"])
def test_a_failed_sensor_leaves_others_and_is_asked_at_the_next_sample(sensed, field: str, code: int) -> None:
    failures = [f"fail {call} 0 {code}" for call in CALLS[field]]
    assert getattr(sensed.read(*LINES, *failures), field) is None
    assert sensed.read(*LINES) == ALL


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("sensor 0 nvmlDeviceGetUtilizationRates 101", "utilization_ratio", None),
        ("sensor 0 nvmlDeviceGetUtilizationRates 4294967295", "utilization_ratio", None),
        ("sensor 0 nvmlDeviceGetTemperature 201", "temperature_celsius", None),
        ("sensor 0 nvmlDeviceGetTemperature 4294967286", "temperature_celsius", -10),
        ("sensor 0 nvmlDeviceGetTemperature 4294967245", "temperature_celsius", None),  # -51
        ("sensor 0 nvmlDeviceGetTemperature 4294967295", "temperature_celsius", None),
        ("sensor 0 nvmlDeviceGetPowerUsage 4294967295", "power_watts", None),
        ("sensor 0 nvmlDeviceGetEnforcedPowerLimit 0", "power_limit_watts", None),
        ("sensor 0 nvmlDeviceGetEnforcedPowerLimit 4294967295", "power_limit_watts", None),
        ("xid 0 1 0", "xid", None),
    ],
)
def test_an_impossible_figure_is_unknown(sensed, line: str, field: str, value: int | None) -> None:
    assert getattr(sensed.read(*LINES, line), field) == value


@pytest.mark.parametrize("call", [*(calls[0] for calls in CALLS.values()), "nvmlEventSetWait_v2"])
def test_a_sensor_that_hangs_takes_no_other_figure_with_it(driven, clock, call: str) -> None:
    gpus, answers = driven(node(process(100)), deadline=2.0)
    where = "-" if call.startswith("nvmlEvent") else "0"
    answers.show(more=[*LINES, f"fail {call} {where} {BLOCKS}"])
    seconds = []
    for _ in range(4):
        clock.now += 5
        began = time.monotonic()
        reading = gpus.read()
        seconds.append(time.monotonic() - began)
        gpu = reading.gpus[0]
        assert (gpu.sensors, causes(reading), reading.lost) == (Sensors(), [], ())
        assert gpu.used_bytes
        assert gpu.processes
        assert gpus.is_hanging
    assert seconds[0] >= 0.5, "a quarter of the deadline"
    assert max(seconds[1:]) < 0.5, "an unanswered call is not awaited"
    answers.show(more=LINES)
    while gpus.is_hanging:
        time.sleep(0.01)
    clock.now += 5
    assert gpus.read().gpus[0].sensors == ALL


def test_a_gpu_in_mig_mode_has_its_temperature_and_its_errors(driven, clock) -> None:
    mig = {"uuid": "MIG-1", "memory": "10Gi"}
    gpus, answers = driven(node(process(100, gpu="MIG-1"), mig=(mig,)))
    answers.show(more=[*LINES[1:], "xid 0 1 94"])
    sensors = gpus.read().gpus[0].sensors
    assert (sensors.utilization_ratio, sensors.temperature_celsius, sensors.xid.code) == (None, 61, 94)


def codes(reading: Any) -> list[int | None]:
    return [gpu.sensors.xid.code if gpu.sensors.xid else None for gpu in reading.gpus]


@pytest.fixture
def two(driven, clock) -> tuple[Any, Any]:
    gpus, answers = driven(node(process(100)))
    assert codes(gpus.read()) == [None, None]
    return gpus, answers


def test_each_gpu_has_its_newest_error_which_stays(two, clock) -> None:
    gpus, answers = two
    answers.show(more=["xid 0 1 13", "xid 0 2 31", "xid 1 1 79"])
    first = gpus.read()
    assert codes(first) == [31, 79]
    assert first.gpus[0].sensors.xid.time > 1_700_000_000
    answers.show()
    clock.now += 5
    assert gpus.read().gpus[0].sensors.xid == first.gpus[0].sensors.xid
    answers.show(more=["xid 0 3 43"])
    clock.now += 5
    assert codes(gpus.read()) == [43, 79]
    assert gpus.errors == {}
    answers.show(more=["xid 0 4 48", "xid 0 5 13", "xid 1 2 31"])
    clock.now += 5
    assert codes(gpus.read()) == [48, 79], "an error of a program hides no failure of the GPU"


def test_events_of_another_kind_end() -> None:
    calls = []

    def call(name: str, *_arguments: Any, **_options: Any) -> Any:
        calls.append(name)
        return SimpleNamespace(eventType=0, eventData=1)

    assert EventSets(call).codes(0, None, 64) == []
    assert calls.count("nvmlEventSetWait") == 64


def test_a_storm_of_errors_is_read_in_parts(two, clock) -> None:
    gpus, answers = two
    answers.show(more=[f"xid 0 {number} {100 + number}" for number in range(1, 101)])
    assert codes(gpus.read()) == [164, None]
    clock.now += 5
    assert codes(gpus.read()) == [200, None]


def test_the_sets_are_freed_and_made_again_with_the_driver(two, clock) -> None:
    gpus, answers = two
    answers.show(more=["xid 1 1 48"])
    assert codes(gpus.read()) == [None, 48]
    answers.write([])  # no GPU is left, so the driver is initialised again
    clock.now += 120
    assert gpus.read().gpus == ()
    answers.show(more=["xid 0 1 74"])
    clock.now += 120
    assert codes(gpus.read()) == [74, 48]
    gpus.close()
    assert not [error for error in gpus.errors if error[0] == "nvmlShutdown"], "a set was not freed"


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait"])
def test_a_driver_that_refuses_events_is_asked_again_after_a_minute(sensed, call: str) -> None:
    refusal = f"fail {call} - {NOT_SUPPORTED}"
    assert sensed.read(*LINES, refusal, "xid 0 1 31") == ALL
    assert sensed.read(*LINES, "xid 0 1 31", after=50).xid is None
    assert sensed.read(*LINES, "xid 0 1 31", after=11).xid is not None
    assert sensed.gpus.errors == {}
