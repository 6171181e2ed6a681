"""The results of `explain` as a table with sums, as JSON, and as patches."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import to_builtins

from console.explain.explainer import ExplainedPod, Item, UnexplainedObject
from console.explain.pod_documents import PodRequests, as_json, asked_by, asked_now
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
_NAMES: Final = ("OBJECT", "FILE", "NAMESPACE")
_COLUMNS: Final = (*_NAMES, "PODS", "SERVER", "ACTION", "SHARE", "REASON", "WARN")
_LEAST: Final = 10
"""Smallest width of a column of names, which is shortened."""


def as_table(items: Iterable[Item], *, columns: int | None) -> Iterator[str]:
    """Yield the lines of the table. Objects that have nothing to do with pods are left out.

    Names are shortened in their middle to fit the columns of a terminal; None for a file or pipe.
    """
    cells = [_cells(item) for item in items if isinstance(item, ExplainedPod) or item.code != "no-pods"]
    titles = [title for title in _COLUMNS if any(row.get(title) for row in cells)]
    if columns is not None and columns < _WIDE and "FILE" in titles:
        titles.remove("FILE")
    rows = [titles, *([row.get(title) or _NONE for title in titles] for row in cells)]
    widths, least = natural_widths(rows), [_LEAST * (title in _NAMES) for title in titles]
    if columns is not None:
        smallest = [min(room, fewest or room) for room, fewest in zip(widths, least, strict=True)]
        widths = column_widths(rows, columns, least) or smallest
    if cells:
        yield from table_lines(rows, widths)


def _cells(item: Item) -> dict[str, str]:
    """Return the cells of a row by the columns' titles; a column of empty cells is left out."""
    pod = item.pod if isinstance(item, ExplainedPod) else item
    name = f"{pod.kind}/{pod.name or '(no name)'}"
    if isinstance(item, ExplainedPod) and item.pod.path and item.place == item.pod.place:
        name += f":{item.pod.path}"  # one of several of the object
    names = {"OBJECT": one_line(name), "FILE": one_line(str(item.location or ""))}
    names["NAMESPACE"] = one_line(item.namespace)
    if isinstance(item, UnexplainedObject):
        return {**names, "ACTION": "not known", "SHARE": "?", "REASON": item.code, "WARN": _NONE}
    return {
        **names,
        "PODS": str(item.running.pods) if item.running else "",
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


def sums(items: Sequence[Item], *, columns: int) -> list[str]:
    """Return one sentence with the sums of all pods, in lines of at most a width."""
    pods = [item for item in items if isinstance(item, ExplainedPod)]
    live = [(item, item.running) for item in pods if item.running is not None]
    today = sum((running for _, running in live), PodRequests())
    head = counted(len(pods), "workload" if live else "pod")
    head += f" with {counted(today.pods, 'pod')}" if live else ""
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
        # In mode observe, what a new pod would ask for.
        new = (asked_now(as_json(item.outcome)).times(running.pods) for item, running in live)
        text += f"; asked for today: {today}; by new pods: {sum(new, PodRequests())}"
    return fold(f"{text}.", columns)


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts)


def as_json_text(items: Iterable[Item], problems: Mapping[str, LabelProblems]) -> str:
    """Return a JSON list with an object for each pod, and for each object without known pods."""
    fields = [
        _pod_fields(item, problems.get(item.namespace))
        if isinstance(item, ExplainedPod)
        else _object_fields(item)
        for item in items
    ]
    return f"{json.dumps(fields, indent=2, ensure_ascii=False)}\n"


def as_patch(pods: Iterable[ExplainedPod]) -> str:
    """Return one line for each pod, in order: its JSON Patch (RFC 6902), `[]` where nothing is sent."""
    return "".join(f"{json.dumps(list(item.sent), ensure_ascii=False)}\n" for item in pods)


def _pod_fields(item: ExplainedPod, invalid: LabelProblems | None) -> dict[str, Any]:
    decision, earlier = item.mutation.decision, item.earlier
    selector = decision.size.selector if decision.size else None
    fields = {
        "kind": item.pod.kind,
        "name": item.pod.name,
        "namespace": item.namespace,
        "path": item.pod.path,
        **_place(item),
        "owner": item.pod.owner or None,
        "isSample": item.pod.is_sample,
        "action": decision.action.value,
        **_finding(decision.finding),
        "shareSource": decision.source.value if decision.source else None,
        "size": decision.size.name if decision.size else None,
        "sizeSelector": selector.text if selector and decision.source is Source.SIZE_SELECTOR else None,
        "atCreation": earlier and to_builtins(earlier),
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
        fields["server"] = {
            key: None if value == "" else value for key, value in to_builtins(item.server).items()
        }
    if item.running is not None:
        fields["running"] = to_builtins(item.running)
    return fields


def _object_fields(item: UnexplainedObject) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "name": item.name,
        "namespace": item.namespace,
        "path": "",
        **_place(item),
        "action": None,
        "reason": item.code,
        "message": item.message,
        "gpuRequests": list(item.gpu_requests),
        "atCreation": None,
        **{key: [] for key in ("denials", "warnings", "policyProblems", "patch")},
        "pod": None,
    }


def _place(item: Item) -> dict[str, Any]:
    return {key: getattr(item.location, key, None) for key in ("file", "line")}


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}
