"""The mutating webhook: adds queue, scheduler and share to new pods. It never denies a pod."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Raw

from kai.pod import PodView
from webhook.admission.handler import Outcome
from webhook.admission.review import Review, allow
from webhook.metrics import Metrics
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy
from webhook.policy.patch import Mutation, mutate
from webhook.policy.reasons import Action, Finding, Reason

MANAGED_MODES: Final = frozenset(Mode) - {Mode.OFF}
"""Modes of the namespaces whose pods the API server sends: its configuration excludes the label off."""

_MOST_KEPT: Final = 64
"""Namespaces whose last mutation is kept."""
_LARGEST_KEPT: Final = 16 * 1024
"""Largest pod whose mutation is kept, in bytes. Decoded, it takes up to 28 times its size (measured)."""


class LastMutations:
    """The last mutation in each of some namespaces.

    Controllers create pods of one template one after the other. Such pods have the same fields, except for
    those that a decision does not read, so that the mutation of one is that of the next.
    """

    def __init__(self) -> None:
        self._by_namespace: OrderedDict[str, tuple[NamespacePolicy, DecisionSettings, Mutation]] = (
            OrderedDict()
        )

    def of(self, policy: NamespacePolicy | None, rules: DecisionSettings) -> Mutation | None:
        """Return the last mutation in the namespace, if policy and rules are still the same objects."""
        known = self._by_namespace.get(policy.namespace) if policy is not None else None
        return known[2] if known is not None and known[0] is policy and known[1] is rules else None

    def keep(self, policy: NamespacePolicy | None, rules: DecisionSettings, mutation: Mutation) -> None:
        """Keep a mutation, unless the pod needs no patch.

        The API server may ask again about each patched pod, which then needs none: the next pod of the
        template is like the one before, and not like that one.
        """
        if policy is not None and mutation.planned:
            self._by_namespace[policy.namespace] = policy, rules, mutation
            self._by_namespace.move_to_end(policy.namespace)
            if len(self._by_namespace) > _MOST_KEPT:
                self._by_namespace.popitem(last=False)


class MutatingWebhook:
    """Changes new pods by the policy of their namespace; answers the reviews of `/mutate`."""

    name = "mutate"

    def __init__(
        self, *, policies: PolicySource, rules: Callable[[], DecisionSettings], metrics: Metrics
    ) -> None:
        self._policies = policies
        self._rules = rules
        self._metrics = metrics
        self._last = LastMutations()

    async def review(self, review: Review, peer: str) -> Outcome:
        """Admit a pod, with a patch if the pod needs one."""
        if not review.is_about("Pod", "CREATE"):
            return Outcome.admit(review, Action.SKIPPED, Finding(Reason.OUT_OF_SCOPE))
        policy = await self._policies.find(review.namespace or "", modes=MANAGED_MODES, peer=peer)
        rules = self._rules()
        document: bytes | Raw = review.object
        if is_small := len(memoryview(document)) <= _LARGEST_KEPT:
            document = bytes(document)  # what is kept must not hold the whole review in memory
        mutation = mutate(policy, document, rules, last=self._last.of(policy, rules))
        if is_small:
            self._last.keep(policy, rules, mutation)
        decision = mutation.decision
        if decision.reason is Reason.PATCH_UNSAFE:
            self._metrics.failed("patch")
        if mutation.sent and decision.changes.options is not None:
            for framework in decision.changes.options.frameworks:
                self._metrics.framework_options.labels(framework).inc()
        return Outcome(
            action=decision.action,
            finding=decision.finding,
            body=_encode(review, mutation),
            pod=name_of(mutation.pod),
            fields=partial(_fields, mutation),
        )

    def on_error(self, review: Review, finding: Finding) -> Outcome:
        """Admit the pod unchanged, so that an internal error never blocks a user."""
        return Outcome.admit(review, Action.ERROR, finding)


def name_of(pod: PodView | None) -> str:
    """Return a pod's name, or its generateName followed by `*`."""
    if pod is None:
        return ""
    return pod.name or f"{pod.generate_name}*"


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
