"""Formats the results of `explain` as text, JSON, YAML or patches."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from service.text import one_line
from webhook.explain.explain import Explained
from webhook.policy.reasons import Action, Finding

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_RESET = "\033[0m"
_CONTEXT = 2  # lines


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


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that repeats equal values instead of writing anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


_VERBS = {
    Action.INJECTED: "changed, share",
    Action.OBSERVED: "would be changed (mode observe), share",
    Action.UNCHANGED: "nothing to change, share",
    Action.ERROR: "error, left alone",
}


def as_text(explained: Iterable[Explained], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a text report: for each pod its title, action, reason, warnings and diff."""
    for item in explained:
        decision = item.mutation.decision
        yield paint(f"{one_line(item.pod.title)} in namespace {one_line(item.namespace)}", "@", colour=colour)
        yield f"  {_VERBS.get(decision.action, 'left alone')}: {_with_code(decision.finding)}"
        for denial in item.verdict.denials if item.verdict else ():
            yield paint(f"  denied: {_with_code(denial)}", "-", colour=colour)
        for finding in item.warnings:
            yield f"  warning: {_with_code(finding)}"
        for problem in item.policy.problems if item.policy else ():
            yield f"  policy: {problem}"
        if item.mutation.planned:
            before, after = _without_additions(item.before, item), _without_additions(item.after, item)
            yield from (f"  {line}" for line in diff(before, after, colour=colour))
        yield ""


def as_json(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield one JSON document: a list with an object for each pod."""
    yield json.dumps([_fields(item) for item in explained], indent=2, ensure_ascii=False)


def as_yaml(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield the content of `as_json` as YAML."""
    fields = [_fields(item) for item in explained]
    yield yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000).rstrip()


def as_patch(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield one line for each pod, in order: its JSON Patch (RFC 6902), `[]` where nothing is sent."""
    for item in explained:
        yield json.dumps(list(item.mutation.sent), ensure_ascii=False)


def _with_code(finding: Finding) -> str:
    return f"{finding.sentence} ({finding.reason.code})"


def _fields(item: Explained) -> dict[str, Any]:
    decision = item.mutation.decision
    return {
        "kind": item.pod.kind,
        "name": item.pod.name,
        "namespace": item.namespace,
        "path": item.pod.path,
        "action": decision.action.value,
        **_finding(decision.finding),
        "denials": [_finding(denial) for denial in item.verdict.denials] if item.verdict else [],
        "warnings": [_finding(warning) for warning in item.warnings],
        "policyProblems": [
            {"label": problem.label, "value": problem.value, "message": str(problem)}
            for problem in (item.policy.problems if item.policy else ())
        ],
        "patch": [dict(operation) for operation in item.mutation.sent],
        "pod": _without_additions(item.after, item),
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}


def _without_additions(pod: Mapping[str, object], item: Explained) -> dict[str, object]:
    """Return the pod without the names and owners that a controller adds to the manifest."""
    metadata = pod.get("metadata")
    written = item.pod.template.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(written, dict):
        return dict(pod)
    added = {"generateName", "ownerReferences", "namespace"} - set(written)
    original = {key: value for key, value in metadata.items() if key not in added}
    return {"metadata": original, "spec": pod.get("spec")}
