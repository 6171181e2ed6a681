"""Reads the errors (XID) that the driver reports for one GPU, and keeps the newest one."""

import time
from typing import Final

from gpuagent.gpus.driver import CallFailed, Driver, Handle
from gpuagent.gpus.reading import Xid
from service.backoff import Backoff

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

        Raises:
            DriverReplaced: only a new process can help.
        """
        if self._retry.is_due(now):
            try:
                codes = self._driver.xids(device, _MOST_OF_A_SAMPLE)
            except CallFailed:  # if the driver is lost, the next memory call shows it
                self._retry.back_off(now)
            else:
                self._retry.reset()
                plausible = [code for code in codes if 0 < code <= MOST_CODE]
                for code in plausible:
                    self._newest.add(uuid, code)
