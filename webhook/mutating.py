"""The mutating webhook: one review in, one answer out, counted and logged. It never denies."""

import time
from typing import Any

from kai.pod import PodView
from service.log import ERROR, INFO, JsonLog
from webhook.admission import BadReview, Review, allow, decode
from webhook.decide import Decision, Rules
from webhook.metrics import Metrics
from webhook.mutation import Mutation, mutate
from webhook.policies import PolicySource
from webhook.reasons import Action, Finding, Reason

NAME = "mutate"
"""The `webhook` label of metrics."""


class MutatingWebhook:
    """Answers `POST /mutate`."""

    def __init__(self, *, policies: PolicySource, rules: Rules, metrics: Metrics, log: JsonLog) -> None:
        self._policies = policies
        self._rules = rules
        self._metrics = metrics
        self._log = log

    async def answer(self, body: bytes) -> bytes:
        """Answer an AdmissionReview.

        An error of ours admits the pod unchanged: it is counted, logged, and never the user's.

        Raises:
            BadReview: the body cannot be answered at all.
        """
        started = time.perf_counter()
        try:
            review = decode(body)
        except BadReview:
            self._metrics.failed("decode")
            raise
        try:
            mutation = await self._mutate(review)
            answer = _encode(review, mutation)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pod must go through
            self._metrics.failed("mutate")
            self._log.failure("internal error, pod admitted unchanged", error, **_names(review, None))
            mutation = _without_patch(Action.ERROR, Reason.INTERNAL_ERROR)
            answer = allow(review.uid)
        decision = mutation.decision
        seconds = time.perf_counter() - started
        self._metrics.answered(NAME, decision.action, decision.reason, seconds)
        self._log("decision", **_fields(review, mutation, seconds))
        return answer

    async def _mutate(self, review: Review) -> Mutation:
        if not review.is_pod_creation:
            return _without_patch(Action.SKIPPED, Reason.OUT_OF_SCOPE)
        policy = await self._policies.find(review.namespace or "")
        mutation = mutate(policy, review.object, self._rules)
        if mutation.decision.reason is Reason.PATCH_UNSAFE:
            self._metrics.failed("patch")
        return mutation


def _without_patch(action: Action, reason: Reason) -> Mutation:
    return Mutation(decision=Decision(action=action, finding=Finding(reason)))


def _encode(review: Review, mutation: Mutation) -> bytes:
    """Encode the answer. Warnings and audit annotations come only with a patch.

    So a reinvocation round, in which there is nothing left to patch, repeats nothing; the API server refuses
    a second, different value of an audit annotation anyway.
    """
    if not mutation.sent:
        return allow(review.uid)
    decision = mutation.decision
    audit = {"action": decision.action.value, "reason": decision.reason.code}
    if decision.warnings:
        audit["warnings"] = ",".join(sorted({finding.reason.code for finding in decision.warnings}))
    warnings = list(dict.fromkeys(finding.warning for finding in decision.warnings))
    return allow(review.uid, patch=mutation.sent, warnings=warnings, audit=audit)


def _names(review: Review, pod: PodView | None) -> dict[str, Any]:
    name = review.name or (pod.name or f"{pod.generate_name}*" if pod else "")
    return {"uid": review.uid, "namespace": review.namespace, "pod": name, "user": review.username}


def _fields(review: Review, mutation: Mutation, seconds: float) -> dict[str, Any]:
    """What the log says of a decision: keys that change, never a value from the pod's containers."""
    decision = mutation.decision
    fields = _names(review, mutation.pod)
    fields["level"] = ERROR if decision.action is Action.ERROR else INFO
    fields["action"] = decision.action.value
    fields["reason"] = decision.reason.code
    fields["detail"] = decision.finding.sentence
    if decision.changes:
        fields["changes"] = [*decision.changes.labels, *decision.changes.annotations]
    if decision.warnings:
        fields["warnings"] = [finding.sentence for finding in decision.warnings]
    if review.dryRun:
        fields["dry_run"] = True
    fields["milliseconds"] = round(seconds * 1000, 3)
    return fields
