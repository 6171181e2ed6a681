"""The health of one GPU, its sensors and errors (XID), read in a thread that delays no other figure."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from gpuagent.gpus.driver import REFUSALS, CallFailed, Driver, Handle, Sensor
from gpuagent.gpus.gpu_reading import NO_SENSORS, Sensors, Xid
from gpuagent.gpus.supervised_call import SupervisedCall
from service.backoff import Backoff

NvmlCall = Callable[..., Any]
"""Calls a function of the binding by name, and classifies its errors, as `NvmlDriver` does."""

_REFUSED: Final = ("NotSupported", "FunctionNotFound")


class EventSets:
    """The event sets of the GPUs, by index.

    A GPU has a set of its own, so that its thread alone waits for the driver, and an event needs no search
    for its GPU. Calls for one GPU come from one thread; `free` is called while no GPU is in use.
    """

    def __init__(self, call: NvmlCall) -> None:
        self._call = call
        self._sets: dict[int, Any] = {}
        self._registered: set[int] = set()

    def codes(self, index: int, handle: Any, most: int) -> list[int]:
        """Return the codes of a GPU's queued errors, oldest first, in so many events; never wait for one.

        Raises:
            CallFailed: the driver does not report errors for the GPU.
        """
        if index not in self._registered:
            self._register(index, handle)
        codes: list[int] = []
        for _ in range(most):
            try:
                event = self._call(
                    "nvmlEventSetWait",
                    pynvml.nvmlEventSetWait_v2,
                    self._sets[index],
                    0,
                    expected=("Timeout", *_REFUSED),
                )
            except CallFailed as failed:
                if failed.error != "Timeout" and not codes:
                    raise
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                codes.append(int(event.eventData))
        return codes

    def free(self) -> None:
        """Free all sets, before the driver is shut down. A failure is only counted."""
        while self._sets:
            _, events = self._sets.popitem()
            try:
                self._call("nvmlEventSetFree", pynvml.nvmlEventSetFree, events, expected=("Uninitialized",))
            except CallFailed:
                continue
        self._registered.clear()

    def _register(self, index: int, handle: Any) -> None:
        if index not in self._sets:
            self._sets[index] = self._call("nvmlEventSetCreate", pynvml.nvmlEventSetCreate, expected=_REFUSED)
        self._call(
            "nvmlDeviceRegisterEvents",
            pynvml.nvmlDeviceRegisterEvents,
            handle,
            pynvml.nvmlEventTypeXidCriticalError,
            self._sets[index],
            expected=_REFUSED,
        )
        self._registered.add(index)


_MOST_OF_A_SAMPLE: Final = 64
"""Number of errors to read per sample. A failing GPU may report more; the rest is read in later samples."""
MOST_CODE: Final = (1 << 16) - 1
"""Largest credible code; those of NVIDIA's catalogue have three digits."""
_OF_APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program causes. NVIDIA's device plugin does not count them as a failure of the GPU
(k8s-device-plugin `internal/rm/health.go`)."""


class NewestXids:
    """The newest error of each GPU since the agent started, by UUID. Thread-safe for different GPUs."""

    def __init__(self) -> None:
        self._by_uuid: dict[str, Xid] = {}

    def of(self, uuid: str) -> Xid | None:
        """Return the newest error of a GPU; None without one."""
        return self._by_uuid.get(uuid)

    def add(self, uuid: str, code: int) -> None:
        """Keep an error that is received now; an error of a program hides no failure of the GPU."""
        last = self._by_uuid.get(uuid)
        if code in _OF_APPLICATIONS and last is not None and last.code not in _OF_APPLICATIONS:
            return
        self._by_uuid[uuid] = Xid(code, time.time())


class XidReader:
    """Reads the errors of one GPU. No failure of such a call affects the figures of the GPU.

    The driver records errors from the first call on, and drops those of before. Virtual GPUs do not have the
    call. A failed call is repeated after 1 to 10 minutes.
    """

    def __init__(self, driver: Driver, newest: NewestXids) -> None:
        self._driver = driver
        self._newest = newest
        self._retry = Backoff(first=60, most=600)

    def read(self, device: Handle, uuid: str, now: float) -> None:
        """Keep the newest error of a GPU, which may be lost.

        Args:
            device: a GPU, not a MIG device.
            uuid: its UUID.
            now: monotonic seconds.
        """
        if self._retry.is_due(now):
            try:
                codes = self._driver.xids(device, _MOST_OF_A_SAMPLE)
            except CallFailed:  # if the GPU is lost, the next memory call shows it
                self._retry.back_off(now)
            else:
                self._retry.reset()
                plausible = [code for code in codes if 0 < code <= MOST_CODE]
                for code in plausible:
                    self._newest.add(uuid, code)


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


class SensorReader:
    """Reads the sensors of one GPU. No failure of such a call affects the other figures of the GPU.

    A GPU may not have a sensor: virtual GPUs have none, and GPUs in MIG mode report no utilisation (NVML's
    reference, nvmlDeviceGetUtilizationRates). A refused call is repeated after 1 to 10 minutes, a failed one
    at the next sample.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._retries = {which: Backoff(first=60, most=600) for which in Sensor}
        self._sensors = NO_SENSORS
        self._due_at = float("-inf")

    def read(self, device: Handle, now: float) -> Sensors:
        """Return the figures, without errors (XID). Within 2 s of an answer it is returned again.

        Args:
            device: a GPU, not a MIG device.
            now: monotonic seconds.
        """
        if now >= self._due_at:
            self._due_at = now + _SHORTEST_SECONDS
            percent, power = self._ask(device, Sensor.UTILIZATION, now), self._ask(device, Sensor.POWER, now)
            limit = self._ask(device, Sensor.POWER_LIMIT, now)
            self._sensors = Sensors(
                utilization_ratio=None if percent is None else percent / 100,
                temperature_celsius=self._ask(device, Sensor.TEMPERATURE, now),
                power_watts=None if power is None else power / 1000,
                power_limit_watts=None if limit is None else limit / 1000,
            )
        return self._sensors

    def _ask(self, device: Handle, which: Sensor, now: float) -> int | None:
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


_PART_OF_DEADLINE: Final = 0.25
"""Longest wait for the answers, as a part of the GPU's deadline. The rest is for its memory and processes."""


def health_call(index: int, deadline: float) -> SupervisedCall[Sensors]:
    """Return the call for the sensors and errors of a GPU, whose deadline is in seconds of real time."""
    return SupervisedCall(f"gpu-{index}-health", deadline=deadline * _PART_OF_DEADLINE, retry=Backoff())


class HealthReader:
    """Reads the sensors and errors of one GPU. Nothing of that affects the other figures of the GPU.

    Answers that are late are discarded, but errors are kept. While a call is unanswered the sensors are
    unknown, and no sample waits for it. After a late answer the next question waits 1, 2, 4 and at last 60 s.
    They are unknown, too, in a sample in which the thread cannot be started.
    """

    def __init__(self, driver: Driver, newest_xids: NewestXids, call: SupervisedCall[Sensors]) -> None:
        self._driver = driver
        self._newest_xids = newest_xids
        self._call = call
        self._current = NO_SENSORS
        self.renew()

    def renew(self) -> None:
        """Ask for everything again: the driver or the GPU may be another one."""
        self._sensors = SensorReader(self._driver)
        self._xids = XidReader(self._driver, self._newest_xids)

    def read(self, device: Handle, uuid: str, now: float, *, is_open: bool) -> None:
        """Read the errors of a GPU, and its sensors unless it is lost.

        Args:
            device: a GPU, not a MIG device.
            uuid: its UUID.
            now: monotonic seconds.
            is_open: whether the GPU responded to its last call.
        """
        sensors, xids = self._sensors, self._xids

        def read() -> Sensors:
            xids.read(device, uuid, now)
            return sensors.read(device, now) if is_open else NO_SENSORS

        self._current = NO_SENSORS
        with suppress(CallFailed):
            self._current = self._call.result(read, now)

    def sensors(self, uuid: str) -> Sensors:
        """Return the figures of the last reading, with the newest error of the GPU."""
        xid = self._newest_xids.of(uuid)
        return self._current if xid is None else replace(self._current, xid=xid)
