"""An API server's answer to a pod: what refused it, and how it differs from our own decision. Pure.

The messages are recorded from Kubernetes 1.30.14 and 1.36.3, which do not differ in the words that are read
here. The text of a webhook or a policy follows these words, and a pod's name before them is quoted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.explain.document_parts import annotations_of, as_list, as_map
from console.explain.explainer import RBAC, AnswerDifference, ExplainedPod
from kai import keys
from kai.gpu_resources import names_gpu
from kai.kaishare_keys import PREFIX, REASON
from kai.numbers import parse_quantity
from service.text import listed, one_line, quoted
from webhook.policy.patch import TOLERATION
from webhook.policy.reasons import Action, Reason
from webhook.registration.configurations import VALIDATE_PODS


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An answer without a pod."""

    refused_by: str = ""
    """The author; empty if it is not known."""
    problem: str = ""
    """Why this is no answer about the pod; empty for a refusal."""
    is_name_taken: bool = False
    """Whether a pod of that name exists; all admission has passed."""


_NAME_TAKEN: Final = "AlreadyExists"
_INTERNAL: Final = "Internal error occurred: "
_NO_RIGHT: Final = 'pods is forbidden: User "'
_FORBIDDEN = re.compile(r'pods "(?:[^"\\]|\\.)*" is forbidden: ')
_MISSING = re.compile(r'namespaces "([^"]{1,300})" not found$')
_NO_DRY_RUN = re.compile(r'admission webhook "([^"]{1,300})" does not support dry run')
_NO_CALL: Final = "failed calling webhook "
_SERVER: Final = "the API server"
_LIMIT_RANGE: Final = "a LimitRange"
_RATIO: Final = "max limit to request ratio per "
_OF_THE_SERVER: Final = frozenset({400, 422})
_NOT_OF_THE_POD: Final = frozenset({401, 404, 405, 408, 409, 415, 429, 502, 503, 504})

_ROWS: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    # apiserver/pkg/admission/plugin/webhook/errors/statuserror.go
    (re.compile(r'admission webhook "([^"]{1,300})" denied the request'), "webhook {}"),
    # apiserver/pkg/admission/plugin/webhook/validating/dispatcher.go
    (re.compile(r'failed calling webhook "([^"]{1,300})": '), "webhook {}"),
    # apiserver/pkg/admission/plugin/policy/validating/dispatcher.go
    (
        re.compile(
            r"ValidatingAdmissionPolicy '([^']{1,300})' (?:with binding '[^']{1,300}' )?denied request: "
        ),
        "ValidatingAdmissionPolicy {}",
    ),
    # apiserver/pkg/admission/plugin/policy/mutating/dispatcher.go
    (
        re.compile(r"policy '([^']{1,300})' (?:with binding '[^']{1,300}' )?denied request: "),
        "MutatingAdmissionPolicy {}",
    ),
    # apiserver/pkg/admission/plugin/resourcequota/controller.go
    (
        re.compile(r"(?:exceeded quota|failed quota|status unknown for quota): ([-.a-z0-9]{1,253})"),
        "quota {}",
    ),
    (re.compile(r"insufficient quota to (?:consume|match these scopes)"), "a quota"),
    # pod-security-admission/admission/admission.go
    (re.compile(r'violates PodSecurity "([a-z]{1,30}):'), "Pod Security {}"),
    # plugin/pkg/admission/limitranger/admission.go
    (re.compile(r"\[?m(?:ax|in)imum [^ ]{1,320} usage per (?:Pod|Container) is "), _LIMIT_RANGE),
    # plugin/pkg/admission/priority/admission.go
    (
        re.compile(r"(?:no PriorityClass with name |the integer value of priority )"),
        "admission plugin Priority",
    ),
    # plugin/pkg/admission/runtimeclass/admission.go
    (re.compile(r"pod rejected: RuntimeClass "), "admission plugin RuntimeClass"),
    # plugin/pkg/admission/serviceaccount/admission.go
    (re.compile(r"error looking up service account "), "admission plugin ServiceAccount"),
    # plugin/pkg/admission/podnodeselector/admission.go
    (
        re.compile(r"pod node label selector conflicts with its namespace node label selector"),
        "admission plugin PodNodeSelector",
    ),
    # plugin/pkg/admission/gc/gc_admission.go
    (
        re.compile(r"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set"),
        "admission plugin OwnerReferencesPermissionEnforcement",
    ),
    # apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go
    (
        re.compile(
            r"unable to create new content in namespace ([-a-z0-9]{1,63}) because it is being terminated"
        ),
        "namespace {}, which is being deleted",
    ),
)
"""Forms of messages after their prefix, each with the author; braces stand for the first group of the form.

The comment above a form names the file of Kubernetes that writes the message, without `staging/src/k8s.io`.
"""


def read_refusal(status: int, reason: str, message: str, namespace: str) -> ErrorAnswer:
    """Read an answer that is an error.

    Args:
        status: HTTP's status. A webhook chooses the status of its denials.
        reason: reason of the Status object.
        message: its message.
        namespace: the namespace of the pod, for sentences.
    """
    if message.startswith(_NO_RIGHT):
        return ErrorAnswer(RBAC, f"you may not create pods in namespace {namespace}")
    match = _NO_DRY_RUN.match(message)
    if match:
        problem = f"webhook {match[1]} does not support dry runs, so no pod can be tried"
        return ErrorAnswer(f"webhook {match[1]}", problem)
    text = message.removeprefix(_INTERNAL)
    prefix = _FORBIDDEN.match(text)
    text = text[prefix.end() :] if prefix else text
    for form, refused_by in _ROWS:
        match = form.match(text)
        if match:
            return ErrorAnswer(refused_by.format(*match.groups()))
    if text.partition(" ")[2].startswith(_RATIO):  # after the resource's name (limitranger/admission.go)
        return ErrorAnswer(_LIMIT_RANGE)
    if status == 409 and reason == _NAME_TAKEN:
        return ErrorAnswer(_SERVER, f"the API server answered {status} {reason}", is_name_taken=True)
    if _MISSING.match(message):
        return ErrorAnswer(problem=f"namespace {namespace} does not exist in this cluster")
    if status in _NOT_OF_THE_POD or status < 400:
        return ErrorAnswer(problem=f"the API server answered {status} {reason}: {message}")
    return ErrorAnswer(_SERVER if status in _OF_THE_SERVER else "")


def is_unanswered_webhook(message: str) -> bool:
    """Whether a webhook with failurePolicy Fail did not answer."""
    return message.removeprefix(_INTERNAL).startswith(_NO_CALL)


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
