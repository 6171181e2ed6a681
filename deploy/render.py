"""Writes the generated files of the chart: `python deploy/render.py`.

- deploy/helm/kaishare/files/alerts: rules for Prometheus, from deploy/mixin.
- deploy/alerts/README.md: the table of alerts, from deploy/mixin.
- deploy/helm/kaishare/files/dashboards: Grafana's dashboards, from deploy/mixin.
- deploy/helm/kaishare/files/policies/tables.json: what fills the admission policies, from console/render.
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

import rjsonnet
import yaml

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))
from console.render import policy_manifests

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "kaishare"
FILES: Final = CHART / "files"
CHART_RULES: Final = FILES / "alerts" / "rules.yaml"

_PLACE: Final = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ICON: Final = re.compile(r"^(icon: data:image/svg\+xml;base64,).*$", re.MULTILINE)
_VALUE_LINE: Final = re.compile(r"(?P<indent> *)(?:(?P<item>- .*)|# ?(?P<comment>.*)|(?P<key>[\w./-]+):.*)")
_LINE_BREAK: Final = "<br>"
_WIDTH: Final = 120
_RULES_HEAD: Final = """\
# Rendered from deploy/mixin by `make chart`. Change the mixin: its comments explain the expressions.
# ${NAME} stands for a number or a namespace; `numbers` and `namespaces` have the defaults.
"""


def outputs() -> dict[Path, str]:
    """Return the expected text of every generated file, by path."""
    files = {CHART_RULES: _RULES_HEAD + _to_yaml(evaluated("import 'alerts/chart.jsonnet'"))}
    for name, dashboard in evaluated("(import 'mixin/mixin.libsonnet').grafanaDashboards").items():
        path = FILES / "dashboards" / name.removeprefix("kaishare-")
        files[path] = json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"
    tables = policy_manifests.tables("${excludedNamespaces}")
    files[policy_manifests.POLICIES / "tables.json"] = json.dumps(tables, indent=2) + "\n"
    values = values_table((CHART / "values.yaml").read_text(encoding="utf-8"))
    for page, table in ((CHART / "README.md", values), (DEPLOY / "alerts" / "README.md", _alerts_table())):
        files[page] = _filled(page, table)
    about = CHART / "Chart.yaml"
    icon = base64.b64encode((ROOT / "docs" / "icon.svg").read_bytes()).decode()
    files[about] = _ICON.sub(lambda place: f"{place[1]}{icon}", about.read_text(encoding="utf-8"))
    return files


def _filled(page: Path, table: str) -> str:
    return _PLACE.sub(lambda place: f"{place[1]}{table}{place[3]}", page.read_text(encoding="utf-8"))


def evaluated(expression: str) -> Any:
    """Return the value of a jsonnet expression, whose imports are relative to deploy.

    Raises:
        SystemExit: the expression cannot be evaluated; the message is that of jsonnet.
    """
    try:
        return json.loads(rjsonnet.evaluate_snippet("deploy", expression, jpathdir=str(DEPLOY)))
    except RuntimeError as error:
        raise SystemExit(f"{expression}: {error}") from None


class _Dumper(yaml.SafeDumper):
    """Indents lists in mappings; texts of several lines are blocks, and long ones are folded."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > _WIDTH - 20 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def _to_yaml(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, width=_WIDTH, allow_unicode=True)
    return text


def _alerts_table() -> str:
    """Return all alerts as a Markdown table: name, severity, `for` and numbers."""
    numbers: dict[str, list[str]] = {}
    for name, default in evaluated("import 'alerts/chart.jsonnet'")["numbers"].items():
        alert, _, key = name.partition(".")
        numbers.setdefault(alert, []).append(f"`{key}: {default}`")
    rows = [("alert", "severity", "for", "numbers"), ("---",) * 4]
    for group in evaluated("import 'alerts/rules.jsonnet'")["groups"]:
        for rule in group["rules"]:
            if name := rule.get("alert"):
                figures = ", ".join(numbers.get(name, ()))
                link = f"[{name}](../../docs/runbooks.md#{name.lower()})"
                rows.append((link, rule["labels"]["severity"], rule.get("for", ""), figures))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


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
            default = values
            for key in keys:
                default = default[key]
            is_block = isinstance(default, dict) and bool(default)
            if comments or not is_block:
                cell = "" if is_block else f"`{json.dumps(default, ensure_ascii=False)}`"
                yield f"`{'.'.join(keys)}`", cell, _cell(comments)
            comments = []


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
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
