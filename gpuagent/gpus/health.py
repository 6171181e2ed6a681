"""Reads the sensors and errors (XID) of one GPU in a thread of its own, which delays no other figure."""

from dataclasses import replace
from typing import Final

from gpuagent.gpus.calls import CallThread
from gpuagent.gpus.driver import Driver, Handle, ThreadNotStarted
from gpuagent.gpus.reading import NO_SENSORS, Sensors
from gpuagent.gpus.sensors import SensorReader
from gpuagent.gpus.xids import NewestXids, XidReader
from service.backoff import Backoff

_PART_OF_DEADLINE: Final = 0.25
"""Longest wait for the answers, as a part of the GPU's deadline. The rest is for its memory and processes."""


class HealthReader:
    """Reads the sensors and errors of one GPU. Nothing of that affects the other figures of the GPU.

    Answers that are late are discarded, but errors are kept. While a call is unanswered the sensors are
    unknown, and no sample waits for it. After a late answer the next question waits 1, 2, 4 and at last 60 s.
    They are unknown, too, in a sample in which the thread cannot be started.
    """

    def __init__(
        self, *, driver: Driver, newest_xids: NewestXids, thread: CallThread, deadline: float
    ) -> None:
        """Set the thread of the calls, and the deadline of the GPU in seconds of real time."""
        self._driver = driver
        self._newest_xids = newest_xids
        self._thread = thread
        self._longest_wait = deadline * _PART_OF_DEADLINE
        self._retry = Backoff()
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

        Raises:
            DriverReplaced: only a new process can help.
        """
        self._current = NO_SENSORS
        if self._thread.is_busy or not self._retry.is_due(now):
            return
        sensors, xids = self._sensors, self._xids

        def read() -> Sensors:
            xids.read(device, uuid, now)
            return sensors.read(device, now) if is_open else NO_SENSORS

        try:
            call = self._thread.begin(read)
        except ThreadNotStarted:
            return
        if call.wait(self._longest_wait):
            self._retry.reset()
            self._current = call.result()
        else:
            self._retry.back_off(now)

    def sensors(self, uuid: str) -> Sensors:
        """Return the figures of the last reading, with the newest error of the GPU."""
        xid = self._newest_xids.of(uuid)
        return self._current if xid is None else replace(self._current, xid=xid)
