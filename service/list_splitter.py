"""Splits the JSON of a Kubernetes list into its objects as it arrives; memory holds one object at a time."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from service.json_depth import shallow_object, string_end
from service.text import MALFORMED, one_line

LONGEST_OBJECT: Final = 16 * 1024 * 1024
"""Maximum size of one object with the list around it, in bytes. API servers store at most 3 MiB."""

_MOST_VALUES: Final = 16
"""Maximum number of objects and arrays at the top level; a list has `metadata` and `items`. The key of each
is found by decoding the text before it."""

# Skips strings, up to a bracket or to a string that is too long for one match; see service/json_depth.py.
_to_bracket = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+){0,1000}"[^"{}\[\]]*+){0,1000}', re.DOTALL)


class MalformedList(ValueError):
    """The bytes are not a Kubernetes list; the message is one line with the reason."""


class _Metadata(Struct, rename="camel"):
    resource_version: str
    next_page: str = msgspec.field(default="", name="continue")


class _Empty(Struct, forbid_unknown_fields=True):
    """Stands for an object of the list."""


class _List(Struct):
    kind: str
    metadata: _Metadata
    items: list[_Empty] | None = None


_list = msgspec.json.Decoder(_List)
_fields = msgspec.json.Decoder(dict[str, Any])


class ListSplitter:
    """Yields the elements of the top-level key `items` as bytes; other keys may come before or after it.

    The splitter finds the end of an object by its brackets and strings; the object's decoder checks the rest.
    An object that is nested too deep for a decoder is shortened: any user who may create one of the objects
    could otherwise make the whole list unreadable.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        """The list so far, with `{}` in the place of each complete object."""
        self._at = self._object_start = 0
        """Indexes in the text: up to which it has been scanned, and of the last object."""
        self._is_in_string = self._is_in_items = False
        self._depth = self._values = 0
        """Numbers of open brackets, and of objects and arrays at the top level."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the objects that end in the next chunk; MalformedList if it cannot be a list."""
        self._text += chunk
        while bracket := self._next_bracket():
            if bracket in b"{[":
                if self._depth == 1:
                    self._values += 1
                    if self._values > _MOST_VALUES:
                        raise MalformedList(f"more than {_MOST_VALUES} values around the items")
                    self._is_in_items = bracket == ord("[") and self._last_key() == "items"
                elif self._depth == 2 and self._is_in_items:
                    if bracket == ord("["):
                        raise MalformedList("items contains an array")
                    self._object_start = self._at - 1
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 2 and self._is_in_items:
                    item = bytes(self._text[self._object_start : self._at])
                    self._text[self._object_start : self._at] = b"{}"
                    self._at = self._object_start + len(b"{}")
                    yield shallow_object(item)
        if len(self._text) > LONGEST_OBJECT:
            raise MalformedList(f"an object of more than {LONGEST_OBJECT} bytes")

    def finish(self) -> str:
        """Return the list's resourceVersion after the last chunk; MalformedList if it is no whole list."""
        try:
            whole = _list.decode(self._text.decode())  # as text: msgspec skips strings unchecked
        except MALFORMED as error:
            raise MalformedList(one_line(str(error))) from None
        if not whole.kind.endswith("List") or not whole.metadata.resource_version:
            raise MalformedList(f"a {one_line(whole.kind)} without resourceVersion")
        if whole.metadata.next_page:  # API servers split a list only for a request with a limit
            raise MalformedList("one of several pages")
        return whole.metadata.resource_version

    def _next_bracket(self) -> int:
        """Scan up to the next bracket outside strings and return it; 0 if it has not arrived yet."""
        while True:
            if self._is_in_string:
                self._at = string_end(self._text, self._at)
            elif match := _to_bracket.match(self._text, self._at):
                self._at = match.end()
            if self._at == len(self._text) or self._text[self._at] == ord("\\"):
                return 0  # a backslash whose character has not arrived yet
            byte = self._text[self._at]
            self._at += 1
            if byte != ord('"'):
                return byte
            self._is_in_string = not self._is_in_string

    def _last_key(self) -> str:
        """Return the key of the value that begins with the last bracket."""
        try:
            return [*_fields.decode(self._text[: self._at - 1] + b"null}")][-1]
        except MALFORMED as error:
            raise MalformedList(one_line(str(error))) from None
