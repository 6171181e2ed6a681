"""Objects as the API server sends them: decoded by type from the bytes, cut to what may be kept of them."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpuagent.pods.objects import ConfigMap, KubernetesObject, ObjectError, decode_object
from kube.errors import MALFORMED
from service.text import one_line

_MOST: Final = 64 * 1024
"""Bytes that the labels of an object may cost, its annotations and its data. The API lets them be megabytes,
and whoever may make a pod could fill an agent's memory with them."""

_ENTRY: Final = 150  # bytes, besides its characters

_Object = TypeVar("_Object", bound=KubernetesObject)
_Strings = dict[str, str | None] | None


def decoder(kind: str, type_: type[_Object]) -> Callable[[bytes], _Object]:
    """Make a reader of one kind of object.

    The reader raises ObjectError, one line that names the object, for what is no such object.
    """
    decode = msgspec.json.Decoder(type_).decode

    def read(data: bytes) -> _Object:
        try:
            found = decode(data)
        except MALFORMED as error:
            raise ObjectError(_explain(data, kind, error)) from None
        if not found.metadata.name:
            raise ObjectError(_explain(data, kind, ValueError("no name")))
        return _bounded(found)

    return read


def _explain(data: bytes, kind: str, error: Exception) -> str:
    """Say which object it is, and which field."""
    document: Any = None
    try:
        document = msgspec.json.decode(data)
        decode_object({**document, "kind": kind} if isinstance(document, dict) else document, kind=kind)
    except ObjectError as named:
        return str(named)
    except MALFORMED:
        return f"{kind}: not JSON: {one_line(str(error))}"
    return f"{kind}: {one_line(str(error))}"


def _bounded(found: _Object) -> _Object:
    metadata = found.metadata
    labels, annotations = _shortest(metadata.labels), _shortest(metadata.annotations)
    if labels is not metadata.labels or annotations is not metadata.annotations:
        found = replace(found, metadata=replace(metadata, labels=labels, annotations=annotations))
    if isinstance(found, ConfigMap):
        data = _shortest(found.data)
        if data is not found.data:
            return replace(found, data=data)
    return found


def _shortest(strings: _Strings) -> _Strings:
    """Leave out the longest where all together cost too much: what anybody reads here is short."""
    if strings is None:
        return None
    costs = {key: len(key) + len(text or "") + _ENTRY for key, text in strings.items()}
    if sum(costs.values()) <= _MOST:
        return strings
    kept: dict[str, str | None] = {}
    left = _MOST
    for key in sorted(costs, key=lambda key: (costs[key], key)):
        left -= costs[key]
        if left < 0:
            break
        kept[key] = strings[key]
    return kept
