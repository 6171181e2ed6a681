"""Consequences of verdicts beyond metrics, if pods come from the API server: Events and evictions."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gpuagent.actions.eviction_rules import EvictionMode, EvictionRules
from gpuagent.actions.evictor import ClusterCalls, EvictionTiming, Evictor
from gpuagent.actions.flag_events import COMPONENT, FlagEvents
from gpuagent.evaluation.status import Evaluation
from gpuagent.sampling.sampler import longest_gap
from gpuagent.serve_options import Settings
from gpuagent.verdicts.verdict import Verdict
from kube.client import KubeClient
from kube.events import EventWriter
from service.log import JsonLog, problem_logger
from service.tasks import restart_on_error

_TO_MIRROR_SECONDS: Final = 1.0
"""A vCluster copies an Event within 20 ms (seen on v0.36.1), but not after its own pod is gone."""


class VerdictActions:
    """Writes Events and evicts pods. A failure of either affects no metric and no verdict."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        *,
        rules: EvictionRules,
        sample_now: Callable[[], None],
        log: JsonLog,
    ) -> None:
        """Set up Events and evictions; call `run` to start them.

        `sample_now` requests a sample that begins after the call. A stale sample evicts no pod.
        """
        self.events: Counter[tuple[str, str]] = Counter()
        """Number of Events by reason and result."""
        self.evictions: Mapping[str, int] = {}
        """Number of eviction decisions by result."""
        self._log, node = log, settings.node.node
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
            self._flags = FlagEvents(
                self._writer, clock=time.monotonic, is_simulated=settings.node.is_simulated
            )
        self._evictor: Evictor | None = None
        if settings.eviction is not EvictionMode.OFF:
            calls = ClusterCalls(
                client, node=node, rules=rules, clock=time.monotonic, announce=self._announce
            )
            timing = EvictionTiming()
            self._evictor = Evictor(
                rules=rules,
                budget=settings.eviction_budget,
                calls=calls if settings.eviction is EvictionMode.ON else None,
                sample_now=sample_now,
                log=log,
                timing=replace(timing, oldest=min(timing.oldest, longest_gap(settings.interval))),
            )
            self.evictions = self._evictor.results

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

    async def _announce(self, verdict: Verdict, evaluation: Evaluation, within: float) -> None:
        """Write the Event of an eviction before the pod goes, and wait for it at most `within` seconds."""
        if self._flags is None or self._writer is None:
            return
        totals = {account.gpu.uuid: account.gpu.total_bytes for account in evaluation.sampled.gpus}
        lasted = verdict.lasted(evaluation.sampled.taken_at)
        self._flags.emit_eviction(verdict, lasted, totals.get(verdict.key.gpu_uuid))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(within, 0.0)):
                await self._writer.settled()
                if verdict.pod_share.tenant is not None:
                    await asyncio.sleep(_TO_MIRROR_SECONDS)

    def _failed(self, task: str) -> Callable[[Exception], None]:
        """Return an error handler; an unexpected error must not stop the agent."""
        return lambda error: self._log.failure(f"{task} failed, restarting", error)
