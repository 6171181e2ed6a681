"""The lines of a watch and the metadata of objects, decoded no further than a watch needs."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw, Struct

from kube.errors import Unreachable, status_error
from service.text import MALFORMED, one_line

_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the initial events (Kubernetes 1.36.3 apimachinery/pkg/apis/meta/v1)."""


class ObjectMetadata(Struct):
    """The metadata by which a watch keeps an object."""

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Object(Struct):
    metadata: ObjectMetadata


class _Event(Struct):
    type: str
    object: Raw


class _AnnotatedMetadata(Struct):
    annotations: dict[str, str] = {}


class _Annotated(Struct):
    metadata: _AnnotatedMetadata


_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(_Object)
_annotated = msgspec.json.Decoder(_Annotated)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event of a watch that is no error."""

    metadata: ObjectMetadata
    object: bytes
    is_bookmark: bool = False
    is_deletion: bool = False
    ends_initial_events: bool = False


def read_event(line: bytes, asked: str) -> WatchEvent:
    """Decode a line of a watch.

    Args:
        line: without its end.
        asked: what was asked, for messages.

    Raises:
        ApiError: the line is an error of the API server.
        Unreachable: the line is no event; a server that speaks no Kubernetes is as good as none.
    """
    try:
        event = _event.decode(line)
    except MALFORMED as error:
        raise _malformed(asked, "no event", error) from None
    if event.type == "ERROR":
        raise status_error(event.object, asked)
    item = bytes(event.object)
    if event.type == "BOOKMARK":
        return WatchEvent(
            metadata=read_metadata(item, asked, is_bookmark=True),
            object=item,
            is_bookmark=True,
            ends_initial_events=_ends_initial_events(item),
        )
    metadata = read_metadata(item, asked)
    if event.type not in _CHANGES:
        raise _malformed(asked, "no event", f"of the unknown type {event.type}")
    return WatchEvent(metadata=metadata, object=item, is_deletion=event.type == "DELETED")


def read_metadata(item: bytes, asked: str, *, is_bookmark: bool = False) -> ObjectMetadata:
    """Decode an object's metadata.

    Args:
        item: the object's JSON.
        asked: what was asked, for messages.
        is_bookmark: whether the object needs no name.

    Raises:
        Unreachable: the bytes are no object.
    """
    try:
        metadata = _object.decode(item).metadata
    except MALFORMED as error:
        raise _malformed(asked, "no object", error) from None
    if not metadata.resourceVersion or not (metadata.name or is_bookmark):
        raise _malformed(asked, "no object", "without name or resourceVersion")
    return metadata


def _ends_initial_events(bookmark: bytes) -> bool:
    try:
        return _annotated.decode(bookmark).metadata.annotations.get(_INITIAL_EVENTS_END) == "true"
    except MALFORMED:
        return False


def _malformed(asked: str, what: str, why: object) -> Unreachable:
    return Unreachable(f"{asked}: {what}: {one_line(str(why))}")
