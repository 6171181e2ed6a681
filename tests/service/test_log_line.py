"""Any event becomes one bounded line of valid JSON."""

import enum
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.log import LINE_BYTES, JsonLog, encode_line, shortened
from tests.support.standard_streams import Lines

NOW = 1_700_000_000.25


def decoded(message: str = "message", /, **fields: Any) -> dict[str, Any]:
    """Encode an event with these fields, check the line's form, and decode it."""
    data = encode_line(message, "info", fields, now=NOW)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert len(data) <= LINE_BYTES
    line: dict[str, Any] = json.loads(data)
    return line


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NotText:
    def __str__(self) -> str:
        return 1  # type: ignore[return-value]  # noqa: PLE0307 - on purpose


class Colour(enum.Enum):
    RED = "red"


TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(min_value=2**200), st.floats(), TEXTS,
    st.binary(max_size=40), st.builds(lambda text, times: text * times, TEXTS, st.integers(0, 3000)),
    st.sampled_from([Unprintable(), NotText(), Colour.RED, object(), ValueError("\ud800")]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=40), st.tuples(inner, inner), st.dictionaries(TEXTS, inner, max_size=40)
    ),
    max_leaves=30,
)


@settings(max_examples=40, deadline=None)
@given(
    fields=st.dictionaries(
        st.from_regex("[a-z_]{1,20}", fullmatch=True) | st.sampled_from(["time", "level", "message"]),
        VALUES,
        max_size=10,
    ),
    message=TEXTS,
)
def test_any_fields_become_one_line_of_json_within_the_bound(fields: dict[str, Any], message: str) -> None:
    line = decoded(message, **fields)
    assert line["time"] == "2023-11-14T22:13:20.250Z"
    assert line["level"] == "info"
    assert line["message"] == decoded(message)["message"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("text", "text"), (7, 7), (2**63, 2**63), (-(2**70), "an integer of 71 bits"), (0.5, 0.5),
        (float("nan"), None), (True, True), (Colour.RED, "red"), (("a", 1, None), ["a", 1, None]),
        ({"a": {"b": 1}}, {"a": "{'b': 1}"}), (b"caf\xc3\xa9 \xff", "café \ufffd"), ("\ud800 and 😀", "\ufffd and 😀"),
        (["\udfff"], ["\ufffd"]), ({"\ud800": "\ud800"}, {"\ufffd": "\ufffd"}),
        (Unprintable(), "Unprintable without a text: RuntimeError"),
        (NotText(), "NotText without a text: TypeError"),
        ([str(n) for n in range(20)], [*(str(n) for n in range(16)), "… 4 more"]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_are_written_as(value: Any, written: Any) -> None:
    assert decoded(value=value)["value"] == written


def test_a_long_text_loses_its_middle() -> None:
    value = decoded(value="start" + "x" * 3_000_000 + "end")["value"]
    assert value.startswith("start")
    assert value.endswith("end")
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abcde … jk"


def test_a_field_that_does_not_fit_leaves_room_for_those_behind_it() -> None:
    line = decoded(**{f"long{n}": "\x00" * 100_000 for n in range(20)}, list=["\x00" * 300] * 20, last=1)
    assert line["last"] == 1
    assert line["cut"] is True


def recursion(depth: int) -> None:
    if depth % 2:
        recursion(depth + 1)
    else:
        again(depth + 1)


def again(depth: int) -> None:
    recursion(depth + 1)


def raised_by(function: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any failure
        function()
    return caught.value


def fail_with_a_long_text() -> None:
    raise ValueError("start " + "x" * 3_000_000 + " end")


def fail_with_many_causes() -> None:
    error: Exception = ValueError("first")
    for number in range(200):
        later = ValueError(f"number {number}")
        later.__cause__ = error
        error = later
    raise error


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (lambda: recursion(0), ["in raised_by", "RecursionError: maximum recursion depth exceeded", " more\n"]),
        (fail_with_a_long_text, ["in fail_with_a_long_text", "ValueError: start xxx", " end"]),
        (fail_with_many_causes, ["ValueError: first", "ValueError: number 199", " more\n"]),
    ],
    ids=["recursion", "long text", "many causes"],
)  # fmt: skip
def test_a_traceback_keeps_its_first_and_last_frames(function: Any, parts: list[str]) -> None:
    stream = Lines()
    JsonLog(stream).failure("internal error", raised_by(function), stage="x")
    (line,) = stream.decoded
    assert len(line["traceback"]) <= 28 * 288
    assert [part for part in parts if part not in line["traceback"]] == []
    assert line["stage"] == "x"
