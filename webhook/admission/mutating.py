"""The mutating webhook: adds queue, scheduler and share to new pods. It never denies a pod."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kai.pod import PodView
from webhook.admission.handler import Outcome
from webhook.admission.review import Review, allow
from webhook.metrics import Metrics
from webhook.namespaces.source import PolicySource
from webhook.policy.labels import Mode
from webhook.policy.mutate import Mutation, mutate
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.rules import Rules

_MODES: Final = frozenset(Mode) - {Mode.OFF}
"""Modes of the namespaces whose pods the API server sends: its configuration excludes the label off."""


class MutatingWebhook:
    """Changes new pods by the policy of their namespace; answers the reviews of `/mutate`."""

    name = "mutate"

    def __init__(self, *, policies: PolicySource, rules: Callable[[], Rules], metrics: Metrics) -> None:
        self._policies = policies
        self._rules = rules
        self._metrics = metrics

    async def review(self, review: Review) -> Outcome:
        """Admit a pod, with a patch if the pod needs one."""
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
            fields=partial(_fields, mutation),
        )

    def on_error(self, review: Review, finding: Finding) -> Outcome:
        """Admit the pod unchanged, so that an internal error never blocks a user."""
        return _without_patch(review, Action.ERROR, finding)


def name_of(pod: PodView | None) -> str:
    """Return a pod's name, or its generateName followed by `*`."""
    if pod is None:
        return ""
    return pod.name or f"{pod.generate_name}*"


def _without_patch(review: Review, action: Action, finding: Finding) -> Outcome:
    return Outcome(action=action, finding=finding, body=allow(review.uid))


def _encode(review: Review, mutation: Mutation) -> bytes:
    """Encode the answer; warnings and audit annotations are sent only with a patch.

    A reinvocation finds nothing to patch, so it does not repeat them. The API server refuses a second,
    different value of an audit annotation.
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
    """Return the log fields of a decision: the size, the keys that change, and the warnings."""
    decision = mutation.decision
    fields: dict[str, Any] = {}
    if decision.size is not None:
        fields["size"] = decision.size.name
    if decision.changes:
        fields["changes"] = [*decision.changes.labels, *decision.changes.annotations]
    if decision.warnings:
        fields["warnings"] = [finding.sentence for finding in decision.warnings]
    return fields
