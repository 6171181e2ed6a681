"""A client for the query API of Prometheus, Thanos and Mimir: direct, or by the API server's proxy.

The answers are not trusted. They are bounded, decoded to plain rows, and nothing in an error message reaches
a terminal without `service.text`. A message never repeats the token or the value of a header.
"""

import asyncio
import contextlib
import ssl
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Raw, Struct

from console.prometheus.prometheus_options import PrometheusOptions, ServiceAddress
from console.prometheus.promql import InstantSeries, RangeSeries
from kube.access import client_context
from kube.answers import TRANSPORT_ERRORS, Unreachable, status_error, transport_error_text
from kube.client import KubeClient
from service.command import UsageError
from service.text import MALFORMED, counted, first_few, one_line
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
            response = await self._client.send_through_proxy(
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


_MOST_AT_ONCE: Final = 2
"""Concurrent queries; a Prometheus also serves dashboards and rules meanwhile."""

_LONGEST_REASON: Final = 200  # characters
_SECRET_START: Final = 8
"""Characters by which a token is recognised in an error; shorter values are no secrets."""
_PUBLIC_HEADERS: Final = frozenset({"x-scope-orgid"})
"""Names of headers without a secret: Mimir repeats the name of its tenant in messages."""
_LATEST: Final = 253_402_300_799.0
"""End of the year 9999 in Unix seconds; `datetime` knows no later time."""
MOST_VALUE: Final = 2.0**53
"""Largest value that counts. No amount of bytes, seconds or samples is larger, and sums stay finite."""
_MOST_SERIES: Final = 200_000
_MOST_SAMPLES: Final = 4_000_000
"""Of all series of an answer; those of 10,000 pods in 336 parts of a time are 3.4 million."""
_MOST_SAMPLES_OF_ONE: Final = 20_000
"""Of one series, whose samples are objects while they are decoded. Prometheus answers with 11,000 at most."""
_OK, _BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _UNPROCESSABLE = 200, 400, 401, 403, 404, 422
_ABOUT_PROMQL: Final = ("PromQL info", "PromQL warning")
"""Beginnings of annotations about an expression (Prometheus since 2.48); the result is complete even so."""


class PrometheusError(Exception):
    """The Prometheus gave no usable answer; the message is one line with its address and what it said."""


class _Result(Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: Raw = Raw()


class _Data(Struct, rename="camel", frozen=True):
    result_type: str
    result: list[_Result] = []


class _Answer(Struct, rename="camel", frozen=True):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] | None = None
    is_partial: bool = False
    """VictoriaMetrics: some of its storage nodes did not answer."""


class _Header(Struct, rename="camel", frozen=True):
    """An answer without its data, for an error whose data has any type."""

    status: str = ""
    error_type: str = ""
    error: str = ""
    message: str = ""


_answer = msgspec.json.Decoder(_Answer)
_header = msgspec.json.Decoder(_Header)
_points = msgspec.json.Decoder(list[tuple[float, str]])


class Prometheus:
    """Sends queries. All requests together have one time limit."""

    def __init__(
        self, transport: Transport, options: PrometheusOptions, *, address: str, clock: Any = time.monotonic
    ) -> None:
        self.address = address
        """The address for messages."""
        self.selector = options.selector
        """Label matchers without braces; each selector of a query must contain them."""
        self._left_out = 0
        self._transport = transport
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._clock = clock
        self._seconds = options.seconds
        self._until = clock() + options.seconds
        headers = (value for name, value in options.headers if name.lower() not in _PUBLIC_HEADERS)
        self._secrets = [text for text in (options.token, *headers) if text]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, options: PrometheusOptions, client: KubeClient | None = None
    ) -> AsyncIterator["Prometheus"]:
        """Open the Prometheus of the options; its time limit begins.

        Args:
            options: address and credentials.
            client: the API server, for a service.

        Raises:
            UsageError: the CA certificates cannot be read.
        """
        through = f" through {client.server}" if client and options.service else ""
        async with open_transport(options, client) as transport:
            yield cls(transport, options, address=one_line(options.address + through))

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence if values of the answers so far were left out."""
        if not self._left_out:
            return ()
        values = counted(self._left_out, "value")
        return (f"Left out: {values} of series that are negative, not finite or too large.",)

    async def instant(self, query: str, at: float, *, most: float = MOST_VALUE) -> list[InstantSeries]:
        """Return the value of each series of an expression at a time.

        Values that are negative, not finite or too large are left out, and counted in `remarks`.

        Args:
            query: the expression.
            at: Unix seconds.
            most: the largest value that is possible.

        Raises:
            PrometheusError: there is no usable answer in time.
            kube.access.AccessError: there are no credentials for the API server.
        """
        data = await self._query("/api/v1/query", query, {"time": f"{at:.3f}"}, "vector")
        samples = []
        for result in data.result:
            if result.value is not None:
                value = self._number(result.value[1])
                if 0 <= value <= most:
                    samples.append(InstantSeries(result.metric, value))
                else:
                    self._left_out += 1
        return samples

    async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Return the values of each series of an expression over a time; see `instant`.

        Args:
            query: the expression.
            start: Unix seconds of the first value.
            end: Unix seconds of the last value, included.
            step: seconds between two values.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        data = await self._query("/api/v1/query_range", query, times, "matrix")
        return [self._series(result) for result in data.result]

    def _series(self, result: _Result) -> RangeSeries:
        """Decode the values of one series; only those of one are Python objects at a time."""
        self._require_time()
        self._require_bounded(bytes(result.values), 0, _MOST_SAMPLES_OF_ONE + 1)
        try:
            points = _points.decode(result.values or b"[]")
        except MALFORMED as error:
            raise self._not_prometheus(one_line(str(error))) from None
        times = array("d", [at for at, _ in points])
        values = array("d", [self._number(text) for _, text in points])
        if times and not (min(times) >= 0 and max(times) <= _LATEST):
            raise self._not_prometheus("a time is out of range")
        if not all(0 <= value <= MOST_VALUE for value in values):
            known = [(at, value) for at, value in zip(times, values, strict=True) if 0 <= value <= MOST_VALUE]
            self._left_out += len(values) - len(known)
            times, values = array("d", [at for at, _ in known]), array("d", [value for _, value in known])
        return RangeSeries(result.metric, times, values)

    def _number(self, text: str) -> float:
        try:
            return float(text[:40])
        except ValueError:
            raise self._not_prometheus("a value is no number") from None

    async def _query(self, path: str, query: str, times: Mapping[str, str], expected: str) -> _Data:
        left = self._until - self._clock()
        form = {"query": query, **times, "timeout": f"{max(int(left * 1000), 1)}ms"}
        try:
            async with asyncio.timeout(left), self._slots:
                response = await self._transport.post(path, urlencode(form).encode(), left + 1)
        except TimeoutError:
            raise self._late() from None
        except NoResponse as error:
            raise PrometheusError(f"{self.address}: {error}") from None
        if response.status != _OK:
            raise self._refused(response)
        self._require_bounded(response.body, 2 * _MOST_SERIES + 1000, _MOST_SAMPLES + _MOST_SERIES)
        data = self._decoded(response.body)
        self._require_time()
        if data.result_type != expected:
            raise self._not_prometheus(f"a {one_line(data.result_type, 40)} instead of a {expected}")
        return data

    def _late(self) -> PrometheusError:
        late = f"no answer within {self._seconds:g} s; give a longer --timeout or a shorter --since"
        return PrometheusError(f"{self.address}: {late}")

    def _require_time(self) -> None:
        if self._clock() > self._until:
            raise self._late()

    def _require_bounded(self, text: bytes, objects: int, arrays: int) -> None:
        """Refuse too many series or samples before one is decoded.

        Each series is two JSON objects, and each sample is an array. Brackets in names count as well.
        """
        if text.count(b"{") > objects or text.count(b"[") > arrays:
            raise PrometheusError(
                f"{self.address}: the answer has too many series or samples; give a shorter --since, or fewer"
                " series with --selector"
            )

    def _decoded(self, body: bytes) -> _Data:
        try:
            answer = _answer.decode(body)
        except MALFORMED:
            raise self._not_prometheus(self._said(body)) from None
        if answer.status != "success" or answer.data is None:
            raise PrometheusError(f"{self.address}: {self._said(body)}")
        partial = [line for line in answer.warnings or () if not line.startswith(_ABOUT_PROMQL)]
        if partial:
            statement = self._hidden(
                first_few([one_line(line, _LONGEST_REASON) for line in partial], 2), partial
            )
            raise PrometheusError(f"{self.address}: the result is incomplete: {statement}")
        if answer.is_partial:
            raise PrometheusError(f"{self.address}: the result is incomplete: isPartial is true")
        return answer.data

    def _refused(self, response: Response) -> PrometheusError:
        """Describe a response with a status other than 200."""
        statement = self._said(response.body)
        status = f"{response.status} {one_line(self._hidden(response.reason), 40)}".rstrip()
        advice = _ADVICE.get(response.status, "")
        if 300 <= response.status < 400:
            advice = "; it redirects to another address: give that one"
        return PrometheusError(f"{self.address}: {status}{f': {statement}' if statement else ''}{advice}")

    def _not_prometheus(self, statement: str) -> PrometheusError:
        reason = f": {statement}" if statement else ""
        return PrometheusError(f"{self.address}: the answer is not of a Prometheus{reason}; check the path")

    def _said(self, body: bytes) -> str:
        """Return what an answer says, in one line: the error of Prometheus or of the API server, or text."""
        head = body[:65536]
        text = head.decode("utf-8", "replace")
        with contextlib.suppress(*MALFORMED):
            header = _header.decode(head)
            if header.status == "Failure":
                text = status_error(head, "").message
            else:
                text = ": ".join(filter(None, (header.error_type, header.error or header.message))) or text
        return self._hidden(one_line(text, _LONGEST_REASON), [text])

    def _hidden(self, line: str, texts: list[str] | None = None) -> str:
        """Return a text of an answer; a sentence instead if the text has the beginning of a secret."""
        return "the answer repeats a header of the request" if any(self._leaks(texts or [line])) else line

    def _leaks(self, texts: list[str]) -> Iterator[bool]:
        for secret in self._secrets:
            if len(secret) >= _SECRET_START:
                yield any(secret[:_SECRET_START] in text for text in texts)


_ADVICE: Final = {
    _BAD_REQUEST: "",
    _UNAUTHORIZED: "; check --token-file and --header",
    _FORBIDDEN: "; check --token-file, --header and your rights",
    _NOT_FOUND: "; check the path of the address",
    _UNPROCESSABLE: "; give a shorter --since",
}
