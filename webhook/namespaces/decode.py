"""Decodes Namespace objects from the API server and keeps only their policy."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kube.watch import METADATA_ONLY
from service.text import MALFORMED, one_line
from webhook.namespaces.documents import Labels
from webhook.policy.labels import NamespacePolicy, own_labels

PATH: Final = "/api/v1/namespaces"
MANAGED: Final = {"labelSelector": keys.QUEUE_LABEL}
LIST: Final = METADATA_ONLY
ONE: Final = METADATA_ONLY.replace("List;", ";")

_MOST_ALIKE = 1024
_MOST_LABELS = 64
"""Maximum number of labels of a namespace whose policy is cached; larger sets would fill the memory."""


class NamespaceError(ValueError):
    """An object is not a valid Namespace; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNamespace:
    """The policy of a managed namespace."""

    policy: NamespacePolicy
    uid: str
    """UID for Events; empty if the namespace gets none, because it has no problem or is being deleted."""


class _Metadata(Struct):
    name: str
    uid: str = ""
    ends_at: str | None = msgspec.field(name="deletionTimestamp", default=None)
    labels: dict[str, str] | None = None


class _Namespace(Struct):
    metadata: _Metadata


_namespace = msgspec.json.Decoder(_Namespace)


def decode_labels(data: bytes) -> tuple[str, Labels]:
    """Decode a namespace's name and policy labels.

    Raises:
        NamespaceError: the data is not an object with metadata.
    """
    metadata = _decode(data)
    return metadata.name, own_labels(metadata.labels or {})


def reader() -> Callable[[bytes], ManagedNamespace | None]:
    """Return a function that decodes a namespace; it returns None for a namespace that is not managed.

    Parsed policies are cached by labels, because thousands of namespaces share a few sets of labels. The
    function raises as `decode_labels`.
    """
    policy_of = lru_cache(maxsize=_MOST_ALIKE)(_nameless_policy)

    def read(data: bytes) -> ManagedNamespace | None:
        metadata = _decode(data)
        own = own_labels(metadata.labels or {})
        if len(own) <= _MOST_LABELS:
            policy = policy_of(tuple(sorted(own.items())))
        else:
            policy = NamespacePolicy.from_labels("", own)
        if policy is None:
            return None
        gets_event = policy.problems and not metadata.ends_at
        named = replace(policy, namespace=metadata.name)
        return ManagedNamespace(policy=named, uid=metadata.uid if gets_event else "")

    return read


def _nameless_policy(labels: tuple[tuple[str, str], ...]) -> NamespacePolicy | None:
    return NamespacePolicy.from_labels("", dict(labels))


def _decode(data: bytes) -> _Metadata:
    try:
        return _namespace.decode(data).metadata
    except MALFORMED as error:
        raise NamespaceError(f"not a Namespace: {one_line(str(error))}") from None
