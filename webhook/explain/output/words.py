"""The words of `explain` about one pod, for its text and its table. Pure."""

from collections.abc import Iterator
from typing import Final

from kai import keys
from kai.pod import MalformedPod, decode_pod
from service.text import one_line, printable
from webhook.explain.decision.amounts import GpuAmount, asked_by, asked_now
from webhook.explain.decision.explainer import ExplainedPod
from webhook.explain.decision.server_answer import RBAC
from webhook.explain.manifests.values import as_json
from webhook.policy.decide import Changes
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.sizes import Source

_WORDS: Final = {
    Action.INJECTED: "changed",
    Action.OBSERVED: "observed",
    Action.UNCHANGED: "unchanged",
    Action.ERROR: "error",
}
_RANKS: Final = (Reason.DISTRIBUTED, Reason.RANKS_MAY_MEET)
_SHARES: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY)


def action_word(item: ExplainedPod) -> str:
    """Return what happens to the pod, in one or two words."""
    if not item.is_decided:
        return "not known"
    return "denied" if item.is_denied else _WORDS.get(item.mutation.decision.action, "left alone")


def reason_code(item: ExplainedPod) -> str:
    """Return the code of the reason that says most about the pod.

    The first denial comes first, then the change at the creation of a live pod, then the decision.
    """
    if item.verdict is not None and item.verdict.denials:
        return item.verdict.denials[0].reason.code
    if is_changed_earlier(item) and item.earlier is not None:
        return one_line(item.earlier.reason, 40)
    return item.mutation.decision.reason.code


def is_changed_earlier(item: ExplainedPod) -> bool:
    """Whether the share of a live pod is that of the policy, which the webhook gave it at its creation."""
    is_own = item.mutation.decision.source is Source.OWN_SHARE
    return is_own and item.earlier is not None and item.earlier.is_current


def headline(item: ExplainedPod) -> str:
    """Return one sentence about what happens to the pod, with the code of the reason."""
    decision = item.mutation.decision
    if is_changed_earlier(item) and item.earlier is not None:
        made = one_line(item.earlier.reason, 40)
        return f"{action_word(item)}: changed at its creation ({made}); its share is the policy's"
    sentence = with_code(decision.finding)
    if not item.is_decided:
        return f"not known: {sentence}"
    if decision.action is Action.ERROR:
        return f"error, left alone: {sentence}"
    if decision.action is Action.UNCHANGED:
        return f"unchanged: {sentence}"
    if decision.action not in (Action.INJECTED, Action.OBSERVED):
        return f"left alone: {sentence}"
    changes = decision.changes
    mode = "mode observe" if decision.action is Action.OBSERVED else ""
    verb = "would be changed" if mode else "changed"
    if changes.removed_gpu_keys or any(key in changes.annotations for key in _SHARES):
        return f"{verb}{f' ({mode})' if mode else ''}: {sentence}"
    parts = ", ".join([*_parts(changes), *([mode] if mode else [])])
    return f"{verb} ({parts}), no share given: {sentence.removeprefix('no share: ')}"


def _parts(changes: Changes) -> Iterator[str]:
    """Yield the names of the changed parts of a pod that gets no share."""
    if changes.scheduler:
        yield "scheduler"
    if keys.QUEUE_LABEL in changes.labels:
        yield "queue"
    if keys.PRIORITY_LABEL in changes.labels:
        yield "priority"
    if changes.toleration:
        yield "toleration"


def with_code(finding: Finding) -> str:
    """Return a finding's sentence with its code."""
    return f"{finding.sentence} ({finding.reason.code})"


def is_rank(item: ExplainedPod) -> bool:
    """Whether the pod is a rank of a distributed job that asks for one GPU or a share."""
    findings = (item.mutation.decision.finding, *item.warnings)
    return any(finding.reason in _RANKS for finding in findings)


def hints(item: ExplainedPod) -> list[Finding]:
    """Return the warnings that say more than the decision."""
    sentence = item.mutation.decision.finding.sentence
    return [finding for finding in item.warnings if finding.sentence != sentence]


def share_text(item: ExplainedPod) -> str:
    """Return what the pod ends with, in a few characters: `0.25`, `2000 MiB`, `1 GPU`; `-` for nothing."""
    try:
        pod = decode_pod(as_json(item.outcome))
    except MalformedPod:
        return "?"
    for key, unit in ((keys.GPU_FRACTION, ""), (keys.GPU_MEMORY, " MiB")):
        if key in pod.annotations:
            return one_line(pod.annotations[key], 12) + unit
    amount = asked_by(pod)
    if amount.uncounted:
        return "other GPU"
    return f"{amount.gpus:g} GPU{'' if amount.gpus == 1 else 's'}" if amount.gpus else "-"


def amount_after(item: ExplainedPod) -> GpuAmount:
    """Return what a new pod asks for; in mode observe, what it would ask for."""
    return asked_now(as_json(item.outcome))


def source_sentence(item: ExplainedPod) -> str:
    """Describe what decided the share; empty if the pod gets none."""
    decision = item.mutation.decision
    size = decision.size
    match decision.source:
        case Source.OWN_SHARE if not is_changed_earlier(item):
            return "the pod's own share"
        case Source.SIZE_LABEL if size is not None:
            return f"the pod's label kaishare.dev/size: {size.name}"
        case Source.SIZE_SELECTOR if size is not None and size.selector is not None:
            return f"the selector of size {size.name}: {printable(size.selector.text)}"
        case Source.DEFAULT_SHARE:
            return "the namespace's default share"
    return ""


def server_word(item: ExplainedPod) -> str:
    """Return what the API server answered, in one or two words; empty if it was not asked."""
    answer = item.server
    if answer is None:
        return ""
    if answer.is_admitted is None:
        return "no answer"
    if not answer.is_admitted:
        return "refused"
    return "different" if answer.differences and item.is_decided else "admitted"


def server_sentences(item: ExplainedPod) -> Iterator[str]:
    """Yield the sentences about the API server's answer."""
    answer = item.server
    if answer is None:
        return
    refused = f"refused by {answer.refused_by}" if answer.refused_by else "refused"
    word = {None: "no answer", True: "admitted", False: refused}[answer.is_admitted]
    yield f"server: {word}" + (f": {answer.problem}" if answer.problem else "")
    if answer.refusal and answer.refused_by != RBAC:
        yield f"server says: {answer.refusal}"
    yield from (f"server warning: {warning}" for warning in answer.warnings)
    if item.is_decided:
        yield from (f"differs: {difference.sentence}" for difference in answer.differences)
        yield from (f"because: {cause}" for cause in answer.causes)
    yield from (f"note: {note}" for note in answer.notes)


def unadmitted_sentence(item: ExplainedPod) -> str:
    """Say that the API server refused the pod, gave no answer about it, or has a problem; empty otherwise."""
    is_admitted = item.server is None or (item.server.is_admitted and not item.server.problem)
    return "" if is_admitted else next(server_sentences(item))


def notes(item: ExplainedPod) -> Iterator[str]:
    """Yield sentences about what `explain` does not know of the pod, and about a live pod's past."""
    earlier = item.earlier
    is_known = earlier is not None and earlier.reason == item.mutation.decision.reason.code
    if earlier is not None and not is_known and not is_changed_earlier(item):
        yield (
            f"changed at its creation ({one_line(earlier.reason, 40)});"
            " a new pod may get something else, because the policy or the pod has changed since"
        )
    if not item.pod.has_known_labels and item.policy is not None and item.policy.sizes.selecting:
        yield (
            f"the controller of this {one_line(item.pod.kind)} may add labels, which the selectors of sizes"
            " see and explain does not"
        )
