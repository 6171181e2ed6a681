"""The results of `explain` as a table with sums, as JSON, and as patches."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from console.explain.explainer import ExplainedDocument, ExplainedPod, ServerAnswer, UnexplainedObject
from console.explain.manifest_sources import Location
from console.explain.pod_documents import GpuAmount, as_json, asked_by, asked_now
from console.explain.text import action_word, hints, is_rank, reason_code, server_word
from console.text_table import column_widths, natural_widths, table_lines
from kai import keys
from kai.pod import MalformedPod, decode_pod
from service.text import counted, fold, one_line
from webhook.policy.labels import LabelProblems
from webhook.policy.reasons import Finding
from webhook.policy.sizes import Source

_NONE: Final = "-"
_WIDE: Final = 110
"""Width from which a terminal has room for the files of objects, too."""
_LEAST: Final = {"OBJECT": 10, "FILE": 10, "NAMESPACE": 10}
"""Smallest width of the columns that are shortened."""


def as_table(documents: Iterable[ExplainedDocument], *, columns: int | None) -> Iterator[str]:
    """Yield the lines of the table. Objects that have nothing to do with pods are left out.

    Names are shortened in their middle to fit the columns of a terminal; None for a file or pipe.
    """
    items = [
        _cells(item, location)
        for document in documents
        for location, item in document.located()
        if isinstance(item, ExplainedPod) or item.code != "no-pods"
    ]
    titles = [title for title in (items[0] if items else ()) if any(cells[title] for cells in items)]
    if columns is not None and columns < _WIDE and "FILE" in titles:
        titles.remove("FILE")
    rows = [titles, *([cells[title] or _NONE for title in titles] for cells in items)]
    widths, least = natural_widths(rows), [_LEAST.get(title, 0) for title in titles]
    if columns is not None:
        smallest = [min(room, fewest or room) for room, fewest in zip(widths, least, strict=True)]
        widths = column_widths(rows, columns, least) or smallest
    if items:
        yield from table_lines(rows, widths)


def _cells(item: ExplainedPod | UnexplainedObject, location: Location | None) -> dict[str, str]:
    """Return the cells of a row by the columns' titles; a column of empty cells is left out."""
    pod = item.pod if isinstance(item, ExplainedPod) else item
    name, template = f"{pod.kind}/{pod.name or '(no name)'}", ""
    if isinstance(item, ExplainedPod) and item.pod.path and item.object_place == item.pod.place:
        template = f":{item.pod.path}"  # one of several of the object
    names = {"OBJECT": one_line(name + template), "FILE": one_line(str(location or ""))}
    names["NAMESPACE"] = one_line(item.namespace)
    if isinstance(item, UnexplainedObject):
        others = {"ACTION": "not known", "SHARE": "?", "REASON": item.code, "WARN": _NONE}
        return {**names, "PODS": "", "SERVER": "", **others}
    return {
        **names,
        "PODS": str(item.running.count) if item.running else "",
        "SERVER": server_word(item),
        "ACTION": action_word(item),
        "SHARE": share_text(item),
        "REASON": reason_code(item),
        "WARN": str(len(hints(item)) or _NONE),
    }


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
    return f"{amount.gpus:g} GPU{'' if amount.gpus == 1 else 's'}" if amount.gpus else _NONE


def sums(documents: Iterable[ExplainedDocument], *, columns: int) -> list[str]:
    """Return one sentence with the sums of all pods, in lines of at most a width."""
    items = [item for document in documents for item in document.items]
    pods = [item for item in items if isinstance(item, ExplainedPod)]
    live = [(item, item.running) for item in pods if item.running is not None]
    head = counted(len(pods), "workload" if live else "pod")
    if live:
        head += f" with {counted(sum(running.count for _, running in live), 'pod')}"
    actions = Counter(map(action_word, pods)).most_common()
    answers = Counter(filter(None, map(server_word, pods))).most_common()
    text = f"{head}: {_listed(actions)}" if actions else head
    text += f"; the API server: {_listed(answers)}" if answers else ""
    for count, what in (
        (sum(bool(hints(item)) for item in pods), "with warnings"),
        (sum(map(is_rank, pods)), "of distributed jobs"),
    ):
        text += f"; {count} {what}" if count else ""
    others = len(items) - len(pods)
    text += f"; {counted(others, 'other object')}" if others else ""
    if live:
        today = sum((running.requested for _, running in live), GpuAmount())
        # In mode observe, what a new pod would ask for.
        new = (asked_now(as_json(item.outcome)).times(running.count) for item, running in live)
        text += f"; asked for today: {today}; by new pods: {sum(new, GpuAmount())}"
    return fold(f"{text}.", columns)


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts)


def as_json_text(documents: Iterable[ExplainedDocument], problems: Mapping[str, LabelProblems]) -> str:
    """Return a JSON list with an object for each pod, and for each object without known pods."""
    fields = [
        _pod_fields(item, location, problems.get(item.namespace))
        if isinstance(item, ExplainedPod)
        else _object_fields(item, location)
        for document in documents
        for location, item in document.located()
    ]
    return f"{json.dumps(fields, indent=2, ensure_ascii=False)}\n"


def as_patch(documents: Iterable[ExplainedDocument]) -> str:
    """Return one line for each pod, in order: its JSON Patch (RFC 6902), `[]` where nothing is sent."""
    pods = (item for document in documents for item in document.pods)
    return "".join(f"{json.dumps(list(item.sent), ensure_ascii=False)}\n" for item in pods)


def _pod_fields(
    item: ExplainedPod, location: Location | None, invalid: LabelProblems | None
) -> dict[str, Any]:
    decision, earlier, running = item.mutation.decision, item.earlier, item.running
    selector = decision.size.selector if decision.size else None
    fields = {
        "kind": item.pod.kind,
        "name": item.pod.name,
        "namespace": item.namespace,
        "path": item.pod.path,
        **_place(location),
        "owner": item.pod.owner or None,
        "isSample": item.pod.is_sample,
        "action": decision.action.value,
        **_finding(decision.finding),
        "shareSource": decision.source.value if decision.source else None,
        "size": decision.size.name if decision.size else None,
        "sizeSelector": selector.text if selector and decision.source is Source.SIZE_SELECTOR else None,
        "atCreation": earlier
        and {"reason": earlier.reason, "size": earlier.size, "isCurrent": earlier.is_current},
        "denials": [_finding(denial) for denial in item.verdict.denials] if item.verdict else [],
        "warnings": [_finding(warning) for warning in item.warnings],
        "policyProblems": [
            {"label": problem.label, "value": problem.value, "message": str(problem)}
            for problem in (invalid.first if invalid else ())
        ],
        "patch": [dict(operation) for operation in item.sent],
        "pod": {"metadata": item.after.get("metadata") or {}, "spec": item.after.get("spec")},
    }
    if item.server is not None:
        fields["server"] = _answer_fields(item.server)
    if running is not None:
        amount = running.requested
        fields["running"] = {
            "pods": running.count,
            "gpus": amount.gpus,
            "memoryMiB": amount.memory_mib,
            "notCounted": amount.uncounted,
        }
    return fields


def _answer_fields(answer: ServerAnswer) -> dict[str, Any]:
    return {
        "isAdmitted": answer.is_admitted,
        "problem": answer.problem or None,
        "refusedBy": answer.refused_by or None,
        "refusal": answer.refusal or None,
        "warnings": list(answer.warnings),
        "fields": dict(answer.fields),
        "differences": [asdict(each) for each in answer.differences],
        "causes": list(answer.causes),
        "notes": list(answer.notes),
    }


def _object_fields(item: UnexplainedObject, location: Location | None) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "name": item.name,
        "namespace": item.namespace,
        "path": "",
        **_place(location),
        "action": None,
        "reason": item.code,
        "message": item.message,
        "gpuRequests": list(item.gpu_requests),
        "atCreation": None,
        **{key: [] for key in ("denials", "warnings", "policyProblems", "patch")},
        "pod": None,
    }


def _place(location: Location | None) -> dict[str, Any]:
    """Return file and line; null for an object of a cluster."""
    return {"file": location.file if location else None, "line": location.line if location else None}


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}
