"""Requests to the API server: one at a time, in pages, or as a stream of lines."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Raw, Struct

from kube.access import Access
from kube.errors import MALFORMED, ApiError, Unreachable, status_error
from service.about import version
from service.text import one_line

PAGE: Final = 500
"""Objects asked for at once when listing: some 4 MB of pods."""

_SECONDS: Final = 10.0
_LIST_SECONDS: Final = 30.0
_LONGEST_LINE: Final = 16 * 1024 * 1024  # bytes; objects are at most 3 MiB
_LONGEST_ERROR: Final = 65536  # bytes
_BY_THE_CLOCK: Final = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or no longer."""
_TRANSPORT: Final = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class _ListMeta(Struct):
    resourceVersion: str
    continue_: str = msgspec.field(default="", name="continue")


class ListPage(Struct):
    """One page of a list; the objects stay raw."""

    kind: str
    metadata: _ListMeta
    items: list[Raw] | None = None


_page = msgspec.json.Decoder(ListPage)


class KubeClient:
    """A connection to one API server. Every request has a time limit."""

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._dated: tuple[str, float] | None = None
        """The `Date` of the last good answer, and the monotonic time at which it came."""
        self._session = aiohttp.ClientSession(
            headers={"User-Agent": f"kaishare/{version()}"},
            connector=aiohttp.TCPConnector(limit=16, keepalive_timeout=30),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._access.server

    @property
    def namespace(self) -> str:
        """The caller's own namespace."""
        return self._access.namespace

    def server_time(self) -> datetime | None:
        """Return what time it is for the API server, to a second or two; None if it never said.

        It goes on from the last good answer with a monotonic clock: this machine's own has no part in it.
        """
        if self._dated is None:
            return None
        text, at = self._dated
        try:
            said = parsedate_to_datetime(text)
        except ValueError:
            return None
        return said.replace(tzinfo=said.tzinfo or UTC) + timedelta(seconds=self._clock() - at)

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
            with _told(f"{method} {path}"):
                return await response.read()

    async def get(self, path: str, **options: Any) -> bytes:
        """Get one object; raises as `request`."""
        return await self.request("GET", path, **options)

    async def pages(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = "application/json",
        page: int | None = PAGE,
    ) -> AsyncIterator[ListPage]:
        """List; raises as `request`, with 410 where a list took too long to finish.

        Args:
            path: what.
            params: query.
            accept: media type.
            page: how many objects at a time; None for all at once.
        """
        asked = {**(params or {}), **({} if page is None else {"limit": str(page)})}
        while True:
            body = await self.request("GET", path, params=asked, accept=accept, seconds=_LIST_SECONDS)
            found = _decoded(body, f"GET {path}")
            yield found
            if not found.metadata.continue_:
                return
            # A token says at which version to go on; a version beside it is refused.
            asked = {key: value for key, value in asked.items() if not key.startswith("resourceVersion")}
            asked["continue"] = found.metadata.continue_

    @contextlib.asynccontextmanager
    async def lines(
        self, path: str, *, params: Mapping[str, str], accept: str, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream and iterate over its lines; the last one is left out if it was cut.

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
            "GET", path, params=params, headers=headers, limit=limit, answer_seconds=_SECONDS
        ) as response:
            yield _lines(response, f"GET {path}")

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
        answer_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        asked = f"{method} {path}"
        async with contextlib.AsyncExitStack() as stack:
            with _told(asked):
                for is_second in (False, True):
                    identity = await self._access.headers(renewed=is_second)
                    route = self._access.route
                    async with asyncio.timeout(answer_seconds):
                        response = await stack.enter_async_context(
                            self._session.request(
                                method,
                                self._access.server + path,
                                params=params,
                                data=body,
                                headers={**headers, **identity},
                                timeout=limit,
                                ssl=self._access.trust(),
                                allow_redirects=False,
                                proxy=route.proxy,
                                server_hostname=route.server_hostname,
                            )
                        )
                    if response.status != 401 or is_second:
                        break
                    await stack.aclose()
                if response.status >= 300:
                    raise await _error(response, asked)
            if "Date" in response.headers:
                self._dated = response.headers["Date"], self._clock()
            yield response


async def _lines(response: aiohttp.ClientResponse, asked: str) -> AsyncIterator[bytes]:
    kept = bytearray()
    with _told(asked):
        async for chunk in response.content.iter_any():
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                line = bytes(kept) + chunk[start:end]
                kept.clear()
                start = end + 1
                if line.strip():
                    yield line
            kept += chunk[start:]
            if len(kept) > _LONGEST_LINE:
                raise Unreachable(f"{asked}: a line of more than {_LONGEST_LINE} bytes")


async def _error(response: aiohttp.ClientResponse, asked: str) -> ApiError:
    """Read an error: a Status object, or whatever a proxy in between had to say."""
    text = b""
    while len(text) < _LONGEST_ERROR and (chunk := await response.content.read(_LONGEST_ERROR)):
        text += chunk
    return status_error(
        text,
        asked,
        http_status=response.status,
        http_reason=response.reason or "",
        retry_after=response.headers.get("Retry-After", ""),
    )


def _decoded(body: bytes, asked: str) -> ListPage:
    try:
        page = _page.decode(body)
    except MALFORMED as error:
        raise Unreachable(f"{asked}: no list: {one_line(str(error))}") from None
    if not page.kind.endswith("List") or not page.metadata.resourceVersion:
        raise Unreachable(f"{asked}: no list: a {one_line(page.kind)} without resourceVersion")
    return page


@contextlib.contextmanager
def _told(asked: str) -> Iterator[None]:
    """Make whatever goes wrong on the way to the server one kind of error."""
    try:
        yield
    except _TRANSPORT as error:
        raise Unreachable(f"{asked}: {_said(error)}") from None


def _said(error: BaseException) -> str:
    """What went wrong in a connection, without what differs from one try to the next."""
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        refused = error.certificate_error
        why = getattr(refused, "verify_message", "") or str(refused)
        if getattr(refused, "verify_code", 0) in _BY_THE_CLOCK:
            why += f" (on this machine it is {datetime.now(UTC):%Y-%m-%d})"
        return f"{error.host}:{error.port}: its certificate is not trusted: {one_line(why)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        why = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
        return f"{error.host}:{error.port}: {one_line(why)}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer was cut short"
    return one_line(str(error)) or type(error).__name__
