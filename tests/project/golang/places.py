"""Tells in which place of Go's syntax an expression stands."""

from dataclasses import dataclass
from enum import Enum, auto

from tests.project.golang.source import File
from tests.project.golang.syntax import arguments, assignment
from tests.project.golang.tokens import Code, Span


class Place(Enum):
    """The role of an expression in the syntax around it."""

    INDEXED = auto()
    """`x[…]`."""
    METHOD = auto()
    """`x.Method(…)`."""
    ASSERTED = auto()
    """`x.(Type)`."""
    COMPARED = auto()
    """`x == …` or `x != …`."""
    TARGET = auto()
    """`x = …` or `x := …`."""
    RANGED = auto()
    """`range x`."""
    RETURNED = auto()
    """`return x`."""
    ASSIGNED = auto()
    """`… = x` or `… := x`."""
    FIELD = auto()
    """The value of a field or of a key in a composite literal."""
    KEY = auto()
    """A key in a composite literal."""
    ARGUMENT = auto()
    """An argument of a call."""
    INDEX = auto()
    """`…[x]`."""
    SWITCHED = auto()
    """`switch x {`."""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an expression."""

    place: Place
    span: Span
    """The expression, with the parentheses around it."""
    other: Span = (0, 0)
    """The index, the other side of the comparison, the assigned values, the target, the field or the callee."""
    number: int = 0
    """The place among the arguments, the results or the targets."""
    opening: int = -1
    """The parenthesis of the call."""


def primary_start(code: Code, index: int) -> int:
    """Return the first token of the operand that ends at a token."""
    while True:
        if code.texts[index] in (")", "]", "}"):
            index = code.pairs[index]
            if code.is_name(index - 1) or code.at(index - 1) in (")", "]", "}"):
                index -= 1
                continue
            if code.at(index - 1) == ".":
                index -= 2
                continue
            if code.at(index - 1) in ("map", "func"):
                return index - 1
            return index
        if code.at(index - 1) == "." and code.at(index - 2) not in ("", ";"):
            index -= 2
        elif code.at(index - 1) == "]" and code.is_name(index):
            index -= 1
        else:
            return index


def primary_end(code: Code, index: int) -> int:
    """Return the token after the operand that begins at a token."""
    while code.at(index) in ("&", "*", "-", "!"):
        index += 1
    if code.at(index) in ("(", "["):
        index = code.pairs[index] + 1
    else:
        index += 1
    while True:
        if code.at(index) == ".":
            index += 2 if code.at(index + 1) != "(" else 1
        elif code.at(index) in ("(", "["):
            index = code.pairs[index] + 1
        else:
            return index


def is_call(code: Code, opening: int) -> bool:
    """Whether a parenthesis begins the arguments of a call or of a conversion."""
    return code.at(opening) == "(" and (code.is_name(opening - 1) or code.at(opening - 1) in (")", "]", "}"))


def use_of(file: File, span: Span) -> Use:  # noqa: PLR0912  # one branch for each place
    """Return the use of an expression."""
    code = file.code
    start, end = span
    while code.at(start - 1) == "(" and code.at(end) == ")" and not is_call(code, start - 1):
        start, end = start - 1, end + 1
    span = (start, end)
    before, after, parent = code.at(start - 1), code.at(end), code.parents[start]
    if after == "[":
        return Use(Place.INDEXED, span, (end + 1, code.pairs[end]))
    if after == ".":
        if code.at(end + 1) == "(":
            return Use(Place.ASSERTED, (start, code.pairs[end + 1] + 1))
        return Use(Place.METHOD, span, (end + 1, end + 2), opening=end + 2)
    if after in ("==", "!="):
        return Use(Place.COMPARED, span, (end + 1, primary_end(code, end + 1)))
    if before in ("==", "!="):
        return Use(Place.COMPARED, span, (primary_start(code, start - 2), start - 1))
    target = assignment(file, end - 1)
    if target is not None:
        values = code.split(target[2])
        if code.texts[target[2][0]] == "range" or len(values) != target[1]:
            return Use(Place.TARGET, span, target[2], target[0])
        return Use(Place.TARGET, span, values[target[0]])
    if before == "range":
        return Use(Place.RANGED, span)
    if before == "switch" and after == "{":
        return Use(Place.SWITCHED, span, (end + 1, code.pairs[end]))
    opener = code.at(parent)
    if opener == "(" and is_call(code, parent):
        parts = arguments(code, parent)
        number = next((n for n, part in enumerate(parts) if part == span), -1)
        if number >= 0:
            return Use(Place.ARGUMENT, span, (primary_start(code, parent - 1), parent), number, parent)
    if opener == "[" and code.pairs[parent] == end and parent == start - 1:
        return Use(Place.INDEX, span, (primary_start(code, parent - 1), parent))
    if opener == "{" and after == ":" and before in ("{", ","):
        return Use(Place.KEY, span)
    if opener == "{" and before == ":" and after in (",", "}"):
        return Use(Place.FIELD, span, (start - 2, start - 1))
    return _in_statement(file, span)


def _in_statement(file: File, span: Span) -> Use:
    """Return the use of an expression that is a value of an assignment or of a `return`."""
    code, start = file.code, span[0]
    begin = start
    while begin > 0 and code.texts[begin - 1] not in (";", "{", "}", "(", "[", "=", ":=", "return", ":"):
        begin = code.pairs[begin - 1] if code.texts[begin - 1] in ")]}" else begin - 1
    sign = code.at(begin - 1)
    number = next((n for n, part in enumerate(code.split((begin, span[1]))) if part == span), -1)
    if number < 0 or code.at(span[1]) not in (",", ";", "}", "{", ")"):
        return Use(Place.UNKNOWN, span)
    if sign == "return":
        return Use(Place.RETURNED, span, number=number)
    if sign in ("=", ":="):
        word = begin - 1
        while code.at(word - 1) not in (";", "{", "}", "(", ""):
            word = code.pairs[word - 1] if code.at(word - 1) in ("]", ")") else word - 1
        if code.texts[word] == "var":
            return Use(Place.ASSIGNED, span, (word + 1 + 2 * number, word + 2 + 2 * number))
        last = first = begin - 2
        first = primary_start(code, last)
        targets = [(first, last + 1)]
        while code.at(first - 1) == ",":
            last = first - 2
            first = primary_start(code, last)
            targets.insert(0, (first, last + 1))
        if number < len(targets):
            return Use(Place.ASSIGNED, span, targets[number])
    return Use(Place.UNKNOWN, span)
