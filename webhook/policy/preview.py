"""What the webhooks do with the pods of a template, for `explain` and for warnings at its workload. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kai import keys
from kai.pod import MalformedPod, PodView, decode_pod
from kube.kinds import LimitRange
from service.text import quoted
from webhook.policy.decide import skip_malformed
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy
from webhook.policy.patch import Mutation, apply_to_document, mutate
from webhook.policy.pod_parts import as_json, as_map, filled_in, normalized
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.templates import FoundPod
from webhook.policy.verify import DAEMON_SET_CONTROLLERS, Verification, verify


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What happens to a pod."""

    created: dict[str, Any]
    """The pod as its creator sends it."""
    mutation: Mutation
    """The first decision about the pod as the API server passes it to webhooks."""
    final: Mapping[str, Any]
    """That pod after the patch, and after what the API server and a second decision make of it."""
    outcome: Mapping[str, Any]
    """The same; in mode observe, with the patch that is held back."""
    verdict: Verification | None
    """The verdict of the validating webhook about the patched pod; None if the pod cannot be read."""
    warnings: tuple[Finding, ...]


def preview(
    pod: FoundPod,
    policy: NamespacePolicy | None,
    namespace: str,
    rules: DecisionSettings,
    *,
    defaults: Sequence[LimitRange] = (),
    undecided: Mutation | None = None,
) -> Preview:
    """Decide about a pod as the server would; `policy` is None if its namespace is not managed.

    `defaults` are the LimitRanges of the namespace. `undecided` takes the place of a decision, where the
    policy could not be read.
    """
    created = pod.as_created(namespace)
    received = filled_in(created, defaults)
    mutation = undecided or mutate(policy, as_json(received), rules)
    problem: MalformedPod | None = None
    try:
        decoded(pod.template)
    except MalformedPod as error:
        # The API server cannot read the pod or template as written. The pod as created may be readable
        # all the same: a controller replaces fields such as the namespace.
        problem = error
        mutation = Mutation(decision=skip_malformed(error)) if mutation.planned else mutation
    after = apply_to_document(mutation.sent, received)
    # LimitRanger runs again after a patch, and then the webhook (reinvocationPolicy IfNeeded).
    if defaults and (again := filled_in(dict(after), defaults)) != after:
        after = apply_to_document(mutate(policy, as_json(again), rules).sent, again)
    username = DAEMON_SET_CONTROLLERS[0] if pod.kind == "DaemonSet" else ""
    verdict = None  # if the API server refuses the pod; `mutation` has the reason
    with suppress(MalformedPod):
        if problem is None:
            verdict = verify(policy, decoded(after), rules, username)
    is_observed = mutation.decision.action is Action.OBSERVED
    return Preview(
        created=created,
        mutation=mutation,
        final=after,
        outcome=apply_to_document(mutation.planned, received) if is_observed else after,
        verdict=verdict,
        warnings=(*mutation.decision.warnings, *_owner_warnings(pod, policy, after)),
    )


def decoded(pod: Mapping[str, object]) -> PodView:
    """Decode a pod or template; raise MalformedPod if the API server could not."""
    return decode_pod(as_json(normalized(dict(pod))))


def _owner_warnings(
    pod: FoundPod, policy: NamespacePolicy | None, after: Mapping[str, object]
) -> Iterator[Finding]:
    """Yield a warning about a queue label of the workload itself, also an empty one.

    KAI's pod grouper prefers it to the pod's (default_grouper.go, all releases).
    """
    owner_queue = pod.outer_labels.get(keys.QUEUE_LABEL) if policy and pod.path else None
    queue = as_map(as_map(after.get("metadata")).get("labels")).get(keys.QUEUE_LABEL)
    if owner_queue not in (None, queue):
        details = {"owner": pod.kind, "queue": quoted(owner_queue), "pods": quoted(queue)}
        yield Finding(Reason.OWNER_QUEUE, details)


_GIVES_SHARE: Final = (Reason.WHOLE_GPU_CONVERTED, Reason.SHARE_INJECTED)


def advice(policy: NamespacePolicy, told: Preview) -> Iterator[Finding]:
    """Yield what the author of a workload is told about its pods, most important first.

    That is why mode enforce will refuse them, the share that they get, and the warnings about them. In mode
    observe nothing happens to them.
    """
    if policy.mode is Mode.OBSERVE:
        return
    if told.verdict is not None:
        refusals = told.verdict.denials
        yield from (Finding(Reason.WILL_BE_REFUSED, {"why": finding.sentence}) for finding in refusals)
    decision = told.mutation.decision
    if decision.reason in _GIVES_SHARE and policy.announce:
        yield decision.finding
    yield from told.warnings
