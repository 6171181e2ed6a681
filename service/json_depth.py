"""Makes JSON of any nesting decodable: values that are nested too deep are replaced by null, or skipped.

msgspec refuses a whole text because of values that it would only skip, from the interpreter's recursion limit
on (1,000 levels in Python 3.11). An API server stores deeper objects: any user who may create a pod can give
it `metadata.managedFields` of 9,000 levels (seen on 1.36.3). kaishare reads no field that is so deep.

They are removed in a time that depends on the object's size alone. Only objects that are deep elsewhere, such
as custom resources, need `without_deep_values`, which takes up to 0.5 s for an object of 1.4 MB.
"""

import re
import sys
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

# A repeated group keeps its turns until the match ends, so that their number is bounded. Possessive groups
# keep none, but Python matches them wrongly before 3.11.5 (https://github.com/python/cpython/issues/106052).
_rest: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+){0,1000}', re.DOTALL)


def string_end(text: bytes | bytearray, at: int) -> int:
    """Return the index of the quotation mark that ends a string, searching from a character of the string.

    Without one it is the length of the text, or the index of a last backslash, whose character is missing.
    The cost is linear: about 10 ms per MiB.
    """
    while (match := _rest.match(text, at)) is not None:
        at = match.end()
        if at + 1 >= len(text) or text[at] == ord('"'):
            break
    return at


DEEPEST: Final = 500  # levels of objects and arrays that stay, far more than any Kubernetes schema has

_MAX_RECURSION: Final = 12_000
"""Recursion limit for objects of an API server, which refuses more than 10,000 levels (Kubernetes 1.36.3).
msgspec 0.22 takes at most 400 bytes of stack a level (measured on Python 3.11): 5 of the usual 8 MiB."""

HAS_FIXED_LIMIT: Final = (3, 12) <= sys.version_info[:2] < (3, 14)
"""Whether the interpreter counts the levels of C code by itself, whatever `sys.setrecursionlimit` says.
Python 3.12.1 refuses more than about 1,500 levels, and 3.12.8 and 3.13.1 more than 9,997 (measured)."""
_EMPTY: Final = frozenset({b"{}", b"[]"})

# One match skips strings and empty values, up to a bracket, or 1,000 of them; see `_rest`. A match
# begins where the last one ended, so that all take linear time: at most 0.4 s per MiB, for brackets alone.
_to_bracket = re.compile(
    rb'[^"{}\[\]]*+(?:(?:"[^"\\]*+(?:\\.[^"\\]*+){0,1000}"|\{\}|\[\])[^"{}\[\]]*+){0,1000}', re.DOTALL
)

_MARGIN: Final = 300
"""Levels that every object must leave: each function on the interpreter's stack takes one from a decoder."""
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_skipped: Final = msgspec.json.Decoder(Raw)
_recursion = Lock()
_T = TypeVar("_T")


def decode_deep(decode: Callable[[bytes | Raw], _T], text: bytes | Raw) -> _T:
    """Decode JSON of up to 10,000 levels, as deep as an API server stores it.

    The interpreter's recursion limit is raised meanwhile. Where that has no effect (Python 3.12 and 3.13),
    deep values are replaced by null, which costs up to 0.4 s per MiB. RecursionError if that does not help.

    The decoder skips deep values or keeps them as `msgspec.Raw`: other code cannot walk deep lists and dicts.
    """
    try:
        return decode(text)
    except RecursionError:
        pass
    with _recursion:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(max(usual, _MAX_RECURSION))
        try:
            return decode(text)
        except RecursionError:
            if not HAS_FIXED_LIMIT:
                raise
        finally:
            sys.setrecursionlimit(usual)
    return decode(without_deep_values(bytes(text)))


def without_deep_values(text: bytes) -> bytes:
    """Return JSON with null for what is below `DEEPEST` levels, in linear time. Other bytes stay so."""
    kept: list[bytes] = []
    depth = start = at = 0
    while (match := _to_bracket.match(text, at)) is not None and (at := match.end()) < len(text):
        byte = text[at]
        at += 1
        if byte in b"{[":
            if depth == DEEPEST:
                if text[at - 1 : at + 1] in _EMPTY:  # after as many as one match skips
                    at += 1
                    continue
                kept += text[start : at - 1], b"null"
            depth += 1
        elif byte in b"}]":
            depth -= 1
            if depth == DEEPEST:
                start = at
        else:
            at = string_end(text, at) + 1
    if depth <= DEEPEST:  # otherwise the text ends within a value that is left out
        kept.append(text[start:])
    return b"".join(kept)


def shallow_object(item: bytes | Raw) -> bytes:
    """Return an object that a decoder can read: without managedFields, with null for other deep values.

    An object without deep values stays as it is, and so do bytes that are not JSON.
    """
    if not is_deep(item):
        return bytes(item)
    shorter = bytes(without_managed_fields(item))
    return without_deep_values(shorter) if is_deep(shorter) else shorter


def without_managed_fields(item: bytes | Raw) -> bytes | Raw:
    """Return an object of any depth without its managedFields, and any other value unchanged."""
    try:
        fields = decode_deep(_fields.decode, item)
        metadata = decode_deep(_fields.decode, fields["metadata"])
        del metadata["managedFields"]
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return item
    return msgspec.json.encode({**fields, "metadata": metadata})


def is_deep(item: bytes | Raw) -> bool:
    """Whether a decoder that runs deeper in the stack may refuse the object as nested too deep."""
    text = bytes(item)
    if text.count(b"{") + text.count(b"[") <= DEEPEST:
        return False  # nearly every object; a decoder takes twice as long
    try:
        _skipped.decode(b"[" * _MARGIN + text + b"]" * _MARGIN)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # bytes that are not JSON are refused by the decoder that reads them
    return False
