"""Formats a report as JSON and CSV. Pure functions."""

import csv
import io
import json
from collections.abc import Mapping
from typing import Final

from console.report.rows import Hours, Report

FIGURES: Final = ("promised", "used", "active", "idle", "over", "saved", "coverage", "activeCoverage", "cost")
_NAMES: Final = {"virtual_namespace": "virtualNamespace", "workload_kind": "workloadKind"}
_ATTRIBUTES: Final = {"activeCoverage": "active_coverage"}
_ACTS_IN_A_SPREADSHEET: Final = ("=", "+", "-", "@", "\t", "\r")


def as_json(report: Report) -> str:
    """Format the report as a JSON document in ASCII; unknown values are null."""
    document = {
        "rows": [
            {**_written(row.names), "model": row.model or None, **figures(row.hours)} for row in report.rows
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


def _written(names: Mapping[str, str]) -> dict[str, str | None]:
    return {_NAMES.get(label, label): name or None for label, name in names.items()}


def figures(hours: Hours) -> dict[str, float | None]:
    """Return the figures by their names in JSON and CSV, rounded."""
    values = {name: getattr(hours, _ATTRIBUTES.get(name, name)) for name in FIGURES}
    return {name: None if value is None else round(value, 4) for name, value in values.items()}
