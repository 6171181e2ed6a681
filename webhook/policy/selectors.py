"""Parses label selectors in the form of `kubectl get -l` and matches them against labels.

The accepted texts and their meaning are those of `labels.Parse` (k8s.io/apimachinery
pkg/labels/selector.go) in Kubernetes 1.36.3. Version 0.34 of apimachinery refuses an empty item at the end of
a list, `(a,,)`. Parsing takes linear time; a null byte is refused, while Go ends the text there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from service.names import LONGEST_LABEL, is_label_key, is_label_value
from service.text import quoted

LONGEST: Final = 1024
"""Maximum length of a selector, in characters."""

_SPACES = frozenset(" \t\r\n")
_SEPARATOR = re.compile(r"(==|!=|[=!(),<> \t\r\n])")
_INTEGER = re.compile(r"[0-9]+")
_LARGEST = (1 << 63) - 1
_SYMBOLS = frozenset({"=", "==", "!=", "!", "(", ")", ",", "<", ">"})
_BINARY = frozenset({"=", "==", "!=", "<", ">", "in", "notin"})
_END = ""


class SelectorError(ValueError):
    """A text is not a label selector; the message says what is wrong, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """A condition on the value of one label. The value of a label that an object lacks is None."""

    key: str
    values: frozenset[str | None]
    is_in: bool
    """Whether the label's value must be one of `values`; if False, it must be none of them."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the condition."""
        return (labels.get(self.key) in self.values) is self.is_in


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition that the value of one label is an integer above or below a bound."""

    key: str
    bound: int
    is_above: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the condition."""
        value = _integer(labels.get(self.key, ""))
        return value is not None and (value > self.bound if self.is_above else value < self.bound)


@dataclass(frozen=True)
class Selector:
    """A parsed label selector: all its conditions must be met."""

    text: str
    conditions: frozenset[LabelRequirement | Comparison]
    """Equal for selectors of equal meaning in this form."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector selects an object with these labels."""
        for condition in self.conditions:  # noqa: SIM110 - a generator doubles the time of most selectors
            if not condition.matches(labels):
                return False
        return True

    @cached_property
    def keys(self) -> frozenset[str]:
        """The labels that the selector reads."""
        return frozenset(condition.key for condition in self.conditions)

    @cached_property
    def equalities(self) -> frozenset[tuple[str, str]]:
        """The label values that the selector asks for with `=`, `==` or a single value of `in`."""
        return frozenset(
            (condition.key, value)
            for condition in self.conditions
            if isinstance(condition, LabelRequirement) and condition.is_in and len(condition.values) == 1
            for value in condition.values
            if value is not None
        )


def parse_selector(text: str) -> Selector:
    """Parse a label selector.

    Raises:
        SelectorError: the text is longer than `LONGEST`, has no condition, or is not a selector.
    """
    if len(text) > LONGEST:
        raise SelectorError(f"has {len(text)} characters, more than {LONGEST}")
    if "\0" in text:
        raise SelectorError("contains a null character")
    tokens = [token for token in _SEPARATOR.split(text) if token and token not in _SPACES]
    conditions = _Parser(tokens).parse()
    if not conditions:
        raise SelectorError("is empty, and an empty selector selects nothing")
    return Selector(text, frozenset(conditions))


class _Parser:
    """Reads tokens from left to right; the words `in` and `notin` are operators only behind a key."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def parse(self) -> list[LabelRequirement | Comparison]:
        conditions: list[LabelRequirement | Comparison] = []
        if self._next == _END:
            return conditions
        while True:
            conditions.append(self._condition())
            if self._next == _END:
                return conditions
            self._expect(",")

    @property
    def _next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def _take(self) -> str:
        token = self._next
        self._position += 1
        return token

    def _expect(self, symbol: str) -> None:
        if self._next != symbol:
            raise self._unexpected(f'"{symbol}"')
        self._position += 1

    def _unexpected(self, expected: str) -> SelectorError:
        place = quoted(self._next) if self._next else "the end"
        return SelectorError(f"has {place} where {expected} is expected")

    def _word(self, expected: str) -> str:
        if self._next == _END or self._next in _SYMBOLS:
            raise self._unexpected(expected)
        return self._take()

    def _condition(self) -> LabelRequirement | Comparison:
        is_negated = self._next == "!"
        if is_negated:
            self._take()
        key = _checked_key(self._word("a label key"))
        if is_negated:
            return LabelRequirement(key, frozenset({None}), is_in=True)
        if self._next in (_END, ","):
            return LabelRequirement(key, frozenset({None}), is_in=False)
        if self._next not in _BINARY:
            raise self._unexpected("one of = == != in notin < >")
        operator = self._take()
        if operator in ("in", "notin"):
            return LabelRequirement(key, frozenset(self._values()), is_in=operator == "in")
        value = _checked_value("" if self._next in (_END, ",") else self._word("a label value"))
        if operator in ("<", ">"):
            return Comparison(key, _bound(value), is_above=operator == ">")
        return LabelRequirement(key, frozenset({value}), is_in=operator != "!=")

    def _values(self) -> list[str]:
        """Read a list in parentheses; an empty item, as in `()`, `(a,)` or `(,,)`, is the empty value."""
        self._expect("(")
        values: list[str] = []
        while True:
            is_empty = self._next in (",", ")")
            values.append("" if is_empty else _checked_value(self._word("a label value")))
            if self._next not in (",", ")"):
                raise self._unexpected('"," or ")"')
            if self._take() == ")":
                return values


def _checked_key(key: str) -> str:
    if not is_label_key(key):
        raise SelectorError(f"has {quoted(key)} where a label key is expected")
    return key


def _checked_value(value: str) -> str:
    if not is_label_value(value):
        raise SelectorError(f"has {quoted(value)} where a label value is expected")
    return value


def _bound(value: str) -> int:
    bound = _integer(value)
    if bound is None:
        raise SelectorError(f"has {quoted(value)} where an integer is expected")
    return bound


def _integer(text: str) -> int | None:
    """Parse a label's value as a 64-bit integer; values of labels have no sign and at most 63 characters."""
    if len(text) > LONGEST_LABEL or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= _LARGEST else None
