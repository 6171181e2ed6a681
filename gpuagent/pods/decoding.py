"""Decodes objects from the API server's JSON by type, and limits what is kept of them."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpuagent.pods.bounds import ANNOTATIONS, LABELS, kept_data
from gpuagent.pods.commands import commands_of
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.objects import ConfigMap, KubernetesObject, ObjectError, Pod, decode_object
from gpuagent.pods.reading import node_pod
from kube.shallow import shallow_object
from service.text import MALFORMED, one_line

_Object = TypeVar("_Object", bound=KubernetesObject)


def decoder(kind: str, type_: type[_Object]) -> Callable[[bytes], _Object]:
    """Return a decoder for one kind of object other than Pod.

    The decoder raises ObjectError, with one line that names the object, for a malformed object.
    """
    decode = _decoder(kind, type_)
    return lambda data: _bounded(decode(data))


def read_pod(data: bytes) -> NodePod:
    """Decode a pod from the API server's JSON; irrelevant fields are skipped without decoding.

    Raises:
        ObjectError: the pod is malformed; one line that names it.
    """
    return node_pod(_decode_pod(data), commands=lambda: commands_of(data))


def _decoder(kind: str, type_: type[_Object]) -> Callable[[bytes], _Object]:
    decode = msgspec.json.Decoder(type_).decode

    def read(data: bytes) -> _Object:
        item = shallow_object(data)
        try:
            decoded = decode(item)
        except MALFORMED as error:
            raise ObjectError(_explain(item, kind, error)) from None
        if not decoded.metadata.name:
            raise ObjectError(_explain(item, kind, ValueError("no name")))
        return decoded

    return read


_decode_pod: Final = _decoder("Pod", Pod)


def _explain(data: bytes, kind: str, error: Exception) -> str:
    """Describe a decoding error by object and field."""
    document: Any = None
    try:
        document = msgspec.json.decode(data)
        decode_object({**document, "kind": kind} if isinstance(document, dict) else document, kind=kind)
    except ObjectError as described:
        return str(described)
    except MALFORMED:
        return f"{kind}: not JSON: {one_line(str(error))}"
    return f"{kind}: {one_line(str(error))}"


def _bounded(decoded: _Object) -> _Object:
    """Limit an object to the strings that may be kept."""
    metadata = decoded.metadata
    decoded = replace(
        decoded,
        metadata=replace(
            metadata,
            labels=LABELS.kept(metadata.labels),
            annotations=ANNOTATIONS.kept(metadata.annotations),
        ),
    )
    return replace(decoded, data=kept_data(decoded.data)) if isinstance(decoded, ConfigMap) else decoded
