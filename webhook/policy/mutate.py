"""Computes the patch for a pod from its namespace's policy. The server and `explain` both call `mutate`."""

from msgspec import Raw, Struct
from msgspec.structs import replace

from kai.pod import MalformedPod, PodDocument, PodView, decode_document
from webhook.policy.decide import NOT_MANAGED, Decision, decide_pod, exempt, malformed
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import Operation, PatchError, apply_to_pod, operations
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.rules import Rules


class Mutation(Struct, frozen=True, kw_only=True):
    """A decision and its patch."""

    decision: Decision
    pod: PodView | None = None
    """The pod as received; None if the decision did not need it, or if it could not be read."""
    planned: tuple[Operation, ...] = ()
    """The patch, which mode observe does not send."""

    @property
    def sent(self) -> tuple[Operation, ...]:
        """The patch to send: empty in mode observe."""
        return self.planned if self.decision.action is Action.INJECTED else ()


def mutate(
    policy: NamespacePolicy | None, document: bytes | Raw, rules: Rules, *, last: Mutation | None = None
) -> Mutation:
    """Decide about a pod and compute the patch.

    The patch is applied to a copy, and a second decision about the copy must require no change. A patch that
    fails this check is dropped: the pod is admitted unchanged, with the reason `patch-unsafe`.

    Args:
        policy: the policy of the pod's namespace; None if the namespace is not managed.
        document: the pod as JSON.
        rules: the administrator's settings.
        last: the mutation of another pod under the same policy and rules, which is returned again if this pod
            has the same fields.
    """
    if policy is None:
        return Mutation(decision=NOT_MANAGED)
    decision = exempt(policy, rules)
    if decision is not None:
        return Mutation(decision=decision)
    try:
        decoded = decode_document(document)
    except MalformedPod as error:
        return Mutation(decision=malformed(error))
    if last is not None and last.pod is not None and _are_alike(last.pod.document, decoded):
        return last
    pod = PodView(decoded)
    decision = decide_pod(policy, pod, rules)
    if not decision.changes:
        return Mutation(decision=decision, pod=pod)
    planned = operations(decision.changes, pod)
    problem = _problem(policy, pod, planned, rules)
    if problem is not None:
        finding = Finding(Reason.PATCH_UNSAFE, {"problem": problem})
        return Mutation(
            decision=replace(decision, action=Action.ERROR, finding=finding, warnings=()), pod=pod
        )
    return Mutation(decision=decision, pod=pod, planned=tuple(planned))


def _are_alike(pod: PodDocument, other: PodDocument) -> bool:
    """Whether two pods have the same fields, of those that a decision reads."""
    try:
        return pod == other
    except RecursionError:  # a toleration with deep values, which the decoder just accepted
        return False


def _problem(policy: NamespacePolicy, pod: PodView, planned: list[Operation], rules: Rules) -> str | None:
    """Describe what is wrong with a patch; None if the patched pod needs no further change."""
    try:
        second = decide_pod(policy, apply_to_pod(planned, pod), rules, warn=False)
    except PatchError as error:
        return str(error)
    if second.changes:
        return f"the patched pod still needs {second.changes}"
    if second.action is not Action.UNCHANGED:
        return f"the patched pod is {second.action.value}: {second.finding.sentence}"
    return None
