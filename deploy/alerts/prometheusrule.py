"""Writes rules.yaml as an object of the Prometheus operator: `python deploy/alerts/prometheusrule.py`.

Text and not YAML is carried over, so that comments stay.
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
    """Return the object that holds these rules."""
    return _HEAD + indent(rules, "  ")


if __name__ == "__main__":
    OBJECT.write_text(written(RULES.read_text(encoding="utf-8")), encoding="utf-8")
