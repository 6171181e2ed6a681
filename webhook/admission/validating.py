"""The validating webhooks: pods in namespaces with mode enforce, and the policy labels of namespaces."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kai import keys
from kai.kaishare_keys import FRACTION, MAX_FRACTION, MAX_MEMORY, MEMORY
from kai.pod import MalformedPod, decode_pod, explain_shape
from webhook.admission.handler import Outcome
from webhook.admission.mutating import name_of
from webhook.admission.review import BadReview, Review, deny
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.label_values import read_name
from webhook.policy.labels import (
    LabelProblems,
    Mode,
    PolicyMetadata,
    idle_labels,
    label_problems,
    unknown_queue,
)
from webhook.policy.pod_keys import namespace_key_findings
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.sizes import NO_CAPS, read_sizes, selector_overlaps
from webhook.policy.verify import verify

_MODES: Final = frozenset({Mode.ENFORCE})
"""Mode of the namespaces whose pods the API server sends, by the webhook configuration."""


class PodValidator:
    """Validates new pods in namespaces with mode enforce; answers the reviews of `/validate/pods`."""

    name = "validate-pods"

    def __init__(self, *, policies: PolicySource, rules: Callable[[], DecisionSettings]) -> None:
        self._policies = policies
        self._rules = rules

    async def review(self, review: Review, peer: str) -> Outcome:
        """Admit or deny a pod.

        Raises:
            BadReview: the pod cannot be read. The API server never sends such a pod.
            PolicyUnknown: the policy is not available now; the failurePolicy decides.
        """
        if not review.is_about("Pod", "CREATE"):
            return Outcome.admit(review, Action.ADMITTED, Finding(Reason.OUT_OF_SCOPE))
        policy = await self._policies.find(review.namespace or "", modes=_MODES, peer=peer)
        try:
            pod = decode_pod(review.object)
            verdict = verify(policy, pod, self._rules(), review.username)
        except MalformedPod as error:
            raise BadReview(f"the pod cannot be read: {error}") from None
        if verdict.is_allowed:
            return Outcome.admit(review, Action.ADMITTED, verdict.finding, pod=name_of(pod))
        codes = [finding.reason.code for finding in verdict.denials]
        return Outcome(
            action=Action.DENIED,
            finding=verdict.finding,
            body=deny(review.uid, verdict.message, audit={"action": "denied", "reason": ",".join(codes)}),
            pod=name_of(pod),
            fields=lambda: {"denials": [finding.sentence for finding in verdict.denials]},
        )

    def on_error(self, _review: Review, _finding: Finding) -> None:
        """Leave the answer to the failurePolicy, which is Fail for this webhook."""


_MAX_PROBLEMS = 8
"""Maximum number of labels named in one denial. Further ones are reported at the next attempt."""


class _Metadata(Struct):
    name: str | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None


class _Namespace(Struct):
    metadata: _Metadata | None = None


_namespace = msgspec.json.Decoder(_Namespace | None)


class NamespaceValidator:
    """Validates policy labels of namespaces; answers the reviews of `/validate/namespaces`."""

    name = "validate-namespaces"

    def __init__(self, *, rules: Callable[[], DecisionSettings]) -> None:
        self._rules = rules

    async def review(self, review: Review, _peer: str) -> Outcome:
        """Admit or deny the policy labels and the selectors of a namespace.

        In the modes observe and off a problem is a warning.

        Only what the request sets or changes is checked. An invalid label that exists already must not block
        other edits, such as the one that sets mode off.

        Raises:
            BadReview: the namespace cannot be read.
        """
        if not review.is_about("Namespace", "CREATE", "UPDATE"):
            return Outcome.admit(review, Action.ADMITTED, Finding(Reason.OUT_OF_SCOPE))
        after = _metadata(review.object, "object")
        before = _Metadata()
        if review.operation == "UPDATE":
            before = _metadata(review.oldObject, "oldObject")
        own, own_before = _own(after), _own(before)
        warnings = [finding.warning for finding in islice(_without_effect(after, before), _MAX_PROBLEMS)]
        if own == own_before:
            return Outcome.admit(review, Action.ADMITTED, Finding(Reason.LABELS_KEPT), warnings=warnings)
        rules = self._rules()
        problems = label_problems(own, own_before, default_mode=rules.default_mode)
        if problems.is_refused:
            return _refused(review, problems)
        invalid = [Finding(Reason.LABEL_INVALID, {"problem": problem}) for problem in problems.first]
        warnings += [finding.warning for finding in invalid[:_MAX_PROBLEMS]]
        warnings += [finding.warning for finding in _warnings(own, own_before)]
        queue = own.labels.get(keys.QUEUE_LABEL, "")
        if queue != own_before.labels.get(keys.QUEUE_LABEL, "") and read_name(queue) is not None:
            warnings += [finding.warning for finding in filter(None, [unknown_queue(queue, rules.queues)])]
        return Outcome.admit(
            review, Action.ADMITTED, next(iter(invalid), Finding(Reason.LABELS_VALID)), warnings=warnings
        )

    def on_error(self, review: Review, finding: Finding) -> Outcome:
        """Admit the namespace. An invalid label is ignored and reported later."""
        return Outcome.admit(review, Action.ERROR, finding)


def _metadata(document: Raw, field: str) -> _Metadata:
    try:
        namespace = _namespace.decode(document)
    except msgspec.ValidationError as error:
        raise BadReview(f"{field}: {explain_shape(error, 'the namespace')}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the review's decoder skips strings unchecked
        raise BadReview(f"{field} is not JSON: {error}") from None
    except RecursionError:
        raise BadReview(f"{field} is nested too deep") from None
    return (namespace.metadata if namespace else None) or _Metadata()


def _own(metadata: _Metadata) -> PolicyMetadata:
    return PolicyMetadata.select(metadata.labels, metadata.annotations)


def _without_effect(after: _Metadata, before: _Metadata) -> Iterator[Finding]:
    """Yield warnings for keys that the edit sets and that have no effect on a namespace."""
    maps = ((after.labels, before.labels), (after.annotations, before.annotations))
    return namespace_key_findings(
        *([key for key in new or () if key not in (old or ())] for new, old in maps)
    )


def _warnings(after: PolicyMetadata, before: PolicyMetadata) -> Iterator[Finding]:
    """Yield warnings for valid labels that have no effect, or not the expected one."""
    labels = after.labels
    if idle := idle_labels(labels):
        yield Finding(Reason.NO_QUEUE_LABEL, {"label": idle[0]})
    for share, cap, comparable in ((FRACTION, MAX_MEMORY, MAX_FRACTION), (MEMORY, MAX_FRACTION, MAX_MEMORY)):
        if share in labels and cap in labels and comparable not in labels:
            yield Finding(Reason.SHARE_BEYOND_CAP_UNIT, {"label": share, "cap": cap})
    left = (key for key in after.annotations if key in before.labels and key not in labels)
    for key in islice(left, _MAX_PROBLEMS):
        yield Finding(Reason.SELECTOR_LEFT, {"key": key})
    sizes = read_sizes(labels, after.annotations, NO_CAPS)
    for first, second, what in islice(selector_overlaps(sizes), _MAX_PROBLEMS):
        yield Finding(Reason.SIZES_OVERLAP, {"first": first.name, "second": second.name, "what": what})


def _refused(review: Review, problems: LabelProblems) -> Outcome:
    messages = [str(problem) for problem in problems.first[:_MAX_PROBLEMS]]
    if problems.count > len(messages):
        messages.append(f"and {problems.count - len(messages)} more")
    return Outcome(
        action=Action.DENIED,
        finding=Finding(Reason.LABEL_INVALID, {"problem": problems.first[0]}),
        body=deny(
            review.uid, "; ".join(messages), audit={"action": "denied", "reason": Reason.LABEL_INVALID.code}
        ),
        fields=lambda: {"problems": messages},
    )
