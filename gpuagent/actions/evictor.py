"""Evicts one pod at a time: never without a fresh sample, and never beyond the budget."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gpuagent.actions.eviction_rules import EvictionRules, candidates, explained, is_settled, owner_of, still
from gpuagent.actions.eviction_settings import Budget
from gpuagent.actions.log import named
from gpuagent.pods.inventory import NodePod
from gpuagent.status import Evaluation
from gpuagent.verdicts.grounds import Key
from gpuagent.verdicts.judge import Verdict
from kube.eviction import Evicted, EvictionAnswer
from service.backoff import KeyedBackoff, TokenBucket
from service.log import INFO, WARNING, JsonLog

_MESSAGES: Final = {
    "evicted": ("pod evicted", WARNING),
    "dry-run": ("pod would be evicted", WARNING),
    "recovered": ("pod not evicted: within its share again", INFO),
}


class EvictCall(Protocol):
    """Sends an eviction to the API server."""

    async def __call__(self, pod: NodePod, *, is_trial: bool) -> Evicted:
        """Evict a pod, or only test whether the API server would allow it. Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionTiming:
    """Timing of evictions, in seconds."""

    fresh: float = 30.0
    """Maximum wait for a fresh sample."""
    first_retry: float = 30.0
    longest_retry: float = 600.0
    """Maximum back-off of one pod after a failed eviction."""
    first_owner: float = 600.0
    longest_owner: float = 21600.0
    """Maximum back-off of all pods of one owner after an eviction, since the owner recreates the pod at
    once."""
    leaving: float = 600.0
    """Time after an eviction until a pod that still runs is logged."""


class Evictor:
    """Checks the newest verdicts against the rules, and evicts the pods that the rules allow."""

    def __init__(  # noqa: PLR0913 - two of them are a clock and a pace
        self,
        *,
        rules: EvictionRules,
        budget: Budget,
        evict_pod: EvictCall | None,
        announce: Callable[[Verdict, Evaluation], Awaitable[None]],
        sample_now: Callable[[], None],
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
        timing: EvictionTiming | None = None,
    ) -> None:
        """Set up evictions; call `run` to start them.

        Args:
            rules: which pods must not be evicted.
            budget: maximum number of evictions of this node.
            evict_pod: sends an eviction to the API server; None for a dry run.
            announce: writes the Event of an eviction before it happens.
            sample_now: requests a sample that begins after the call.
            log: receives the reason of every decision.
            clock: seconds, the same clock as that of the samples.
            timing: None for the defaults.
        """
        self.results: Counter[str] = Counter()
        """Number of decisions by result."""
        self._rules = rules
        self._evict_pod = evict_pod
        self._announce = announce
        self._sample_now = sample_now
        self._log = log
        self._clock = clock
        self._timing = timing = timing or EvictionTiming()
        self._bucket = TokenBucket(per_second=budget.per_second, burst=budget.evictions, clock=clock)
        self._owners = KeyedBackoff(first=timing.first_owner, most=timing.longest_owner)
        self._retries = KeyedBackoff(first=timing.first_retry, most=timing.longest_retry)
        self._done: dict[Key, float] = {}
        """Time of the last action by flag, for flags that still stand and need no further action."""
        self._logged: dict[Key, str] = {}
        """Last logged result by flag, for flags that still stand; avoids repeated lines."""
        self._evaluation: Evaluation | None = None
        self._news = asyncio.Event()

    def handle(self, evaluation: Evaluation) -> None:
        """Receive the newest verdicts. Never blocks."""
        self._evaluation = evaluation
        self._news.set()

    async def run(self) -> None:
        """Evict until cancelled, at most one pod per sample."""
        while True:
            evaluation = await self._next()
            pods_to_evict = candidates(evaluation)
            self._done = {key: since for key, since in self._done.items() if not is_settled(key, evaluation)}
            self._logged = {
                key: result for key, result in self._logged.items() if not is_settled(key, evaluation)
            }
            verdict = next((verdict for verdict in pods_to_evict if self._may_go(verdict, evaluation)), None)
            if verdict is not None:
                await self._go(verdict)

    async def _next(self) -> Evaluation:
        while True:
            self._news.clear()
            await self._news.wait()
            if self._evaluation is not None:
                return self._evaluation

    def _may_go(self, verdict: Verdict, evaluation: Evaluation) -> bool:
        """Whether eviction is allowed now; logs the reason once if not."""
        now, uid = self._clock(), verdict.key.uid
        if self._is_done(verdict, now) or self._retries.is_backing_off(uid, now):
            return False
        refusal = self._rules.refusal(verdict, evaluation)
        if refusal is not None:
            self._log_once(verdict, refusal, explained(refusal))
            return False
        if self._owners.is_backing_off(owner_of(verdict.pod_share), now):
            line = "the eviction of a pod of the same owner was requested recently"
            self._log_once(verdict, "owner-backoff", line)
            return False
        if self._bucket.seconds_until_next() > 0:
            self._log_once(verdict, "budget", "the node's eviction budget is exhausted")
            return False
        return True

    def _is_done(self, verdict: Verdict, now: float) -> bool:
        """Whether the pod needs no further action and no further log line.

        A pod's owner chooses its termination grace period, so an evicted pod that stays too long is logged.
        """
        since = [since for key, since in self._done.items() if key.uid == verdict.key.uid]
        if not since:
            return False
        return not verdict.pod_share.pod.is_terminating or now - min(since) < self._timing.leaving

    async def _go(self, verdict: Verdict) -> None:
        """Take a fresh sample, test the eviction, write the Event, and evict."""
        key, pod = verdict.key, verdict.pod_share.pod
        fresh = await self._fresh_evaluation()
        if fresh is None:
            self._put_off(verdict, "no-fresh-sample", "no fresh sample within the timeout")
            return
        now = still(key, fresh)
        if now is None:
            self._put_off(verdict, "recovered", "")
            return
        if not self._may_go(now, fresh):
            return
        if self._evict_pod is None:
            self._evicted(now, "dry-run")
            return
        trial = await self._evict_pod(pod, is_trial=True)
        if trial.answer is not EvictionAnswer.EVICTED:
            self._refused(now, trial)
            return
        await self._announce(now, fresh)
        done = await self._evict_pod(pod, is_trial=False)
        if done.answer is EvictionAnswer.EVICTED:
            self._evicted(now, "evicted")
            return
        if done.answer is EvictionAnswer.FAILED:
            # Without the API server's answer the pod may be evicted all the same.
            self._charge(now)
        self._refused(now, done)

    async def _fresh_evaluation(self) -> Evaluation | None:
        """Return the evaluation of a sample that begins now; None after a timeout."""
        requested_at = self._clock()
        self._sample_now()
        try:
            async with asyncio.timeout(self._timing.fresh):
                while True:
                    evaluation = await self._next()
                    if evaluation.snapshot.taken_at >= requested_at:
                        return evaluation
        except TimeoutError:
            return None

    def _charge(self, verdict: Verdict) -> None:
        """Count an eviction against the node's budget, and start the back-off of the pod's owner."""
        self._bucket.take()
        self._owners.fail(owner_of(verdict.pod_share), self._clock())

    def _evicted(self, verdict: Verdict, result: str) -> None:
        self._charge(verdict)
        self._done[verdict.key] = self._clock()
        self._log_decision(verdict, result, "")

    def _refused(self, verdict: Verdict, response: Evicted) -> None:
        if response.answer is EvictionAnswer.GONE:
            self._done[verdict.key] = self._clock()
        self._put_off(verdict, response.answer, response.line, response.retry_after)

    def _put_off(self, verdict: Verdict, result: str, line: str, at_least: float = 0.0) -> None:
        self._retries.fail(verdict.key.uid, self._clock(), at_least)
        self._log_decision(verdict, result, line)

    def _log_once(self, verdict: Verdict, result: str, line: str) -> None:
        if self._logged.get(verdict.key) != result:
            self._logged[verdict.key] = result
            self._log_decision(verdict, result, line)

    def _log_decision(self, verdict: Verdict, result: str, line: str) -> None:
        self.results[result] += 1
        message, level = _MESSAGES.get(result, ("pod not evicted", WARNING))
        self._log(
            message,
            level,
            result=result,
            **named(verdict.pod_share),
            gpu=verdict.key.gpu_uuid,
            usedBytes=verdict.used_bytes,
            allowedBytes=verdict.allowed_bytes,
            **({"why": line} if line else {}),
        )
