"""Finds the keys that a loop over a map of labels or annotations looks for."""

from typing import Final

from kai.key_classes import KeyKind
from tests.project.golang.accesses import LOGGING, AccessLog, Note
from tests.project.golang.places import Place, Use, use_of
from tests.project.golang.source import File
from tests.project.golang.syntax import arguments, names_in
from tests.project.golang.tokens import Span
from tests.project.golang.values import ANY, Values

_COMPARING: Final = {
    "HasPrefix": ("", ANY), "CutPrefix": ("", ANY), "TrimPrefix": ("", ANY),
    "HasSuffix": (ANY, ""), "CutSuffix": (ANY, ""), "TrimSuffix": (ANY, ""),
    "Contains": (ANY, ANY), "EqualFold": ("", ""),
}  # fmt: skip
"""What surrounds the second argument in the keys that a function of `strings` accepts."""
_UNCHANGED: Final = ("string", "strings.ToLower", "strings.TrimSpace", "ResourceName")
"""Ends of functions and types that give back their argument; letters are compared as they are."""


class KeyLoops:
    """Follows the key of a loop."""

    def __init__(self, values: Values, log: AccessLog) -> None:
        self._values = values
        self._log = log
        self._done: set[tuple[object, ...]] = set()

    def follow(self, file: File, span: Span, kind: KeyKind) -> None:
        """Record what a loop over a map looks for.

        Args:
            file: the file.
            span: the map.
            kind: what the map has.
        """
        code = file.code
        names: list[int] = []
        index = span[0] - 2
        while code.at(index) in (":=", "=", ",") and code.is_name(index - 1):
            names.insert(0, index - 1)
            index -= 2
        if code.at(span[1]) != "{" or not names or code.texts[names[0]] == "_":
            if names or code.at(span[0] - 2) != "for":
                self._log.unclear(file, span, kind)
            return
        body = (span[1] + 1, code.pairs[span[1]])
        self._uses(file, code.texts[names[0]], body, code.text(span), kind)

    def _uses(self, file: File, name: str, scope: Span, map_text: str, kind: KeyKind) -> None:
        """Record each use of a key in a scope."""
        done = (id(file), name, scope, kind)
        if done in self._done:
            return
        self._done.add(done)
        for index in names_in(file, name, scope):
            span = (index, index + 1)
            use = use_of(file, span)
            while use.place is Place.ARGUMENT and file.code.text(use.other).endswith(_UNCHANGED):
                span = (use.other[0], file.code.pairs[use.opening] + 1)
                use = use_of(file, span)
            self._use(file, span, use, (map_text, scope), kind)

    def _use(self, file: File, span: Span, use: Use, around: tuple[str, Span], kind: KeyKind) -> None:
        code, (map_text, scope) = file.code, around
        match use.place:
            case Place.COMPARED:
                self._log.keys(file, map_text, use.other, kind, self._values.of(file, use.other))
            case Place.SWITCHED:
                for index in range(*use.other):
                    if code.texts[index] == "case" and code.parents[index] == use.other[0] - 1:
                        end = next(i for i in range(index, use.other[1]) if code.texts[i] == ":")
                        for part in code.split((index + 1, end)):
                            self._log.keys(file, map_text, part, kind, self._values.of(file, part))
            case Place.ASSIGNED if use.other[1] - use.other[0] == 1:
                self._uses(file, code.texts[use.other[0]], scope, map_text, kind)
            case Place.TARGET:
                pass
            case Place.ARGUMENT:
                self._argument(file, span, use, map_text, kind)
            case Place.INDEX:
                text = f"range {map_text}: {code.text((use.other[0], use.span[1] + 1))}"
                is_write = code.at(use.span[1] + 1) == "="
                self._log.whole(file, span, kind, Note.COPIED if is_write else Note.UNCLEAR, text, map_text)
            case _:
                text = f"range {map_text}: {code.text(span)}"
                self._log.whole(file, span, kind, Note.UNCLEAR, text, map_text)

    def _argument(self, file: File, span: Span, use: Use, map_text: str, kind: KeyKind) -> None:
        code = file.code
        callee, name = code.text(use.other), code.at(use.opening - 1)
        functions = self._values.functions(file, use.opening)
        if callee == f"strings.{name}" and name in _COMPARING and use.number == 0:
            before, after = _COMPARING[name]
            other = arguments(code, use.opening)[1]
            keys = frozenset(before + value + after for value in self._values.of(file, other))
            self._log.keys(file, map_text, other, kind, keys)
        elif name in LOGGING:
            pass
        elif functions:
            for function in functions:
                if use.number < len(function.params):
                    scope = function.body
                    self._uses(function.file, function.params[use.number], scope, map_text, kind)
        else:
            text = f"range {map_text}: {code.text((use.other[0], code.pairs[use.opening] + 1))}"
            self._log.whole(file, span, kind, Note.UNCLEAR, text, map_text)
