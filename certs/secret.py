"""Reads and writes the Secret that stores the CAs of an installation.

Each write carries the resourceVersion that was read, so that the API server refuses concurrent changes.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from kube.client import MERGE_PATCH, KubeClient
from kube.errors import ApiError, Unreachable, decode_answer
from kube.objects import VersionedMeta


class SecretMissing(Exception):
    """The Secret does not exist; the message says in one line how to create it."""


class Outdated(Exception):
    """The Secret has changed since it was read."""


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
        self._version = ""
        """The resourceVersion of the last read."""

    async def read(self) -> Mapping[str, bytes]:
        """Return the Secret's data.

        Raises:
            SecretMissing: the Secret does not exist.
            ApiError, Unreachable, kube.access.AccessError: the Secret cannot be read.
        """
        request_line = f"GET {self._path}"
        secret = decode_answer(_secret, await self._request("GET"), request_line, expected="a Secret")
        if not secret.metadata.resource_version:
            raise Unreachable(f"{request_line}: expected a Secret: no resourceVersion")
        self._version = secret.metadata.resource_version
        return secret.data or {}

    async def write(self, data: Mapping[str, bytes | None]) -> None:
        """Set the given keys, and remove those with the value None. Other keys stay unchanged.

        Raises:
            Outdated: the Secret has changed since it was read.
            SecretMissing: the Secret has been deleted.
            ApiError, Unreachable, kube.access.AccessError: the Secret cannot be written.
        """
        patch = {"metadata": {"resourceVersion": self._version}, "data": data}
        try:
            await self._request("PATCH", msgspec.json.encode(patch))  # writes bytes as base64
        except ApiError as error:
            if error.status == 409:
                raise Outdated from None
            raise

    async def _request(self, method: str, body: bytes | None = None) -> bytes:
        try:
            return await self._client.request(method, self._path, body=body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            raise SecretMissing(
                f"Secret {self._namespace}/{self._name} does not exist: create it with"
                f" `kubectl create secret generic {self._name} -n {self._namespace}`"
            ) from None
