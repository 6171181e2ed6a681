"""Sends queries to a Prometheus: directly, or through the API server's proxy to services."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

import aiohttp
from msgspec import Struct

from console.prometheus.options import PrometheusOptions, ServiceAddress
from kube.answers import TRANSPORT_ERRORS, transport_error_text
from kube.client import KubeClient
from kube.errors import Unreachable
from kube.kubeconfig_login import client_context
from service.command import UsageError
from service.version import version

MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of an answer."""


class Response(Struct, frozen=True):
    """A response of any status."""

    status: int
    reason: str
    """HTTP's reason phrase."""
    body: bytes


class NoResponse(Exception):
    """There is no complete response; the message is one line, which names neither address nor credentials."""


class Transport(Protocol):
    """Posts forms to the API of a Prometheus."""

    async def post(self, path: str, form: bytes, seconds: float) -> Response:
        """Post a form to a path below the prefix.

        Raises:
            NoResponse: there is no response in time, or it has more than `MOST_BYTES`.
            kube.access.AccessError: there are no credentials for the API server.
        """


_HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_TOO_LARGE: Final = f"the answer has more than {MOST_BYTES >> 20} MiB; give a shorter --since"


class _Direct:
    def __init__(self, session: aiohttp.ClientSession, url: str, trust: ssl.SSLContext) -> None:
        self._session = session
        self._url = url
        self._trust = trust

    async def post(self, path: str, form: bytes, seconds: float) -> Response:
        try:
            async with self._session.post(
                self._url + path,
                data=form,
                timeout=aiohttp.ClientTimeout(total=seconds),
                ssl=self._trust,
                allow_redirects=False,
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise NoResponse(_TOO_LARGE)
                return Response(response.status, response.reason or "", bytes(body))
        except TRANSPORT_ERRORS as error:
            raise NoResponse(transport_error_text(error)) from None


class _ThroughApiServer:
    def __init__(self, client: KubeClient, service: ServiceAddress, headers: Mapping[str, str]) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{service.namespace}/services/{service.name}:{service.port}/proxy"
        self._path += service.prefix
        self._headers = headers

    async def post(self, path: str, form: bytes, seconds: float) -> Response:
        path = self._path + path
        try:
            response = await self._client.post_to_service(
                path, form, headers=self._headers, seconds=seconds, most_bytes=MOST_BYTES
            )
        except Unreachable as error:
            problem = str(error).removeprefix(f"POST {path}: ")
            raise NoResponse(_TOO_LARGE if problem.startswith("an answer of more") else problem) from None
        return Response(response.status, response.reason, response.body)


@contextlib.asynccontextmanager
async def open_transport(options: PrometheusOptions, client: KubeClient | None) -> AsyncIterator[Transport]:
    """Open the way to a Prometheus.

    Args:
        options: address and credentials.
        client: the API server, for a service.

    Raises:
        UsageError: the CA certificates cannot be read.
    """
    headers = _HEADERS | dict(options.headers)
    if options.service is not None:
        if client is None:
            raise ValueError("a service is read through the API server")
        yield _ThroughApiServer(client, options.service, headers)
        return
    if options.token:
        headers["Authorization"] = f"Bearer {options.token}"
    trust = await asyncio.to_thread(_trust, options)
    async with aiohttp.ClientSession(
        # An answer could unpack to a thousand times its size.
        headers={**headers, "User-Agent": f"kaishare/{version()}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield _Direct(session, options.url, trust)


def _trust(options: PrometheusOptions) -> ssl.SSLContext:
    try:
        context = client_context(cafile=options.ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"{options.ca_file}: CA certificates: {error.strerror or error}") from None
    if options.is_insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
