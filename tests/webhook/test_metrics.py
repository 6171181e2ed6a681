"""The webhook's metrics are what the documentation says."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from webhook.metrics import Metrics

ROOT = Path(__file__).parents[2]


def every_family() -> dict[str, tuple[str, str]]:
    """Name to type and help, as `/metrics` shows them."""
    metrics = Metrics()
    metrics.show_log(lambda: 0)
    metrics.show_policies(dict)
    metrics.show_order(lambda: True)
    watch: Any = SimpleNamespace(
        resource=SimpleNamespace(name="namespaces"), last_contact=1.5, restarts=Counter(gone=1)
    )
    metrics.show_watch(watch)
    text = metrics.text().decode()
    helps = dict(re.findall(r"^# HELP (kaishare_\w+) (.*)$", text, flags=re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (kaishare_\w+) (.*)$", text, flags=re.MULTILINE))
    return {name: (kinds[name], text) for name, text in helps.items() if not name.endswith("_created")}


def test_the_documentation_has_every_metric() -> None:
    documented = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = documented.partition("\n## The webhook\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(kaishare_\w+)` \| (\w+) \| (.*) \|$", section, flags=re.MULTILINE)
    assert {name: (kind, text) for name, kind, text in rows} == every_family()
