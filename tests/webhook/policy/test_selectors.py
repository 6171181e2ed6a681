"""Selectors are what `labels.Parse` of k8s.io/apimachinery accepts, with the same meaning.

tests/cluster/test_sizes.py sends the same cases to an API server.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.selector_cases import BAD, MATCHES
from tests.support.size_oracle import SELECTORS
from webhook.policy.selectors import LONGEST, SelectorError, SelectorIndex, parse_selector


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


_values = st.sampled_from(("", "1", "2", "web"))
_conditions = st.one_of(
    st.sampled_from(("a", "!a", "b>1", "c!=web", *SELECTORS)),
    st.builds("{}={}".format, st.sampled_from("abc"), _values),
    st.builds("{} in ({},{})".format, st.sampled_from("abc"), _values, _values),
    st.builds("{} notin ({})".format, st.sampled_from("abc"), _values),
)


@given(
    st.lists(st.lists(_conditions, min_size=1, max_size=4).map(",".join), max_size=8),
    st.dictionaries(st.sampled_from(("a", "b", "c", "app", "tier")), _values),
)
def test_the_index_leaves_out_only_selectors_that_do_not_match(
    texts: list[str], labels: dict[str, str]
) -> None:
    selectors = [parse_selector(text) for text in texts]
    candidates = SelectorIndex(selectors).candidates(labels)
    assert len(candidates) == len(set(candidates))
    matching = {number for number, selector in enumerate(selectors) if selector.matches(labels)}
    assert matching <= set(candidates)


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
