"""The webhook that tells the authors of workloads what happens to their pods. It never denies a workload.

Authors see no warning about a pod: its controller creates it. The answers are those of `explain`.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw

from service.documents import DocumentError
from service.text import MALFORMED
from webhook.admission.handler import Outcome
from webhook.admission.mutating import MANAGED_MODES
from webhook.admission.review import Review
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.preview import advice, preview
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.templates import FoundPod, TemplateError, find_pods

MOST_LINES: Final = 4
MOST_TEMPLATES: Final = 16
"""Templates of a workload that are read."""
LARGEST: Final = 64 * 1024
"""Largest workload about which something is said, in bytes: its templates are decoded whole."""


class WorkloadAdvisor:
    """Warns about the pods of a new or changed workload; answers the reviews of `/warn/workloads`."""

    name = "warn-workloads"

    def __init__(self, *, policies: PolicySource, rules: Callable[[], DecisionSettings]) -> None:
        self._policies = policies
        self._rules = rules

    async def review(self, review: Review, peer: str) -> Outcome:
        """Admit a workload, with warnings about its pods."""
        if review.operation not in ("CREATE", "UPDATE") or review.subResource:
            return Outcome.admit(review, Action.ADMITTED, Finding(Reason.OUT_OF_SCOPE))
        namespace = review.namespace or ""
        policy = await self._policies.find(namespace, modes=MANAGED_MODES, peer=peer)
        if policy is None:
            return Outcome.admit(review, Action.ADMITTED, Finding(Reason.NOT_MANAGED))
        pods = templates(review.object)
        if review.operation == "UPDATE" and pods == templates(review.oldObject):
            return Outcome.admit(review, Action.ADMITTED, Finding(Reason.WORKLOAD_QUIET))
        warnings = list(islice(dict.fromkeys(_warnings(policy, pods, namespace, self._rules())), MOST_LINES))
        finding = Finding(Reason.WORKLOAD_TOLD if warnings else Reason.WORKLOAD_QUIET)
        return Outcome.admit(review, Action.ADMITTED, finding, warnings=warnings)

    def on_error(self, review: Review, finding: Finding) -> Outcome:
        """Admit the workload without a word."""
        return Outcome.admit(review, Action.ERROR, finding)


def templates(document: Raw) -> list[FoundPod]:
    """Return the first pod templates of a workload; none of one that is too large or cannot be read."""
    if len(memoryview(document)) > LARGEST:
        return []
    try:
        workload: Any = msgspec.json.decode(document)
        return find_pods(workload, most=MOST_TEMPLATES) if isinstance(workload, dict) else []
    except (TemplateError, RecursionError, *MALFORMED):
        return []  # the API server refuses the workload, or nothing can be said about it


def _warnings(
    policy: NamespacePolicy, pods: list[FoundPod], namespace: str, rules: DecisionSettings
) -> Iterator[str]:
    for pod in pods:
        if pod.has_unknown_names:
            continue
        try:
            told = preview(pod, policy, namespace, rules)
        except DocumentError:
            continue
        yield from (finding.warning for finding in advice(policy, told))
