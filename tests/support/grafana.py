"""Reads dashboards, and sends their queries as Grafana does."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.prometheus_server import Prometheus

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "helm" / "kaishare" / "files" / "dashboards"
NAMES = ("fleet", "namespace", "node", "webhook")

Selection = Mapping[str, str | Sequence[str]]
"""Selected values by variable; a variable that is missing keeps its default."""

_DEFAULTS: Selection = MappingProxyType({})
_LABEL_VALUES = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")


@dataclass(frozen=True)
class Dashboard:
    name: str
    model: dict[str, Any]

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {variable["name"]: variable for variable in self.model["templating"]["list"]}

    def panels(self) -> Iterator[dict[str, Any]]:
        for panel in self.model["panels"]:
            if panel["type"] == "row":
                yield from panel["panels"]
            else:
                yield panel

    def panel(self, title: str) -> dict[str, Any]:
        (panel,) = (panel for panel in self.panels() if panel["title"] == title)
        return panel

    def expression(self, title: str, column: str = "") -> str:
        panel = self.panel(title)
        if not column:
            (target,) = panel["targets"]
            return str(target["expr"])
        (organize,) = (item for item in panel["transformations"] if item["id"] == "organize")
        (field,) = (key for key, name in organize["options"]["renameByName"].items() if name == column)
        (target,) = (target for target in panel["targets"] if field in ("Value", f"Value #{target['refId']}"))
        return str(target["expr"])

    def interpolated(self, query: str, selection: Selection = _DEFAULTS) -> str:
        """Return a query with the values of variables in Grafana's form for Prometheus.
        A value of a variable with several values or All is escaped as text within a regular expression, and other
        values are not; All itself is the variable's own expression."""
        for name, variable in self.variables.items():
            if f"${name}" not in query:
                continue
            chosen = selection.get(name, variable.get("current", {}).get("value", ""))
            query = query.replace(f"${name}", _text(variable, chosen))
        for name, value in (("$__rate_interval", "5s"), ("$__range_s", "30"), ("$__range", "30s")):
            query = query.replace(name, value)
        assert not re.search(r"\$\{?[a-z_]", query), query
        return query

    def options(self, prometheus: Prometheus, name: str, selection: Selection = _DEFAULTS) -> list[str]:
        """Return the values that Grafana offers for a variable with a query."""
        query = self.interpolated(self.variables[name]["query"]["query"], selection)
        match = _LABEL_VALUES.fullmatch(query)
        assert match, query
        values: list[str] = prometheus.get(f"label/{match['label']}/values", **{"match[]": match["series"]})
        return values


def _text(variable: Mapping[str, Any], chosen: str | Sequence[str]) -> str:
    if not (variable.get("multi") or variable.get("includeAll")):
        assert isinstance(chosen, str)
        return chosen.replace("\\", "\\\\").replace("'", "\\\\'")
    values = [chosen] if isinstance(chosen, str) else list(chosen)
    if values == ["$__all"]:
        assert variable["allValue"]
        return str(variable["allValue"])
    escaped = [re.sub(r"([$^*{}\[\]'+?.()|])", r"\\\\\1", value) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def load(name: str) -> Dashboard:
    return Dashboard(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
