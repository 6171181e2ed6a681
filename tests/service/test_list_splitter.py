"""A list in pieces of any size is split as a JSON parser reads it, or it is refused."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service import list_splitter
from service.json_depth import string_end
from service.list_splitter import ListSplitter, MalformedList

_TEXT = st.text(max_size=8) | st.sampled_from(
    ['"', "\\", '\\"', "]}", "{[", '"items":[', "\u2028", "\U0001f600"]
)
_KEYS = _TEXT | st.just("items")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=30,
)
_OTHERS = st.dictionaries(
    _TEXT.filter(lambda key: key not in ("items", "kind", "metadata")), _VALUES, max_size=3
)
_ITEMS = st.none() | st.lists(st.dictionaries(_KEYS, _VALUES, max_size=5), max_size=6)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Lists with their keys in any order, written in any style."""
    fields: dict[str, Any] = {
        **draw(_OTHERS),
        "kind": "PodList",
        "metadata": {"resourceVersion": "5", **draw(st.sampled_from([{}, {"continue": "more"}, {"items": [{}]}]))},
        "items": draw(_ITEMS),
    }  # fmt: skip
    fields = {key: fields[key] for key in draw(st.permutations(list(fields)))}
    separators = draw(st.sampled_from([(",", ":"), (" ,\t", "\r\n : "), None]))
    text = json.dumps(
        fields,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 2])),
        separators=separators,
    )
    return text.encode("utf-8", "surrogatepass")


def chunks_of(document: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(document):
            return chunks
        chunks.append(document[at : at + size])
        at += size
    return chunks


def split(document: bytes, sizes: list[int]) -> tuple[list[Any], str]:
    splitter = ListSplitter()
    items = [json.loads(item) for chunk in chunks_of(document, sizes) for item in splitter.feed(chunk)]
    return items, splitter.finish()


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@settings(deadline=None)
@given(document=documents(), sizes=SIZES, data=st.data())
def test_a_list_in_any_pieces_is_split_as_a_parser_reads_it_and_half_of_it_is_refused(
    document: bytes, sizes: list[int], data: st.DataObject
) -> None:
    want = json.loads(document)
    if "continue" in want["metadata"]:
        with pytest.raises(MalformedList, match="one of several pages"):
            split(document, sizes)
        return
    assert split(document, sizes) == (want["items"] or [], "5")
    with pytest.raises(MalformedList):
        split(document[: data.draw(st.integers(0, len(document) - 1))], sizes)


@settings(deadline=None)
@given(document=documents(), sizes=SIZES, data=st.data())
def test_a_damaged_list_is_refused_or_parsed(document: bytes, sizes: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(document) - 1))
    put = data.draw(st.sampled_from(list(b'{}[]",:\\ x0\xff')).map(lambda byte: bytes([byte])) | st.just(b""))
    damaged = document[:at] + put + document[at + 1 :]
    splitter = ListSplitter()
    try:
        raw = [item for chunk in chunks_of(damaged, sizes) for item in splitter.feed(chunk)]
        splitter.finish()
    except MalformedList:
        return
    try:
        items = [json.loads(item) for item in raw]
    except ValueError:
        return  # an item's own reader refuses it
    assert items == (json.loads(damaged.decode(errors="replace")).get("items") or [])


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"[" * 5000)
@example(b'{"a":' * 5000)
def test_invalid_input_is_refused_in_one_line(document: bytes) -> None:
    with pytest.raises(MalformedList) as caught:
        split(document, [7])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


HEAD = b'{"kind":"PodList","metadata":{"resourceVersion":"5"},'


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"<html>", "malformed"), (b"[]", "[oO]bject"), (b"", "."),
        (b'{"kind":"PodList","metadata":{},"items":[]}', "resourceVersion"),
        (b'{"kind":"Status","metadata":{"resourceVersion":"5"}}', "a Status without resourceVersion"),
        (b'{"kind":5,"metadata":{"resourceVersion":"5"}}', "Expected `str`"),
        (HEAD + b'"items":{}}', "Expected `array"),
        (HEAD + b'"items":[1]}', "Expected `object`, got `int`"),
        (HEAD + b'"items":["a"]}', "Expected `object`, got `str`"),
        (HEAD + b'"items":[[]]}', "items contains an array"), (HEAD + b'"items":[{}{}]}', "malformed"),
        (HEAD + b'"items":[{},]}', "trailing comma"), (HEAD + b'"items":[,{}]}', "malformed"),
        (HEAD + b'"items":[{}]', "truncated"), (HEAD + b'"items":[{}', "truncated"),
        (HEAD + b'"items":[]}}', "malformed"), (HEAD + b'"items":[' + b'{"a":' * 2000, "unknown field"),
        (HEAD + b'"more":' + b"[" * 2000, "recursion|truncated"), (HEAD + b'"more":"' + b"x" * 100_000, "truncated"),
        (HEAD + b'"a":[],' * 17, "more than 16 values around the items"),
    ],
)  # fmt: skip
def test_an_invalid_list_is_refused_with_the_reason(document: bytes, why: str) -> None:
    with pytest.raises(MalformedList, match=why):
        split(document, [50])


@pytest.mark.parametrize("key", [b'"items"', b'"it\\u0065ms"'])
def test_the_items_key_is_recognised_in_any_spelling(key: bytes) -> None:
    assert split(b'{"items2":["items",{}],' + HEAD[1:] + key + b' :\n[ {"a":[1]} ] }', [3])[0] == [{"a": [1]}]


def test_an_object_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_splitter, "LONGEST_OBJECT", 1000)
    largest = b'{"a":"' + b"x" * 920 + b'"}'
    assert len(split(HEAD + b'"items":[' + largest + b"," + largest + b"]}", [4])[0]) == 2
    with pytest.raises(MalformedList, match="an object of more than 1000 bytes"):
        split(HEAD + b'"items":[{"a":"' + b"x" * 5000, [64])


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize(
    "value",
    ['"' * 5000, "\\" * 4999, "\\" * 5000, ['"'] * 5000, [""] * 5000, {f"{number}\\": "]" for number in range(5000)}],
    ids=["quotation marks", "backslashes", "more backslashes", "short strings", "empty strings", "keys"],
)  # fmt: skip
def test_many_strings_and_escapes_are_skipped(value: Any, size: int) -> None:
    items = [{"a": value}, {"a": [value, {}, "}"]}]
    document = HEAD + b'"items":' + json.dumps(items).encode() + b"}"
    assert split(document, [size])[0] == items


def test_an_object_is_not_scanned_again_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned = 0

    def counted(text: bytes, at: int) -> int:
        nonlocal scanned
        end = string_end(text, at)
        scanned += end - at
        return end

    monkeypatch.setattr(list_splitter, "string_end", counted)
    document = HEAD + b'"items":[{"a":"' + b"\\\\x" * 200_000 + b'"}]}'
    split(document, [1024])
    assert len(document) / 2 < scanned < 3 * len(document)
