"""The accesses to labels and annotations that have been found."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kai.key_classes import KeyKind
from tests.project.golang.places import Place, use_of
from tests.project.golang.source import File
from tests.project.golang.tokens import Span
from tests.project.golang.values import ANY, Values

LOGGING: Final = frozenset(
    {
        *(
            "Info",
            "Infof",
            "Infow",
            "Error",
            "Errorf",
            "Warn",
            "Warnf",
            "Warning",
            "Warningf",
            "Debug",
            "Debugf",
        ),
        *("Fatal", "Fatalf", "Printf", "Println", "WithValues", "Eventf"),
    }
)
"""Functions that write a log or an Event."""


class Note(StrEnum):
    """How an access concerns more than one key."""

    ONE_KEY = ""
    COPIED = "all are copied"
    UNCLEAR = "the use is unknown"


@dataclass(frozen=True, slots=True)
class Access:
    """One access to a label or annotation."""

    path: str
    line: int
    kind: KeyKind
    text: str
    """The source of the access."""
    map_text: str
    """The source of the map."""
    keys: frozenset[str]
    """The keys; `*` stands for any text."""
    note: Note = Note.ONE_KEY


class AccessLog:
    """Collects accesses."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._found: dict[tuple[int, Span, KeyKind, Note], Access] = {}

    def all(self) -> list[Access]:
        """Return every access, in the order of files and lines."""
        loops = {(file, span) for file, span, _, note in self._found if note}
        accesses = {
            access
            for (file, span, _, note), access in self._found.items()
            if note or (file, span) not in loops
        }
        return sorted(accesses, key=lambda a: (a.path, a.line, a.text, a.kind))

    def key(self, file: File, map_span: Span, key: Span, kind: KeyKind) -> None:
        """Record an access to one key of a map."""
        self.keys(file, file.code.text(map_span), key, kind, self._values.of(file, key))

    def keys(self, file: File, map_text: str, key: Span, kind: KeyKind, keys: frozenset[str]) -> None:
        """Record an access to one of some keys."""
        text = f"{map_text}[{file.code.text(key)}]"
        keys = frozenset(k for k in keys if k) or frozenset({ANY})
        self._found[id(file), key, kind, Note.ONE_KEY] = Access(
            file.path, file.code.lines[key[0]], kind, text, map_text, keys
        )

    def whole(  # what a loop knows
        self, file: File, span: Span, kind: KeyKind, note: Note, text: str = "", map_text: str = ""
    ) -> None:
        """Record a use of a whole map, with the statement or the call around it if no text is given."""
        code, use, outer = file.code, use_of(file, span), span
        if use.place is Place.ARGUMENT:
            outer = (use.other[0], code.pairs[use.opening] + 1)
        elif use.place in (Place.ASSIGNED, Place.FIELD):
            outer = (use.other[0], use.span[1])
        self._found[id(file), span, kind, note] = Access(
            file.path,
            code.lines[span[0]],
            kind,
            text or code.text(outer),
            map_text or code.text(span),
            frozenset({ANY}),
            note,
        )

    def unclear(self, file: File, span: Span, kind: KeyKind) -> None:
        """Record an expression whose keys cannot be found."""
        self.whole(file, span, kind, Note.UNCLEAR, file.code.text(span))
