"""The metrics in docs/metrics.md, and the metrics that queries use."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.promtool import default_rules

ROOT = Path(__file__).parents[2]

_SUFFIXES = ("_bucket", "_sum", "_count")
_NAME = re.compile(r"[a-z_:]*kaishare_[a-z0-9_:]+")


def documented() -> set[str]:
    """Return every series name with a row in docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(kaishare_\w+)` \| (\w+) \|", text, flags=re.MULTILINE)
    names = {name for name, _ in rows}
    return names | {name + suffix for name, kind in rows if kind == "histogram" for suffix in _SUFFIXES}


def rules() -> Iterator[dict[str, Any]]:
    for group in default_rules()["groups"]:
        yield from group["rules"]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def unknown(queries: Iterable[str]) -> set[str]:
    """Return the kaishare names in queries that are neither exported nor recorded."""
    named = {name for query in queries for name in _NAME.findall(_without_strings(query))}
    return named - documented() - recorded()


def _without_strings(query: str) -> str:
    return re.sub(r'"[^"]*"', '""', query)
