"""Formats advice as JSON. Pure functions."""

import json
from typing import Any

from console.advise.answer import Advice, AdviceRow


def as_json(advice: Advice) -> str:
    """Format the advice as a JSON document in ASCII; unknown values are null."""
    balance = advice.balance
    document = {
        "rows": [_row(row) for row in advice.rows],
        "balance": None
        if balance is None
        else {
            "promised": balance.promised,
            "suggested": balance.suggested,
            "difference": round(balance.difference, 2),
        },
        "dropped": advice.dropped,
        "remarks": list(advice.remarks),
    }
    return json.dumps(document, indent=2) + "\n"


def _row(row: AdviceRow) -> dict[str, Any]:
    key = row.key
    return {
        "namespace": key.namespace,
        "vcluster": key.vcluster,
        "virtualNamespace": key.virtual_namespace,
        "size": key.size,
        "workloadKind": key.workload_kind or None,
        "workload": key.workload or None,
        "model": row.models[0] if len(row.models) == 1 else None,
        "pods": row.pods,
        "podHours": round(row.pod_hours, 2),
        "current": str(row.current),
        "suggested": None if row.suggested is None else str(row.suggested),
        "atLeast": row.is_at_least,
        "peakBytes": row.peak_bytes,
        "quantileBytes": row.quantile_bytes,
        "overHours": None if row.over_hours is None else round(row.over_hours, 2),
        "coverage": round(row.coverage, 4),
        "notes": list(row.notes),
    }
