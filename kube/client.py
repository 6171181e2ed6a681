"""An HTTP client for the API server: single requests, lists object by object, watches line by line."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from kube.access import Access, AccessError, Headers, InCluster
from kube.answers import (
    LONGEST_ANSWER,
    LONGEST_HEADER,
    ApiError,
    Unreachable,
    parse_warnings,
    read_body,
    read_error,
    read_lines,
    status_error,
    transport_errors,
)
from service.list_splitter import ListSplitter, MalformedList
from service.tasks import LoopYield
from service.text import one_line
from service.version import version

MERGE_PATCH: Final = "application/merge-patch+json"

_SECONDS: Final = 10.0
_LIST_SECONDS: Final = 120.0
_LIST_SILENT_SECONDS: Final = 30.0
_MOST_HEADERS: Final = 1024  # each warning is a header


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyResponse:
    """A response of any status, such as a pod's or an error of the API server's proxy."""

    status: int
    reason: str
    body: bytes
    date: str  # the header; empty if absent
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, without the caller's credentials."""

    method: str
    path: str
    _: KW_ONLY
    headers: Mapping[str, str]
    params: Mapping[str, str] | None = None
    body: bytes | None = None
    seconds: float | None = _SECONDS
    """Time limit; None for a stream, of which only the head must come in time."""
    idle: float | None = None  # seconds of the longest silence within the answer

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class RequestLimitReached(AccessError):
    """A request was not sent, because the limit of the number of requests is reached."""


class _Version(Struct):
    major: str
    minor: str


class KubeClient:
    """A client for one API server. Every request has a time limit."""

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the API server's address, the caller's credentials, and a clock of monotonic seconds."""
        self._access = access
        self._clock = clock
        self.remaining = math.inf  # further HTTP requests, the repetition after a 401 included
        self._dated: tuple[str, float] | None = None  # `Date` of the last success, and when that came
        self._session = aiohttp.ClientSession(
            # Compression costs the API server time, and an answer could unpack to a thousand times its size.
            headers={"User-Agent": f"kaishare/{version()}", "Accept-Encoding": "identity"},
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=16, keepalive_timeout=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_field_size=LONGEST_HEADER,
            max_headers=_MOST_HEADERS,
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
        """Return the API server's time, exact to a second or two; None before the first successful answer.

        A monotonic clock continues the last answer's time. This machine's wall clock is not used.
        """
        if self._dated is None:
            return None
        text, at = self._dated
        try:
            date = parsedate_to_datetime(text)
            return date.replace(tzinfo=date.tzinfo or UTC) + timedelta(seconds=self._clock() - at)
        except (ValueError, OverflowError):  # OverflowError: a number of too many digits, a year above 9999
            return None

    def limited(self, most: int) -> "KubeClient":
        """Return a client with the same connections for a number of requests; see `RequestLimitReached`."""
        client = copy(self)
        client.remaining = most
        return client

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
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
        """Send a request. After a 401 it is repeated once with renewed credentials.

        ApiError for an answer that is an error, Unreachable without a valid answer, and AccessError if there
        are no credentials, or they were not sent and are asked for.
        """
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": content_type})
        sent = _Request(method, path, params=params, headers=headers, body=body, seconds=seconds)
        async with self._open(sent) as response:
            return await read_body(response, sent)

    async def get(self, path: str, **options: Any) -> bytes:
        """Get one object; raises as `request`."""
        return await self.request("GET", path, **options)

    async def release(self) -> tuple[int, int] | None:
        """Return the API server's release, such as (1, 30); None if it is written in another form.

        Raises as `request`, and msgspec's errors for another answer.
        """
        version = msgspec.json.decode(await self.get("/version"), type=_Version)
        try:
            return int(version.major), int(version.minor.rstrip("+"))  # some clouds write 30+
        except ValueError:
            return None

    async def create_by_dry_run(
        self, path: str, body: bytes, *, field_manager: str, seconds: float = _SECONDS
    ) -> AnyResponse:
        """Create an object in a list by dry run: all admission runs, and nothing is stored.

        No parameter could send the request without `dryRun`. A refusal is an answer, too, with its warnings.
        Raises Unreachable and AccessError as `request`.
        """
        params = {"dryRun": "All", "fieldManager": field_manager}
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        sent = _Request("POST", path, params=params, headers=headers, body=body, seconds=seconds)
        return await self._read_any(sent, is_trusted=True)

    async def send_through_proxy(
        self,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
        most_bytes: int = LONGEST_ANSWER,
    ) -> AnyResponse:
        """Send a request to a pod or service through the API server's proxy: POST with a body, else GET.

        The response is the pod's and is not trusted: a 401 renews no credentials, and its date is not the
        API server's. The API server removes the caller's credentials, which take precedence over `headers`,
        from the forwarded request. Raises Unreachable and AccessError as `request`.

        The path is `/api/v1/namespaces/NAMESPACE/pods/NAME:PORT/proxy/PATH`, or with `https:NAME:PORT` for a
        port with TLS, whose certificate the API server does not verify.
        """
        method, headers = "GET" if body is None else "POST", {"Accept": "*/*", **(headers or {})}
        sent = _Request(method, path, headers=headers, body=body, seconds=seconds)
        return await self._read_any(sent, is_trusted=False, most_bytes=most_bytes)

    @contextlib.asynccontextmanager
    async def list_objects(
        self, path: str, *, params: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> AsyncIterator["ObjectList"]:
        """Open a list; iterating over it yields its objects as they arrive, and lets other tasks run.

        The request sets no limit, so that API servers send one piece. Raises as `request`, also then.
        """
        headers, idle = {"Accept": accept}, _LIST_SILENT_SECONDS
        sent = _Request("GET", path, params=params, headers=headers, seconds=_LIST_SECONDS, idle=idle)
        async with self._open(sent) as response:
            yield ObjectList(response, sent)

    @contextlib.asynccontextmanager
    async def lines(
        self, path: str, *, params: Mapping[str, str], accept: str, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a stream; iterating over it yields batches of complete lines as they arrive.

        Raises as `request`, also while iterating, and Silent after a silence of `idle_seconds`.
        """
        headers = {"Accept": accept}
        sent = _Request("GET", path, params=params, headers=headers, seconds=None, idle=idle_seconds)
        async with self._open(sent) as response:
            yield read_lines(response, sent)

    async def _read_any(
        self, sent: _Request, *, is_trusted: bool, most_bytes: int = LONGEST_ANSWER
    ) -> AnyResponse:
        async with self._answer(sent, is_trusted=is_trusted) as response:
            body, reason = await read_body(response, sent, most_bytes), response.reason or ""
            if b'"kind":"Status"' in body[:200].replace(b" ", b""):  # probably the API server's own
                self._require_login(
                    status_error(body, str(sent), http_status=response.status, http_reason=reason)
                )
            return AnyResponse(
                status=response.status,
                reason=reason,
                body=body,
                date=response.headers.get("Date", ""),
                warnings=parse_warnings(response.headers.getall("Warning", [])),
            )

    def _require_login(self, error: ApiError) -> None:
        """Raise AccessError if the caller's credentials were not sent, and the API server asks for them.

        Behind `kubectl proxy`, whose address is http://, another user is authenticated.
        """
        withheld = self._access.route.withheld
        if withheld and (error.is_unauthorized or error.user == "system:anonymous"):
            raise AccessError(f"{error}; {withheld}")

    @contextlib.asynccontextmanager
    async def _open(self, sent: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a successful answer; other answers are an ApiError, or AccessError without a login."""
        async with self._answer(sent, is_trusted=True) as response:
            if response.status >= 300:
                error = await read_error(response, sent)
                self._require_login(error)
                if error.is_unauthorized and self._access.route.login:
                    error.message += f"; {self._access.route.login}"
                raise error
            if "Date" in response.headers:
                self._dated = response.headers["Date"], self._clock()
            yield response

    @contextlib.asynccontextmanager
    async def _answer(self, sent: _Request, *, is_trusted: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an answer of any status; connection errors are `Unreachable` until it is closed.

        After the API server's own 401 the request is repeated once with renewed credentials.
        """
        route = self._access.route
        limit = aiohttp.ClientTimeout(total=sent.seconds, sock_connect=_SECONDS, sock_read=sent.idle)
        with transport_errors(sent):
            async with contextlib.AsyncExitStack() as stack:
                refused: Headers | None = None
                while True:
                    if not self.remaining:
                        raise RequestLimitReached("not requested: the limit of requests is reached")
                    self.remaining -= 1
                    identity = await self._access.headers(refused=refused)
                    async with asyncio.timeout(_SECONDS if sent.seconds is None else None):
                        response = await stack.enter_async_context(
                            self._session.request(
                                sent.method,
                                self._access.server + sent.path,
                                params=sent.params,
                                data=sent.body,
                                headers=_with_identity(sent.headers, identity),
                                timeout=limit,
                                ssl=self._access.trust(),
                                allow_redirects=False,
                                proxy=route.proxy,
                                server_hostname=route.server_hostname,
                            )
                        )
                    if response.status != 401 or refused is not None or not is_trusted:
                        break
                    refused = identity
                    await stack.aclose()
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding != "identity":  # an answer that is unpacked could have any size
                    raise Unreachable(f"{sent}: unexpected Content-Encoding {one_line(encoding)}")
                yield response


class ObjectList:
    """A list that is read object by object; see `KubeClient.list_objects`."""

    def __init__(self, response: aiohttp.ClientResponse, sent: object) -> None:
        self.resource_version = ""  # of the list; empty until it has been read completely
        self._response = response
        self._sent = sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop_yield, splitter = LoopYield(), ListSplitter()
        try:
            async for chunk in self._response.content.iter_any():
                for item in splitter.feed(chunk):
                    yield item
                    await loop_yield.maybe_yield()
                await loop_yield.maybe_yield()
            self.resource_version = splitter.finish()
        except MalformedList as error:
            raise Unreachable(f"{self._sent}: not a list: {error}") from None


def _with_identity(headers: Mapping[str, str], identity: Headers) -> Headers:
    """Return headers with those of the caller, which take precedence."""
    names = {name.lower() for name, _ in identity}
    return *((name, value) for name, value in headers.items() if name.lower() not in names), *identity


async def find_access(kubeconfig: str | None = None) -> Access:
    """Return the given kubeconfig, else the service account, else `$KUBECONFIG`."""
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return InCluster()
    from kube.kubeconfig import KubeConfig  # noqa: PLC0415 - a service in a pod needs none of it

    return await KubeConfig.load(kubeconfig)
