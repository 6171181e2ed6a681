"""The health of one GPU, its sensors and errors (XID), read in a thread that delays no other figure."""

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from gpuagent.gpus.driver import REFUSALS, CallFailed, Handle, Sensor
from gpuagent.gpus.gpu_reading import NO_SENSORS, Sensors, Xid
from gpuagent.gpus.nvml import NvmlDriver
from gpuagent.gpus.supervised_call import SupervisedCall
from service.backoff import Backoff

_MOST_OF_A_SAMPLE: Final = 64
"""Number of errors to read per sample. A failing GPU may report more; the rest is read in later samples."""
MOST_CODE: Final = (1 << 16) - 1
"""Largest credible code; those of NVIDIA's catalogue have three digits."""
_OF_APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program causes. NVIDIA's device plugin does not count them as a failure of the GPU
(k8s-device-plugin `internal/rm/health.go`)."""
_SHORTEST_SECONDS: Final = 2.0
"""Shortest interval between two questions. The driver's measuring period for the utilisation is up to 1 s
(NVML's reference, nvmlUtilization_t)."""
_PLAUSIBLE: Final[dict[Sensor, tuple[int, int]]] = {
    Sensor.UTILIZATION: (0, 100),
    Sensor.TEMPERATURE: (-50, 200),
    Sensor.POWER: (0, 10_000_000),
    Sensor.POWER_LIMIT: (1, 10_000_000),
}
"""Smallest and largest possible value."""
_UNKNOWN: Final = -1
"""2^32 - 1 as a number with a sign. A driver may return it for a figure that it does not have."""

NewestXids = dict[str, Xid]
"""The newest error of each GPU since the agent started, by UUID."""


class _Questions:
    """What is asked of one GPU, and when it is asked again. No failure affects the figures of the GPU.

    Virtual GPUs report no errors and have no sensors, and GPUs in MIG mode report no utilisation (NVML's
    reference, nvmlDeviceGetUtilizationRates). A refused call is repeated after 1 to 10 minutes, a failed one
    for a sensor at the next sample. The driver records errors from the first call on.
    """

    def __init__(self, driver: NvmlDriver, newest_xids: NewestXids) -> None:
        self._driver = driver
        self._newest_xids = newest_xids
        self._retry_xids = Backoff(first=60, most=600)
        self._retries = {which: Backoff(first=60, most=600) for which in Sensor}
        self._sensors = NO_SENSORS
        self._due_at = float("-inf")

    def ask(self, device: Handle, uuid: str, now: float, *, is_open: bool) -> Sensors:
        """Keep the newest error of a GPU, which may be lost, and return its sensors unless it is lost."""
        if self._retry_xids.is_due(now):
            try:
                codes = self._driver.xids(device, _MOST_OF_A_SAMPLE)
            except CallFailed:  # if the GPU is lost, the next memory call shows it
                self._retry_xids.back_off(now)
            else:
                self._retry_xids.reset()
                for code in codes:
                    self._add_xid(uuid, code)
        return self._read_sensors(device, now) if is_open else NO_SENSORS

    def _add_xid(self, uuid: str, code: int) -> None:
        """Keep an error that is received now; an error of a program hides no failure of the GPU."""
        last = self._newest_xids.get(uuid)
        is_hidden = code in _OF_APPLICATIONS and last is not None and last.code not in _OF_APPLICATIONS
        if 0 < code <= MOST_CODE and not is_hidden:
            self._newest_xids[uuid] = Xid(code, time.time())

    def _read_sensors(self, device: Handle, now: float) -> Sensors:
        """Return the figures, without errors. Within 2 s of an answer it is returned again."""
        if now >= self._due_at:
            self._due_at = now + _SHORTEST_SECONDS
            figures = {which: self._sensor(device, which, now) for which in Sensor}
            percent, power = figures[Sensor.UTILIZATION], figures[Sensor.POWER]
            limit = figures[Sensor.POWER_LIMIT]
            self._sensors = Sensors(
                utilization_ratio=None if percent is None else percent / 100,
                temperature_celsius=figures[Sensor.TEMPERATURE],
                power_watts=None if power is None else power / 1000,
                power_limit_watts=None if limit is None else limit / 1000,
            )
        return self._sensors

    def _sensor(self, device: Handle, which: Sensor, now: float) -> int | None:
        retry = self._retries[which]
        if not retry.is_due(now):
            return None
        try:
            value = self._driver.sensor(device, which)
        except CallFailed as failed:  # if the GPU is lost, the next memory call shows it
            if isinstance(failed, REFUSALS):
                retry.back_off(now)
            return None
        retry.reset()
        smallest, largest = _PLAUSIBLE[which]
        return value if smallest <= value <= largest and value != _UNKNOWN else None


class HealthReader:
    """Reads the sensors and errors of one GPU. Nothing of that affects the other figures of the GPU.

    Answers that are late are discarded, but errors are kept. While a call is unanswered the sensors are
    unknown, and no sample waits for it. After a late answer the next question waits 1, 2, 4 and at last 60 s.
    They are unknown, too, in a sample in which the thread cannot be started.
    """

    def __init__(self, driver: NvmlDriver, newest_xids: NewestXids, call: SupervisedCall[Sensors]) -> None:
        self._driver = driver
        self._newest_xids = newest_xids
        self._call = call
        self._current = NO_SENSORS
        self.renew()

    def renew(self) -> None:
        """Ask for everything again: the driver or the GPU may be another one."""
        self._questions = _Questions(self._driver, self._newest_xids)

    def read(self, device: Handle, uuid: str, now: float, *, is_open: bool) -> None:
        """Read the errors of a GPU, and its sensors if it responded to its last call (`is_open`)."""
        self._current = NO_SENSORS
        with suppress(CallFailed):
            self._current = self._call.result(
                partial(self._questions.ask, device, uuid, now, is_open=is_open), now
            )

    def sensors(self, uuid: str) -> Sensors:
        """Return the figures of the last reading, with the newest error of the GPU."""
        xid = self._newest_xids.get(uuid)
        return self._current if xid is None else replace(self._current, xid=xid)
