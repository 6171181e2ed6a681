"""The results of `explain` for programs: JSON and patches."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from console.explain.explainer import ExplainedDocument, ExplainedPod, ServerAnswer, UnexplainedObject
from console.explain.manifest_sources import Location
from webhook.policy.labels import LabelProblems
from webhook.policy.reasons import Finding
from webhook.policy.sizes import Source


def as_json(documents: Iterable[ExplainedDocument], problems: Mapping[str, LabelProblems]) -> Iterator[str]:
    """Yield one JSON document: a list with an object for each pod, and for each object without known pods."""
    yield json.dumps(_all_fields(documents, problems), indent=2, ensure_ascii=False)


def as_patch(documents: Iterable[ExplainedDocument]) -> Iterator[str]:
    """Yield one line for each pod, in order: its JSON Patch (RFC 6902), `[]` where nothing is sent."""
    for document in documents:
        for item in document.pods:
            yield json.dumps(list(item.sent), ensure_ascii=False)


def _all_fields(
    documents: Iterable[ExplainedDocument], problems: Mapping[str, LabelProblems]
) -> list[dict[str, Any]]:
    return [
        _fields(item, location, problems)
        if isinstance(item, ExplainedPod)
        else _fields_without_pod(item, location)
        for document in documents
        for location, item in document.located()
    ]


def _fields(
    item: ExplainedPod, location: Location | None, problems: Mapping[str, LabelProblems]
) -> dict[str, Any]:
    decision, earlier, running = item.mutation.decision, item.earlier, item.running
    selector = decision.size.selector if decision.size else None
    invalid = problems.get(item.namespace)
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
        "atCreation": (
            {"reason": earlier.reason, "size": earlier.size, "isCurrent": earlier.is_current}
            if earlier
            else None
        ),
        "denials": [_finding(denial) for denial in item.verdict.denials] if item.verdict else [],
        "warnings": [_finding(warning) for warning in item.warnings],
        "policyProblems": [
            {"label": problem.label, "value": problem.value, "message": str(problem)}
            for problem in (invalid.first if invalid else ())
        ],
        "patch": [dict(operation) for operation in item.sent],
        "pod": _shown(item.after),
    }
    if item.server is not None:
        fields["server"] = _answer(item.server)
    if running is not None:
        requested = running.requested
        fields["running"] = {
            "pods": running.count,
            "gpus": requested.gpus,
            "memoryMiB": requested.memory_mib,
            "notCounted": requested.uncounted,
        }
    return fields


def _answer(answer: ServerAnswer) -> dict[str, Any]:
    return {
        "isAdmitted": answer.is_admitted,
        "problem": answer.problem or None,
        "refusedBy": answer.refused_by or None,
        "refusal": answer.refusal or None,
        "warnings": list(answer.warnings),
        "fields": dict(answer.fields),
        "differences": [
            {"field": each.field, "predicted": each.predicted, "answered": each.answered}
            for each in answer.differences
        ],
        "causes": list(answer.causes),
        "notes": list(answer.notes),
    }


def _fields_without_pod(item: UnexplainedObject, location: Location | None) -> dict[str, Any]:
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
        "denials": [],
        "warnings": [],
        "policyProblems": [],
        "patch": [],
        "pod": None,
    }


def _place(location: Location | None) -> dict[str, Any]:
    """Return file and line; null for an object of a cluster."""
    return {"file": location.file if location else None, "line": location.line if location else None}


def _finding(finding: Finding) -> dict[str, str]:
    return {"reason": finding.reason.code, "message": finding.sentence}


def _shown(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": pod.get("metadata") or {}, "spec": pod.get("spec")}
