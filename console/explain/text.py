"""What `explain` prints: sentences about a pod, the text report, the table, the sums and JSON."""

import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from msgspec import to_builtins
from msgspec.structs import astuple

from console.explain.explainer import (
    RBAC,
    ExplainedPod,
    Item,
    PodRequests,
    UnexplainedObject,
    asked_by,
    asked_now,
)
from console.text_table import natural_widths, paint, shown_widths, table_lines
from kai import keys
from kai.kaishare_keys import REASON
from kai.pod import MalformedPod, decode_pod
from service.text import counted, fold, one_line
from webhook.policy.labels import LabelProblems
from webhook.policy.pod_parts import annotations_of, as_json
from webhook.policy.reasons import Action, Finding, Reason
from webhook.policy.sizes import Source

_WORDS: Final = {  # for an action, in the table and in a headline
    Action.INJECTED: ("changed", "changed"),
    Action.OBSERVED: ("observed", "would be changed"),
    Action.UNCHANGED: ("unchanged", "unchanged"),
    Action.ERROR: ("error", "error, left alone"),
}
_LEFT_ALONE: Final = ("left alone", "left alone")
_ANSWERS: Final = {None: "no answer", True: "admitted", False: "refused"}
_RANKS: Final = (Reason.DISTRIBUTED, Reason.RANKS_MAY_MEET)
_SHARES: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # depends on PyYAML's build
    """A YAML dumper that repeats equal values instead of writing anchors."""

    ignore_aliases = staticmethod(lambda _data: True)


def _yaml_lines(pod: Mapping[str, Any]) -> list[str]:
    written = {key: pod[key] for key in ("metadata", "spec") if pod.get(key)}
    form: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 1000}
    return str(yaml.dump(written, Dumper=_Dumper, **form)).splitlines()


def _diff(item: ExplainedPod) -> Iterator[str]:
    before, after = _yaml_lines(item.pod.template), _yaml_lines(item.after)
    compared = difflib.unified_diff(before, after, lineterm="", n=2)
    for line in list(compared)[2:]:  # without the two file names
        yield paint("   …" if line.startswith("@@") else line, line[:1])


def _action_word(item: ExplainedPod) -> str:
    """Return what happens to the pod, in one or two words."""
    if not item.is_decided:
        return "not known"
    return "denied" if item.is_denied else _WORDS.get(item.mutation.decision.action, _LEFT_ALONE)[0]


def reason_code(item: ExplainedPod) -> str:
    """Return the code of the first denial, else of a live pod's change at creation, else of the decision."""
    if item.verdict is not None and item.verdict.denials:
        return item.verdict.denials[0].reason.code
    return _earlier_reason(item) or item.mutation.decision.reason.code


def _earlier_reason(item: ExplainedPod) -> str:
    """Return why the webhook gave a live pod the policy's share at its creation; empty if it did not."""
    is_own = item.mutation.decision.source is Source.OWN_SHARE
    return one_line(item.earlier.reason, 40) if is_own and item.earlier and item.earlier.is_current else ""


def headline(item: ExplainedPod) -> str:
    """Return one sentence about what happens to the pod, with the code of the reason."""
    decision = item.mutation.decision
    if earlier := _earlier_reason(item):
        return f"{_action_word(item)}: changed at its creation ({earlier}); its share is the policy's"
    sentence, changes = _with_code(decision.finding), decision.changes
    if not item.is_decided:
        return f"not known: {sentence}"
    _, verb = _WORDS.get(decision.action, _LEFT_ALONE)
    mode = ["mode observe"] if decision.action is Action.OBSERVED else []
    if decision.action not in (Action.INJECTED, Action.OBSERVED):
        return f"{verb}: {sentence}"
    if changes.removed_gpu_keys or any(key in changes.annotations for key in _SHARES):
        return f"{verb}{' (mode observe)' if mode else ''}: {sentence}"
    parts = {
        "scheduler": changes.scheduler,
        "queue": keys.QUEUE_LABEL in changes.labels,
        "priority": keys.PRIORITY_LABEL in changes.labels,
        "toleration": changes.toleration,
        "framework memory": changes.options,
    }
    names = ", ".join([*(name for name, is_changed in parts.items() if is_changed), *mode])
    return f"{verb} ({names}), no share given: {sentence.removeprefix('no share: ')}"


def _with_code(finding: Finding) -> str:
    return f"{finding.sentence} ({finding.reason.code})"


def _server_word(item: ExplainedPod) -> str:
    """Return what the API server answered, in one or two words; empty if it was not asked."""
    if item.server is None:
        return ""
    is_different = item.server.is_admitted and item.server.differences and item.is_decided
    return "different" if is_different else _ANSWERS[item.server.is_admitted]


def _server_sentences(item: ExplainedPod) -> Iterator[str]:
    answer = item.server
    if answer is None:
        return
    author = f" by {answer.refused_by}" if answer.refused_by and answer.is_admitted is False else ""
    problem = f": {answer.problem}" if answer.problem else ""
    yield f"server: {_ANSWERS[answer.is_admitted]}{author}{problem}"
    if answer.refusal and answer.refused_by != RBAC:
        yield f"server says: {answer.refusal}"
    yield from (f"admitted with {field}: {value}" for field, value in answer.fields.items())
    yield from (f"server warning: {warning}" for warning in answer.warnings)
    if item.is_decided:
        for field, ours, theirs in map(astuple, answer.differences):
            yield f"differs: {field}: {theirs or 'none'} in the cluster, {ours or 'none'} here"
        yield from (f"because: {cause}" for cause in answer.causes)
    yield from (f"note: {note}" for note in answer.notes)


def unadmitted_sentence(item: ExplainedPod) -> str:
    """Say that the API server refused the pod, gave no answer about it, or has a problem; empty otherwise."""
    is_admitted = item.server is None or (item.server.is_admitted and not item.server.problem)
    return "" if is_admitted else next(_server_sentences(item))


def _notes(item: ExplainedPod) -> Iterator[str]:
    """Yield sentences about what `explain` does not know of the pod, and about a live pod's past."""
    earlier, decision = item.earlier, item.mutation.decision
    is_undone = REASON not in annotations_of(item.pod.template)  # what the webhook wrote was taken away first
    if earlier and not _earlier_reason(item) and (is_undone or earlier.reason != decision.reason.code):
        yield (
            f"changed at its creation ({one_line(earlier.reason, 40)}); a new pod may get something else,"
            " because the policy or the pod has changed since"
        )
    has_selectors = item.policy is not None and item.policy.sizes.selecting
    if item.pod.path and item.pod.additions is None and has_selectors:
        yield (
            f"the controller of this {one_line(item.pod.kind)} may add labels, which the selectors of sizes"
            " see and explain does not"
        )


def namespace_sentences(problems: Mapping[str, LabelProblems]) -> Iterator[str]:
    """Yield the sentences about invalid labels of namespaces."""
    for namespace, invalid in problems.items():
        yield from (f"namespace {one_line(namespace)}: {problem}" for problem in invalid.first)
        if more := invalid.count - len(invalid.first):
            yield f"namespace {one_line(namespace)}: and {more} more"


def as_text(items: Sequence[Item], *, is_live: bool, columns: int) -> Iterator[str]:
    """Yield the lines of the text report; those of a diff may be longer than `columns`."""
    pods = [item for item in items if isinstance(item, ExplainedPod)]
    for item in pods:
        for line in fold(f"{item.title} in namespace {one_line(item.namespace)}", columns, indent="  "):
            yield paint(line, "@")
        for sentence in _sentences(item):
            sign = "-" if sentence.startswith("denied: ") else ""
            for line in fold(sentence, columns, head="  ", indent="    "):
                yield paint(line, sign)
        if item.server is None and item.planned:
            yield from (f"  {line}" for line in _diff(item))
        yield ""
    if not pods:
        yield "There are no workloads." if is_live else "The manifests contain no pods."
    if len(items) > len(pods):
        yield paint("Other objects:", "@")
    for other in items:
        if isinstance(other, UnexplainedObject):
            place = f" ({one_line(str(other.location))})" if other.location else ""
            scope = f" in namespace {one_line(other.namespace)}" if other.namespace else ""
            text = f"{other.title}{scope}{place}: {other.message} ({other.code})"
            yield from fold(text, columns, head="  ", indent="    ")


def _sentences(item: ExplainedPod) -> Iterator[str]:
    decision = item.mutation.decision
    if item.location is not None:
        yield f"file: {one_line(str(item.location))}"
    yield headline(item)
    written = {decision.finding.sentence}
    for denial in item.verdict.denials if item.verdict else ():
        is_new = denial.sentence not in written or denial.reason is not decision.reason
        yield f"denied: {_with_code(denial) if is_new else f'for the reason above ({denial.reason.code})'}"
        written.add(denial.sentence)
    for finding in item.warnings:
        if finding.sentence not in written:
            yield f"warning: {_with_code(finding)}"
            written.add(finding.sentence)
    yield from (f"note: {note}" for note in _notes(item))
    yield from _server_sentences(item)


_NONE: Final = "-"
_WIDE: Final = 110  # width from which a terminal has room for the files of objects, too
_NAMES: Final = ("OBJECT", "FILE", "NAMESPACE")
_COLUMNS: Final = (*_NAMES, "PODS", "SERVER", "ACTION", "SHARE", "REASON", "WARN")
_LEAST: Final = 10  # smallest width of a column of names, which is shortened


def as_table(items: Iterable[Item], *, columns: int, is_whole: bool = False) -> Iterator[str]:
    """Yield the lines of the table, whole or cut to fit a terminal, without the kinds that make no pods."""
    cells = [_cells(item) for item in items if isinstance(item, ExplainedPod) or item.code != "no-pods"]
    titles = [title for title in _COLUMNS if any(row.get(title) for row in cells)]
    if sys.stdout.isatty() and not is_whole and columns < _WIDE and "FILE" in titles:
        titles.remove("FILE")
    rows = [titles, *([row.get(title) or _NONE for title in titles] for row in cells)]
    least = [_LEAST * (title in _NAMES) for title in titles]
    if cells:
        yield from table_lines(rows, natural_widths(rows) if is_whole else shown_widths(rows, columns, least))


def _cells(item: Item) -> dict[str, str]:
    pod = item.pod if isinstance(item, ExplainedPod) else item
    name = f"{pod.kind}/{pod.name or '(no name)'}"
    if isinstance(item, ExplainedPod) and item.has_siblings:
        name += f":{item.pod.path}"  # one of several of the object
    names = {"OBJECT": one_line(name), "FILE": one_line(str(item.location or ""))}
    names["NAMESPACE"] = one_line(item.namespace)
    if isinstance(item, UnexplainedObject):
        return {**names, "ACTION": "not known", "SHARE": "?", "REASON": item.code, "WARN": _NONE}
    return {
        **names,
        "PODS": str(item.running.pods) if item.running else "",
        "SERVER": _server_word(item),
        "ACTION": _action_word(item),
        "SHARE": _share_text(item),
        "REASON": reason_code(item),
        "WARN": str(len(item.warnings) or _NONE),
    }


def _share_text(item: ExplainedPod) -> str:
    """Return what the pod ends with, in a few characters: `0.25`, `2000 MiB`, `1 GPU`; `-` for nothing."""
    try:
        pod = decode_pod(as_json(item.outcome))
    except MalformedPod:
        return "?"
    for key, unit in ((keys.GPU_FRACTION, ""), (keys.GPU_MEMORY, " MiB")):
        if key in pod.annotations:
            amount = one_line(pod.annotations[key], 12)
            return amount + unit if amount.isdecimal() else amount
    request = asked_by(pod)
    if request.uncounted:
        return "other GPU"
    return f"{request.gpus:g} GPU{'' if request.gpus == 1 else 's'}" if request.gpus else _NONE


def sums(items: Sequence[Item], *, columns: int) -> list[str]:
    """Return one sentence with the sums of all pods, in lines of at most a width."""
    pods = [item for item in items if isinstance(item, ExplainedPod)]
    live = [(item, item.running) for item in pods if item.running is not None]
    today = sum((running for _, running in live), PodRequests())
    head = counted(len(pods), "workload" if live else "pod")
    head += f" with {counted(today.pods, 'pod')}" if live else ""
    actions = Counter(map(_action_word, pods)).most_common()
    answers = Counter(filter(None, map(_server_word, pods))).most_common()
    text = f"{head}: {_listed(actions)}" if actions else head
    text += f"; the API server: {_listed(answers)}" if answers else ""
    hinted = sum(bool(item.warnings) for item in pods)
    findings = ((item.mutation.decision.finding, *item.warnings) for item in pods)
    ranks = sum(any(each.reason in _RANKS for each in of_pod) for of_pod in findings)
    others = len(items) - len(pods)
    text += f"; {hinted} with warnings" if hinted else ""
    text += f"; {ranks} of distributed jobs" if ranks else ""
    text += f"; {counted(others, 'other object')}" if others else ""
    if live:
        # In mode observe, what a new pod would ask for.
        new = (asked_now(as_json(item.outcome)).times(running.pods) for item, running in live)
        text += f"; asked for today: {today}; by new pods: {sum(new, PodRequests())}"
    return fold(f"{text}.", columns)


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts)


def as_json_text(items: Iterable[Item], problems: Mapping[str, LabelProblems]) -> str:
    """Return a JSON list with an object for each pod, and for each object without known pods."""
    fields = [_fields(item, problems.get(item.namespace)) for item in items]
    return f"{json.dumps(fields, indent=2, ensure_ascii=False)}\n"


def _fields(item: Item, invalid: LabelProblems | None) -> dict[str, Any]:
    pod = item.pod if isinstance(item, ExplainedPod) else item
    fields: dict[str, Any] = {
        "kind": pod.kind,
        "name": pod.name,
        "namespace": item.namespace,
        "path": item.pod.path if isinstance(item, ExplainedPod) else "",
        "file": item.location.file if item.location else None,
        "line": item.location.line if item.location else None,
    }
    if isinstance(item, UnexplainedObject):
        fields |= {"action": None, "reason": item.code, "message": item.message, "pod": None}
        fields |= dict.fromkeys(("denials", "warnings", "policyProblems", "patch"), ())
        return {**fields, "atCreation": None}
    decision, earlier = item.mutation.decision, item.earlier
    selector = decision.size.selector if decision.size else None
    fields |= {
        "owner": item.owner or None,
        "isSample": item.is_sample,
        "action": decision.action.value,
        **_finding(decision.finding),
        "shareSource": decision.source.value if decision.source else None,
        "size": decision.size.name if decision.size else None,
        "sizeSelector": selector.text if selector and decision.source is Source.SIZE_SELECTOR else None,
        "atCreation": earlier and to_builtins(earlier),
        "denials": list(map(_finding, item.verdict.denials if item.verdict else ())),
        "warnings": list(map(_finding, item.warnings)),
        "policyProblems": [
            {"label": problem.label, "value": problem.value, "message": str(problem)}
            for problem in (invalid.first if invalid else ())
        ],
        "patch": list(map(dict, item.planned if decision.action is Action.INJECTED else ())),
        "pod": {"metadata": item.after.get("metadata") or {}, "spec": item.after.get("spec")},
    }
    if item.server is not None:
        answer = to_builtins(item.server).items()
        fields["server"] = {key: None if value == "" else value for key, value in answer}
    if item.running is not None:
        fields["running"] = to_builtins(item.running)
    return fields


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}
