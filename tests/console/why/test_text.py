"""The answer of `kaishare why` as text and as JSON."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from console.why.explanation import Explanation, PodFinding, Remedy, Step, as_json, as_text
from service.text import width


def time(hour: int, minute: int, day: int = 1) -> datetime:
    return datetime(2026, 5, day, hour, minute, 7, tzinfo=UTC)


ANSWER = Explanation(
    namespace="team",
    kind="Pod",
    name="train-0",
    state="Pending",
    findings=[
        PodFinding(
            "queue-over-quota",
            "the queue vision has a quota of 1 GPU and uses 1 of it, and the pod may not go over quota",
            [
                Remedy("Wait until other pods of the queue end, or ask for a larger quota."),
                Remedy("See which pods the queue has.", f"kaishare top {'--namespace team ' * 6}--once"),
            ],
            {"quota": 1.0, "queue": "vision"},
        ),
        PodFinding("evicted", "KAI evicted an earlier pod", [Remedy("Look.", "kubectl get events")]),
    ],
    story=[
        Step(at=time(11, 58), what="created", text="pod train-0 by Job train"),
        Step(at=None, what="grouped", text="by KAI in the queue vision"),
        Step(at=time(11, 59), last=time(12, 1), times=25, what="waiting", text="no room " * 12),
        Step(at=time(12, 0), times=3, what="refused", text="no"),
    ],
    not_visible=["Queue vision", "Node"],
    notes=["the agent on node-1 did not answer"],
)
LINES = """\
Pending: the queue vision has a quota of 1 GPU and uses 1 of it, and the pod may
  not go over quota

What to do
  - Wait until other pods of the queue end, or ask for a larger quota.
  - See which pods the queue has.
      kubectl kaishare top --namespace team --namespace team --namespace team --namespace team --namespace team --namespace team --once

Also
  KAI evicted an earlier pod (evicted)
  - Look.
      kubectl get events

Story (times in UTC)
  11:58:07  created  pod train-0 by Job train
            grouped  by KAI in the queue vision
  11:59:07  waiting  no room no room no room no room no room no room no room no
                     room no room no room no room no room  (25 times or more,
                     last at 12:01:07)
  12:00:07  refused  no (3 times)

note: the agent on node-1 did not answer
not visible to you: Queue vision, Node
More: kaishare help queue-over-quota
"""


def explained(state: str, *findings: PodFinding, **more: Any) -> Explanation:
    return Explanation(namespace="n", kind="Pod", name="p", state=state, findings=findings, **more)


def text(answer: Explanation, columns: int = 80) -> list[str]:
    return as_text(answer, columns=columns, program="kubectl kaishare")


def test_the_text() -> None:
    assert "".join(f"{line}\n" for line in text(ANSWER)) == LINES


def test_times_of_several_days_have_their_date() -> None:
    steps = [
        Step(at=time(23, 59), last=time(0, 1, day=2), times=2, what="waiting", text="no room"),
        Step(at=time(0, 2, day=2), what="bound", text="to node node-1"),
    ]
    answer = explained("Running", PodFinding("running", "ok"), story=steps)
    assert text(answer)[3:5] == [
        "  2026-05-01 23:59:07  waiting  no room (2 times, last at 2026-05-02 00:01:07)",
        "  2026-05-02 00:02:07  bound    to node node-1",
    ]


@given(sentence=st.text(), command=st.text(), columns=st.integers(40, 200))
def test_any_text_is_printable_and_fits(sentence: str, command: str, columns: int) -> None:
    finding = PodFinding("undecided", sentence, [Remedy(sentence, command)], {"text": sentence})
    steps, names = [Step(at=time(1, 2), what="waiting", text=sentence)], [sentence]
    answer = explained("Pending", finding, story=steps, not_visible=names, notes=names)
    lines = text(answer, columns)
    assert all(line.isprintable() for line in lines)
    assert all(width(line) <= columns or line.startswith("      ") for line in lines)
    document = as_json(answer)
    assert document.isascii()
    assert json.loads(document)["notes"] == [sentence]
