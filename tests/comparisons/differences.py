"""Differences between the answer of `explain` about a pod and the answers of the webhook and the API server."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.explain.explainer import ExplainedPod
from kai.numbers import parse_quantity
from tests.comparisons.answers import Creation
from tests.support.kube_user import Answer
from tests.support.webhook_recorder import Exchange
from webhook.policy.patch import Mutation
from webhook.policy.reasons import Action, Finding, Reason

Json = dict[str, Any]

NOT_SENT: Final = frozenset(
    {
        Reason.NOT_MANAGED, Reason.NAMESPACE_EXCLUDED, Reason.MODE_OFF, Reason.MIRROR_POD, Reason.NODE_NAME_SET,
        Reason.DAEMONSET, Reason.OPTED_OUT,
    }
)  # fmt: skip
"""Reasons of pods that the API server need not send to `/mutate`."""
DENIED: Final = "denied by kaishare"
_OF_OWNERS: Final = frozenset({Reason.OWNER_QUEUE})
"""Warnings of `explain` about a workload or an owner, which the mutating webhook does not know."""
_LIMIT_RANGER: Final = "kubernetes.io/limit-ranger"
_STAND_INS: Final = ("hash", "uid", "job-key", "group-key")
_CUT: Final = " … "
"""Mark of the log in a text that it has shortened (service/log.py)."""
_UNCLEAR: Final = re.compile(r"(container \S+ requests )(.+)( nvidia\.com/gpu, which is not a whole number)")
_KAIS_NAME: Final = re.compile(r"(attempting to create a pod [^/ ]+/)\S*")
_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds")
_DEFAULT_TOLERATIONS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, kw_only=True)
class ComparedPod:
    """Everything that is known about one pod."""

    explained: ExplainedPod
    printed: Json
    """The pod in the output of the command `explain -o json`."""
    created: Json
    """The pod that was sent to the API server."""
    creation: Creation
    reviewed: Json | None = None
    """The webhook's decision about a pod that the API server did not send; None for other pods."""
    again: Creation | None = None
    """The creation of the pod from the manifest with the patch of `explain`; None without a patch."""
    mutations: Sequence[Mutation] = ()
    """What `explain` computes for the pods of the reviews; it must be the webhook's answers to the byte."""


def differences(pod: ComparedPod) -> list[str]:
    """Return a sentence for each difference; empty if all answers agree."""
    return [
        *_of_output(pod),
        *_of_reviews(pod),
        *_of_decision(pod),
        *_of_verdict(pod),
        *_of_results(pod),
    ]


def outcome(creation: Creation) -> str:
    """Return the result of a creation, as words for counts."""
    status = creation.answer.status
    is_denied = any(not each.response["allowed"] for each in creation.validations)
    if status == 201:
        return "reviewed, created" if creation.mutations else "not sent, created"
    if is_denied:
        return DENIED
    return "reviewed, refused by the API server" if creation.mutations else "refused without a review"


def cause_of_refusal(answer: Answer) -> str:
    """Return status and cause of an API server's refusal, as words for counts."""
    causes = (
        ("usage per", "a LimitRange"),
        ("PriorityClass", "an unknown PriorityClass"),
        ("is invalid", "an invalid field"),
        ("cannot be handled as", "a value of a wrong type"),
    )
    return f"{answer.status} {next((words for part, words in causes if part in answer.message), 'another cause')}"


def _of_output(pod: ComparedPod) -> Iterator[str]:
    """Compare the printed answer with the objects that the other comparisons use."""
    explained, printed = pod.explained, pod.printed
    decision, verdict = explained.mutation.decision, explained.verdict
    expected = {
        "path": explained.pod.path,
        "action": decision.action.value,
        "reason": decision.reason.code,
        "message": decision.finding.sentence,
        "size": decision.size.name if decision.size else None,
        "denials": [_as_printed(finding) for finding in (verdict.denials if verdict else ())],
        "warnings": [_as_printed(finding) for finding in explained.warnings],
        "patch": [dict(operation) for operation in explained.sent],
    }
    for key, value in expected.items():
        if printed.get(key) != value:
            yield f"output {key}: {printed.get(key)!r} is printed, {value!r} is computed"


def _as_printed(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}


def _of_reviews(pod: ComparedPod) -> Iterator[str]:
    """Compare each answer of `/mutate` with what `explain` computes for the same pod."""
    for exchange, mutation in zip(pod.creation.mutations, pod.mutations, strict=True):
        sent, computed = patch_of(exchange), [dict(operation) for operation in mutation.sent]
        if json.dumps(sent) != json.dumps(computed):
            yield f"review: patch {sent} is sent, {computed} is computed"
        line = pod.creation.decisions[exchange.request["uid"]]
        yield from _unequal("review", line, mutation, pod)


def patch_of(exchange: Exchange) -> list[Json]:
    """Return the patch of an answer."""
    encoded = exchange.response.get("patch")
    patch: list[Json] = json.loads(base64.b64decode(encoded)) if encoded else []
    return patch


def _without_name(text: Any, pod: ComparedPod) -> Any:
    """Return a sentence or a list of them without the name of a workload's pod, which its controller chooses."""
    if isinstance(text, list):
        return [_without_name(each, pod) for each in text]
    return _KAIS_NAME.sub(r"\1", text) if isinstance(text, str) and pod.explained.pod.path else text


def _unequal(place: str, line: Mapping[str, Any], mutation: Mutation, pod: ComparedPod) -> Iterator[str]:
    """Compare a log line of the webhook with a decision."""
    decision, changes = mutation.decision, mutation.decision.changes
    expected = {
        "action": decision.action.value,
        "reason": decision.reason.code,
        "detail": decision.finding.sentence,
        "size": decision.size.name if decision.size else None,
        "warnings": [finding.sentence for finding in decision.warnings] or None,
        "changes": [*changes.labels, *changes.annotations] if changes else None,
    }
    for key, value in expected.items():
        if not _is_logged(_without_name(line.get(key), pod), _without_name(value, pod)):
            yield f"{place}: {key} of the webhook: {line.get(key)!r}; of explain: {value!r}"


def _is_logged(logged: Any, value: Any) -> bool:
    """Whether a value of a log line, which the log may have cut in its middle, is this value."""
    if isinstance(logged, list) and isinstance(value, list):
        return len(logged) == len(value) and all(map(_is_logged, logged, value))
    if isinstance(logged, str) and isinstance(value, str):
        logged, value = _with_canonical_amounts(logged), _with_canonical_amounts(value)
    if isinstance(logged, str) and isinstance(value, str) and _CUT in logged:
        head, _, tail = logged.partition(_CUT)
        return value.startswith(head) and value.endswith(tail)
    return bool(logged == value)


def _with_canonical_amounts(sentence: str) -> str:
    """Return the sentence of `unclear-quantity` with the amount as a fraction.

    The API server passes 0.5 on as 500m. It refuses each pod with such an amount later.
    """
    return _UNCLEAR.sub(lambda match: f"{match[1]}{_amount(match[2])}{match[3]}", sentence)


def _of_decision(pod: ComparedPod) -> Iterator[str]:
    """Compare action, reason, detail and warnings about the manifest with the first answer of `/mutate`."""
    explained, creation = pod.explained, pod.creation
    decision = explained.mutation.decision
    if not creation.mutations:
        if creation.answer.status == 201:
            assert pod.reviewed is not None
            yield from _unequal("direct review", pod.reviewed, explained.mutation, pod)
            if decision.reason not in NOT_SENT:
                yield f"the pod is not sent to /mutate, but explain says {decision.reason.code}"
        return
    first = creation.mutations[0]
    line = creation.decisions[first.request["uid"]]
    yield from _unequal("first review", line, explained.mutation, pod)
    if bool(patch_of(first)) != bool(explained.mutation.sent):
        yield f"a patch is sent: {patch_of(first)}; by explain: {explained.mutation.sent}"
    if decision.action is Action.INJECTED:
        audit = first.response.get("auditAnnotations", {})
        if (audit.get("action"), audit.get("reason")) != (decision.action.value, decision.reason.code):
            yield f"audit annotations {audit}; by explain: {decision.action.value}, {decision.reason.code}"
        own = list(dict.fromkeys(finding.warning for finding in decision.warnings))
        sent = first.response.get("warnings", [])
        if sent != own and not any(map(_KAIS_NAME.search, sent)):
            yield f"warnings {sent}; by explain: {own}"
    others = explained.warnings[len(decision.warnings) :]
    if explained.warnings[: len(decision.warnings)] != decision.warnings or any(
        finding.reason not in _OF_OWNERS for finding in others
    ):
        yield f"further warnings of explain: {[_as_printed(finding) for finding in others]}"


def _of_verdict(pod: ComparedPod) -> Iterator[str]:
    """Compare the denial, and whether the pod can be created."""
    verdict, creation = pod.explained.verdict, pod.creation
    denials = verdict.denials if verdict else ()
    for validation in creation.validations:
        response = validation.response
        message = "" if response["allowed"] else response["status"]["message"]
        expected = verdict.message if verdict else ""
        if message != expected:
            yield f"denied with {message!r}; by explain: {expected!r}"
        codes = response.get("auditAnnotations", {}).get("reason", "")
        if codes != ",".join(finding.reason.code for finding in denials):
            yield f"denied for {codes!r}; by explain: {[finding.reason.code for finding in denials]}"
    if creation.answer.status == 201 and pod.explained.is_refused:
        yield "the pod is created, but explain says that it is refused"


def _of_results(pod: ComparedPod) -> Iterator[str]:
    """Compare the pod that would be stored with the predicted one, and with that of the patched manifest."""
    if pod.creation.answer.status != 201:
        return
    stored, predicted = pod.creation.pod, pod.explained.final
    expected, actual = _predictable(predicted, pod), _predictable(stored, pod)
    for key, value in expected.items():
        if actual[key] != value:
            yield f"{key} of the stored pod: {actual[key]!r}; by explain: {value!r}"
    if pod.again is None:
        return
    if pod.again.answer.status != 201:
        yield f"the manifest with the patch of explain is refused: {pod.again.answer.message}"
        return
    patched = comparable(pod.again.pod)
    if patched != comparable(stored):
        yield f"the patched manifest gives {patched}; the server's patch gives {comparable(stored)}"


def _predictable(pod: Mapping[str, Any], compared: ComparedPod) -> dict[str, Any]:
    """Return what `explain` predicts of a pod, without what only the controller knows."""
    explained = compared.explained
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    template = explained.pod.template.get("metadata") or {}
    labels = {key: value or "" for key, value in (metadata.get("labels") or {}).items()}
    of_controller = _added(compared.created["metadata"], template, "labels")
    if explained.pod.path and explained.pod.additions is None:
        labels = {key: value for key, value in labels.items() if key not in of_controller}
    for key in of_controller & labels.keys():
        if any(part in key for part in _STAND_INS) or (explained.pod.kind == "CronJob" and "job-name" in key):
            labels[key] = "stand-in"
    added = _added(compared.created["metadata"], template, "annotations")
    annotations = {
        key: value or ""
        for key, value in (metadata.get("annotations") or {}).items()
        if key != _LIMIT_RANGER and key not in added
    }
    return {
        "labels": labels,
        "annotations": annotations,
        "scheduler": spec.get("schedulerName"),
        "tolerations": [
            {key: each[key] for key in _TOLERATION if each.get(key)}
            for each in spec.get("tolerations") or ()
            if each.get("key") not in _DEFAULT_TOLERATIONS
        ],
        "resources": [
            (container.get("name"), _amounts(container))
            for group in ("containers", "initContainers")
            for container in spec.get(group) or ()
        ],
    }


def _added(created: Mapping[str, Any], template: Mapping[str, Any], part: str) -> set[str]:
    """Return the keys of labels or annotations that the controller has added or overwritten."""
    written = template.get(part) or {}
    return {key for key, value in (created.get(part) or {}).items() if written.get(key) != value}


def _amounts(container: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    resources = container.get("resources") or {}
    return {
        (kind, name): _amount(amount)
        for kind in ("limits", "requests")
        for name, amount in (resources.get(kind) or {}).items()
    }


def _amount(amount: Any) -> Any:
    """Return a quantity as a number; one that cannot be read as it is."""
    try:
        return parse_quantity(amount if amount is not None else 0)
    except ValueError:
        return amount


def comparable(pod: Json) -> Json:
    """Return a stored pod without what differs between two creations."""
    metadata = {
        key: value
        for key, value in pod["metadata"].items()
        if key not in ("uid", "creationTimestamp", "managedFields", "generation", "annotations")
    }
    if "generateName" in metadata:
        metadata.pop("name", None)
    annotations = pod["metadata"].get("annotations") or {}
    metadata["annotations"] = {key: value for key, value in annotations.items() if key != _LIMIT_RANGER}
    tolerations = sorted(map(str, pod["spec"].get("tolerations") or ()))
    return {"metadata": metadata, "spec": {**pod["spec"], "tolerations": tolerations}}
