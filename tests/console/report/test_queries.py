"""The expressions on the agents' own series are those of the recording rules."""

import re

import pytest

from console.report.gpu_hours import Raw
from tests.support.known_metrics import rules

AGENT = 'job=~"(kaishare-agent/)?kaishare-agent"'
RAW = Raw(AGENT, ("namespace",))


def normal(expression: str) -> str:
    """Return an expression without blanks and optional brackets."""
    return re.sub(r"\s+|\(\)", "", expression)


def rule(record: str) -> str:
    (expression,) = [each["expr"] for each in rules() if each.get("record") == record]
    return normal(expression)


@pytest.mark.parametrize(
    ("record", "expression"),
    {
        "pod:kaishare_gpu_promised:ratio": RAW.promised,
        "pod:kaishare_gpu_used:ratio": RAW.used,
        "pod:kaishare_gpu_active:ratio": RAW.active,
        "pod:kaishare_gpu_idle:ratio": RAW.idle,
        "pod:kaishare_gpu_seen:timestamp": RAW.description,
    }.items(),
)
def test_expression_is_that_of_the_rule(record: str, expression: str) -> None:
    assert normal(expression) in rule(record)


def test_time_over_the_share_is_that_of_the_rule_but_for_the_longest_gap() -> None:
    """A record of a minute finds an older value for an hour, which takes too long on raw series."""
    assert normal(RAW.over).replace("[600s]", "[1h]").replace("60s", "1m") in rule(
        "pod:kaishare_gpu_over:seconds1m"
    )
