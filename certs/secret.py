"""Reads and writes the Secret that stores the CAs of an installation.

Each write carries the resourceVersion that was read, so that the API server refuses concurrent changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from kube.client import KubeClient
from kube.errors import ApiError, Unreachable, decode_answer
from kube.objects import VersionedMeta

_MERGE: Final = "application/merge-patch+json"


class SecretMissing(Exception):
    """The Secret does not exist; the message says in one line how to create it."""


class Outdated(Exception):
    """The Secret has changed since it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The Secret's data, with the resourceVersion of the read."""

    version: str
    """The Secret's resourceVersion."""
    data: Mapping[str, bytes] = field(repr=False)


class _Secret(Struct):
    metadata: VersionedMeta
    data: dict[str, bytes] | None = None
    """Decoded from base64."""


_secret = msgspec.json.Decoder(_Secret)


class SecretStore:
    """Reads and patches one Secret.

    It never creates the Secret, because RBAC cannot limit the right to create Secrets to one name.
    """

    def __init__(self, client: KubeClient, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{name}"

    async def read(self) -> Stored:
        """Read the Secret.

        Raises:
            SecretMissing: the Secret does not exist.
            ApiError, Unreachable, kube.access.AccessError: the Secret cannot be read.
        """
        return self._stored(await self._request("GET"))

    async def write(self, stored: Stored, data: Mapping[str, bytes | None]) -> None:
        """Set the given keys, and remove those with the value None. Other keys stay unchanged.

        Raises:
            Outdated: the Secret has changed since it was read.
            SecretMissing: the Secret has been deleted.
            ApiError, Unreachable, kube.access.AccessError: the Secret cannot be written.
        """
        patch = {"metadata": {"resourceVersion": stored.version}, "data": data}
        try:
            await self._request("PATCH", msgspec.json.encode(patch))  # writes bytes as base64
        except ApiError as error:
            if error.status == 409:
                raise Outdated from None
            raise

    async def _request(self, method: str, body: bytes | None = None) -> bytes:
        try:
            return await self._client.request(method, self._path, body=body, content_type=_MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            raise SecretMissing(
                f"Secret {self._namespace}/{self._name} does not exist: create it with"
                f" `kubectl create secret generic {self._name} -n {self._namespace}`"
            ) from None

    def _stored(self, body: bytes) -> Stored:
        secret = decode_answer(_secret, body, f"GET {self._path}", expected="a Secret")
        if not secret.metadata.resource_version:
            raise Unreachable(f"GET {self._path}: not a Secret: no resourceVersion")
        return Stored(version=secret.metadata.resource_version, data=secret.data or {})
