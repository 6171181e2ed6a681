"""Selectors are what `labels.Parse` of k8s.io/apimachinery accepts, with the same meaning.

tests/cluster/test_kube.py sends the same cases to an API server.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.selector_cases import BAD, MATCHES
from webhook.policy.selectors import LONGEST, SelectorError, parse_selector


@pytest.mark.parametrize(("text", "labels", "expected"), MATCHES)
def test_a_selector_matches_as_in_kubernetes(text: str, labels: dict[str, str], expected: bool) -> None:
    assert parse_selector(text).matches(labels) is expected


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_is_no_selector_is_described_in_one_line(text: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert BAD[text] in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 140


def test_order_and_repetition_do_not_change_the_conditions() -> None:
    assert parse_selector("x=a,a in (x)").conditions == parse_selector("a==x, x=a,x=a").conditions
    assert parse_selector("x=a").conditions != parse_selector("x=a,y").conditions


def test_keys_and_equalities_are_listed() -> None:
    selector = parse_selector("a=b,!c,d in (e),f in (g,h),i>1,j!=k,l=")
    assert selector.keys == {"a", "c", "d", "f", "i", "j", "l"}
    assert selector.equalities == {("a", "b"), ("d", "e"), ("l", "")}


@given(st.text(alphabet="ab=!(),<> in\tnot/.-1", max_size=60) | st.text(max_size=20))
def test_any_text_is_a_selector_or_an_error(text: str) -> None:
    try:
        selector = parse_selector(text)
    except SelectorError as error:
        message = str(error)
    else:
        message = ""
        assert selector.matches({}) in (True, False)
        assert parse_selector(selector.text) == selector
    assert message.isprintable()


@pytest.mark.parametrize(
    "text", ["a=b," * 255 + "c=d", "x in (" + "a," * 500 + "b)", "(" * LONGEST, "a" * LONGEST]
)
def test_the_longest_selectors_are_parsed_fast(text: str) -> None:
    """One MiB of selectors may cost 50 ms on a quiet machine; a tenth of a second for 16 KiB is never linear."""
    began = time.thread_time()
    for _ in range(16):
        try:
            parse_selector(text)
        except SelectorError:
            continue
    assert time.thread_time() - began < 0.1
