"""The readiness of a pod by its status, with the reason in the words of the scheduler or the kubelet."""

from typing import Final

from msgspec import Struct

from service.text import one_line

_LONGEST: Final = 200  # characters


class _Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _ContainerState(Struct, frozen=True):
    waiting: _Waiting | None = None


class _ContainerStatus(Struct, rename="camel", frozen=True):
    restart_count: int = 0
    state: _ContainerState = _ContainerState()


class _Condition(Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodReadiness(Struct, rename="camel", frozen=True):
    """`status` of a pod, as far as it says whether the pod is ready."""

    phase: str = ""
    conditions: list[_Condition] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    container_statuses: list[_ContainerStatus] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        return any(
            condition.type == "Ready" and condition.status == "True" for condition in self.conditions or ()
        )

    @property
    def restarts(self) -> int:
        """The restarts of all containers."""
        return sum(container.restart_count for container in self.container_statuses or ())

    @property
    def trouble(self) -> str:
        """The most specific reason why the pod is not ready, in one line; empty for a ready pod.

        A waiting container's reason comes with the kubelet's message, a pod without a node with the
        scheduler's.
        """
        if self.is_ready:
            return ""
        for container in (*(self.init_container_statuses or ()), *(self.container_statuses or ())):
            waiting = container.state.waiting
            if waiting is not None and waiting.reason not in ("", "PodInitializing"):
                return _words(waiting.reason, waiting.message)
        for condition in self.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return _words(condition.reason or "not scheduled", condition.message)
        return "not ready" if self.phase == "Running" else one_line(self.phase or "no status", _LONGEST)


def _words(reason: str, message: str) -> str:
    return one_line(f"{reason}: {message}" if message else reason, _LONGEST)
