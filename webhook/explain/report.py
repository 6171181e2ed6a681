"""Formats the results of `explain` as text, JSON, YAML or patches."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from service.text import one_line, printable
from webhook.explain.explain import ExplainedDocument, ExplainedPod, UnexplainedObject
from webhook.explain.namespaces import Policies
from webhook.policy.labels import LabelProblems
from webhook.policy.reasons import Action, Finding
from webhook.policy.sizes import Source

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_RESET = "\033[0m"
_CONTEXT = 2  # lines
_NO_PODS = "The manifests contain no pods."


def diff(before: Mapping[str, Any], after: Mapping[str, Any], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a diff of two pods as YAML, keys in the order they were written."""
    lines = difflib.unified_diff(_yaml(before), _yaml(after), lineterm="", n=_CONTEXT)
    for line in list(lines)[2:]:  # without the two file names
        text = "   …" if line.startswith("@@") else line
        yield paint(text, line[:1], colour=colour)


def paint(text: str, sign: str, *, colour: bool) -> str:
    """Colour a line by its sign: `+` for added, `-` for removed, `@` for a title."""
    return f"{_COLOURS[sign]}{text}{_RESET}" if colour and sign in _COLOURS else text


def _yaml(pod: Mapping[str, Any]) -> list[str]:
    return yaml.dump(dict(pod), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000).splitlines()


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # depends on PyYAML's build
    """A YAML dumper that repeats equal values instead of writing anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


_VERBS = {
    Action.INJECTED: "changed, share",
    Action.OBSERVED: "would be changed (mode observe), share",
    Action.UNCHANGED: "nothing to change, share",
    Action.ERROR: "error, left alone",
}


def as_text(
    documents: Iterable[ExplainedDocument],
    problems: Mapping[str, LabelProblems],
    policies: Policies,
    *,
    colour: bool,
) -> Iterator[str]:
    """Yield the lines of a text report.

    The report has for each pod its title, action, reason, warnings and diff, then the objects without known
    pods, and first the problems of the namespaces. No sentence about one pod occurs twice.

    Args:
        documents: the explained documents.
        problems: the invalid labels and annotations by namespace.
        policies: the policies of the namespaces.
        colour: whether to colour the text for a terminal.
    """
    yield from _namespace_lines(problems, policies, colour=colour)
    items = [item for document in documents for item in document.items]
    pods = [item for item in items if isinstance(item, ExplainedPod)]
    others = [item for item in items if isinstance(item, UnexplainedObject)]
    for pod in pods:
        yield from _pod_lines(pod, colour=colour)
    if not pods:
        yield _NO_PODS
    if others:
        yield paint("Other objects:", "@", colour=colour)
        for other in others:
            yield f"  {other.title} in namespace {one_line(other.namespace)}: {other.message} ({other.code})"


def _namespace_lines(
    problems: Mapping[str, LabelProblems], policies: Policies, *, colour: bool
) -> Iterator[str]:
    lines = [f"warning: {sentence}" for sentence in policies.without_effect]
    for namespace, invalid in problems.items():
        if not invalid.count:
            continue
        yield paint(f"Namespace {one_line(namespace)}", "@", colour=colour)
        for problem in invalid.first:
            yield paint(f"  policy: {problem}", "-", colour=colour)
        if invalid.count > len(invalid.first):
            yield f"  policy: and {invalid.count - len(invalid.first)} more"
        yield ""
    yield from lines


def _pod_lines(item: ExplainedPod, *, colour: bool) -> Iterator[str]:
    decision = item.mutation.decision
    yield paint(f"{one_line(item.pod.title)} in namespace {one_line(item.namespace)}", "@", colour=colour)
    yield f"  {_VERBS.get(decision.action, 'left alone')}: {_with_code(decision.finding)}"
    written = {decision.finding.sentence}
    source = _source_sentence(item)
    if source:
        yield f"  decided by: {source}"
    for denial in item.verdict.denials if item.verdict else ():
        if denial.sentence not in written or denial.reason is not decision.reason:
            yield paint(f"  denied: {_with_code(denial)}", "-", colour=colour)
        else:
            yield paint(f"  denied: for the reason above ({denial.reason.code})", "-", colour=colour)
        written.add(denial.sentence)
    for finding in item.warnings:
        if finding.sentence not in written:
            yield f"  warning: {_with_code(finding)}"
            written.add(finding.sentence)
    note = _note(item)
    if note:
        yield f"  note: {note}"
    if item.planned:
        before, after = _written(item.pod.template), _written(item.after)
        yield from (f"  {line}" for line in diff(before, after, colour=colour))
    yield ""


def _source_sentence(item: ExplainedPod) -> str:
    """Describe what decided the share; empty if the pod gets none."""
    decision = item.mutation.decision
    size = decision.size
    match decision.source:
        case Source.OWN_SHARE:
            return "the pod's own share"
        case Source.SIZE_LABEL if size is not None:
            return f"the pod's label kaishare.dev/size: {size.name}"
        case Source.SIZE_SELECTOR if size is not None and size.selector is not None:
            return f"the selector of size {size.name}: {printable(size.selector.text)}"
        case Source.DEFAULT_SHARE:
            return "the namespace's default share"
    return ""


def _note(item: ExplainedPod) -> str:
    """Say which labels are not known, where a selector may depend on them; empty otherwise."""
    if item.pod.has_known_labels or item.policy is None or not item.policy.sizes.selecting:
        return ""
    kind = one_line(item.pod.kind)
    return (
        f"the controller of this {kind} may add labels, which the selectors of sizes see and explain does not"
    )


def as_json(documents: Iterable[ExplainedDocument], problems: Mapping[str, LabelProblems]) -> Iterator[str]:
    """Yield one JSON document: a list with an object for each pod, and for each object without known pods."""
    yield json.dumps(_all_fields(documents, problems), indent=2, ensure_ascii=False)


def as_yaml(documents: Iterable[ExplainedDocument], problems: Mapping[str, LabelProblems]) -> Iterator[str]:
    """Yield the content of `as_json` as YAML."""
    fields = _all_fields(documents, problems)
    yield yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000).rstrip()


def as_patch(documents: Iterable[ExplainedDocument]) -> Iterator[str]:
    """Yield one line for each pod, in order: its JSON Patch (RFC 6902), `[]` where nothing is sent."""
    for document in documents:
        for item in document.pods:
            yield json.dumps(list(item.sent), ensure_ascii=False)


def _with_code(finding: Finding) -> str:
    return f"{finding.sentence} ({finding.reason.code})"


def _all_fields(
    documents: Iterable[ExplainedDocument], problems: Mapping[str, LabelProblems]
) -> list[dict[str, Any]]:
    return [
        _fields(item, problems) if isinstance(item, ExplainedPod) else _fields_without_pod(item)
        for document in documents
        for item in document.items
    ]


def _fields(item: ExplainedPod, problems: Mapping[str, LabelProblems]) -> dict[str, Any]:
    decision = item.mutation.decision
    selector = decision.size.selector if decision.size else None
    invalid = problems.get(item.namespace)
    return {
        "kind": item.pod.kind,
        "name": item.pod.name,
        "namespace": item.namespace,
        "path": item.pod.path,
        "action": decision.action.value,
        **_finding(decision.finding),
        "shareSource": decision.source.value if decision.source else None,
        "size": decision.size.name if decision.size else None,
        "sizeSelector": selector.text if selector and decision.source is Source.SIZE_SELECTOR else None,
        "denials": [_finding(denial) for denial in item.verdict.denials] if item.verdict else [],
        "warnings": [_finding(warning) for warning in item.warnings],
        "policyProblems": [
            {"label": problem.label, "value": problem.value, "message": str(problem)}
            for problem in (invalid.first if invalid else ())
        ],
        "patch": [dict(operation) for operation in item.sent],
        "pod": _shown(item.after),
    }


def _fields_without_pod(item: UnexplainedObject) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "name": item.name,
        "namespace": item.namespace,
        "path": "",
        "action": None,
        "reason": item.code,
        "message": item.message,
        "gpuRequests": list(item.gpu_requests),
        "denials": [],
        "warnings": [],
        "policyProblems": [],
        "patch": [],
        "pod": None,
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}


def _written(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {key: pod[key] for key in ("metadata", "spec") if pod.get(key)}


def _shown(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": pod.get("metadata") or {}, "spec": pod.get("spec")}
