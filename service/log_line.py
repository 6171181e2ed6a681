"""Encodes a log event as a JSON line of bounded size."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
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
_NAME_CHARACTERS: Final = 64
_MESSAGE_CHARACTERS: Final = 512
_TRACEBACK_PARTS: Final = 28
_TRACEBACK_PART_CHARACTERS: Final = 288
_CUT: Final = " … "

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar] | dict[str, Scalar]


def encode_line(message: str, level: str, fields: Mapping[str, Any], *, now: float) -> bytes:
    """Encode an event as one line of at most `LINE_BYTES`.

    Long values are shortened. Fields that still do not fit are omitted, and the line has `"cut":true`.

    Args:
        message: what happened.
        level: one of `LEVELS`.
        fields: any values by their names; names, unlike values, are never someone else's text.
        now: Unix time.
    """
    time = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    line: dict[str, Value] = {
        "time": time.replace("+00:00", "Z"),
        "level": level,
        "message": _text(message, _MESSAGE_CHARACTERS),
    }
    for name, value in fields.items():
        line.setdefault(name, _bounded(value))
    data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
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
    if kind in (list, tuple, set, frozenset):
        items = [_scalar(item, _ITEM_CHARACTERS) for item in islice(value, _ITEMS)]
        return [*items, f"… {len(value) - _ITEMS} more"] if len(value) > _ITEMS else items
    if kind is dict:
        entries = {
            _text(key, _NAME_CHARACTERS): _scalar(item, _ITEM_CHARACTERS)
            for key, item in islice(value.items(), _ITEMS)
        }
        return entries | {"…": f"{len(value) - _ITEMS} more"} if len(value) > _ITEMS else entries
    return _scalar(value, TEXT_CHARACTERS)


def _scalar(value: Any, characters: int) -> Scalar:
    if type(value) is str:
        return _text(value, characters)
    if isinstance(value, Enum):
        value = value.value
    if value is None or type(value) in (bool, float):
        scalar: Scalar = value
        return scalar
    if type(value) is int:
        # orjson cannot encode larger ones, and formatting a large integer takes quadratic time.
        return value if -(2**63) <= value < 2**64 else f"an integer of {value.bit_length()} bits"
    return _text(value, characters)


def _text(value: Any, characters: int) -> str:
    """Return a value's shortened text; for an object whose `str` fails, the name of its type.

    Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
    """
    if type(value) is str:
        text = value
    elif isinstance(value, bytes | bytearray):
        text = value[:TEXT_CHARACTERS].decode(errors="replace")
    else:
        try:
            text = str.__str__(str(value))
        except Exception as error:  # noqa: BLE001 - an unprintable value must not lose the line
            text = f"{type(value).__name__} without a text: {type(error).__name__}"
    text = shortened(text, characters)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _fitted(line: Mapping[str, Value]) -> bytes:
    """Encode the fields that fit, in order; one that does not fit becomes a short text if that fits."""
    fitted: dict[str, Value] = {}
    size = len(b'{"cut":true}\n')
    for name, value in line.items():
        for candidate in (value, shortened(str(value), _ITEM_CHARACTERS)):
            needed = len(orjson.dumps({name: candidate}))
            if size + needed <= LINE_BYTES:
                fitted[name] = candidate
                size += needed
                break
    if len(fitted) < len(line):
        fitted["cut"] = True
    return orjson.dumps(fitted, option=orjson.OPT_APPEND_NEWLINE)
