"""Writes rules.yaml as a PrometheusRule object: `python deploy/alerts/prometheusrule.py`.

The text is indented instead of parsed as YAML, so that comments are kept.
"""

from pathlib import Path
from textwrap import indent

RULES = Path(__file__).with_name("rules.yaml")
OBJECT = Path(__file__).with_name("prometheusrule.yaml")

_HEAD = """\
# Written by prometheusrule.py from rules.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kaishare
  labels:
    app.kubernetes.io/name: kaishare
spec:
"""


def written(rules: str) -> str:
    """Return the text of the PrometheusRule object with these rules."""
    return _HEAD + indent(rules, "  ")


if __name__ == "__main__":
    OBJECT.write_text(written(RULES.read_text(encoding="utf-8")), encoding="utf-8")
