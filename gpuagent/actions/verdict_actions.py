"""Consequences of verdicts beyond metrics, if pods come from the API server: Events and evictions."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuagent.actions.eviction_rules import Budget, EvictionMode, EvictionRules
from gpuagent.actions.evictor import ClusterCalls, EvictionTiming, Evictor
from gpuagent.actions.flag_events import COMPONENT, FlagEvents
from gpuagent.evaluation.status import Evaluation
from gpuagent.verdicts.verdict import Verdict
from kube.client import KubeClient
from kube.events import EventWriter
from service.log import JsonLog, problem_logger
from service.tasks import restart_on_error

_TO_WRITE_SECONDS: Final = 5.0
_TO_MIRROR_SECONDS: Final = 1.0
"""A vCluster copies an Event within 20 ms (seen on v0.36.1), but not after its own pod is gone."""
_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSettings:
    """Which consequences a verdict may have."""

    events: bool
    eviction: EvictionMode
    budget: Budget
    rules: EvictionRules
    is_simulated: bool = False
    """Whether the figures are synthetic; every Event then says so."""


class VerdictActions:
    """Writes Events and evicts pods. A failure of either affects no metric and no verdict."""

    def __init__(
        self,
        client: KubeClient,
        settings: ActionSettings,
        *,
        node: str,
        sample_now: Callable[[], None],
        stale_after: float,
        log: JsonLog,
    ) -> None:
        """Set up Events and evictions; call `run` to start them.

        Args:
            client: connection to the API server.
            settings: which consequences are allowed.
            node: name of this node.
            sample_now: requests a sample that begins after the call.
            stale_after: age in seconds from which a sample is stale, and evicts no pod.
            log: receives failures.
        """
        self.events: Counter[tuple[str, str]] = Counter()
        """Number of Events by reason and result."""
        self._log = log
        self._writer: EventWriter | None = None
        self._flags: FlagEvents | None = None
        if settings.events:
            self._writer = EventWriter(
                client,
                component=COMPONENT,
                host=node,
                on_result=lambda reason, result: self.events.update([(reason, result)]),
                on_trouble=problem_logger(log, "Event writes failing", "Event writes recovered"),
            )
            self._flags = FlagEvents(self._writer, clock=time.monotonic, is_simulated=settings.is_simulated)
        self._evictor: Evictor | None = None
        if settings.eviction is not EvictionMode.OFF:
            calls = ClusterCalls(
                client, node=node, rules=settings.rules, clock=time.monotonic, announce=self._announce
            )
            timing = EvictionTiming()
            self._evictor = Evictor(
                rules=settings.rules,
                budget=settings.budget,
                calls=calls if settings.eviction is EvictionMode.ON else None,
                sample_now=sample_now,
                log=log,
                timing=replace(timing, oldest=min(timing.oldest, stale_after)),
            )

    @property
    def evictions(self) -> Mapping[str, int]:
        """Number of eviction decisions by result."""
        return self._evictor.results if self._evictor else _NOTHING

    def handle(self, evaluation: Evaluation) -> None:
        """Receive the newest verdicts. Never blocks."""
        if self._flags is not None:
            self._flags.handle(evaluation.sampled, evaluation.changes)
        if self._evictor is not None:
            self._evictor.handle(evaluation)

    async def run(self) -> None:
        """Write Events and evict pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._writer is not None:
                group.create_task(restart_on_error(self._writer.run, on_error=self._failed("Event writer")))
            if self._evictor is not None:
                group.create_task(restart_on_error(self._evictor.run, on_error=self._failed("evictor")))

    async def _announce(self, verdict: Verdict, evaluation: Evaluation) -> None:
        """Write the Event of an eviction before the pod goes, and wait for the API server up to a timeout."""
        if self._flags is None or self._writer is None:
            return
        totals = {account.gpu.uuid: account.gpu.total_bytes for account in evaluation.sampled.gpus}
        lasted = verdict.lasted(evaluation.sampled.taken_at)
        self._flags.emit_eviction(verdict, lasted, totals.get(verdict.key.gpu_uuid))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TO_WRITE_SECONDS):
                await self._writer.settled()
        if verdict.pod_share.tenant is not None:
            await asyncio.sleep(_TO_MIRROR_SECONDS)

    def _failed(self, task: str) -> Callable[[Exception], None]:
        """Return an error handler; an unexpected error must not stop the agent."""
        return lambda error: self._log.failure(f"{task} failed, restarting", error)
