"""The status of a pod, with the reason why it is not ready in the words of the scheduler or the kubelet."""

from datetime import datetime
from typing import Final

from msgspec import Struct

from service.text import one_line

_LONGEST: Final = 200  # characters


class PodCondition(Struct, frozen=True, rename="camel"):
    """One of `status.conditions` of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Runs(Struct, frozen=True, rename="camel"):
    started_at: datetime | None = None


class _Ended(Struct, frozen=True, rename="camel"):
    reason: str = ""
    exit_code: int | None = None


class _ContainerState(Struct, frozen=True):
    waiting: _Waiting | None = None
    running: _Runs | None = None
    terminated: _Ended | None = None


class ContainerObject(Struct, frozen=True, rename="camel"):
    """The state of a container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    """Whether the startup probe has succeeded; a sidecar ends the wait of the containers after it by that."""
    restart_count: int = 0
    state: _ContainerState = _ContainerState()
    last_state: _ContainerState = _ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    """`status` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: list[PodCondition] | None = None
    init_container_statuses: list[ContainerObject] | None = None
    container_statuses: list[ContainerObject] | None = None

    @property
    def containers(self) -> tuple[ContainerObject, ...]:
        """The init containers, then the containers."""
        return (*(self.init_container_statuses or ()), *(self.container_statuses or ()))

    def condition(self, kind: str) -> PodCondition | None:
        """Return a condition by its type."""
        return next((each for each in self.conditions or () if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

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
        for container in self.containers:
            waiting = container.state.waiting
            if waiting is not None and waiting.reason not in ("", "PodInitializing"):
                return _words(waiting.reason, waiting.message)
        condition = self.condition("PodScheduled")
        if condition is not None and condition.status == "False":
            return _words(condition.reason or "not scheduled", condition.message)
        return "not ready" if self.phase == "Running" else one_line(self.phase or "no status", _LONGEST)


def _words(reason: str, message: str) -> str:
    return one_line(f"{reason}: {message}" if message else reason, _LONGEST)
