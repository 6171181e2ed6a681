"""The table of first acts: every finding has an imperative, and no text of others gets into a command."""

import pytest

from console.why.acts import ACTS, finding
from tests.support.why_evidence import make_evidence
from webhook.policy.reasons import Group, Reason

VERBS = (
    "add ask change check correct create delete do end find give install let look name never raise read remove"
    " request restore scale set start uncordon undo use wait write"
)
IMPERATIVES = frozenset(VERBS.split())
WITHOUT_ACT = frozenset({"running", "succeeded", "outside-kai"})
"""Findings about pods with which nothing is wrong."""
LEADS = ("Administrator", "Policy owner", "In a vCluster", "Wait", "Set")


def is_imperative(text: str) -> bool:
    """Whether a sentence begins with a verb, after the person or condition that it names."""
    head, colon, rest = text.partition(": ")
    words = rest if colon and head in LEADS[:3] else text
    for lead in ("Or ", "Then ", "Else "):
        words = words.removeprefix(lead)
    if words.startswith("If "):
        words = words.partition(", ")[2].removeprefix("an administrator ")
        return words.split()[0].rstrip("s") in IMPERATIVES
    return words.split()[0].lower().rstrip(":,.") in IMPERATIVES


FILLED = {"administrator", "preemptible", "agent"}
"""Acts whose first words come from another table, or that follow another act."""


@pytest.mark.parametrize("name", sorted(ACTS.keys() - FILLED))
def test_an_act_is_an_imperative(name: str) -> None:
    assert is_imperative(ACTS[name].text), ACTS[name].text
    assert ACTS[name].text.endswith((".", ":", "type")) or "{" in ACTS[name].text


def test_the_acts_for_a_pod_that_was_left_alone_are_those_of_its_reasons() -> None:
    codes = {name.removeprefix("left-") for name in ACTS if name.startswith("left-")} - {"before"}
    assert codes <= {reason.code for reason in Reason if reason.group is Group.LEFT_ALONE}


@pytest.mark.parametrize("name", ["$(reboot)", "a b; c", "`x`", "../a", "\x1b[2J", "a\nb", "", "--all"])
def test_no_text_of_others_gets_into_a_command(name: str) -> None:
    words = {"queue": name, "resource": "gpu.limit"}
    cause = finding(make_evidence(), "queue-over-limit", f"the queue {name}", "raise-queue", **words)
    assert cause.remedies[0].command == "kubectl edit queues.scheduling.run.ai QUEUE"
    assert cause.sentence.isprintable()
