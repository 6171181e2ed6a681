"""Reviews of objects that are nested too deep for a decoder.

Python 3.11 decodes fewer than 1,000 levels, Python 3.14 as many as the stack holds.
"""

import json
import sys
from typing import Any

import pytest

from kai.pod import decode_pod
from service.json_depth import is_deep
from tests.support.hostile_reviews import review
from tests.support.large_objects import deep_fields
from tests.support.markers import keeps_deep_values
from webhook.admission.review import BadReview, decode

FIELDS = '"FIELDS"'


def with_fields(document: dict[str, Any], levels: int) -> bytes:
    """Return a document whose text FIELDS is replaced by deep JSON."""
    return json.dumps(document).replace(FIELDS, deep_fields(levels)).encode()


def body(document: dict[str, Any], levels: int, *, is_update: bool = False) -> bytes:
    """Return the review of a document whose text FIELDS is replaced by deep JSON."""
    text = with_fields(document, levels)
    return review(text, kind="Namespace" if is_update else "Pod", old=text if is_update else b"null")


def document(**metadata: Any) -> dict[str, Any]:
    entries = [{"manager": "kubectl", "fieldsV1": "FIELDS"}]
    text = deep_fields(2000)  # the same text as in the managed fields
    return {
        "metadata": {"name": "case", "annotations": {"note": text}, "managedFields": entries, **metadata},
        "spec": {"containers": [{"name": "main", "image": "ü"}]},
    }


@keeps_deep_values
@pytest.mark.parametrize("is_update", [False, True])
@pytest.mark.parametrize("levels", [10, 400, 990, 1000, 1500, 2000, 9990])
def test_a_deep_object_loses_its_managed_fields_only(levels: int, is_update: bool) -> None:
    usual = sys.getrecursionlimit()
    request = decode(body(document(), levels, is_update=is_update))
    assert sys.getrecursionlimit() == usual
    expected = with_fields(document(), levels)
    if sys.version_info < (3, 12):
        assert is_deep(expected) == (levels > 400)
    if is_deep(expected):
        shorter = document()
        del shorter["metadata"]["managedFields"]
        assert json.loads(bytes(request.object)) == shorter
    else:
        assert bytes(request.object) == expected
    assert bytes(request.oldObject) == (bytes(request.object) if is_update else b"null")


def test_an_object_of_any_depth_is_read_by_functions_that_run_deeper_in_the_stack() -> None:
    def read_below(functions: int, pod: Any) -> str:
        return read_below(functions - 1, pod) if functions else decode_pod(pod).name

    for levels in range(600, 1100):
        assert read_below(100, decode(body(document(), levels)).object) == "case"


@pytest.mark.parametrize("levels", [990, 2000, 9990])
def test_a_deep_object_is_read_where_the_recursion_limit_cannot_be_raised(
    levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.json_depth.sys.setrecursionlimit", lambda _limit: None)
    monkeypatch.setattr("service.json_depth.HAS_FIXED_LIMIT", True)
    assert decode_pod(decode(body(document(), levels)).object).name == "case"


def test_an_object_deeper_than_an_api_server_stores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.json_depth.HAS_FIXED_LIMIT", False)
    usual = sys.getrecursionlimit()
    with pytest.raises(BadReview, match="nested too deep"):
        decode(body(document(), 400_000))  # Python 3.14 decodes as many levels as the stack holds
    assert sys.getrecursionlimit() == usual


@keeps_deep_values
@pytest.mark.parametrize(
    "text", ["[FIELDS]", '{"metadata":FIELDS}', '{"metadata":null,"x":FIELDS}', '{"x":FIELDS}']
)
def test_other_deep_values_stay_as_they_are(text: str) -> None:
    text = text.replace("FIELDS", deep_fields(2000))
    assert bytes(decode(review(text.encode())).object) == text.encode()


def test_an_invalid_object_behind_deep_managed_fields_is_refused() -> None:
    with pytest.raises(BadReview, match="not JSON"):
        decode(body(document(), 2000)[:-1])
