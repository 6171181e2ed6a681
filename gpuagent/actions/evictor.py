"""Evicts one pod at a time, never without a fresh look, and never more than the budget allows."""

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


class Asking(Protocol):
    """How the API server is asked."""

    async def __call__(self, pod: NodePod, *, is_trial: bool) -> Evicted:
        """Ask for an eviction, or only what the answer would be; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPace:
    """Seconds."""

    fresh: float = 30.0
    """How long a fresh sample may take."""
    first_retry: float = 30.0
    longest_retry: float = 600.0
    """After a refusal of the API server, for that pod."""
    first_owner: float = 600.0
    longest_owner: float = 21600.0
    """After an eviction, for all pods of the same owner: it makes the next one at once."""
    leaving: float = 600.0
    """How long a pod may take to leave after its eviction before the delay is told."""


class Evictor:
    """Holds the newest verdicts against the rules, and carries out what they allow."""

    def __init__(  # noqa: PLR0913 - two of them are a clock and a pace
        self,
        *,
        rules: EvictionRules,
        budget: Budget,
        ask: Asking | None,
        announce: Callable[[Verdict, Evaluation], Awaitable[None]],
        sample_now: Callable[[], None],
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
        timing: EvictionPace | None = None,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            rules: what must not be evicted.
            budget: of this node.
            ask: asks the API server; None for a dry run.
            announce: tells the pod's owner, before anything happens.
            sample_now: takes a sample that begins after the call.
            log: where every decision is explained.
            clock: the samples' own, seconds.
            timing: other than usual.
        """
        self.results: Counter[str] = Counter()
        """Decisions by result."""
        self._rules = rules
        self._ask = ask
        self._announce = announce
        self._sample_now = sample_now
        self._log = log
        self._clock = clock
        self._timing = timing = timing or EvictionPace()
        self._bucket = TokenBucket(per_second=budget.per_second, burst=budget.evictions, clock=clock)
        self._owners = KeyedBackoff(first=timing.first_owner, most=timing.longest_owner)
        self._retries = KeyedBackoff(first=timing.first_retry, most=timing.longest_retry)
        self._done: dict[Key, float] = {}
        """Flags that stand, and about whose pods there is nothing more to do; since when, on the clock."""
        self._said: dict[Key, str] = {}
        """The result that was said last of a flag that stands, where it may stay the same for long."""
        self._judged: Evaluation | None = None
        self._news = asyncio.Event()

    def take(self, judged: Evaluation) -> None:
        """Take the newest verdicts. Never waits."""
        self._judged = judged
        self._news.set()

    async def run(self) -> None:
        """Evict until cancelled, at most one pod a sample."""
        while True:
            judged = await self._next()
            found = candidates(judged)
            self._done = {key: since for key, since in self._done.items() if not is_settled(key, judged)}
            self._said = {key: said for key, said in self._said.items() if not is_settled(key, judged)}
            verdict = next((each for each in found if self._may_go(each, judged)), None)
            if verdict is not None:
                await self._go(verdict)

    async def _next(self) -> Evaluation:
        while True:
            self._news.clear()
            await self._news.wait()
            if self._judged is not None:
                return self._judged

    def _may_go(self, verdict: Verdict, judged: Evaluation) -> bool:
        """Whether nothing speaks against it now; says what does, once."""
        now, uid = self._clock(), verdict.key.uid
        if self._is_done(verdict, now) or self._retries.is_backing_off(uid, now):
            return False
        refusal = self._rules.refusal(verdict, judged)
        if refusal is not None:
            self._say_once(verdict, refusal, explained(refusal))
            return False
        if self._owners.is_backing_off(owner_of(verdict.pod_share), now):
            self._say_once(verdict, "owner-backoff", "a pod of the same owner was evicted recently")
            return False
        if self._bucket.seconds_until_next() > 0:
            self._say_once(verdict, "budget", "the node's eviction budget is exhausted")
            return False
        return True

    def _is_done(self, verdict: Verdict, now: float) -> bool:
        """Whether there is nothing more to do or to tell about a pod.

        A pod's owner chooses how long it takes to leave: a pod that is evicted and stays is told of.
        """
        since = [since for key, since in self._done.items() if key.uid == verdict.key.uid]
        if not since:
            return False
        return not verdict.pod_share.pod.is_terminating or now - min(since) < self._timing.leaving

    async def _go(self, verdict: Verdict) -> None:
        """Look again, ask, tell, evict."""
        key, pod = verdict.key, verdict.pod_share.pod
        fresh = await self._look_again()
        if fresh is None:
            self._put_off(verdict, "no-fresh-sample", "no fresh sample within the timeout")
            return
        now = still(key, fresh)
        if now is None:
            self._put_off(verdict, "recovered", "")
            return
        if not self._may_go(now, fresh):
            return
        if self._ask is None:
            self._evicted(now, "dry-run")
            return
        trial = await self._ask(pod, is_trial=True)
        if trial.answer is not EvictionAnswer.EVICTED:
            self._refused(now, trial)
            return
        await self._announce(now, fresh)
        done = await self._ask(pod, is_trial=False)
        if done.answer is EvictionAnswer.EVICTED:
            self._evicted(now, "evicted")
        else:
            self._refused(now, done)

    async def _look_again(self) -> Evaluation | None:
        """Return what a sample says that begins now; None if none comes in time."""
        asked = self._clock()
        self._sample_now()
        try:
            async with asyncio.timeout(self._timing.fresh):
                while True:
                    judged = await self._next()
                    if judged.snapshot.taken_at >= asked:
                        return judged
        except TimeoutError:
            return None

    def _evicted(self, verdict: Verdict, result: str) -> None:
        self._bucket.take()
        self._owners.fail(owner_of(verdict.pod_share), self._clock())
        self._done[verdict.key] = self._clock()
        self._say(verdict, result, "")

    def _refused(self, verdict: Verdict, said: Evicted) -> None:
        if said.answer is EvictionAnswer.GONE:
            self._done[verdict.key] = self._clock()
        self._put_off(verdict, said.answer, said.line, said.retry_after)

    def _put_off(self, verdict: Verdict, result: str, line: str, at_least: float = 0.0) -> None:
        self._retries.fail(verdict.key.uid, self._clock(), at_least)
        self._say(verdict, result, line)

    def _say_once(self, verdict: Verdict, result: str, line: str) -> None:
        if self._said.get(verdict.key) != result:
            self._said[verdict.key] = result
            self._say(verdict, result, line)

    def _say(self, verdict: Verdict, result: str, line: str) -> None:
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
