"""Formats a report as JSON and CSV. Pure functions."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from console.report.rows import Hours, Report

FIGURES: Final = ("promised", "used", "active", "idle", "over", "saved", "coverage", "activeCoverage", "cost")
_NAMES: Final = {"virtual_namespace": "virtualNamespace", "workload_kind": "workloadKind"}
_ACTS_IN_A_SPREADSHEET: Final = ("=", "+", "-", "@", "\t", "\r")


def as_json(report: Report) -> str:
    """Format the report as a JSON document in ASCII; unknown values are null."""
    document = {
        "rows": [
            {**_names(row.names), "model": row.model or None, **figures(row.hours)} for row in report.rows
        ],
        "totals": {
            **figures(report.total),
            "models": [{"model": model or None, **figures(hours)} for model, hours in report.models.items()],
        },
        "currency": report.currency or None,
        "unpriced": list(report.unpriced),
        "dropped": report.dropped,
        "remarks": list(report.remarks),
    }
    return json.dumps(document, indent=2) + "\n"


def as_csv(report: Report) -> str:
    """Format the rows as CSV, without totals; unknown values are empty cells.

    No cell acts as a formula in a spreadsheet: every name has the syntax of its kind.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*(_NAMES.get(label, label) for label in report.labels), "model", *FIGURES, "currency"])
    for row in report.rows:
        words = [*row.names.values(), row.model, report.currency]
        if any(word.startswith(_ACTS_IN_A_SPREADSHEET) for word in words):
            raise ValueError("a name has not been checked")
        writer.writerow([*words[:-1], *figures(row.hours).values(), words[-1]])
    return stream.getvalue()


def figures(hours: Hours) -> dict[str, float | None]:
    """Return the figures by their names in JSON and CSV, rounded."""
    values = (
        hours.promised, hours.used, hours.active, hours.idle, hours.over, hours.saved, hours.coverage,
        hours.active_coverage, hours.cost,
    )  # fmt: skip
    return dict(zip(FIGURES, map(_rounded, values), strict=True))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _names(names: Mapping[str, str]) -> dict[str, Any]:
    return dict(_pairs(names))


def _pairs(names: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    for label, name in names.items():
        yield _NAMES.get(label, label), name or None
