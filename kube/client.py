"""Requests to the API server: one at a time, in pages, or as a stream of lines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Raw, Struct

from kube.access import Access
from service.about import version

PAGE: Final = 500
"""Objects asked for at once when listing: some 4 MB of pods."""

_SECONDS: Final = 10.0
_LONGEST_LINE: Final = 16 * 1024 * 1024  # bytes; objects are at most 3 MiB
_LONGEST_MESSAGE: Final = 300
_TRANSPORT = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class ApiError(Exception):
    """The API server said no; the message is one line with what was asked and why not."""

    def __init__(self, status: int, reason: str, message: str, asked: str) -> None:
        super().__init__(f"{asked}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        """As in its Status object: `NotFound`, `Expired`, `Conflict`, …"""
        self.message = message


class Unreachable(Exception):
    """No answer from the API server: refused, cut, timed out, not TLS. The message is one line."""


class _ListMeta(Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListPage(Struct):
    """One page of a list; the objects stay raw."""

    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[Raw] | None = None


class _Status(Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_page = msgspec.json.Decoder(ListPage)
_status = msgspec.json.Decoder(_Status)


class KubeClient:
    """A connection to one API server. Every request has a time limit."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            headers={"User-Agent": f"kaishare/{version()}"},
            connector=aiohttp.TCPConnector(limit=16, keepalive_timeout=30),
        )

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._access.server

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""
        return self._access.namespace

    async def __aenter__(self) -> "KubeClient":
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = _SECONDS,
    ) -> bytes:
        """Ask once; a token that was refused is read anew, and then once more.

        Raises:
            ApiError: the answer is an error.
            Unreachable: there is none.
            kube.access.AccessError: there are no credentials any more.
        """
        limit = aiohttp.ClientTimeout(total=seconds)
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        async with self._open(
            method, path, params=params, headers=headers, body=body, limit=limit
        ) as response:
            return await response.read()

    async def get(self, path: str, **options: Any) -> bytes:
        """Get one object; raises as `request`."""
        return await self.request("GET", path, **options)

    async def pages(
        self, path: str, *, params: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> AsyncIterator[ListPage]:
        """List, a page at a time; raises as `request`, with 410 where a list took too long to finish."""
        asked = {**(params or {}), "limit": str(PAGE)}
        while True:
            page = _decoded(
                await self.request("GET", path, params=asked, accept=accept, seconds=30.0), f"GET {path}"
            )
            yield page
            if not page.metadata.continue_:
                return
            asked["continue"] = page.metadata.continue_

    @contextlib.asynccontextmanager
    async def lines(
        self, path: str, *, params: Mapping[str, str], accept: str, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream and iterate over its lines.

        Args:
            path: where.
            params: query.
            accept: media type.
            idle_seconds: how long the stream may be silent.

        Raises:
            ApiError, Unreachable, kube.access.AccessError: as `request`, also while iterating.
        """
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=idle_seconds)
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        async with self._open(
            "GET", path, params=params, headers=headers, body=None, limit=limit
        ) as response:
            yield _lines(response)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        limit: aiohttp.ClientTimeout,
        body: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        asked = f"{method} {path}"
        try:
            for is_second in (False, True):
                async with self._session.request(
                    method,
                    self._access.server + path,
                    params=params,
                    data=body,
                    headers={**headers, **await self._access.headers(renewed=is_second)},
                    timeout=limit,
                    ssl=self._access.trust(),
                    allow_redirects=False,
                ) as response:
                    if response.status == 401 and not is_second:
                        continue
                    if response.status >= 300:
                        raise await _error(response, asked)
                    yield response
                    return
        except _TRANSPORT as error:
            raise Unreachable(f"{asked}: {_said(error)}") from None


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    kept = b""
    async for chunk in response.content.iter_any():
        *whole, kept = (kept + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(kept) > _LONGEST_LINE:
            raise Unreachable(f"a line of more than {_LONGEST_LINE} bytes")


async def _error(response: aiohttp.ClientResponse, asked: str) -> ApiError:
    """Read an error: a Status object, or whatever a proxy in between had to say."""
    text = await response.content.read(65536)
    try:
        status = _status.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status(message=text.decode(errors="replace"))
    return api_error(response.status, status.reason or response.reason or "", status.message, asked)


def api_error(status: int, reason: str, message: str, asked: str) -> ApiError:
    """Make an error with its message on one line and not too long."""
    line = " ".join(message.split())
    short = line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"
    return ApiError(status, reason, short, asked)


def _decoded(body: bytes, asked: str) -> ListPage:
    try:
        return _page.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"{asked}: no list: {error}") from None


def _said(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__
