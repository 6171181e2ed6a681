"""From a policy and a pod to the patch that is sent: the one path that server and previews share."""

from msgspec import Raw, Struct
from msgspec.structs import replace

from kai.pod import MalformedPod, PodView, decode_pod
from webhook.policy.decide import NOT_MANAGED, Decision, Rules, decide, exempt, malformed
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import Operation, PatchError, apply_to_pod, operations
from webhook.policy.reasons import Action, Finding, Reason


class Mutation(Struct, frozen=True, kw_only=True):
    """A decision and the patch for it."""

    decision: Decision
    pod: PodView | None = None
    """The pod as received; None where nobody had to look at it, or it could not be read."""
    planned: tuple[Operation, ...] = ()
    """The patch, sent or not."""

    @property
    def sent(self) -> tuple[Operation, ...]:
        """What is sent: nothing in mode observe."""
        return self.planned if self.decision.action is Action.INJECTED else ()


def mutate(policy: NamespacePolicy | None, document: bytes | Raw, rules: Rules) -> Mutation:
    """Decide about a pod and write the patch.

    The patch is applied to a copy, and deciding again must find nothing left to do. One that fails this
    check is dropped, and the pod goes through unchanged, counted as `patch-unsafe`.

    Args:
        policy: its namespace's policy; None if the namespace is not managed.
        document: the pod as JSON.
        rules: the administrator's settings.
    """
    if policy is None:
        return Mutation(decision=NOT_MANAGED)
    decision = exempt(policy, rules)
    if decision is not None:
        return Mutation(decision=decision)
    try:
        pod = decode_pod(document)
    except MalformedPod as error:
        return Mutation(decision=malformed(error))
    decision = decide(policy, pod, rules)
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


def _problem(policy: NamespacePolicy, pod: PodView, planned: list[Operation], rules: Rules) -> str | None:
    """Say what is wrong with a patch, if anything."""
    try:
        left = decide(policy, apply_to_pod(planned, pod), rules, warn=False)
    except PatchError as error:
        return str(error)
    if left.changes:
        return f"{left.changes} would be left to do"
    if left.action is not Action.UNCHANGED:
        return f"the patched pod is {left.action.value}: {left.finding.sentence}"
    return None
