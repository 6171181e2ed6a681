"""Encodes a log event as a JSON line of bounded size."""

import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import orjson

DEBUG: Final = "debug"
INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"
LEVELS: Final = (DEBUG, INFO, WARNING, ERROR)
"""All levels; the least severe first."""

LINE_BYTES: Final = 16 * 1024
"""Longest line in bytes, including its newline: containerd splits longer ones
(max_container_log_line_size)."""

TEXT_CHARACTERS: Final = 8192
"""Longest text of a field, in characters."""

_ITEM_CHARACTERS: Final = 256
_ITEMS: Final = 16
_FIELDS: Final = 48
_NAME_CHARACTERS: Final = 64
_MESSAGE_CHARACTERS: Final = 512
_TRACEBACK_PARTS: Final = 28
_TRACEBACK_PART_CHARACTERS: Final = 288
_CUT: Final = " … "

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar] | dict[str, Scalar]


def encode_line(message: str, level: str, fields: Mapping[str, Any], *, now: float) -> bytes:
    """Encode an event as one line of at most `LINE_BYTES`; `now` is Unix time.

    Long values are shortened. Fields that still do not fit are omitted, and the line has `"cut":true`.
    """
    line: dict[str, Value] = {
        "time": _timestamp(now),
        "level": shortened(level, _NAME_CHARACTERS),
        "message": shortened(message, _MESSAGE_CHARACTERS),
    }
    for name, value in fields.items():
        line.setdefault(name, _bounded(value))
    try:
        data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate, which UTF-8 cannot encode
        return _fitted(line)
    return data if len(data) <= LINE_BYTES else _fitted(line)


def shortened(text: str, characters: int) -> str:
    """Remove the middle of a text that is too long; the start and the end are the most useful parts."""
    if len(text) <= characters:
        return text
    tail = characters // 4
    return text[: characters - tail - len(_CUT)] + _CUT + text[-tail:]


def shortened_traceback(parts: Sequence[str]) -> str:
    """Join the result of `traceback.format_exception`: the first and the last frames, each one shortened."""
    kept = [shortened(part, _TRACEBACK_PART_CHARACTERS) for part in parts]
    if len(kept) > _TRACEBACK_PARTS:
        head = _TRACEBACK_PARTS // 4
        tail = _TRACEBACK_PARTS - head - 1
        kept[head:-tail] = [f"  … {len(kept) - head - tail} more\n"]
    return "".join(kept)


def _bounded(value: Any) -> Value:
    """Return a JSON value of bounded size; nested containers become text."""
    kind = type(value)
    if kind is str:
        return shortened(value, TEXT_CHARACTERS)
    if kind in (list, tuple, set, frozenset):
        items = [_scalar(item, _ITEM_CHARACTERS) for item in islice(value, _ITEMS)]
        return [*items, f"… {len(value) - _ITEMS} more"] if len(value) > _ITEMS else items
    if kind is dict:
        entries = {
            shortened(_text(key), _NAME_CHARACTERS): _scalar(item, _ITEM_CHARACTERS)
            for key, item in islice(value.items(), _ITEMS)
        }
        return entries | {"…": f"{len(value) - _ITEMS} more"} if len(value) > _ITEMS else entries
    return _scalar(value, TEXT_CHARACTERS)


def _scalar(value: Any, characters: int) -> Scalar:
    if isinstance(value, Enum):
        value = value.value
    if value is None or type(value) in (bool, float):
        scalar: Scalar = value
        return scalar
    if type(value) is int:
        # orjson cannot encode larger ones, and formatting a large integer takes quadratic time.
        return value if -(2**63) <= value < 2**64 else f"an integer of {value.bit_length()} bits"
    return shortened(_text(value), characters)


def _text(value: Any) -> str:
    """Return a value's text; for an object whose `str` fails, the name of its type."""
    if isinstance(value, bytes | bytearray):
        return value[:TEXT_CHARACTERS].decode(errors="replace")
    try:
        return str.__str__(str(value))
    except Exception as error:  # noqa: BLE001 - an unprintable value must not lose the line
        return f"{type(value).__name__} without a text: {type(error).__name__}"


def _fitted(line: Mapping[str, Value]) -> bytes:
    """Encode the fields that fit, in order, with U+FFFD in place of each lone surrogate."""
    fitted: dict[str, Value] = {}
    size = len(b'{"cut":true}\n')
    for name, value in islice(line.items(), _FIELDS):
        key = _clean(name[:_NAME_CHARACTERS])
        for candidate in _candidates(value):
            needed = len(orjson.dumps({key: candidate}))
            if key not in fitted and size + needed <= LINE_BYTES:
                fitted[key] = candidate
                size += needed
    if len(fitted) < len(line):
        fitted["cut"] = True
    return orjson.dumps(fitted, option=orjson.OPT_APPEND_NEWLINE)


def _candidates(value: Value) -> Iterator[Value]:
    """Yield the value without lone surrogates, then a shortened text for the case that it does not fit."""
    if isinstance(value, list):
        yield [_clean(item) if isinstance(item, str) else item for item in value]
    elif isinstance(value, dict):
        yield {_clean(key): _clean(item) if isinstance(item, str) else item for key, item in value.items()}
    elif isinstance(value, str):
        text = _clean(value)
        yield text
        yield shortened(text, _ITEM_CHARACTERS)
    else:
        yield value


def _clean(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _timestamp(now: float) -> str:
    whole = int(now)
    return f"{_formatted_second(whole)}.{int((now - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _formatted_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
