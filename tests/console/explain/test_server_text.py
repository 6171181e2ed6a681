"""The API server's answers in the text, the table and the JSON of `explain`."""

import json
from dataclasses import replace

import pytest

from console.explain.explainer import (
    AnswerDifference,
    ExplainedDocument,
    ExplainedPod,
    Explainer,
    ServerAnswer,
)
from console.explain.formats import as_json_text, as_table, sums
from console.explain.policy_edits import NamespaceEdits, Policies
from console.explain.text import as_text
from tests.console.explain.test_table import named
from tests.support.pods import gpu_container
from webhook.policy.decision_settings import DecisionSettings

EDITS = NamespaceEdits(labels=[("kai.scheduler/queue", "q"), ("kaishare.dev/gpu-fraction", "0.25")])
POLICIES = Policies.collect({}, ["default"], EDITS)
DIFFERENT = ServerAnswer(
    is_admitted=True,
    warnings=["w1: be careful"],
    fields={"annotation gpu-fraction": "0.5"},
    differences=[AnswerDifference("annotation gpu-fraction", "0.25", "0.5")],
    causes=["another webhook changed the same field"],
)
REFUSED = ServerAnswer(
    is_admitted=False, refused_by="quota q", refusal='pods "a" is forbidden: exceeded quota'
)
NO_ANSWER = ServerAnswer(is_admitted=None, problem="you may not create pods in namespace default")


def answered(answer: ServerAnswer, **unread: str) -> list[ExplainedDocument]:
    explainer = Explainer("default", POLICIES.by_namespace, DecisionSettings(), unread=unread)
    (item,) = explainer.explain(named("a", gpu_container()))
    assert isinstance(item, ExplainedPod)
    return [ExplainedDocument(None, None, [replace(item, server=answer)])]


def text(documents: list[ExplainedDocument]) -> list[str]:
    return [line.strip() for line in as_text(documents, colour=False, columns=200)]


def test_a_difference_is_shown_with_its_cause_and_both_values() -> None:
    assert text(answered(DIFFERENT))[1:] == [
        "changed: container main: one whole GPU became gpu-fraction 0.25 by namespace default (whole-gpu-converted)",
        "decided by: the namespace's default share",
        "server: admitted",
        "admitted with annotation gpu-fraction: 0.5",
        "server warning: w1: be careful",
        "differs: annotation gpu-fraction: 0.5 in the cluster, 0.25 here",
        "because: another webhook changed the same field",
        "",
    ]  # fmt: skip


def test_a_refusal_is_told_word_for_word_with_its_origin() -> None:
    lines = text(answered(REFUSED))
    assert lines[3:5] == ["server: refused by quota q", 'server says: pods "a" is forbidden: exceeded quota']
    assert not any(line.startswith("admitted with") for line in lines)


def test_without_an_answer_the_problem_is_named() -> None:
    assert (
        "server: no answer: you may not create pods in namespace default"
        in text(answered(NO_ANSWER))
    )  # fmt: skip


def test_without_the_policy_there_is_no_decision_and_no_difference() -> None:
    documents = answered(DIFFERENT, default="you may not get namespace default")
    lines = text(documents)
    assert lines[1].startswith("not known: the namespace's policy cannot be read now: you may not get")
    assert not any(line.startswith(("differs:", "because:")) for line in lines)
    assert list(as_table(documents, columns=120))[1].split()[:4] == ["Pod/a", "default", "admitted", "not"]
    assert not documents[0].items[0].is_refused  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "word"),
    [(DIFFERENT, "different"), (ServerAnswer(is_admitted=True), "admitted"), (REFUSED, "refused"), (NO_ANSWER, "no answer")],
)  # fmt: skip
def test_the_table_and_the_sums_name_the_answer(answer: ServerAnswer, word: str) -> None:
    documents = answered(answer)
    head, row = as_table(documents, columns=120)
    start = head.index("SERVER")
    assert row[start:].startswith(word)
    assert f"; the API server: 1 {word}" in " ".join(sums(documents, columns=200))


def test_the_json_has_every_field_of_the_answer() -> None:
    (document,) = json.loads(as_json_text(answered(DIFFERENT), {}))
    assert document["server"] == {
        "isAdmitted": True,
        "problem": None,
        "refusedBy": None,
        "refusal": None,
        "warnings": ["w1: be careful"],
        "fields": {"annotation gpu-fraction": "0.5"},
        "differences": [{"field": "annotation gpu-fraction", "predicted": "0.25", "answered": "0.5"}],
        "causes": ["another webhook changed the same field"],
        "notes": [],
    }
    assert (document["file"], document["line"]) == (None, None)
