"""What `explain` found, written for a person or for a program."""

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
    """Colour a line by its sign: `+`, `-`, or `@` for what is only said about it."""
    return f"{_COLOURS[sign]}{text}{_RESET}" if colour and sign in _COLOURS else text


def _yaml(pod: Mapping[str, Any]) -> list[str]:
    return yaml.dump(dict(pod), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000).splitlines()


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: a value that stands twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


_VERBS = {
    Action.INJECTED: "changed, share",
    Action.OBSERVED: "would be changed (mode observe), share",
    Action.UNCHANGED: "nothing to change, share",
    Action.ERROR: "error, left alone",
}


def as_text(explained: Iterable[Explained], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a report: per pod a title, what and why, warnings, and the diff."""
    for item in explained:
        decision = item.mutation.decision
        yield paint(f"{one_line(item.pod.title)} in namespace {one_line(item.namespace)}", "@", colour=colour)
        yield f"  {_VERBS.get(decision.action, 'left alone')}: {_said(decision.finding)}"
        for denial in item.verdict.denials if item.verdict else ():
            yield paint(f"  denied: {_said(denial)}", "-", colour=colour)
        for finding in item.warnings:
            yield f"  warning: {_said(finding)}"
        for problem in item.policy.problems if item.policy else ():
            yield f"  policy: {problem}"
        if item.mutation.planned:
            before, after = _shown(item.before, item), _shown(item.after, item)
            yield from (f"  {line}" for line in diff(before, after, colour=colour))
        yield ""


def as_json(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield one JSON document: a list with an object for each pod."""
    yield json.dumps([_fields(item) for item in explained], indent=2, ensure_ascii=False)


def as_yaml(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield the same as YAML."""
    fields = [_fields(item) for item in explained]
    yield yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000).rstrip()


def as_patch(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield one line for each pod, in order: its JSON Patch (RFC 6902), `[]` where nothing is sent."""
    for item in explained:
        yield json.dumps(list(item.mutation.sent), ensure_ascii=False)


def _said(finding: Finding) -> str:
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
        "pod": _shown(item.after, item),
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}


def _shown(pod: Mapping[str, object], item: Explained) -> dict[str, object]:
    """Leave out what the manifest's author did not write: names and owners that a controller adds."""
    metadata = pod.get("metadata")
    written = item.pod.template.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(written, dict):
        return dict(pod)
    added = {"generateName", "ownerReferences", "namespace"} - set(written)
    kept = {key: value for key, value in metadata.items() if key not in added}
    return {"metadata": kept, "spec": pod.get("spec")}
