"""Objects that are nested too deep for a decoder, as any user can store them.

Python 3.11 decodes fewer than 1,000 levels, Python 3.14 as many as the stack holds.
"""

import json
import time

import msgspec
import pytest

from kube.watch import read_event
from service.json_depth import is_deep, shallow_object
from service.list_splitter import ListSplitter
from tests.support.large_objects import object_with_deep_fields
from tests.support.markers import keeps_deep_values


@keeps_deep_values
@pytest.mark.parametrize(("piece", "levels"), [(b"[" * 8 + b"1" + b"]" * 8, 395), (b"[1]", 495), (b'"a"', 1)])
def test_a_deep_object_costs_at_most_50_ms_for_each_mib(piece: bytes, levels: int) -> None:
    item = object_with_deep_fields(piece, levels)
    began = time.thread_time()
    _, _, read = read_event(b'{"type":"MODIFIED","object":' + item + b"}", "watch")
    shallow_object(item)
    assert time.thread_time() - began < 2 * 0.05 * len(item) / (1 << 20)
    fields = json.loads(read)
    assert ("managedFields" not in fields["metadata"]) == is_deep(item)
    fields["metadata"].pop("managedFields", None)
    assert fields == {
        "metadata": {
            "name": "a",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"kai.scheduler/queue": "queue-a"},
        },
        "kind": "x",
    }


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
