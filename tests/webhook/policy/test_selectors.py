"""Selectors are what `labels.Parse` of k8s.io/apimachinery accepts, with the same meaning.

The cases are those of its documentation and of its own tests, and each was run through version 0.34.0.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.size_oracle import SELECTORS
from webhook.policy.selectors import LONGEST, SelectorError, SelectorIndex, parse_selector

MATCHES = [
    ("x=y", {"x": "y"}, True),
    ("x=y,z=w", {"x": "y", "z": "w"}, True),
    ("x!=y,z!=w", {"x": "z", "z": "a"}, True),
    ("notin=in", {"notin": "in"}, True),
    ("in in (notin)", {"in": "notin"}, True),
    ("x", {"x": "z"}, True),
    ("!x", {"y": "z"}, True),
    ("! x", {"y": "z"}, True),
    ("x>1", {"x": "2"}, True),
    ("x<1", {"x": "0"}, True),
    ("x>1,z<5", {"x": "2", "z": "4"}, True),
    ("x=z", {}, False),
    ("x=y", {"x": "z"}, False),
    ("x=y,z=w", {"x": "w", "z": "w"}, False),
    ("x!=y,z!=w", {"x": "z", "z": "w"}, False),
    ("x", {"y": "z"}, False),
    ("!x", {"x": "z"}, False),
    ("x>1", {"x": "0"}, False),
    ("x<1", {"x": "2"}, False),
    ("x>1", {"x": "many"}, False),
    ("x>1", {"x": "9223372036854775808"}, False),
    ("x>1", {}, False),
    ("foo=bar", {"foo": "bar", "baz": "blah"}, True),
    ("baz=blah", {"foo": "bar", "baz": "blah"}, True),
    ("foo=bar,baz=blah", {"foo": "bar", "baz": "blah"}, True),
    ("foo=blah", {"foo": "bar", "baz": "blah"}, False),
    ("foo=bar,foobar=bar,baz=blah", {"foo": "bar", "baz": "blah"}, False),
    ("x=", {"x": ""}, True),
    ("x= ", {"x": ""}, True),
    ("x=,z= ", {"x": "", "z": ""}, True),
    ("x= ,z= ", {"x": "", "z": "a"}, False),
    ("x=", {}, False),
    ("x!=", {}, True),
    ("x in (a,b)", {"x": "b"}, True),
    ("x in ( a , b )", {"x": "b"}, True),
    ("x\tin\n(a)", {"x": "a"}, True),
    ("x in (a)", {}, False),
    ("x notin (a,b)", {"x": "c"}, True),
    ("x notin (a,b)", {}, True),
    ("x notin (a,b)", {"x": "a"}, False),
    ("x in ()", {"x": ""}, True),
    ("x in (,)", {"x": ""}, True),
    ("x in (a,)", {"x": ""}, True),
    ("x in (,a)", {"x": "a"}, True),
    ("x in (a,,b)", {"x": ""}, True),
    ("x in (),y", {"x": "", "y": "1"}, True),
    ("x notin (,)", {"x": ""}, False),
    ("x==a", {"x": "a"}, True),
    ("x == a,y!=b", {"x": "a"}, True),
    ("batch.kubernetes.io/job-name", {"batch.kubernetes.io/job-name": "train"}, True),
    ("x.example.com/Y_z.1=A_b.2", {"x.example.com/Y_z.1": "A_b.2"}, True),
    ("x=1,x=2", {"x": "1"}, False),
    ("x=007", {"x": "7"}, False),
    ("x>007", {"x": "8"}, True),
]

BAD = {
    "x=a||y=b": 'has "a||y" where a label value is expected',
    "x==a==b": 'has "==" where "," is expected',
    "!x=a": 'has "=" where "," is expected',
    "x<a": 'has "a" where an integer is expected',
    "x>": 'has "" where an integer is expected',
    "x=a,": "has the end where a label key is expected",
    ",x": 'has "," where a label key is expected',
    "x in (a": 'has the end where "," or ")" is expected',
    "x in a": 'has "a" where "(" is expected',
    "x in (a,,)": 'has ")" where a label value is expected',
    "x in (a b)": 'has "b" where "," or ")" is expected',
    "x a": 'has "a" where one of = == != in notin < > is expected',
    "x !": 'has "!" where one of = == != in notin < > is expected',
    "x exists": 'has "exists" where one of = == != in notin < > is expected',
    "()": 'has "(" where a label key is expected',
    "!": "has the end where a label key is expected",
    "!!x": 'has "!" where a label key is expected',
    "-x": 'has "-x" where a label key is expected',
    "x/y/z": 'has "x/y/z" where a label key is expected',
    "/x": 'has "/x" where a label key is expected',
    "X.io/y": 'has "X.io/y" where a label key is expected',
    "é=1": 'has "é" where a label key is expected',
    "x=-a": 'has "-a" where a label value is expected',
    "x=" + "a" * 64: "where a label value is expected",
    "x>9223372036854775808": "where an integer is expected",
    "": "is empty",
    " \t": "is empty",
    "x\0": "contains a null character",
    "a=b," * 256 + "c": f"has 1025 characters; allowed: {LONGEST}",
}


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
