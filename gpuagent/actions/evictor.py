"""Evicts one pod at a time: never without a fresh sample and fresh consent, and never beyond the budget.

A record is an Event in the agent's own namespace, about the agent's node. The Events on the evicted pods do
not serve as a memory. The role `edit` may create and delete Events in its namespaces, so a tenant could
protect pods by invented Events, or raise the budget by deleting real ones. In the agent's namespace only its
administrators may write Events.
"""

import asyncio
import math
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Final

from gpuagent.actions.consent import read_consent
from gpuagent.actions.eviction_rules import (
    NO_FRESH_SAMPLE,
    Budget,
    EvictionBudget,
    EvictionRefusal,
    EvictionRules,
    NotEvicted,
    PastEviction,
    candidates,
    is_settled,
    owner_key,
    still,
)
from gpuagent.actions.flag_events import COMPONENT
from gpuagent.evaluation.status import Evaluation
from gpuagent.evaluation.transition_log import figures, named
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.messages import EVICTED
from gpuagent.verdicts.verdict import Key, Verdict
from kai.kaishare_keys import EVICTED_OWNER
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.events import Event, ObjectReference, create_event, event_name, list_events
from kube.eviction import Evicted, EvictionAnswer, evict
from service.backoff import KeyedBackoff
from service.log import INFO, WARNING, JsonLog

Announce = Callable[[Verdict, Evaluation, float], Awaitable[None]]
"""Writes the Event of an eviction, and waits for it at most so many seconds."""

_EVICT_SECONDS: Final = 1.0
"""Seconds of the consent that remain for the request of the eviction."""
_AGE_ERROR: Final = 3.0
"""Maximum error of an Event's age, in seconds. A record counts as younger by this much."""


@dataclass(eq=False)
class ClusterCalls:
    """Requests of a node's agent with its own credentials."""

    client: KubeClient
    _: KW_ONLY
    node: str
    rules: EvictionRules
    """A fetched pod must pass them again."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    announce: Announce
    wall_clock: Callable[[], float] = time.time
    """Unix time, for the records."""

    async def consent(self, verdict: Verdict, *, accepts_edits: bool) -> float:
        """Read again whether the pod may be evicted; raises as `read_consent`."""
        rules, clock = self.rules, self.clock
        return await read_consent(self.client, verdict, rules=rules, clock=clock, accepts_edits=accepts_edits)

    async def past_evictions(self) -> list[PastEviction]:
        """Return the recorded evictions of this node, oldest first.

        Raises:
            ApiError, Unreachable, AccessError: the records cannot be read.
        """
        events = await list_events(
            self.client, self.client.namespace, reason=EVICTED, component=COMPONENT, about_uid=self.node
        )
        return [
            PastEviction(
                seconds_ago=max(seconds_old - _AGE_ERROR, 0.0), owner=annotations.get(EVICTED_OWNER, "")
            )
            for seconds_old, annotations in events
        ]

    async def try_eviction(self, pod: NodePod) -> Evicted:
        """Test whether the API server would allow the eviction. Never raises."""
        return await evict(self.client, namespace=pod.namespace, name=pod.name, uid=pod.uid, is_trial=True)

    async def record(self, pod: NodePod, owner: str, *, within: float) -> None:
        """Record that a pod is about to be evicted; the request ends after `within` seconds.

        Raises:
            ApiError, Unreachable, AccessError: the record may not be stored.
        """
        if within <= 0:
            raise Unreachable("the consent expired before the eviction was recorded")
        namespace, now = self.client.namespace, self.wall_clock()
        event = Event(
            name=event_name(self.node, pod.uid, uuid.uuid4().hex),
            namespace=namespace,
            # As in the kubelet's Events about its node, the UID is the node's name; `kubectl describe node`
            # finds the Event by it.
            about=ObjectReference(
                api_version="v1", kind="Node", namespace=namespace, name=self.node, uid=self.node
            ),
            related=ObjectReference(
                api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid
            ),
            reason=EVICTED,
            message=f"pod {pod.namespace}/{pod.name} is evicted by its namespace's over-share policy",
            annotations={EVICTED_OWNER: owner},
            first_at=now,
            last_at=now,
        )
        await create_event(self.client, event, component=COMPONENT, host=self.node, seconds=within)

    async def evict(self, pod: NodePod, *, within: float) -> Evicted:
        """Evict the pod; nothing is sent after `within` seconds. Never raises."""
        return await evict(self.client, namespace=pod.namespace, name=pod.name, uid=pod.uid, within=within)


_MESSAGES: Final = {
    "evicted": ("pod evicted", WARNING),
    "dry-run": ("pod would be evicted", WARNING),
    "recovered": ("pod not evicted: within its share again", INFO),
}


_MOST_EDITS: Final = 3
"""Number of evictions that edits of a pod can delay. Its owner could otherwise prevent all by editing it in
a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionTiming:
    """Timing of evictions, in seconds."""

    fresh: float = 30.0
    """Maximum wait for a fresh sample."""
    oldest: float = 30.0
    """Maximum age of the newest sample when an eviction is requested."""
    first_retry: float = 30.0
    longest_retry: float = 600.0
    """Maximum back-off of one pod after a failed eviction."""
    first_owner: float = 600.0
    longest_owner: float = 21600.0
    """Maximum back-off of all pods of one owner after an eviction, since the owner recreates the pod at
    once."""
    leaving: float = 600.0
    """Time after an eviction until a pod that still runs is logged."""
    recall: float = 60.0
    """Time of attempts to read the recorded evictions, after which they count as unavailable."""


@dataclass(kw_only=True, eq=False)
class Evictor:
    """Checks the newest verdicts against the rules, and evicts the pods that the rules allow.

    The log receives the reason of every decision. Call `run` to start.
    """

    rules: EvictionRules
    budget: InitVar[Budget]
    calls: ClusterCalls | None
    """None for a dry run."""
    sample_now: Callable[[], None]
    """Requests a sample that begins after the call."""
    log: JsonLog
    clock: Callable[[], float] = time.monotonic
    """The clock of the samples."""
    timing: EvictionTiming = EvictionTiming()

    def __post_init__(self, budget: Budget) -> None:
        """Begin without a decision."""
        timing = self.timing
        self.results: Counter[str] = Counter()
        """Number of decisions by result."""
        owner_backoff = (timing.first_owner, timing.longest_owner)
        self._budget = EvictionBudget(budget, owner_backoff=owner_backoff, clock=self.clock)
        self._retries = KeyedBackoff(first=timing.first_retry, most=timing.longest_retry)
        self._done: dict[Key, float] = {}
        """Time of the last action by flag, for flags that still stand and need no further action."""
        self._logged: dict[Key, str] = {}
        """Last logged result by flag, for flags that still stand; avoids repeated lines."""
        self._edits: Counter[str] = Counter()
        """Number of evictions that an edit of the pod delayed, by UID."""
        self._last_tries: dict[str, tuple[str, float]] = {}
        """Namespace and time of the last attempt to evict a pod, by UID, while the pod is listed."""
        self._must_recall = self.calls is not None
        self._evaluation: Evaluation | None = None
        self._news = asyncio.Event()

    def handle(self, evaluation: Evaluation) -> None:
        """Receive the newest verdicts. Never blocks."""
        self._evaluation = evaluation
        self._news.set()

    async def run(self) -> None:
        """Evict until cancelled, at most one pod per sample."""
        if self.calls is not None and self._must_recall:
            await self._budget.recall(self.calls.past_evictions, seconds=self.timing.recall, log=self.log)
            self._must_recall = False
        while True:
            evaluation = await self._next(-math.inf)
            self._done = {key: since for key, since in self._done.items() if not is_settled(key, evaluation)}
            self._logged = {
                key: result for key, result in self._logged.items() if not is_settled(key, evaluation)
            }
            listed = evaluation.sampled.pod_uids
            self._edits = Counter({uid: count for uid, count in self._edits.items() if uid in listed})
            self._last_tries = {uid: tried for uid, tried in self._last_tries.items() if uid in listed}
            pods_to_evict = self._in_turn(candidates(evaluation))
            verdict = next((verdict for verdict in pods_to_evict if self._may_go(verdict, evaluation)), None)
            if verdict is not None:
                self._last_tries[verdict.key.uid] = (verdict.pod_share.pod.namespace, self.clock())
                self._newest = verdict
                try:
                    await self._evict(verdict)
                except NotEvicted as reason:
                    self._put_off(self._newest, reason)

    def _in_turn(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Return the pods in the order of their turns; pods whose turns are equal keep their order.

        The namespace whose last failed attempt is the longest ago comes first, and within a namespace the
        pod. A tenant's pods behind a PodDisruptionBudget thus delay an eviction in another namespace by one
        attempt each time.
        """
        namespaces: dict[str, float] = {}
        for namespace, tried_at in self._last_tries.values():
            namespaces[namespace] = max(tried_at, namespaces.get(namespace, tried_at))

        def turn(verdict: Verdict) -> tuple[float, float]:
            _, tried_at = self._last_tries.get(verdict.key.uid, ("", -math.inf))
            return namespaces.get(verdict.pod_share.pod.namespace, -math.inf), tried_at

        return sorted(verdicts, key=turn)

    async def _next(self, since: float) -> Evaluation:
        """Return the next evaluation of a sample that began at a time or later."""
        while True:
            self._news.clear()
            await self._news.wait()
            if self._evaluation is not None and self._evaluation.sampled.taken_at >= since:
                return self._evaluation

    def _may_go(self, verdict: Verdict, evaluation: Evaluation) -> bool:
        """Whether eviction is allowed now; logs the reason once if not."""
        now, uid = self.clock(), verdict.key.uid
        if self._is_done(verdict, now) or self._retries.is_backing_off(uid, now):
            return False
        refusal = self.rules.refusal(verdict, evaluation)
        if refusal is not None:
            reason: NotEvicted | None = NotEvicted.by(refusal)
        else:
            reason = self._budget.objection(owner_key(verdict.pod_share))
        if reason is not None and self._logged.get(verdict.key) != reason.result:
            self._logged[verdict.key] = reason.result
            self._log_decision(verdict, reason.result, reason.line)
        return reason is None

    def _is_done(self, verdict: Verdict, now: float) -> bool:
        """Whether the pod needs no further action and no further log line.

        A pod's owner chooses its termination grace period, so an evicted pod that stays too long is logged.
        """
        since = [since for key, since in self._done.items() if key.uid == verdict.key.uid]
        if not since:
            return False
        return not verdict.pod_share.pod.is_terminating or now - min(since) < self.timing.leaving

    async def _evict(self, verdict: Verdict) -> None:
        """Evict a pod if a fresh sample shows it above its share, and a dry run and fresh consent allow it.

        All that follows the consent ends before it expires. An API server that is too slow for that prevents
        the eviction, which is tried again later.
        """
        fresh, calls = await self._fresh_evaluation(), self.calls
        verdict = self._newest = still(verdict, fresh)
        if not self._may_go(verdict, fresh):
            return
        if calls is None:
            self._evicted(verdict, "dry-run")
            return
        pod, owner = verdict.pod_share.pod, owner_key(verdict.pod_share)
        _check(await calls.try_eviction(pod))
        newest = self._evaluation or fresh
        verdict = self._newest = still(verdict, newest)
        if self.clock() - newest.sampled.taken_at > self.timing.oldest:
            raise NotEvicted(NO_FRESH_SAMPLE, "the newest sample is too old")
        if (refusal := self.rules.refusal(verdict, newest)) is not None:
            raise NotEvicted.by(refusal)
        expires_at = await calls.consent(verdict, accepts_edits=self._edits[pod.uid] >= _MOST_EDITS)
        try:
            await calls.record(pod, owner, within=expires_at - self.clock())
        except (ApiError, Unreachable, AccessError) as error:
            raise NotEvicted.because_of(error) from None
        await calls.announce(verdict, newest, expires_at - self.clock() - _EVICT_SECONDS)
        left = expires_at - self.clock()
        if left <= 0:
            raise NotEvicted(EvictionAnswer.FAILED, "the consent expired before the eviction was requested")
        try:
            done = await calls.evict(verdict.pod_share.pod, within=left)
        except BaseException:
            self._budget.charge(owner)  # the pod may be evicted all the same
            raise
        if done.answer is EvictionAnswer.FAILED:
            self._budget.charge(owner)  # without the API server's answer, too
        _check(done)
        self._evicted(verdict, "evicted")

    async def _fresh_evaluation(self) -> Evaluation:
        """Return the evaluation of a sample that begins now."""
        requested_at = self.clock()
        self.sample_now()
        try:
            async with asyncio.timeout(self.timing.fresh):
                return await self._next(requested_at)
        except TimeoutError:
            raise NotEvicted(NO_FRESH_SAMPLE, "no fresh sample within the timeout") from None

    def _evicted(self, verdict: Verdict, result: str) -> None:
        self._budget.charge(owner_key(verdict.pod_share))
        self._done[verdict.key] = self.clock()
        self._last_tries.pop(verdict.key.uid, None)
        self._log_decision(verdict, result, "")

    def _put_off(self, verdict: Verdict, reason: NotEvicted) -> None:
        uid, now = verdict.key.uid, self.clock()
        if reason.result == EvictionAnswer.GONE:
            self._done[verdict.key] = now
        if reason.result == EvictionRefusal.POD_CHANGED:
            self._edits[uid] += 1
        self._retries.fail(uid, now, reason.retry_after)
        self._log_decision(verdict, reason.result, reason.line)

    def _log_decision(self, verdict: Verdict, result: str, line: str) -> None:
        self.results[result] += 1
        message, level = _MESSAGES.get(result, ("pod not evicted", WARNING))
        self.log(
            message,
            level,
            result=result,
            **named(verdict.pod_share),
            gpu=verdict.key.gpu_uuid,
            **figures(verdict),
            **({"why": line} if line else {}),
        )


def _check(response: Evicted) -> None:
    """Raise NotEvicted unless the API server accepted the eviction or its dry run."""
    if response.answer is not EvictionAnswer.EVICTED:
        raise NotEvicted(response.answer, response.line, response.retry_after)
