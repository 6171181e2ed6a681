"""Runs an evictor on a simulated node with a simulated clock."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuagent.actions.consent import CONSENT_SECONDS
from gpuagent.actions.eviction_rules import Budget, NotEvicted, PastEviction
from gpuagent.actions.evictor import EvictionTiming, Evictor
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.verdict import Verdict
from kube.answers import Unreachable
from kube.eviction import Evicted, EvictionAnswer
from service.log import JsonLog
from tests.support.evaluations import RULES, Node
from tests.support.samples import GIB

YES = Evicted(EvictionAnswer.EVICTED)
OVER = 12 * GIB


class EvictCall(Protocol):
    async def __call__(self, pod: NodePod, *, is_trial: bool) -> Evicted: ...


@dataclass
class Desk:
    """An evictor on a simulated node, and its actions in order."""

    node: Node = field(default_factory=Node)
    budget: Budget = field(default_factory=lambda: Budget(1, 600))
    is_dry_run: bool = False
    fresh: float = 5.0
    now: float = 10.0
    used_bytes: dict[str, int] = field(default_factory=lambda: {"train": OVER})
    fresh_used_bytes: dict[str, int] | None = None
    """Used bytes by pod in a fresh sample; None if unchanged."""
    answers: list[Evicted] = field(default_factory=list)
    """Answers to evictions in order; then success."""
    asking: EvictCall | None = None
    """Replaces `answers`."""
    consents: list[NotEvicted | float] = field(default_factory=list)
    """Answers to reads of consent in order, a number being the seconds that a read takes; then success."""
    past: list[PastEviction] = field(default_factory=list)
    past_errors: list[Exception] = field(default_factory=list)
    """Errors of reading the past evictions, in order; then `past`."""
    record_errors: list[Exception] = field(default_factory=list)
    """Errors of writing a record, in order; then success."""
    record_seconds: float = 0.0
    on_trial: Callable[[], None] = lambda: None
    accepted_edits: list[bool] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    samples: bool = True

    def __post_init__(self) -> None:
        self.stream = io.BytesIO()
        self.evictor = Evictor(
            rules=RULES, budget=self.budget, calls=None if self.is_dry_run else self, sample_now=self.sample_now,
            log=JsonLog(self.stream), clock=lambda: self.now, timing=EvictionTiming(fresh=self.fresh),
        )  # fmt: skip
        self.node.judged(0, self.used_bytes)

    async def ask(self, pod: NodePod, *, is_trial: bool) -> Evicted:
        self.done.append(f"{'try' if is_trial else 'evict'} {pod.name}")
        if self.asking is not None:
            return await self.asking(pod, is_trial=is_trial)
        return self.answers.pop(0) if self.answers else YES

    async def past_evictions(self) -> list[PastEviction]:
        if self.past_errors:
            raise self.past_errors.pop(0)
        return self.past

    async def consent(self, verdict: Verdict, *, accepts_edits: bool) -> float:
        self.done.append(f"read {verdict.pod_share.pod.name}")
        self.accepted_edits.append(accepts_edits)
        answer = self.consents.pop(0) if self.consents else 0.0
        if isinstance(answer, NotEvicted):
            raise answer
        expires_at = self.now + CONSENT_SECONDS
        self.now += answer
        return expires_at

    async def try_eviction(self, pod: NodePod) -> Evicted:
        self.on_trial()
        return await self.ask(pod, is_trial=True)

    async def record(self, pod: NodePod, owner: str, *, within: float) -> None:
        assert within <= 5
        if within <= 0:
            raise Unreachable("expired")
        self.done.append(f"record {pod.name}")
        self.now += self.record_seconds
        if self.record_errors:
            raise self.record_errors.pop(0)

    async def announce(self, verdict: Verdict, evaluation: Evaluation, within: float) -> None:
        self.done.append(f"tell {verdict.pod_share.pod.name}")

    async def evict(self, pod: NodePod, *, within: float) -> Evicted:
        assert 0 < within <= 5
        return await self.ask(pod, is_trial=False)

    def sample_now(self) -> None:
        self.done.append("sample")
        if self.samples:
            used_bytes = self.used_bytes if self.fresh_used_bytes is None else self.fresh_used_bytes
            asyncio.get_running_loop().call_soon(self.sample, used_bytes)

    def sample(self, used_bytes: dict[str, int] | None = None) -> None:
        self.evictor.handle(self.node.judged(self.now, self.used_bytes if used_bytes is None else used_bytes))

    async def step(self, seconds: float = 5.0) -> None:
        """Advance the clock, take a sample, and wait until all actions are done."""
        self.now += seconds
        before = -1
        self.sample()
        while before != len(self.done):
            before = len(self.done)
            for _ in range(20):
                await asyncio.sleep(0)

    @property
    def results(self) -> dict[str, int]:
        return dict(self.evictor.results)

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@contextlib.asynccontextmanager
async def desk(**fields: Any) -> AsyncIterator[Desk]:
    made = Desk(**fields)
    task = asyncio.create_task(made.evictor.run())
    await asyncio.sleep(0)
    try:
        yield made
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
