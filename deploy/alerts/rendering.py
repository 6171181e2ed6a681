"""Renders deploy/mixin as the chart's rules, the agent's first acts for it, and the table of alerts."""

import json
from pathlib import Path
from typing import Any, Final

import rjsonnet
import yaml

from gpuagent import first_acts

ALERTS: Final = Path(__file__).parent
AGENT_ACTS: Final = ALERTS.parent / "mixin" / "agent_acts.json"
CHART_RULES: Final = ALERTS.parent / "helm" / "kaishare" / "files" / "alerts" / "rules.yaml"

_WIDTH: Final = 120
_CHART_HEAD: Final = """\
# Rendered from deploy/mixin by `make chart`. Change the mixin: its comments explain the expressions.
# ${NAME} stands for a number or a namespace; `numbers` and `namespaces` have the defaults.
"""
_ORDER: Final = (
    "name", "rules", "record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations",
    "summary", "description", "first_act", "runbook_url",
)  # fmt: skip
"""Order of keys; other keys follow in alphabetical order."""


def chart_rules() -> str:
    """Return the text of the chart's rules."""
    return _CHART_HEAD + yaml.dump(
        _ordered(evaluated("chart.jsonnet")),
        Dumper=_Dumper,
        sort_keys=False,
        width=_WIDTH,
        allow_unicode=True,
    )


def agent_acts() -> str:
    """Return the agent's first acts as JSON, which the mixin imports."""
    acts = {
        "flags": {reason: act.text for reason, act in first_acts.FOR_FLAG.items()},
        "problems": {reason: act.text for reason, act in first_acts.FOR_PROBLEM.items()},
        "gpus": {
            "at-risk": first_acts.FOR_GPU_AT_RISK.text,
            "overpromised": first_acts.FOR_OVERPROMISED_GPU.text,
        },
    }
    return json.dumps(acts, indent=2, sort_keys=True) + "\n"


def evaluated(name: str) -> dict[str, Any]:
    """Return the value of a jsonnet file of this folder.

    Raises:
        SystemExit: the file cannot be evaluated; the message is that of jsonnet.
    """
    try:
        document: dict[str, Any] = json.loads(rjsonnet.evaluate_file(str(ALERTS / name)))
    except RuntimeError as error:
        raise SystemExit(f"{name}: {error}") from None
    return document


def alerts_table() -> str:
    """Return all alerts as a Markdown table: name, severity, `for` and numbers."""
    chart = evaluated("chart.jsonnet")
    numbers: dict[str, list[str]] = {}
    for name, default in chart["numbers"].items():
        alert, _, key = name.partition(".")
        numbers.setdefault(alert, []).append(f"`{key}: {default}`")
    rows = [("alert", "severity", "for", "numbers"), ("---",) * 4]
    for group in evaluated("rules.jsonnet")["groups"]:
        for rule in group["rules"]:
            if name := rule.get("alert"):
                figures = ", ".join(numbers.get(name, ()))
                link = f"[{name}](../../docs/runbooks.md#{name.lower()})"
                rows.append((link, rule["labels"]["severity"], rule.get("for", ""), figures))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and long ones folded."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indent lists in mappings, as in the other YAML files."""
        super().increase_indent(flow, False)


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > _WIDTH - 20 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (_ORDER.index(key) if key in _ORDER else len(_ORDER), key))
        return {key: _ordered(value[key]) for key in keys}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value
