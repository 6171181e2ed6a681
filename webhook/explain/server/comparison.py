"""Compares the API server's answer to a pod with our own decision, and finds causes of differences. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kai import keys
from kai.gpu_resources import names_gpu
from kai.own_labels import PREFIX, REASON
from kai.quantity import parse_quantity
from service.text import listed, one_line, quoted
from webhook.explain.decision.explainer import ExplainedPod
from webhook.explain.decision.server_answer import AnswerDifference
from webhook.explain.manifests.values import annotations_of, as_list, as_map
from webhook.policy.patch import TOLERATION
from webhook.policy.reasons import Action, Reason
from webhook.registration.configurations import VALIDATE_PODS

LIMIT_RANGER: Final = "kubernetes.io/limit-ranger"
"""Annotation in which the plugin LimitRanger lists the amounts that it filled in."""

VALIDATING: Final = f"webhook {VALIDATE_PODS}"
"""The author of kaishare's own denials."""

_LABELS: Final = (keys.QUEUE_LABEL, keys.PRIORITY_LABEL)
_ANNOTATIONS: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES, keys.CONTAINER_NAME)
_VERDICT: Final = "verdict"
_ADMITTED: Final = "admitted"
_LONGEST_ANNOTATION: Final = 600  # characters

Json = Mapping[str, Any]


def stored_differences(item: ExplainedPod, stored: Json) -> list[AnswerDifference]:
    """Return what kaishare decides about a pod and differs in the pod that came back.

    Args:
        item: the pod with our own decision.
        stored: the pod that came back.
    """
    differences = []
    predicted_verdict = _predicted_verdict(item)
    if predicted_verdict != _ADMITTED:
        differences.append(AnswerDifference(_VERDICT, predicted_verdict, _ADMITTED))
    predicted, answered = _decided(item.final), _decided(stored)
    for field in dict.fromkeys((*predicted, *answered)):
        ours, theirs = predicted.get(field), answered.get(field)
        if ours != theirs and _amount(ours) != _amount(theirs):
            differences.append(AnswerDifference(field, ours, theirs))
    return differences


def refusal_differences(item: ExplainedPod, refused_by: str) -> list[AnswerDifference]:
    """Return the difference if kaishare's validating webhook denied a pod that our own verdict admits."""
    if refused_by == VALIDATING and _predicted_verdict(item) == _ADMITTED:
        return [AnswerDifference(_VERDICT, _ADMITTED, "denied")]
    return []


def stored_causes(
    item: ExplainedPod, sent: Json, stored: Json, differences: Sequence[AnswerDifference]
) -> Iterator[str]:
    """Yield the known causes of the differences in a pod that came back.

    Args:
        item: the pod with our own decision.
        sent: the pod that was sent.
        stored: the pod that came back.
        differences: of `stored_differences`.
    """
    if not differences:
        return
    fields = [difference for difference in differences if difference.field != _VERDICT]
    if len(fields) < len(differences):
        yield (
            "kaishare's validating webhook did not deny the pod: it is not installed, or the policy of the"
            " namespace differs from the one that was used here"
        )
    if not fields:
        return
    filled = _limit_ranger_amounts(sent, stored)
    if filled:
        yield f"a LimitRange of the namespace fills in GPUs: {filled}"
    given, decided = _reason(sent), _reason(stored)
    expected = _reason(item.final)
    if expected != given and decided == given:
        yield (
            "kaishare did not change the pod: it is not installed, did not answer (failurePolicy"
            " Ignore), is in mode observe or off, or does not see this namespace"
        )
    elif decided != expected:
        yield from _other_decision(item, decided, expected)
    elif not filled:
        names = listed({difference.field for difference in fields})
        yield (
            f"another webhook or admission policy changed {names} after kaishare's decision; API servers"
            " do not tell its name"
        )


def refusal_causes(item: ExplainedPod, refused_by: str, *, is_unanswered: bool) -> Iterator[str]:
    """Yield what is known about a refusal beyond its words.

    Args:
        item: the pod with our own decision.
        refused_by: the author of the refusal.
        is_unanswered: whether a webhook did not answer.
    """
    if is_unanswered:
        yield f"{refused_by} did not answer, and its failurePolicy is Fail"
    elif refused_by == VALIDATING and item.pod.kind == "DaemonSet":
        yield (
            "the dry run is yours, and enforced namespaces admit pods of DaemonSets from the DaemonSet"
            " controller only; the decision here is for that controller"
        )
    elif refusal_differences(item, refused_by):
        yield "the policy or the settings of the cluster's webhook differ from those that were used here"


def _predicted_verdict(item: ExplainedPod) -> str:
    if item.verdict is not None and not item.verdict.is_allowed:
        return f"denied: {item.verdict.message}"
    if item.verdict is None and item.mutation.decision.reason is Reason.MALFORMED_POD:
        return f"refused: {item.mutation.decision.finding.sentence}"
    return _ADMITTED


def _other_decision(item: ExplainedPod, decided: str | None, expected: str | None) -> Iterator[str]:
    answered = f"decided {quoted(decided)}" if decided else "left the pod alone"
    ours = quoted(expected) if expected else "that the pod is left alone"
    if item.mutation.decision.action is Action.OBSERVED:
        ours = "no change, because the namespace's mode is observe"
    yield (
        f"kaishare {answered}, and the decision here is {ours}: another webhook changed the pod"
        " before, or the policy or settings of the cluster differ from those that were used here"
    )


def _decided(pod: Json) -> dict[str, str]:
    """Return the values of a pod that kaishare decides, by a name for people."""
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    decided = {"spec.schedulerName": str(spec.get("schedulerName") or keys.DEFAULT_SCHEDULER)}
    labels, annotations = as_map(metadata.get("labels")), as_map(metadata.get("annotations"))
    for key in _LABELS:
        if key in labels:
            decided[f"label {key}"] = _text(labels[key])
    for key, value in annotations.items():
        if key in _ANNOTATIONS or key.startswith(PREFIX):
            decided[f"annotation {one_line(key)}"] = _text(value)
    for group in ("initContainers", "containers"):
        for index, container in enumerate(as_list(spec.get(group))):
            decided.update(_gpu_amounts(as_map(container), group, index))
    if any(toleration == TOLERATION for toleration in as_list(spec.get("tolerations"))):
        decided[f"toleration {keys.GPU_TAINT}"] = "Exists"
    return decided


def _text(value: Any) -> str:
    """Return the value of a label or annotation; the API server stores null as an empty text."""
    return "" if value is None else one_line(str(value))


def _gpu_amounts(container: Json, group: str, index: int) -> Iterator[tuple[str, str]]:
    kind = "container" if group == "containers" else "init container"
    name = one_line(str(container.get("name") or f"number {index + 1}"))
    resources = as_map(container.get("resources"))
    for part in ("limits", "requests"):
        for resource, amount in as_map(resources.get(part)).items():
            if isinstance(resource, str) and "/" in resource and names_gpu(resource):
                yield f"{kind} {name}: {part.removesuffix('s')} {one_line(resource)}", one_line(str(amount))


def _amount(text: str | None) -> object:
    """Return the number of a quantity, and another text as it is."""
    try:
        return None if text is None else parse_quantity(text)
    except ValueError:
        return text


def _limit_ranger_amounts(sent: Json, stored: Json) -> str:
    """Return what LimitRanger tells about GPUs that it filled in; empty if there are none."""
    message = annotations_of(stored).get(LIMIT_RANGER)
    if not isinstance(message, str) or message == annotations_of(sent).get(LIMIT_RANGER):
        return ""
    words = message.replace(",", " ").split()
    return (
        one_line(message, _LONGEST_ANNOTATION)
        if any("/" in word and names_gpu(word) for word in words)
        else ""
    )


def _reason(pod: Json) -> str | None:
    reason = annotations_of(pod).get(REASON)
    return reason if isinstance(reason, str) else None
