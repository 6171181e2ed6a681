"""The log: one JSON line of bounded size for each event. Callers never pass a pod's env, args or volumes."""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import Any, Final, Protocol, cast

import orjson

from service.backoff import TokenBucket

DEBUG: Final = "debug"
INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"
LEVELS: Final = (DEBUG, INFO, WARNING, ERROR)  # all levels; the least severe first

LINE_BYTES: Final = 16 * 1024
"""Longest line in bytes, with its newline: containerd splits longer ones (max_container_log_line_size)."""
TEXT_CHARACTERS: Final = 8192  # longest text of a field, in characters
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

    Long values are shortened. Fields that still do not fit are omitted, and the line has `"cut":true`. Names
    of fields, unlike their values, are never someone else's text; `now` is Unix time.
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
        return cast(Scalar, value)
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


class LineStream(Protocol):
    """Accepts whole lines from any thread: a `LogWriter`, or a stream in memory."""

    def write(self, line: bytes, /) -> object:
        """Accept one line without blocking and without raising."""


class JsonLog:
    """Writes events to a stream, one bounded JSON line each, from any thread."""

    def __init__(
        self, stream: LineStream, *, lines_lost: Callable[[], int] = lambda: 0, least: str = INFO
    ) -> None:
        """Set the stream, the number of lines that it lost, and the least severe level that is written."""
        self._stream = stream
        self._lines_lost = lines_lost
        self._skipped = frozenset(LEVELS[: LEVELS.index(least)])

    @property
    def lines_lost(self) -> int:
        """Number of lines that the stream has dropped."""
        return self._lines_lost()

    def writes(self, level: str) -> bool:
        """Whether events of this level are written."""
        return level not in self._skipped

    def __call__(self, message: str, level: str = INFO, **fields: Any) -> None:
        """Write one event with its fields, unless its level is skipped."""
        if self.writes(level):
            self._stream.write(encode_line(message, level, fields, now=time.time()))

    def failure(self, message: str, error: BaseException, **fields: Any) -> None:
        """Write an internal error; its traceback is one field."""
        try:
            text = shortened_traceback(traceback.format_exception(error))
        except Exception as again:  # noqa: BLE001 - such as a RecursionError close to the recursion limit
            text = f"{type(error).__name__}; no traceback: {type(again).__name__}"
        self(message, ERROR, **fields, traceback=text)


LINES_PER_SECOND: Final = 1.0
BURST: Final = 20


class LimitedLog:
    """Passes lines to a log at a bounded rate; the next passed line has the count of suppressed ones."""

    def __init__(self, log: JsonLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._bucket = TokenBucket(per_second=LINES_PER_SECOND, burst=BURST, clock=clock)
        self._suppressed = 0

    def __call__(self, message: str, level: str = INFO, **fields: Any) -> None:
        """Write one event with its fields, or count it as suppressed."""
        if self._log.writes(level) and self._passes(fields):
            self._log(message, level, **fields)

    def failure(self, message: str, error: BaseException, **fields: Any) -> None:
        """Write an error with its traceback, or count it as suppressed."""
        if self._passes(fields):
            self._log.failure(message, error, **fields)

    def _passes(self, fields: dict[str, Any]) -> bool:
        if not self._bucket.take():
            self._suppressed += 1
            return False
        if self._suppressed:
            fields["suppressed"] = self._suppressed
            self._suppressed = 0
        return True


class OngoingProblem:
    """A problem that is reported when it begins or changes, and once when it is over."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Begin without a problem; `report` receives its line, and "" when it is over."""
        self.line = ""
        """The present problem; empty if there is none."""
        self._report = report
        self._kind: object = ""

    def update(self, line: str, *, kind: object = None) -> None:
        """Set the present problem, "" for none; `kind` identifies a problem whose line varies."""
        before, self._kind = self._kind, (line if kind is None else kind) if line else ""
        self.line = line
        if self._kind != before:
            self._report(line)


def problem_logger(
    log: JsonLog, began: str, over: str, *, field: str = "error", **fields: Any
) -> Callable[[str], None]:
    """Return a function that logs a problem, or with "" its end: the report of an `OngoingProblem`.

    `began` and `over` are the messages; `field` is the name of the field with the problem's line.
    """

    def report(line: str) -> None:
        if line:
            log(began, WARNING, **fields, **{field: line})
        else:
            log(over, INFO, **fields)

    return report


MOST_NEW_LINES: Final = 20
"""Largest number of lines that are logged at once: users can write new invalid values at any time."""


class NewLines:
    """Compares the lines of each round with those of the last one, so that a line is logged once."""

    def __init__(self) -> None:
        self._last: Mapping[str, None] = {}

    def update(self, lines: Iterable[str]) -> tuple[list[str], int]:
        """Return the first new ones of all lines of this round, and the number of further ones."""
        now = dict.fromkeys(lines)
        new = [line for line in now if line not in self._last]
        self._last = now
        return new[:MOST_NEW_LINES], max(len(new) - MOST_NEW_LINES, 0)


class FirstLines:
    """Knows the first lines of a kind, so that each of them is logged once, and later ones not at all."""

    def __init__(self) -> None:
        self._lines: set[str] = set()

    def add(self, line: str) -> bool:
        """Return whether the line is new and to be logged."""
        if line in self._lines or len(self._lines) == MOST_NEW_LINES:
            return False
        self._lines.add(line)
        return True
