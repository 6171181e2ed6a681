"""Namespace objects as the API server sends them, of which nothing is kept but the policy."""

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
"""Labels of a namespace that shares its values with others; larger sets would fill the memory."""


class NamespaceError(ValueError):
    """What should be a Namespace is none; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNamespace:
    """What is kept of a namespace with the queue label."""

    policy: NamespacePolicy
    uid: str
    """Empty where nothing is to be told in the namespace: it has no problem, or is about to end."""


class _Metadata(Struct):
    name: str
    uid: str = ""
    ends_at: str | None = msgspec.field(name="deletionTimestamp", default=None)
    labels: dict[str, str] | None = None


class _Namespace(Struct):
    metadata: _Metadata


_namespace = msgspec.json.Decoder(_Namespace)


def decode_labels(data: bytes) -> tuple[str, Labels]:
    """Read a namespace's name and its labels that are policy.

    Raises:
        NamespaceError: it is no object with labels.
    """
    metadata = _decode(data)
    return metadata.name, own_labels(metadata.labels or {})


def reader() -> Callable[[bytes], ManagedNamespace | None]:
    """Make a function that reads a namespace, None if it is not managed.

    Namespaces with the same labels share their values: a cluster has thousands of namespaces and a handful of
    kinds of them. Raises as `decode_labels`.
    """
    policy_of = lru_cache(maxsize=_MOST_ALIKE)(_nameless_policy)

    def read(data: bytes) -> ManagedNamespace | None:
        metadata = _decode(data)
        own = own_labels(metadata.labels or {})
        is_usual = len(own) <= _MOST_LABELS
        policy = policy_of(tuple(sorted(own.items()))) if is_usual else NamespacePolicy.from_labels("", own)
        if policy is None:
            return None
        is_told = policy.problems and not metadata.ends_at
        named = replace(policy, namespace=metadata.name)
        return ManagedNamespace(policy=named, uid=metadata.uid if is_told else "")

    return read


def _nameless_policy(labels: tuple[tuple[str, str], ...]) -> NamespacePolicy | None:
    return NamespacePolicy.from_labels("", dict(labels))


def _decode(data: bytes) -> _Metadata:
    try:
        return _namespace.decode(data).metadata
    except MALFORMED as error:
        raise NamespaceError(f"no namespace: {one_line(str(error))}") from None
