"""Requests to the API server: single answers, lists as streams of objects, watches as streams of lines."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final

import aiohttp

from kube.access import Access
from kube.errors import ApiError, Unreachable, status_error
from kube.list_splitter import ListSplitter, MalformedList
from service.tasks import LoopYield
from service.text import one_line
from service.version import version

_SECONDS: Final = 10.0
_LIST_SECONDS: Final = 120.0
_LIST_SILENT_SECONDS: Final = 30.0
_LONGEST_ANSWER: Final = 16 * 1024 * 1024  # bytes; objects are at most 3 MiB
_LONGEST_LINE: Final = 16 * 1024 * 1024  # bytes
_LONGEST_ERROR: Final = 65536  # bytes
_BY_THE_CLOCK: Final = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or no longer."""
_TRANSPORT: Final = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class KubeClient:
    """A connection to one API server. Every request has a time limit."""

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._dated: tuple[str, float] | None = None
        """The `Date` of the last good answer, and the monotonic time at which it came."""
        self._session = aiohttp.ClientSession(
            # A compressed answer costs the API server time, and could unpack to a thousand times its size.
            headers={"User-Agent": f"kaishare/{version()}", "Accept-Encoding": "identity"},
            auto_decompress=False,
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
            asked = f"{method} {path}"
            body_bytes = bytearray()
            with _told(asked):
                async for chunk in response.content.iter_any():
                    body_bytes += chunk
                    if len(body_bytes) > _LONGEST_ANSWER:
                        raise Unreachable(f"{asked}: an answer of more than {_LONGEST_ANSWER} bytes")
            return bytes(body_bytes)

    async def get(self, path: str, **options: Any) -> bytes:
        """Get one object; raises as `request`."""
        return await self.request("GET", path, **options)

    @contextlib.asynccontextmanager
    async def list_objects(
        self, path: str, *, params: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> AsyncIterator["ObjectList"]:
        """Open a list; iterate over it for its objects, each as it arrives.

        The list is asked for in one piece. A server that splits it into pages all the same is asked for the
        others. Other tasks get their turn between objects.

        Args:
            path: of the list.
            params: query.
            accept: media type.

        Raises:
            ApiError, Unreachable, kube.access.AccessError: as `request`, also while iterating; an ApiError
                with 410 if reading all pages took too long.
        """
        objects = ObjectList(self, path, params=params or {}, accept=accept)
        async with contextlib.aclosing(objects):
            yield objects

    @contextlib.asynccontextmanager
    async def lines(
        self, path: str, *, params: Mapping[str, str], accept: str, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a stream; iterate over the lines that arrive together. A last line that is cut is left out.

        Args:
            path: where.
            params: query.
            accept: media type.
            idle_seconds: how long the stream may be silent.

        Raises:
            ApiError, Unreachable, kube.access.AccessError: as `request`, also while iterating.
        """
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=idle_seconds)
        async with self._open(
            "GET", path, params=params, headers={"Accept": accept}, limit=limit, answer_seconds=_SECONDS
        ) as response:
            yield _lines(response, f"GET {path}")

    @contextlib.asynccontextmanager
    async def chunks(
        self, path: str, *, params: Mapping[str, str], accept: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an answer; iterate over its bytes as they arrive. Raises as `request`."""
        asked = f"GET {path}"
        limit = aiohttp.ClientTimeout(
            total=_LIST_SECONDS, sock_connect=_SECONDS, sock_read=_LIST_SILENT_SECONDS
        )
        async with self._open(
            "GET", path, params=params, headers={"Accept": accept}, limit=limit
        ) as response:
            yield _chunks(response, asked)

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
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise Unreachable(f"{asked}: an answer in the encoding {one_line(encoding)}, unasked")
            if "Date" in response.headers:
                self._dated = response.headers["Date"], self._clock()
            yield response


class ObjectList:
    """A list that is being read; see `KubeClient.list_objects`."""

    def __init__(self, client: KubeClient, path: str, *, params: Mapping[str, str], accept: str) -> None:
        self.resource_version = ""
        """Version of the list; empty until all of it was read."""
        self._client = client
        self._path = path
        self._params = params
        self._accept = accept
        self._objects = self._read()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the objects that were not read yet."""
        return self._objects

    async def aclose(self) -> None:
        """Close the connection, read to its end or not."""
        await self._objects.aclose()

    async def _read(self) -> AsyncGenerator[bytes]:
        asked = f"GET {self._path}"
        params = dict(self._params)
        loop_yield = LoopYield()
        ends_at = time.monotonic() + _LIST_SECONDS
        while True:
            splitter = ListSplitter()
            try:
                async with self._client.chunks(self._path, params=params, accept=self._accept) as chunks:
                    async for chunk in chunks:
                        for item in splitter.feed(chunk):
                            yield item
                            await loop_yield.maybe_yield()
                        await loop_yield.maybe_yield()
                metadata = splitter.finish()
            except MalformedList as error:
                raise Unreachable(f"{asked}: no list: {error}") from None
            if not metadata.continue_:
                self.resource_version = metadata.resourceVersion
                return
            if time.monotonic() > ends_at:
                raise Unreachable(f"{asked}: the pages did not end within {_LIST_SECONDS:g} s")
            # A token says at which version to go on; a version beside it is refused.
            params = {name: value for name, value in params.items() if not name.startswith("resourceVersion")}
            params["continue"] = metadata.continue_


async def _chunks(response: aiohttp.ClientResponse, asked: str) -> AsyncIterator[bytes]:
    with _told(asked):
        async for chunk in response.content.iter_any():
            yield chunk


async def _lines(response: aiohttp.ClientResponse, asked: str) -> AsyncIterator[list[bytes]]:
    kept = bytearray()
    async for chunk in _chunks(response, asked):
        lines = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            kept += chunk[start:end]
            if kept and not kept.isspace():
                lines.append(bytes(kept))
            kept.clear()
            start = end + 1
        kept += chunk[start:]
        if len(kept) > _LONGEST_LINE:
            raise Unreachable(f"{asked}: a line of more than {_LONGEST_LINE} bytes")
        if lines:
            yield lines


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
