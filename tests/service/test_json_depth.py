"""JSON with values nested too deep becomes decodable; everything else stays as it is.
Python 3.11 decodes fewer than 1,000 levels, Python 3.14 as many as the stack holds."""

import json
import sys
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.watch import read_event
from service import json_depth
from service.json_depth import DEEPEST, decode_deep, is_deep, shallow_object, without_deep_values
from service.list_splitter import ListSplitter
from tests.support.large_objects import object_with_deep_fields
from tests.support.markers import keeps_deep_values

_TEXT = st.text(max_size=6) | st.sampled_from(['"', "\\", '\\"', "]}", "{[", "[]"])
_VALUES = st.recursive(
    st.none() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=30,
)


def shallow(value: Any, levels: int) -> Any:
    """Return the value with None for each list and dict with contents inside so many others."""
    if not isinstance(value, list | dict) or not value:
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [shallow(item, levels - 1) for item in value]
    return {key: shallow(item, levels - 1) for key, item in value.items()}


@given(value=_VALUES, levels=st.integers(0, 4), indent=st.sampled_from([None, 1]))
def test_only_values_inside_too_many_others_become_null(value: Any, levels: int, indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "DEEPEST", levels)
        text = json.dumps(value, indent=indent).encode()
        assert json.loads(without_deep_values(text)) == shallow(value, levels)


@pytest.mark.parametrize(
    "value", ["\\" * 5000, [{}] * 5000, [[], "]"] * 5000], ids=["backslashes", "objects", "arrays"]
)
def test_many_escapes_and_empty_values_stay(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_depth, "DEEPEST", 3)
    document = {"a": [value, {"deep": [[0]]}, value]}
    assert json.loads(without_deep_values(json.dumps(document).encode())) == shallow(document, 3)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\a', max_size=60).map(str.encode))
def test_bytes_that_are_not_json_stay_so(text: bytes) -> None:
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            json.loads(without_deep_values(text))


@pytest.mark.parametrize("levels", [10, DEEPEST, 990, 9000, 200_000])
def test_a_decoder_gets_the_rest_of_a_deep_text(levels: int) -> None:
    deep = b'{"f:a":' * levels + b"{}" + b"}" * levels
    decoded = msgspec.json.decode(without_deep_values(b'{"a":' + deep + b',"b":["]}",{}]}'))
    assert decoded["b"] == ["]}", {}]


@keeps_deep_values
@pytest.mark.parametrize("levels", [10, 990, 2000, 9990])
def test_a_decoder_keeps_values_as_deep_as_an_api_server_stores_them(levels: int) -> None:
    usual = sys.getrecursionlimit()
    deep = b"[" * levels + b"]" * levels
    decoded = decode_deep(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, b'{"a":' + deep + b"}")
    assert bytes(decoded["a"]) == deep
    assert sys.getrecursionlimit() == usual


@keeps_deep_values
def test_an_incomplete_deep_text_is_an_error_of_the_decoder() -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(without_deep_values(b"[" * 100_000))
    with pytest.raises(RecursionError):
        decode_deep(msgspec.json.decode, b"[" * 100_000)
    with pytest.raises(msgspec.DecodeError):
        decode_deep(msgspec.json.decode, b"[" * 5000)


@keeps_deep_values
@pytest.mark.parametrize(("piece", "levels"), [(b"[" * 8 + b"1" + b"]" * 8, 395), (b"[1]", 495), (b'"a"', 1)])
def test_a_deep_object_costs_at_most_50_ms_for_each_mib(piece: bytes, levels: int) -> None:
    item = object_with_deep_fields(piece, levels)
    costs = []
    for _ in range(5):
        began = time.thread_time()
        _, _, read = read_event(b'{"type":"MODIFIED","object":' + item + b"}", "watch")
        shallow_object(item)
        costs.append(time.thread_time() - began)
    assert min(costs) < 2 * 0.05 * len(item) / (1 << 20)
    fields = json.loads(read)
    assert ("managedFields" not in fields["metadata"]) == is_deep(item)
    fields["metadata"].pop("managedFields", None)
    assert fields == {
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"kai.scheduler/queue": "queue-a"}},
        "kind": "x",
    }  # fmt: skip


@pytest.mark.parametrize(
    "item",
    [
        b"", b"[", b"null", b'{"metadata":{"name":"a"}}', b"\xff", b'{"metadata":[]}',
        b'{"metadata": {"name": "a", "managedFields": [{"fieldsV1": {"f:spec": {}}}]}}',
    ],
)  # fmt: skip
def test_other_bytes_stay_as_they_are(item: bytes) -> None:
    assert shallow_object(item) == item


def test_an_object_of_any_depth_reaches_its_reader() -> None:
    """Readers run deeper in the stack than the code that shortens objects."""

    def read_below(functions: int, item: bytes) -> object:
        return read_below(functions - 1, item) if functions else msgspec.json.decode(item)["kind"]

    for depth in range(600, 1100):
        item = object_with_deep_fields(b"1", 1, depth=depth, size=10)
        assert read_below(100, read_event(b'{"type":"ADDED","object":' + item + b"}", "watch")[2]) == "x"
        text = b'{"kind":"NamespaceList","metadata":{"resourceVersion":"1"},"items":[' + item + b"]}"
        (listed,) = ListSplitter().feed(text)
        assert read_below(100, listed) == "x"
