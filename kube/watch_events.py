"""Decodes the events of a watch and the metadata of objects, as far as a watch needs them."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kube.errors import Unreachable, status_error
from kube.shallow import shallow_object
from service.json_depth import decode_deep
from service.text import MALFORMED, one_line

_TYPES: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the initial events (Kubernetes 1.36.3 apimachinery/pkg/apis/meta/v1)."""


class ObjectMetadata(Struct):
    """The metadata of an object that a watch needs.

    It is not `kube.objects.ObjectMeta`, because the bookmarks of a watch have no name.
    """

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Object(Struct):
    metadata: ObjectMetadata


class _Event(Struct):
    type: str
    object: Raw


class _AnnotatedMetadata(Struct):
    """The metadata of a bookmark; annotations of other objects are not decoded."""

    annotations: dict[str, str] = {}


class _Annotated(Struct):
    metadata: _AnnotatedMetadata


_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(_Object)
_annotated = msgspec.json.Decoder(_Annotated)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event of a watch, other than an error."""

    metadata: ObjectMetadata
    object: bytes
    is_bookmark: bool = False
    is_deletion: bool = False
    ends_initial_events: bool = False


class UnreadableObject(Exception):
    """An object of a list or of a watch cannot be decoded; the message is one line with the reason."""


def read_event(line: bytes, request_line: str) -> WatchEvent:
    """Decode a line of a watch. An object that is nested too deep for a decoder is shortened.

    Args:
        line: the line, without its line end.
        request_line: the request, for messages.

    Raises:
        ApiError: the line is an error of the API server.
        Unreachable: the line is not an event.
        UnreadableObject: the line is an event about an object that cannot be decoded.
    """
    try:
        event = decode_deep(_event.decode, line)
    except MALFORMED as error:
        raise Unreachable(f"{request_line}: not an event: {one_line(str(error))}") from None
    if event.type == "ERROR":
        raise status_error(event.object, request_line)
    if event.type not in _TYPES:
        raise Unreachable(f"{request_line}: not an event: unknown type {one_line(event.type)}")
    item = shallow_object(event.object)
    is_bookmark = event.type == "BOOKMARK"
    return WatchEvent(
        metadata=read_metadata(item, request_line, is_bookmark=is_bookmark),
        object=item,
        is_bookmark=is_bookmark,
        is_deletion=event.type == "DELETED",
        ends_initial_events=is_bookmark and _ends_initial_events(item),
    )


def read_metadata(item: bytes, request_line: str, *, is_bookmark: bool = False) -> ObjectMetadata:
    """Decode an object's metadata.

    Args:
        item: the object's JSON, not nested too deep.
        request_line: the request, for messages.
        is_bookmark: whether the object may lack a name.

    Raises:
        UnreadableObject: the bytes are not an object.
    """
    try:
        metadata = _object.decode(item).metadata
    except MALFORMED as error:
        raise UnreadableObject(f"{request_line}: not an object: {one_line(str(error))}") from None
    if not metadata.resourceVersion or not (metadata.name or is_bookmark):
        raise UnreadableObject(f"{request_line}: not an object: name or resourceVersion is missing")
    return metadata


def _ends_initial_events(bookmark: bytes) -> bool:
    try:
        return _annotated.decode(bookmark).metadata.annotations.get(_INITIAL_EVENTS_END) == "true"
    except MALFORMED:
        return False
