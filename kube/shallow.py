"""Shortens objects that are nested too deep for a decoder.

An API server stores `metadata.managedFields` of up to 10,000 levels, and any user who may create or edit an
object can write them (seen on Kubernetes 1.36.3). They are removed in a time that depends on the object's
size alone. Only objects that are deep elsewhere, such as custom resources, need `without_deep_values`, which
takes up to 0.5 s for an object of 1.4 MB.
"""

from typing import Final

import msgspec
from msgspec import Raw

from service.json_depth import DEEPEST, decode_deep, without_deep_values

_MARGIN: Final = 300
"""Levels that every object must leave: each function on the interpreter's stack takes one from a decoder."""
_MARGIN_OPENS: Final = b"[" * _MARGIN
_MARGIN_CLOSES: Final = b"]" * _MARGIN

_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_skipped: Final = msgspec.json.Decoder(Raw)


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
        _skipped.decode(_MARGIN_OPENS + text + _MARGIN_CLOSES)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # bytes that are not JSON are refused by the decoder that reads them
    return False
