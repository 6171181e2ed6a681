"""Writes the generated files of the chart: `python deploy/render.py`.

- deploy/helm/kaishare/files/alerts: rules for Prometheus, from deploy/mixin.
- deploy/mixin/agent_acts.json: first acts for the alerts, from gpuagent/first_acts.py.
- deploy/alerts/README.md: the table of alerts, from deploy/mixin.
- deploy/helm/kaishare/files/policies/tables.json: what fills the admission policies, from console/render.
- deploy/helm/kaishare/files/dashboards: Grafana's dashboards, from deploy/dashboards.
- deploy/helm/kaishare/README.md: the table of values, from values.yaml.
- deploy/helm/kaishare/Chart.yaml: the icon, from docs/icon.svg.
"""

import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))
from console.render import policy_manifests
from deploy.alerts import rendering
from deploy.dashboards import board, namespace, node, webhook
from deploy.dashboards.fleet import dashboard as fleet

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "kaishare"
FILES: Final = CHART / "files"
README: Final = CHART / "README.md"
ICON: Final = ROOT / "docs" / "icon.svg"
ALERTS_README: Final = rendering.ALERTS / "README.md"

_PLACE: Final = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_ICON: Final = re.compile(r"^(icon: data:image/svg\+xml;base64,).*$", re.MULTILINE)
_VALUE_LINE: Final = re.compile(r"(?P<indent> *)(?:(?P<item>- .*)|# ?(?P<comment>.*)|(?P<key>[\w./-]+):.*)")
_LINE_BREAK: Final = "<br>"


def outputs() -> dict[Path, str]:
    """Return the expected text of every generated file, by path."""
    files = dict(copies())
    table = values_table((CHART / "values.yaml").read_text(encoding="utf-8"))
    files[README] = _PLACE.sub(
        lambda place: f"{place[1]}{table}{place[3]}", README.read_text(encoding="utf-8")
    )
    about = CHART / "Chart.yaml"
    icon = base64.b64encode(ICON.read_bytes()).decode()
    files[about] = _ICON.sub(lambda place: f"{place[1]}{icon}", about.read_text(encoding="utf-8"))
    alerts = rendering.alerts_table()
    files[ALERTS_README] = _PLACE.sub(
        lambda place: f"{place[1]}{alerts}{place[3]}", ALERTS_README.read_text(encoding="utf-8")
    )
    return files


def copies() -> Iterator[tuple[Path, str]]:
    """Yield path and text of the files that the chart's templates read."""
    yield rendering.AGENT_ACTS, rendering.agent_acts()
    yield rendering.CHART_RULES, rendering.chart_rules()
    for contents in (fleet.contents(), node.contents(), namespace.contents(), webhook.contents()):
        yield FILES / "dashboards" / f"{contents.name}.json", board.to_text(board.assemble(contents))
    tables = policy_manifests.tables("${excludedNamespaces}")
    yield policy_manifests.POLICIES / "tables.json", json.dumps(tables, indent=2) + "\n"


def values_table(text: str) -> str:
    """Return the values of a values.yaml as a Markdown table.

    A comment above a key explains it. A key with a block of further keys has a row of its own only if it is
    explained.
    """
    rows = [("value", "default", "what it is"), ("---", "---", "---"), *_value_rows(text)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _value_rows(text: str) -> Iterator[tuple[str, str, str]]:
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comments: list[str] = []
    list_indent: int | None = None
    for line in text.splitlines():
        match = _VALUE_LINE.fullmatch(line)
        if match is None:
            comments = []  # a comment before an empty line is about the file
            continue
        indent = len(match["indent"])
        if list_indent is not None and indent > list_indent:
            continue  # the rest of an item of a list
        list_indent = indent if match["item"] else None
        if match["comment"] is not None:
            comments.append(match["comment"])
        elif match["key"]:
            path = [*(step for step in path if step[0] < indent), (indent, match["key"])]
            keys = [key for _, key in path]
            default = _value(values, keys)
            is_block = isinstance(default, dict) and bool(default)
            if comments or not is_block:
                cell = "" if is_block else f"`{json.dumps(default, ensure_ascii=False)}`"
                yield f"`{'.'.join(keys)}`", cell, _cell(comments)
            comments = []


def _value(values: Any, keys: list[str]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _cell(comments: list[str]) -> str:
    """Join the lines of a comment; lines of a list within it, such as modes, stay apart."""
    joined = ""
    for line in comments:
        is_entry = re.match(r"\S+ {2,}\S", line) is not None
        joined += (_LINE_BREAK if is_entry else " ") + " ".join(line.split())
    return joined.strip().removeprefix(_LINE_BREAK).replace("|", "\\|")


def stale() -> list[Path]:
    """Return the generated files that are outdated or missing, and other files among the dashboards."""
    wanted = outputs()
    return sorted(
        path
        for path in {*wanted, *(FILES / "dashboards").iterdir()}
        if path not in wanted or not path.exists() or path.read_text(encoding="utf-8") != wanted[path]
    )


def write() -> None:
    """Update every generated file."""
    rendering.AGENT_ACTS.write_text(rendering.agent_acts(), encoding="utf-8")  # which the mixin imports
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
