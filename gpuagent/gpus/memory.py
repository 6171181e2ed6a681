"""Reads the memory of one device, or the reason why it is unknown."""

from dataclasses import dataclass

from gpuagent.gpus.driver import (
    MEMORY_INFO,
    MOST_DEVICE_BYTES,
    REFUSALS,
    CallFailed,
    Driver,
    FigureFailed,
    Handle,
)
from service.backoff import Backoff


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory of one device, in bytes."""

    total: int
    used: int
    """total − free − reserved."""
    reserved: int | None


class MemoryReader:
    """Reads the memory of one GPU or MIG device.

    NVML refuses it permanently in two cases. A GPU in MIG mode reports it only to containers with the MIG
    monitor capability (NoPermission). GPUs with unified memory, such as GB10, do not have the call
    (NotSupported). A refused call is repeated after 1 to 10 minutes, a failed one at every sample.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._retry = Backoff(first=60, most=600)
        self.failure: CallFailed | None = None
        """Why the memory is unknown; None while it is known."""

    @property
    def is_refused(self) -> bool:
        """Whether the driver refuses the figures, as opposed to a failed call."""
        return isinstance(self.failure, REFUSALS)

    def read(self, device: Handle, now: float) -> MemoryFigures | None:
        """Return the figures; None if the driver does not report them, with the reason in `failure`.

        Args:
            device: a GPU or MIG device.
            now: monotonic seconds.

        Raises:
            GpuLost, DriverGone, DriverReplaced: more than the memory is unknown.
        """
        if not self._retry.is_due(now):
            return None
        try:
            figures = self._ask(device)
        except FigureFailed as failed:
            self.failure = failed.with_traceback(None)
            if self.is_refused:
                self._retry.back_off(now)
            return None
        self._retry.reset()
        self.failure = None
        return figures

    def _ask(self, device: Handle) -> MemoryFigures:
        memory = self._driver.memory(device)
        used = memory.total - memory.free - (memory.reserved or 0)
        if not 0 < memory.total <= MOST_DEVICE_BYTES or used < 0:
            self._driver.errors.add(MEMORY_INFO, "Garbage")
            raise FigureFailed(MEMORY_INFO, "Garbage")
        return MemoryFigures(memory.total, used, memory.reserved)
