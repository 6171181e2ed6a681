"""Splits the JSON of a Kubernetes list into its objects as it arrives; memory holds one object at a time."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kube.shallow import shallow_object
from service.json_depth import DEEPEST
from service.text import MALFORMED, one_line

LONGEST_OBJECT: Final = 16 * 1024 * 1024
"""Maximum size of one object, in bytes. API servers refuse to store more than 3 MiB."""

_LONGEST_ENVELOPE: Final = 64 * 1024
"""Maximum size of the list without its objects, in bytes. It has some hundred bytes in practice."""

# Possessive quantifiers never backtrack, so that matching takes linear time: about 40 ms per MiB.
_string_rest = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_to_bracket = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+)*+', re.DOTALL)
_whitespace = re.compile(rb"[ \t\r\n]*+")

_QUOTE, _BACKSLASH, _COMMA, _OPENERS, _CLOSERS = ord('"'), ord("\\"), ord(","), b"{[", b"}]"


class MalformedList(ValueError):
    """The bytes are not a Kubernetes list; the message is one line with the reason."""


class ListMetadata(Struct):
    """The metadata of a list."""

    resourceVersion: str
    continue_: str = msgspec.field(default="", name="continue")
    """Token for the next page; empty for the last page."""


class _Envelope(Struct):
    """The list without its objects."""

    kind: str
    metadata: ListMetadata
    items: list[Raw] | None = None


_envelope = msgspec.json.Decoder(_Envelope)


class _Place(Enum):
    """The part of the list that the next byte belongs to."""

    ENVELOPE = "envelope"
    FIRST_OBJECT = "first object"
    OBJECT = "object"
    AFTER_COMMA = "after a comma"
    AFTER_OBJECT = "after an object"


class ListSplitter:
    """Yields the elements of the top-level key `items` as bytes; other keys may come before or after it.

    The splitter finds the end of an object by its brackets and strings. The caller decodes the object and
    thereby checks that it is valid JSON. An object that is nested too deep for a decoder is shortened: any
    user who may create one of the objects could otherwise make the whole list unreadable.
    """

    def __init__(self) -> None:
        self._place = _Place.ENVELOPE
        self._depth = 0
        """Number of open brackets, in the envelope or in the current object."""
        self._is_deep = False
        """Whether the current object is nested too deep for a decoder."""
        self._in_string = False
        self._is_escaped = False
        """Whether the last byte was a backslash in a string."""
        self._envelope = bytearray()
        self._string_start = 0
        self._last_string = b""
        """The last string at the top level of the envelope; at the start of a value it is the key."""
        self._has_items = False
        self._object = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the objects that end in the next chunk.

        Raises:
            MalformedList: the bytes so far are not the beginning of a list.
        """
        at = 0
        while at < len(chunk):
            match self._place:
                case _Place.ENVELOPE:
                    at = self._read_envelope(chunk, at)
                case _Place.OBJECT:
                    start = at
                    at = self._skip_object(chunk, at)
                    if len(self._object) + at - start > LONGEST_OBJECT:
                        raise MalformedList(f"an object of more than {LONGEST_OBJECT} bytes")
                    self._object += chunk[start:at]
                    if not self._depth:
                        self._place = _Place.AFTER_OBJECT
                        whole = bytes(self._object)
                        self._object = bytearray()
                        yield shallow_object(whole) if self._is_deep else whole
                case _:
                    at = self._read_between(chunk, at)

    def finish(self) -> ListMetadata:
        """Return the list's metadata after the last chunk.

        Raises:
            MalformedList: the list is incomplete, or is not a list.
        """
        if self._place is not _Place.ENVELOPE:
            raise MalformedList("incomplete")
        try:
            envelope = _envelope.decode(self._envelope.decode())  # as text: msgspec skips strings unchecked
        except MALFORMED as error:
            raise MalformedList(one_line(str(error))) from None
        if not envelope.kind.endswith("List") or not envelope.metadata.resourceVersion:
            raise MalformedList(f"a {one_line(envelope.kind)} without resourceVersion")
        return envelope.metadata

    def _read_envelope(self, chunk: bytes, at: int) -> int:
        """Read the envelope byte by byte, up to the first object or the end of the chunk."""
        for here in range(at, len(chunk)):
            byte = chunk[here]
            if len(self._envelope) == _LONGEST_ENVELOPE:
                raise MalformedList(f"more than {_LONGEST_ENVELOPE} bytes beside its objects")
            self._envelope.append(byte)
            if self._in_string:
                self._read_in_string(byte)
            elif byte == _QUOTE:
                self._in_string = True
                self._string_start = len(self._envelope) - 1
            elif byte in _OPENERS:
                self._open_in_envelope()
                if self._depth == 2 and byte == ord("[") and self._is_items():
                    self._place = _Place.FIRST_OBJECT
                    return here + 1
            elif byte in _CLOSERS:
                self._depth -= 1
            elif not self._depth and byte not in b" \t\r\n":
                raise MalformedList("not a JSON object")
        return len(chunk)

    def _open_in_envelope(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise MalformedList(f"more than {DEEPEST} nested values")

    def _read_in_string(self, byte: int) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif byte == _BACKSLASH:
            self._is_escaped = True
        elif byte == _QUOTE:
            self._in_string = False
            if self._depth == 1:
                self._last_string = bytes(self._envelope[self._string_start :])

    def _is_items(self) -> bool:
        """Whether the value that begins here belongs to the key `items`."""
        try:
            key = msgspec.json.decode(self._last_string)
        except MALFORMED as error:
            raise MalformedList(one_line(str(error))) from None
        if key != "items":
            return False
        if self._has_items:
            raise MalformedList("the key items occurs twice")
        self._has_items = True
        return True

    def _read_between(self, chunk: bytes, at: int) -> int:
        """Read up to the next object, the end of the array, or the end of the chunk."""
        at = _end(_whitespace.match(chunk, at), at)
        if at == len(chunk):
            return at
        byte = chunk[at]
        if byte == ord("{") and self._place is not _Place.AFTER_OBJECT:
            self._place = _Place.OBJECT
            self._depth = 0
            self._is_deep = False
            return at
        if byte == ord("]") and self._place is not _Place.AFTER_COMMA:
            self._envelope.append(byte)
            self._depth = 1
            self._place = _Place.ENVELOPE
            return at + 1
        if byte == _COMMA and self._place is _Place.AFTER_OBJECT:
            self._place = _Place.AFTER_COMMA
            return at + 1
        raise MalformedList("items contains other values than objects")

    def _skip_object(self, chunk: bytes, at: int) -> int:
        """Return the index after the object, or the end of the chunk."""
        while at < len(chunk):
            if self._in_string:
                at = self._skip_string(chunk, at)
                continue
            if self._depth:
                at = _end(_to_bracket.match(chunk, at), at)
                if at == len(chunk):
                    break
            byte = chunk[at]
            at += 1
            if byte == _QUOTE:
                self._in_string = True
            elif byte in _OPENERS:
                self._depth += 1
                if self._depth > DEEPEST:
                    self._is_deep = True
            else:
                self._depth -= 1
                if not self._depth:
                    break
        return at

    def _skip_string(self, chunk: bytes, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            at += 1
        at = _end(_string_rest.match(chunk, at), at)
        if at < len(chunk):
            if chunk[at] == _QUOTE:
                self._in_string = False
            else:
                self._is_escaped = True
            at += 1
        return at


def _end(match: re.Match[bytes] | None, at: int) -> int:
    """Return the index after a match. The patterns of this module match everywhere, at least emptily."""
    return at if match is None else match.end()
