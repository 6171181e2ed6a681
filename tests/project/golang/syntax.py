"""Finds parts of Go source: arguments, results, assignments and the places of a name."""

from collections.abc import Iterator

from tests.project.golang.source import File, Function
from tests.project.golang.tokens import Code, Span


def arguments(code: Code, opening: int) -> list[Span]:
    """Return the arguments of a call."""
    return code.split((opening + 1, code.pairs[opening]))


def results(function: Function, place: int) -> Iterator[Span]:
    """Yield the expressions that a function returns at a place."""
    file, code = function.file, function.file.code
    for index in range(*function.body):
        if code.texts[index] == "return" and file.innermost_at(index) is function:
            parts = code.split((index + 1, code.statement_end(index + 1)))
            if place < len(parts):
                yield parts[place]


def names_in(file: File, name: str, span: Span) -> Iterator[int]:
    """Yield the places of a variable's name."""
    code = file.code
    for index in range(*span):
        if code.texts[index] == name and code.at(index - 1) != ".":
            yield index


def assignment(file: File, index: int) -> tuple[int, int, Span] | None:
    """Return the place among the targets, the number of targets, and the values, of the assignment to a name."""
    code, end, place, count = file.code, index + 1, 0, 1
    while code.at(end) == "," and code.is_name(end + 1):
        end, count = end + 2, count + 1
        while code.at(end) in (".", "[", "("):
            end = end + 2 if code.at(end) == "." else code.pairs[end] + 1
    if code.at(end) not in ("=", ":="):
        after = code.statement_end(index)
        if code.at(index - 1) not in ("var", "const") or "=" not in code.texts[index:after]:
            return None
        return 0, 1, (code.texts.index("=", index) + 1, after)
    start = index
    while code.at(start - 1) == "," and code.is_name(start - 2):
        start, place, count = start - 2, place + 1, count + 1
    return place, count, code.strip((end + 1, code.statement_end(end + 1)))


def element(file: File, start: int) -> Span:
    """Return the expression that begins at a token, in a list of expressions."""
    code, end = file.code, start
    while code.at(end) not in (",", ")", "]", "}", ";", ""):
        end = code.pairs[end] + 1 if code.pairs[end] > end else end + 1
    return start, end
