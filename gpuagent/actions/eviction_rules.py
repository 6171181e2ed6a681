"""Rules of eviction: which pods are candidates, why one is refused, and how many the node may evict. Pure.

A pod is evicted only for the memory of its own processes, by their cgroups, compared with a figure that only
KAI or the pod itself could have written. No tenant can thus have another tenant's pod evicted.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.slack import Slack
from gpuagent.pods.inventory import NodePod
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.verdict import Key, Verdict
from kai import keys
from kai.installation import SharingMode
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.eviction import EvictionAnswer
from service.backoff import JITTER_DOWN, Backoff, KeyedBackoff, TokenBucket
from service.log import INFO, WARNING, JsonLog
from service.text import quoted
from service.units import parse_duration

NO_FRESH_SAMPLE: Final = "no-fresh-sample"
"""Result of an attempt without a usable sample."""

EVICTION_OFF: Final = "eviction-off"
"""Reason in the API of a pod that `--eviction=off` keeps."""

_EVICTABLE: Final = frozenset({FlagReason.OVER_SHARE, FlagReason.LIMIT_BYPASSED})


class EvictionMode(StrEnum):
    """Value of `--eviction`."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """Count and log decisions, without a request to the API server."""
    ON = "on"


class EvictionRefusal(StrEnum):
    """Why a pod is not evicted; also a result of `kaishare_agent_evictions_total`."""

    EXCLUDED_NAMESPACE = "excluded-namespace"
    RESERVATION_POD = "reservation-pod"
    STATIC_POD = "static-pod"
    TERMINATING = "terminating"
    NOT_RUNNING = "not-running"
    WEAK_EVIDENCE = "weak-evidence"
    CONSENT_WITHDRAWN = "consent-withdrawn"
    POD_CHANGED = "pod-changed"
    MODE_UNKNOWN = "mode-unknown"
    MPS_CLIENT = "mps-client"
    SHARED_CLAIM = "shared-claim"


_LINES: Final = {
    EvictionRefusal.EXCLUDED_NAMESPACE: "its namespace is listed in --exclude-namespaces",
    EvictionRefusal.RESERVATION_POD: "it is a KAI reservation pod, or in the reservation namespace",
    EvictionRefusal.STATIC_POD: "it is a static pod, which the kubelet would recreate",
    EvictionRefusal.TERMINATING: "it is already terminating, and ends after its own grace period",
    EvictionRefusal.NOT_RUNNING: "none of its containers has started, by its status",
    EvictionRefusal.CONSENT_WITHDRAWN: "by their present labels, the namespace and the pod do not request it",
    EvictionRefusal.POD_CHANGED: "the pod's share was edited after the sample",
    EvictionRefusal.WEAK_EVIDENCE: "a process was not attributed by the pod's UID: the evidence is too weak"
    " to evict it",
    EvictionRefusal.MODE_UNKNOWN: "--gpu-sharing-mode is not set, so KAI's limits are unknown",
    EvictionRefusal.MPS_CLIENT: "it is, or may be, a client of an MPS server of another pod, whose clients"
    " its end could end, too",
    EvictionRefusal.SHARED_CLAIM: "another pod has the same resource claim, and either may hold the excess",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRules:
    """Settings of the administrator that forbid evictions."""

    excluded_namespaces: frozenset[str]
    reservation_namespace: str
    slack: Slack
    gpu_sharing_mode: SharingMode | None = None
    """KAI's mode; no pod is evicted while it is unknown."""

    def refusal(self, verdict: Verdict, evaluation: Evaluation) -> EvictionRefusal | None:
        """Return why a pod must not be evicted; None if eviction is allowed."""
        pod = verdict.pod_share.pod
        if pod.uid in evaluation.reservation_uids:
            return EvictionRefusal.RESERVATION_POD
        refusal = self.refusal_by_state(pod)
        if refusal is not None:
            return refusal
        if verdict.pod_share.on(verdict.key.gpu_uuid).peers:
            return EvictionRefusal.SHARED_CLAIM
        if self.gpu_sharing_mode is None:
            return EvictionRefusal.MODE_UNKNOWN
        # Up to CUDA 13.5 a client that is killed in the middle of its work ends the other clients of its
        # server (NVIDIA's MPS documentation, "Client Early Termination").
        if any(h.pod_share.pod.uid == pod.uid and h.may_share_mps for h in evaluation.sampled.holdings):
            return EvictionRefusal.MPS_CLIENT
        return None if self._is_proven(verdict, evaluation) else EvictionRefusal.WEAK_EVIDENCE

    def refusal_by_state(self, pod: NodePod) -> EvictionRefusal | None:
        """Return why a pod must not be evicted by its namespace and its own state alone."""
        if pod.namespace == self.reservation_namespace:
            return EvictionRefusal.RESERVATION_POD
        if pod.namespace in self.excluded_namespaces:
            return EvictionRefusal.EXCLUDED_NAMESPACE
        if keys.MIRROR_POD in pod.annotations:
            return EvictionRefusal.STATIC_POD
        if pod.is_terminating:
            return EvictionRefusal.TERMINATING
        if not pod.is_running:
            return EvictionRefusal.NOT_RUNNING
        return None

    def _is_proven(self, verdict: Verdict, evaluation: Evaluation) -> bool:
        """Whether processes that are certainly the pod's hold more than its limit, or else its share."""
        key, pod_share, used_bytes = verdict.key, verdict.pod_share, verdict.used_bytes
        limit = pod_share.on(key.gpu_uuid).limit if key.reason is FlagReason.LIMIT_BYPASSED else None
        amount = limit or pod_share.promised_on(key.gpu_uuid)
        if amount is None or used_bytes is None or used_bytes <= amount.bytes + self.slack.of(amount.bytes):
            return False
        return any(
            holding.is_attributed_by_uid
            for holding in evaluation.sampled.holdings
            if (holding.pod_share.pod.uid, holding.gpu_uuid) == (key.uid, key.gpu_uuid)
        )


class NotEvicted(Exception):
    """A pod is not evicted now: a result of `kaishare_agent_evictions_total`, and the reason in one line."""

    def __init__(self, result: str, line: str, retry_after: float = 0.0) -> None:
        """Set result and reason, and the seconds that the API server asks to wait."""
        super().__init__(line)
        self.result, self.line, self.retry_after = result, line, retry_after

    @classmethod
    def by(cls, refusal: EvictionRefusal) -> "NotEvicted":
        """Return the error of a refusal."""
        return cls(refusal, _LINES[refusal])

    @classmethod
    def because_of(cls, error: Exception, result: str | None = None) -> "NotEvicted":
        """Return the error of a request that failed."""
        if not isinstance(error, ApiError):
            return cls(result or EvictionAnswer.FAILED, str(error))
        by_status = EvictionAnswer.FORBIDDEN if error.status == 403 else EvictionAnswer.FAILED
        return cls(result or by_status, str(error), error.retry_after or 0.0)


def candidates(evaluation: Evaluation) -> list[Verdict]:
    """Return the pods to evict: flagged, over in this sample, and with eviction in their policy.

    The result has one verdict for each pod, with the largest excess first.
    """
    worst: dict[str, Verdict] = {}
    for verdict in sorted(_evictable_verdicts(evaluation), key=_excess, reverse=True):
        worst.setdefault(verdict.key.uid, verdict)
    return list(worst.values())


def not_evicted(evaluation: Evaluation, rules: EvictionRules, mode: EvictionMode) -> dict[str, str]:
    """Return why pods whose namespace requests their eviction now are not evicted, by UID."""
    reasons: dict[str, str] = {}
    for verdict in candidates(evaluation):
        refusal = rules.refusal(verdict, evaluation) if mode is not EvictionMode.OFF else EVICTION_OFF
        if refusal is not None:
            reasons[verdict.key.uid] = refusal
    return reasons


def still(verdict: Verdict, evaluation: Evaluation) -> Verdict:
    """Return the verdict on a candidate in a newer sample.

    Raises:
        NotEvicted: it is no longer a candidate.
    """
    key = verdict.key
    for newer in _evictable_verdicts(evaluation):
        if newer.key == key:
            return newer
    if key.uid not in evaluation.sampled.pod_uids:
        raise NotEvicted(EvictionAnswer.GONE, "the pod has ended")
    policy = evaluation.over_share_policies.get(key.uid)
    if policy is None or not policy.evict:
        raise NotEvicted.by(EvictionRefusal.CONSENT_WITHDRAWN)
    if key not in evaluation.verdicts.by_key:
        raise NotEvicted(NO_FRESH_SAMPLE, "the newest sample does not compare the pod with its share")
    raise NotEvicted("recovered", "")


def is_settled(key: Key, evaluation: Evaluation) -> bool:
    """Whether the flag of a key is certainly gone, or its pod is.

    A flag that cannot be evaluated at the moment still stands.
    """
    verdict = evaluation.verdicts.by_key.get(key)
    if verdict is None:
        return key.uid not in evaluation.sampled.pod_uids
    return not verdict.is_flagged


def owner_key(pod_share: PodShare) -> str:
    """Return a digest of the controller that would recreate the pod, or of the pod itself without one.

    The host pod of a vCluster has no owner, or the vCluster as its owner. For such a pod the owners of the
    tenant's pod count. Any user can write owner references, so an owner counts only within the pod's
    namespace, on the host or in the vCluster: a pod must not delay the eviction of another tenant's pods.
    """
    pod, tenant = pod_share.pod, pod_share.tenant
    if tenant is not None:
        owners = pod.annotations.get(keys.VCLUSTER_OWNER_REFERENCES, "")
        place, owner = f"{pod.namespace}/{tenant.vcluster}/{tenant.namespace}", tenant.pod
        if owners:
            owner = hashlib.sha256(owners.encode()).hexdigest()
    else:
        place, owner, owners = pod.namespace, pod.controller_uid or pod.name, pod.controller_uid
    kind = "/" if owners else ""  # a pod without an owner never has the identifier of an owner
    return hashlib.sha256(f"{place}/{kind}{owner}".encode()).hexdigest()


def _evictable_verdicts(evaluation: Evaluation) -> Iterator[Verdict]:
    for verdict in evaluation.verdicts.by_key.values():
        over_share_policy = evaluation.over_share_policies.get(verdict.key.uid)
        has_eviction = over_share_policy is not None and over_share_policy.evict
        if has_eviction and verdict.key.reason in _EVICTABLE and verdict.is_flagged and verdict.is_over:
            yield verdict


def _excess(verdict: Verdict) -> int:
    return (verdict.used_bytes or 0) - (verdict.allowed_bytes or 0)


KEPT_SECONDS: Final = 3600.0
"""Time for which API servers keep the records, which are Events, by default (`--event-ttl`)."""
_FINAL_STATUSES: Final = frozenset({400, 403, 404, 405, 422})
"""HTTP statuses after which another attempt to read the records is useless."""
_FORM = re.compile(r"([1-9][0-9]{0,2})/(.+)")


@dataclass(frozen=True, slots=True)
class Budget:
    """Maximum number of evictions of this node in a period."""

    evictions: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Parse a budget such as `1/10m`.

        Raises:
            ValueError: the text has another form; the message shows the allowed form.
        """
        with suppress(ValueError):
            if (match := _FORM.fullmatch(text)) and (seconds := parse_duration(match[2])) > 0:
                return cls(int(match[1]), seconds)
        raise ValueError(f"{quoted(text)} is not a budget; allowed: a number and a time, such as 1/10m")

    @property
    def per_second(self) -> float:
        """Average number of evictions per second."""
        return self.evictions / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEviction:
    """A recorded eviction of this node."""

    seconds_ago: float
    owner: str
    """Digest of the pod's owner, from `eviction_rules.owner_key`; empty if the record has none."""


class EvictionBudget:
    """Counts the evictions of this node, and delays further ones of the same owner."""

    def __init__(
        self, budget: Budget, *, owner_backoff: tuple[float, float], clock: Callable[[], float]
    ) -> None:
        """Set up an unused budget; `owner_backoff` is the first and the longest one, in seconds."""
        self._budget = budget
        self._clock = clock
        first, most = owner_backoff
        self._owners = KeyedBackoff(first=first, most=most)
        self._bucket = self._bucket_with(float(budget.evictions))

    def objection(self, owner: str) -> NotEvicted | None:
        """Return why a pod of the owner must not be evicted now; None if it may be."""
        if self._owners.is_backing_off(owner, self._clock()):
            return NotEvicted(
                "owner-backoff", "the eviction of a pod of the same owner was requested recently"
            )
        if self._bucket.seconds_until_next() > 0:
            return NotEvicted("budget", "the node's eviction budget is exhausted")
        return None

    def charge(self, owner: str) -> None:
        """Count an eviction, and start the back-off of the owner of its pod."""
        self._bucket.take()
        self._owners.fail(owner, self._clock())

    async def recall(
        self, read: Callable[[], Awaitable[Iterable[PastEviction]]], *, seconds: float, log: JsonLog
    ) -> None:
        """Restore budget and back-off from the recorded evictions.

        If they cannot be read within so many seconds, allow one eviction.
        """
        give_up_at = self._clock() + seconds
        backoff = Backoff(first=1.0, most=10.0, jitter=JITTER_DOWN)
        while True:
            try:
                past = list(await read())
                break
            except (ApiError, Unreachable, AccessError) as error:
                is_final = isinstance(error, ApiError) and error.status in _FINAL_STATUSES
                wait = backoff.step((isinstance(error, ApiError) and error.retry_after) or 0.0)
                if is_final or self._clock() + wait > give_up_at:
                    self._bucket = self._bucket_with(1.0)
                    log(
                        "past evictions unavailable",
                        WARNING,
                        error=str(error),
                        problem="the eviction budget starts with one eviction, and owners without a back-off",
                    )
                    return
                await asyncio.sleep(wait)
        now = self._clock()
        for eviction in past:
            if eviction.owner:
                self._owners.fail(eviction.owner, now - eviction.seconds_ago)
        self._bucket = self._bucket_with(remaining_evictions(self._budget, past))
        is_too_long = self._budget.seconds > KEPT_SECONDS
        if past or is_too_long:
            log(
                "past evictions read",
                INFO,
                evictions=len(past),
                secondsUntilNext=round(self._bucket.seconds_until_next()),
                **({"problem": "Events do not cover the budget's period"} if is_too_long else {}),
            )

    def _bucket_with(self, evictions: float) -> TokenBucket:
        return TokenBucket(
            per_second=self._budget.per_second,
            burst=self._budget.evictions,
            clock=self._clock,
            tokens=evictions,
        )


def remaining_evictions(budget: Budget, past: Iterable[PastEviction]) -> float:
    """Return the number of evictions that the budget allows after a restart; less than 1 means none yet.

    Evictions before `KEPT_SECONDS` are unknown, so the budget counts as exhausted at that time. A budget of a
    longer period is therefore not complete after a restart.
    """
    remaining, before = 0.0, KEPT_SECONDS
    for age in sorted((eviction.seconds_ago for eviction in past), reverse=True):
        if age < KEPT_SECONDS:
            remaining = max(_grown(remaining, before - age, budget) - 1, 0.0)
            before = age
    return _grown(remaining, before, budget)


def _grown(remaining: float, seconds: float, budget: Budget) -> float:
    return min(remaining + seconds * budget.per_second, float(budget.evictions))
