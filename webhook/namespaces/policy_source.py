"""Sources of policies: their interface, and the Namespace objects of which only the policy is kept."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from kai import keys
from kube.metadata import METADATA_ONLY, ObjectMeta
from service.json_depth import decode_deep
from service.text import MALFORMED, one_line
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata

ANY_MODE: Final = frozenset(Mode)


class PolicyUnknown(Exception):
    """The policy of a namespace is not available now; the message is one line with the reason."""


class PolicySource(Protocol):
    """Provides policies by namespace name. A lookup does not wait while the policy is known."""

    async def find(
        self, namespace: str, *, modes: Collection[Mode] = ANY_MODE, peer: str = ""
    ) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed.

        Args:
            namespace: the namespace's name.
            modes: the modes whose reviews the API server sends to the caller, by the namespace's label. A
                source that may be behind checks again before it returns None or a policy whose
                `labelled_mode` is another one.
            peer: the sender of the review, whose look-ups are limited.

        Raises:
            PolicyUnknown: the policy is not available now.
        """

    def all(self) -> Mapping[str, NamespacePolicy] | None:
        """Return the known policies by namespace; None if they are not known yet. Thread-safe."""

    @property
    def ready(self) -> bool:
        """Whether the policies are complete and recent enough to serve."""

    async def run(self) -> None:
        """Keep the policies up to date until cancelled."""


PATH: Final = "/api/v1/namespaces"
MANAGED: Final = {"labelSelector": keys.QUEUE_LABEL}
LIST: Final = METADATA_ONLY
ONE: Final = METADATA_ONLY.replace("List;", ";")

_MOST_ALIKE = 1024
_LONGEST_CACHED = 8192
"""Maximum size of the metadata whose policy is cached, in characters; larger ones would fill the memory."""


class NamespaceError(ValueError):
    """An object is not a valid Namespace; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNamespace:
    """The policy of a managed namespace."""

    policy: NamespacePolicy
    uid: str
    """UID for Events; empty if the namespace gets none, because it has no problem or is being deleted."""


class _Metadata(ObjectMeta, frozen=True):
    uid: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Namespace(Struct):
    metadata: _Metadata


_namespace = msgspec.json.Decoder(_Namespace)


def decode_metadata(data: bytes) -> tuple[str, PolicyMetadata]:
    """Decode a namespace's name and its policy's metadata.

    Raises:
        NamespaceError: the data is not an object with metadata.
    """
    metadata = _decode(data)
    return metadata.name, PolicyMetadata.select(metadata.labels, metadata.annotations)


def reader(default_mode: Mode = Mode.DEFAULT) -> Callable[[bytes], ManagedNamespace | None]:
    """Return a function that decodes a namespace; it returns None for a namespace that is not managed.

    Parsed policies are cached by metadata, because thousands of namespaces share a few sets of labels. The
    function raises as `decode_metadata`.
    """
    policy_of = lru_cache(maxsize=_MOST_ALIKE)(partial(_nameless_policy, default_mode))

    def read(data: bytes) -> ManagedNamespace | None:
        metadata = _decode(data)
        own = PolicyMetadata.select(metadata.labels, metadata.annotations)
        labels, annotations = tuple(sorted(own.labels.items())), tuple(sorted(own.annotations.items()))
        if sum(len(key) + len(value) for key, value in (*labels, *annotations)) <= _LONGEST_CACHED:
            policy = policy_of(labels, annotations)
        else:
            policy = own.policy("", default_mode)
        if policy is None:
            return None
        gets_event = policy.problems and not metadata.deletion_timestamp
        named = replace(policy, namespace=metadata.name)
        return ManagedNamespace(policy=named, uid=metadata.uid if gets_event else "")

    return read


def _nameless_policy(
    default_mode: Mode, labels: tuple[tuple[str, str], ...], annotations: tuple[tuple[str, str], ...]
) -> NamespacePolicy | None:
    return PolicyMetadata(dict(labels), dict(annotations)).policy("", default_mode)


def _decode(data: bytes) -> _Metadata:
    try:
        return decode_deep(_namespace.decode, data).metadata
    except MALFORMED as error:
        raise NamespaceError(f"not a Namespace: {one_line(str(error))}") from None
