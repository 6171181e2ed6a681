"""Whether Python's backtracking matcher takes linear time for a regular expression, decided from its syntax.

A backtracking matcher tries every path of the pattern's automaton that reads a prefix of the text. The work is
linear if the number of paths per prefix is bounded. It is not in exactly two cases (Weber and Seidl, "On the
degree of ambiguity of finite automata", 1991):

- exponential: some state p has two different paths back to itself that read the same word;
- polynomial: some states p != q have paths p->p, p->q and q->q that all read the same word.

The automaton has a state for each character class of the pattern (Glushkov's construction). A search that may
begin anywhere is the pattern behind a loop that reads anything. Where the construction simplifies, it adds
paths and removes none: a verdict of "linear" holds, and an unusual pattern may be refused without need.
"""

import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations, permutations, product
from operator import and_
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_MOST_COPIES = 8
"""Repetitions that are written out; more count as a loop."""
_COMMON = "aAzZ09_-. \n\t"
_NOT_ASCII = "é٣ \u2028"
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_REPEATS = frozenset({codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT})
_SINGLE = frozenset({codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY})


class Undecided(ValueError):
    """The pattern uses syntax that this analysis does not cover, or that some Python matches wrongly."""


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """Why a pattern is not linear."""

    degree: str
    """`polynomial` or `exponential`."""
    prefix: str
    """A text that leads to the loop."""
    pump: str
    """A text whose repetition after the prefix makes the matcher slow."""

    def __str__(self) -> str:
        return f"{self.degree} on {self.prefix + self.pump * 3!r}…"


def ambiguity(pattern: str | bytes, flags: int = 0, *, is_search: bool) -> Ambiguity | None:
    """Return what makes the pattern slow on some texts; None if it takes linear time on every text.

    Args:
        pattern: a regular expression.
        flags: as `re.compile` takes them.
        is_search: whether a match may begin anywhere, as for search, findall, split and sub.

    Raises:
        Undecided: the pattern has a back-reference, a condition or a possessive group.
    """
    tree = parser.parse(pattern, flags)
    automata = [_Automaton(tree, is_text=isinstance(pattern, str), behind_anything=False)]
    if is_search:
        automata.append(_Automaton(tree, is_text=isinstance(pattern, str), behind_anything=True))
    return next(filter(None, (automaton.ambiguity() for automaton in automata)), None)


def worst_texts(pattern: str | bytes, flags: int = 0, *, size: int) -> Iterator[str]:
    """Yield texts for every loop of the pattern: the way into it and many turns, or both many times, and an end."""
    tree = parser.parse(pattern, flags)
    automaton = _Automaton(tree, is_text=isinstance(pattern, str), behind_anything=False)
    for state in automaton.loops:
        prefix, turn = automaton.way_to(state), automaton.turn(state)
        for end in ("", "\0", "\n\0"):
            yield prefix + turn * (size // len(turn)) + end
            yield (prefix + turn) * (size // len(prefix + turn)) + end


@dataclass(slots=True)
class _Fragment:
    """A part of the pattern. The counters hold in how many ways a state is first or last, 2 for many."""

    first: Counter[int] = field(default_factory=Counter)
    last: Counter[int] = field(default_factory=Counter)
    empty: int = 0
    """In how many ways it reads nothing."""


class _Automaton:
    """The states and edges of a pattern; a state reads one character."""

    def __init__(self, tree: Any, *, is_text: bool, behind_anything: bool) -> None:
        self._flags = tree.state.flags
        self._alphabet = sorted(_alphabet(tree, is_text=is_text))
        self._is_behind_anything = behind_anything
        self._chars: list[int] = []
        """For each state the characters it reads, as bits over the alphabet."""
        self._edges: Counter[tuple[int, int]] = Counter()
        whole = self._sequence(tree)
        if behind_anything:
            whole = self._concatenated(self._looped(self._state(lambda _: True)), whole)
        self._first = sorted(whole.first)
        self._next: dict[int, list[int]] = defaultdict(list)
        for before, after in self._edges:
            self._next[before].append(after)
        self._all = set(range(len(self._chars)))
        self._after = {state: self._reached(state) for state in self._all}
        self.loops = [state for state in sorted(self._all) if state in self._after[state]]

    def ambiguity(self) -> Ambiguity | None:
        """Return why the work is not linear, if it is not."""
        return self._exponential() or self._polynomial()

    def way_to(self, state: int) -> str:
        """Return a shortest text that is read up to and including the state."""
        for first in self._first:
            if first == state:
                return self._char(self._chars[first])
        ways = ((first, self._word((first,), (state,), [self._all])) for first in self._first)
        return min((self._char(self._chars[first]) + way for first, way in ways if way), key=len)

    def turn(self, state: int) -> str:
        """Return a shortest text that leads from the state back to it."""
        return self._word((state,), (state,), [self._all]) or ""

    def _exponential(self) -> Ambiguity | None:
        for (before, after), ways in self._edges.items():
            if ways > 1 and before in self._after[after]:
                back = "" if after == before else self._word((after,), (before,), [self._all]) or ""
                pump = self._char(self._chars[after]) + back
                return Ambiguity("exponential", self.way_to(before), pump)
        for state in self.loops:
            loop = self._loop(state)
            for pair in combinations(loop, 2):
                there = self._word((state, state), pair, [loop, loop])
                back = self._word(pair, (state, state), [loop, loop])
                if there and back:
                    return Ambiguity("exponential", self.way_to(state), there + back)
        return None

    def _polynomial(self) -> Ambiguity | None:
        for start, end in permutations(self.loops, 2):
            if end not in self._after[start]:
                continue
            inside = [self._loop(start), self._all, self._loop(end)]
            pump = self._word((start, start, end), (start, end, end), inside)
            if pump:
                return Ambiguity("polynomial", self.way_to(start), pump)
        return None

    def _loop(self, state: int) -> set[int]:
        return {other for other in self._after[state] if state in self._after[other]}

    def _reached(self, state: int) -> set[int]:
        reached: set[int] = set()
        waiting = [state]
        while waiting:
            for after in self._next[waiting.pop()]:
                if after not in reached:
                    reached.add(after)
                    waiting.append(after)
        return reached

    def _word(self, source: tuple[int, ...], target: tuple[int, ...], inside: list[set[int]]) -> str | None:
        """Return a shortest word that leads each state of the source to its state of the target, if any does.

        Args:
            source: where the paths begin.
            target: where they end, at least one character later.
            inside: the states that each path may enter.
        """
        words = {source: ""}
        waiting = deque([source])
        while waiting:
            states = waiting.popleft()
            for after in product(*(self._next[state] for state in states)):
                chars = reduce(and_, (self._chars[state] for state in after))
                if not chars or not all(state in own for state, own in zip(after, inside, strict=True)):
                    continue
                word = words[states] + self._char(chars)
                if after == target:
                    return word
                if after not in words:
                    words[after] = word
                    waiting.append(after)
        return None

    def _char(self, chars: int) -> str:
        return self._alphabet[(chars & -chars).bit_length() - 1]

    def _state(self, reads: Callable[[str], bool]) -> _Fragment:
        self._chars.append(sum(1 << bit for bit, char in enumerate(self._alphabet) if reads(char)))
        state = len(self._chars) - 1
        return _Fragment(Counter({state: 1}), Counter({state: 1}))

    def _sequence(self, nodes: Any) -> _Fragment:
        whole = _Fragment(empty=1)
        for operation, argument in nodes:
            whole = self._concatenated(whole, self._node(operation, argument))
        return whole

    def _node(self, operation: Any, argument: Any) -> _Fragment:
        if operation in _SINGLE:
            flags = self._flags
            return self._state(lambda char: _reads(operation, argument, char, flags))
        if operation is codes.SUBPATTERN:
            _, added, removed, body = argument
            outer, self._flags = self._flags, (self._flags | added) & ~removed
            group = self._sequence(body)
            self._flags = outer
            return group
        if operation is codes.ATOMIC_GROUP or (
            operation is codes.POSSESSIVE_REPEAT and [node[0] in _SINGLE for node in argument[2]] != [True]
        ):
            raise Undecided("Python matches possessive groups wrongly before 3.11.5")
        if operation is codes.BRANCH:
            return _either([self._sequence(branch) for branch in argument[1]])
        if operation in _REPEATS:
            return self._repeated(*argument)
        if operation in (codes.ASSERT, codes.ASSERT_NOT):
            body = self._sequence(argument[1])
            return _Fragment(first=body.first, empty=1)
        if operation is codes.AT:
            return self._position(argument)
        raise Undecided(f"{operation} is not supported")

    def _position(self, position: Any) -> _Fragment:
        """A position reads nothing; the beginning of text or line is behind anything never, or behind a break."""
        if position in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING) and self._is_behind_anything:
            if position is codes.AT_BEGINNING and self._flags & re.MULTILINE:
                return self._state(lambda char: char == "\n")
            return _Fragment()
        return _Fragment(empty=1)

    def _repeated(self, least: int, most: int, body: Any) -> _Fragment:
        if most > _MOST_COPIES:
            loop = self._looped(self._sequence(body))
            return _Fragment(loop.first, loop.last, 0) if least and loop.empty == 1 else loop
        whole = _Fragment(empty=1)
        for _ in range(most - least):  # x{1,3} is x(x(x)?)?
            whole = _either([_Fragment(empty=1), self._concatenated(self._sequence(body), whole)])
        for _ in range(least):
            whole = self._concatenated(self._sequence(body), whole)
        return whole

    def _looped(self, body: _Fragment) -> _Fragment:
        self._connect(body, body)
        if not body.empty:
            return _Fragment(body.first, body.last, 1)
        many = Counter(dict.fromkeys(body.last, 2))  # a last turn may read nothing
        return _Fragment(body.first, many, 2)

    def _concatenated(self, left: _Fragment, right: _Fragment) -> _Fragment:
        self._connect(left, right)
        return _Fragment(
            first=left.first + _times(right.first, left.empty),
            last=right.last + _times(left.last, right.empty),
            empty=min(2, left.empty * right.empty),
        )

    def _connect(self, left: _Fragment, right: _Fragment) -> None:
        for before, out in left.last.items():
            for after, into in right.first.items():
                self._edges[before, after] += out * into


def _either(branches: list[_Fragment]) -> _Fragment:
    return _Fragment(
        first=sum((branch.first for branch in branches), Counter()),
        last=sum((branch.last for branch in branches), Counter()),
        empty=min(2, sum(branch.empty for branch in branches)),
    )


def _times(ways: Counter[int], factor: int) -> Counter[int]:
    return Counter({state: min(2, count * factor) for state, count in ways.items() if factor})


def _alphabet(tree: Any, *, is_text: bool) -> set[str]:
    """Return characters that stand for all others: the pattern's own, their neighbours, and some of each kind."""
    chars = set(_COMMON + _NOT_ASCII if is_text else _COMMON)
    for point in _points(tree):
        for near in (point - 1, point, point + 1):
            if 0 <= near < (sys.maxunicode if is_text else 256):
                chars |= {chr(near), chr(near).lower()[0], chr(near).upper()[0]}
    return chars


def _points(node: Any) -> Iterator[int]:
    """Yield every code point that the pattern names."""
    if isinstance(node, int) and not isinstance(node, type(codes.LITERAL)):
        yield node
    elif isinstance(node, parser.SubPattern | list | tuple):
        for part in node:
            yield from _points(part)


def _reads(operation: Any, argument: Any, char: str, flags: int) -> bool:
    if flags & re.IGNORECASE and char.lower() != char.upper():
        plain = flags & ~re.IGNORECASE
        return any(_reads(operation, argument, same, plain) for same in {char.lower(), char.upper()})
    if operation is codes.ANY:
        return char != "\n" or bool(flags & re.DOTALL)
    if operation is codes.LITERAL:
        return ord(char) == argument
    if operation is codes.NOT_LITERAL:
        return ord(char) != argument
    if operation is codes.RANGE:
        return argument[0] <= ord(char) <= argument[1]
    if operation is codes.CATEGORY:
        return re.fullmatch(_CATEGORIES[argument], char, flags & re.ASCII) is not None
    is_negated = argument[0][0] is codes.NEGATE
    return is_negated != any(_reads(*part, char, flags) for part in argument[is_negated:])
