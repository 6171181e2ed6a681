"""Sets of NVML events, one for each GPU, in which the driver queues the GPU's errors (XID)."""

from collections.abc import Callable
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from gpuagent.gpus.driver import CallFailed

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
