"""The mutating webhook: fills in what a pod leaves open. It never denies."""

from collections.abc import Callable
from typing import Any, Final

from kai.pod import PodView
from webhook.admission.handler import Outcome
from webhook.admission.review import Review, allow
from webhook.metrics import Metrics
from webhook.namespaces.source import PolicySource
from webhook.policy.decide import Rules
from webhook.policy.labels import Mode
from webhook.policy.mutate import Mutation, mutate
from webhook.policy.reasons import Action, Finding, Reason

_MODES: Final = frozenset(Mode) - {Mode.OFF}
"""The webhook configuration leaves out namespaces in mode off."""


class MutatingWebhook:
    """Judges what is posted to `/mutate`."""

    name = "mutate"

    def __init__(self, *, policies: PolicySource, rules: Callable[[], Rules], metrics: Metrics) -> None:
        self._policies = policies
        self._rules = rules
        self._metrics = metrics

    async def review(self, review: Review) -> Outcome:
        """Answer a review with a patch, or with none."""
        if not review.is_about("Pod", "CREATE"):
            return _without_patch(review, Action.SKIPPED, Finding(Reason.OUT_OF_SCOPE))
        policy = await self._policies.find(review.namespace or "", modes=_MODES)
        mutation = mutate(policy, review.object, self._rules())
        decision = mutation.decision
        if decision.reason is Reason.PATCH_UNSAFE:
            self._metrics.failed("patch")
        return Outcome(
            action=decision.action,
            finding=decision.finding,
            body=_encode(review, mutation),
            pod=name_of(mutation.pod),
            fields=_fields(mutation),
        )

    def on_error(self, review: Review, finding: Finding) -> Outcome:
        """Admit the pod unchanged: an error of ours is never the user's."""
        return _without_patch(review, Action.ERROR, finding)


def name_of(pod: PodView | None) -> str:
    """A pod's name, or the start of the one it will get."""
    if pod is None:
        return ""
    return pod.name or f"{pod.generate_name}*"


def _without_patch(review: Review, action: Action, finding: Finding) -> Outcome:
    return Outcome(action=action, finding=finding, body=allow(review.uid))


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


def _fields(mutation: Mutation) -> dict[str, Any]:
    """What the log says of a decision: keys that change, and what the author was warned of."""
    decision = mutation.decision
    fields: dict[str, Any] = {}
    if decision.changes:
        fields["changes"] = [*decision.changes.labels, *decision.changes.annotations]
    if decision.warnings:
        fields["warnings"] = [finding.sentence for finding in decision.warnings]
    return fields
