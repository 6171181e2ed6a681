"""The Secret that an installation keeps its CAs in: read, and changed by whoever read it last."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.text import MALFORMED, one_line

_MERGE: Final = "application/merge-patch+json"


class SecretMissing(Exception):
    """There is no such Secret; the message says in one line how to make it."""


class Outdated(Exception):
    """Somebody else changed the Secret since it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The Secret as it was read."""

    version: str
    """Its resourceVersion."""
    data: Mapping[str, bytes] = field(repr=False)


class _Metadata(Struct):
    resourceVersion: str = ""  # noqa: N815 - as in JSON


class _Secret(Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


_secret = msgspec.json.Decoder(_Secret)


class SecretStore:
    """One Secret. It is never made here: a right to make Secrets cannot be limited to one name."""

    def __init__(self, client: KubeClient, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{name}"

    async def read(self) -> Stored:
        """Read it.

        Raises:
            SecretMissing: there is none.
            ApiError, Unreachable, kube.access.AccessError: it cannot be read.
        """
        return self._stored(await self._ask("GET"))

    async def write(self, stored: Stored, data: Mapping[str, bytes | None]) -> None:
        """Set these keys, and remove those that are None; all others stay as they are.

        Raises:
            Outdated: it is not as it was read any more.
            SecretMissing: it is gone.
            ApiError, Unreachable, kube.access.AccessError: it cannot be written.
        """
        texts = {
            key: None if value is None else base64.b64encode(value).decode() for key, value in data.items()
        }
        patch = {"metadata": {"resourceVersion": stored.version}, "data": texts}
        try:
            await self._ask("PATCH", json.dumps(patch).encode())
        except ApiError as error:
            if error.status == 409:
                raise Outdated from None
            raise

    async def _ask(self, method: str, body: bytes | None = None) -> bytes:
        try:
            return await self._client.request(method, self._path, body=body, content_type=_MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            raise SecretMissing(
                f"Secret {self._namespace}/{self._name} does not exist: make it with"
                f" `kubectl create secret generic {self._name} -n {self._namespace}`"
            ) from None

    def _stored(self, body: bytes) -> Stored:
        try:
            found = _secret.decode(body)
        except MALFORMED as error:
            raise Unreachable(f"GET {self._path}: no Secret: {one_line(str(error))}") from None
        if not found.metadata.resourceVersion:
            raise Unreachable(f"GET {self._path}: no Secret: it has no resourceVersion")
        return Stored(
            version=found.metadata.resourceVersion,
            data={key: _decoded(text) for key, text in (found.data or {}).items()},
        )


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:  # no API server lets such a thing in
        return text.encode()
