"""Reads a Prometheus, Thanos or Mimir with the caller's rights: at its address, or by the API server's proxy.

The answers are not trusted. They are bounded, decoded to plain rows, and nothing in an error message reaches
a terminal without `service.text`. A message never repeats the token or the value of a header.
"""

import asyncio
import contextlib
import re
import ssl
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Raw, Struct

from console.caller import parse_url
from console.cluster.webhook import fetch_namespaces
from kai.keys import QUEUE_LABEL
from kube.access import Access
from kube.answers import ApiError, Unreachable
from kube.client import AnyResponse, KubeClient
from kube.kinds import CONFIG_MAPS, SERVICES
from service.command import UsageError
from service.http.tls_files import client_context
from service.names import is_dns_label
from service.text import MALFORMED, counted, first_few, one_line, quoted
from webhook.settings.decision_options import NAMESPACE
from webhook.settings.published_settings import NAME

MOST_BYTES: Final = 64 * 1024 * 1024  # maximum size of an answer
MOST_VALUE: Final = 2.0**53  # largest value that counts; no amount is larger, and sums stay finite
DEFAULT_SECONDS: Final = 60.0
DEFAULT_SELECTOR: Final = 'job="kaishare-agent"'

_MOST_AT_ONCE: Final = 2  # concurrent queries; a Prometheus also serves dashboards and rules meanwhile
_MOST_SERIES: Final = 200_000
_MOST_SAMPLES: Final = 4_000_000  # of an answer; those of 10,000 pods in 336 parts of a time are 3.4 million
_MOST_SAMPLES_OF_ONE: Final = 20_000  # of a series; Prometheus answers with 11,000 at most
_LATEST: Final = 253_402_300_799.0  # end of the year 9999; `datetime` knows no later time
_LONGEST_REASON: Final = 200  # characters
_LONGEST_HEAD: Final = 65_536  # bytes of an answer that are looked at for an error
_SECRET_START: Final = 8  # characters by which a secret is recognised; shorter values are none
_PUBLIC_HEADERS: Final = frozenset({"x-scope-orgid"})  # Mimir repeats the name of its tenant in messages
_ABOUT_PROMQL: Final = ("PromQL info", "PromQL warning")
"""Beginnings of annotations about an expression (Prometheus since 2.48); the result is complete even so."""
_HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_TOO_LARGE: Final = f"the answer has more than {MOST_BYTES >> 20} MiB; give a shorter --since"


class PrometheusError(Exception):
    """The Prometheus gave no usable answer; the message is one line with its address and what it said."""


Sample = tuple[dict[str, str], float]  # the labels of a series, and its value


class RangeSeries(Struct, frozen=True):
    """A series with its values over time."""

    labels: dict[str, str]
    times: "array[float]"  # Unix seconds, ascending
    values: "array[float]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOptions:
    """Address and credentials of a Prometheus, and the series that count."""

    url: str = ""  # without a slash at its end; empty with `service`, and before it has been found
    service: str = ""  # NAMESPACE/NAME:PORT, and a path; read through the API server
    token: str = field(default="", repr=False)
    ca_file: str = ""
    is_insecure: bool = False  # whether the certificate is not verified
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    selector: str = DEFAULT_SELECTOR  # label matchers without braces, which each selector of a query has
    seconds: float = DEFAULT_SECONDS  # time limit of all requests together
    where: str = ""  # a sentence that says where the address was found; empty if it was given


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
    warnings: list[str] | None = None
    is_partial: bool = False  # VictoriaMetrics: some of its storage nodes did not answer


class _Error(Struct, rename="camel", frozen=True):
    """An answer without its data, or a Status of the API server, for an error whose data has any type."""

    kind: str = ""
    error_type: str = ""
    error: str = ""
    message: str = ""


_answer = msgspec.json.Decoder(_Answer)
_error = msgspec.json.Decoder(_Error)
_points = msgspec.json.Decoder(list[tuple[float, str]])


class Prometheus:
    """Sends queries. All requests together have one time limit."""

    def __init__(self, options: PrometheusOptions, client: KubeClient) -> None:
        self._prefix, self.address = "", one_line(options.url)
        self._namespace = ""  # of the service
        if match := _SERVICE.fullmatch(options.service):
            self._namespace, name, port, path = match.groups()
            self.address = one_line(f"service {options.service} through {client.server}")
            self._prefix = f"/api/v1/namespaces/{self._namespace}/services/{name}:{port}/proxy{path}"
        self.selector = options.selector
        self._options = options
        self._client = client
        self._headers = _HEADERS | dict(options.headers)
        if options.token:
            self._headers["Authorization"] = f"Bearer {options.token}"
        self._left_out = 0
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._until = monotonic() + options.seconds
        secrets = [value for name, value in options.headers if name.lower() not in _PUBLIC_HEADERS]
        self._secrets = [
            text[:_SECRET_START] for text in (options.token, *secrets) if len(text) >= _SECRET_START
        ]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, options: PrometheusOptions, client: KubeClient | None = None
    ) -> AsyncIterator["Prometheus"]:
        """Open the Prometheus of the options, a service through the API server; its time limit begins.

        Without an address, the API server is asked for one. Raises UsageError if there is none, or if the CA
        certificates cannot be read.
        """
        if client is not None and not options.url and not options.service:
            options = await _found(client, options)
        if client is not None and options.service:
            yield cls(options, client)
            return
        try:
            trust = await asyncio.to_thread(client_context, cafile=options.ca_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"{options.ca_file}: CA certificates: {error.strerror or error}") from None
        if options.is_insecure:
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        async with KubeClient(Access(options.url, trust)) as direct:
            yield cls(options, direct)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on where the address was found, and on values of the answers that were left out."""
        values = counted(self._left_out, "value")
        left_out = f"Left out: {values} of series that are negative, not finite or too large."
        return tuple(filter(None, (self._options.where, left_out if self._left_out else "")))

    async def instant(self, query: str, at: float, *, most: float = MOST_VALUE) -> list[Sample]:
        """Return the value of each series of an expression at a time; raise PrometheusError if there is none.

        Values that are negative, not finite or larger than `most` are left out, and counted in `remarks`.
        """
        data = await self._query("/api/v1/query", query, {"time": f"{at:.3f}"}, "vector")
        samples = [(each.metric, self._number(each.value[1])) for each in data.result if each.value]
        known = [(labels, value) for labels, value in samples if 0 <= value <= most]
        self._left_out += len(samples) - len(known)
        return known

    async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Return the values of each series from the start to the end, which is included; see `instant`.

        A series without a value that counts is left out.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        data = await self._query("/api/v1/query_range", query, times, "matrix")
        return [series for series in map(self._series, data.result) if series.values]

    def _series(self, result: _Result) -> RangeSeries:
        """Decode the values of one series; only those of one are Python objects at a time."""
        self._require_time()
        self._require_bounded(bytes(result.values), 0, _MOST_SAMPLES_OF_ONE + 1)
        try:
            points = _points.decode(result.values or b"[]")
        except MALFORMED as error:
            raise self._not_prometheus(one_line(str(error))) from None
        if not all(0 <= at <= _LATEST for at, _ in points):
            raise self._not_prometheus("a time is out of range")
        values = [(at, self._number(text)) for at, text in points]
        known = [(at, value) for at, value in values if 0 <= value <= MOST_VALUE]
        self._left_out += len(values) - len(known)
        times = array("d", [at for at, _ in known])
        return RangeSeries(result.metric, times, array("d", [value for _, value in known]))

    def _number(self, text: str) -> float:
        try:
            return float(text[:40])
        except ValueError:
            raise self._not_prometheus("a value is no number") from None

    async def _query(self, path: str, query: str, times: Mapping[str, str], expected: str) -> _Data:
        left = self._until - monotonic()
        form = {"query": query, **times, "timeout": f"{max(int(left * 1000), 1)}ms"}
        target = self._prefix + path
        try:
            async with asyncio.timeout(left), self._slots:
                response = await self._client.send_through_proxy(
                    target,
                    urlencode(form).encode(),
                    headers=self._headers,
                    seconds=left + 1,
                    most_bytes=MOST_BYTES,
                )
        except TimeoutError:
            raise self._late() from None
        except Unreachable as error:
            problem = str(error).removeprefix(f"POST {target}: ")
            raise self._error(_TOO_LARGE if problem.startswith("an answer of more") else problem) from None
        if response.status != 200:
            raise self._refused(response)
        self._require_bounded(response.body, 2 * _MOST_SERIES + 1000, _MOST_SAMPLES + _MOST_SERIES)
        data = self._decoded(response.body)
        self._require_time()
        if data.result_type != expected:
            raise self._not_prometheus(f"a {one_line(data.result_type, 40)} instead of a {expected}")
        return data

    def _error(self, problem: str) -> PrometheusError:
        return PrometheusError(f"{self.address}: {problem}")

    def _late(self) -> PrometheusError:
        seconds = self._options.seconds
        return self._error(f"no answer within {seconds:g} s; give a longer --timeout or a shorter --since")

    def _not_prometheus(self, statement: str) -> PrometheusError:
        reason = f": {statement}" if statement else ""
        return self._error(f"the answer is not of a Prometheus{reason}; check the path")

    def _require_time(self) -> None:
        if monotonic() > self._until:
            raise self._late()

    def _require_bounded(self, text: bytes, objects: int, arrays: int) -> None:
        """Refuse too many series or samples before one is decoded.

        Each series is two JSON objects, and each sample is an array. Brackets in names count as well.
        """
        if text.count(b"{") > objects or text.count(b"[") > arrays:
            raise self._error(
                "the answer has too many series or samples; give a shorter --since, or fewer series with"
                " --selector"
            )

    def _decoded(self, body: bytes) -> _Data:
        try:
            answer = _answer.decode(body)
        except MALFORMED:
            raise self._not_prometheus(self._statement(body)[1]) from None
        if answer.status != "success" or answer.data is None:
            raise self._error(self._statement(body)[1])
        partial = [line for line in answer.warnings or () if not line.startswith(_ABOUT_PROMQL)]
        if partial:
            lines = first_few([one_line(line, _LONGEST_REASON) for line in partial], 2)
            raise self._error(f"the result is incomplete: {self._hidden(lines, *partial)}")
        if answer.is_partial:
            raise self._error("the result is incomplete: isPartial is true")
        return answer.data

    def _refused(self, response: AnyResponse) -> PrometheusError:
        """Return what was said about a refusal, and what to do, which depends on the program that refused."""
        namespace, status = self._namespace, response.status
        error, statement = self._statement(response.body)
        acts = {
            401: "check --token-file and --header",
            403: "check --token-file, --header and your rights",
            404: "check the path of the address",
            422: "give a shorter --since",
        }
        if namespace and error.kind == "Status":
            acts[401] = "the API server does not accept your credentials: log in again"
            acts[403] = f"you need the right to create services/proxy in namespace {namespace}"
        elif namespace:
            acts[401] = acts[403] = (
                "the service wants a login of its own, which the API server does not pass on: give"
                " --prometheus with --token-file"
            )
        act = (
            "it redirects to another address: give that one" if 300 <= status < 400 else acts.get(status, "")
        )
        reason = self._hidden(one_line(response.reason, 40), response.reason)
        said = ": ".join(filter(None, (f"{status} {reason}".rstrip(), statement)))
        return self._error("; ".join(filter(None, (said, act))))

    def _statement(self, body: bytes) -> tuple[_Error, str]:
        """Return the error of an answer, of Prometheus or of the API server, and one line about it."""
        head, error = body[:_LONGEST_HEAD], _Error()
        with contextlib.suppress(*MALFORMED):
            error = _error.decode(head)
        text = ": ".join(filter(None, (error.error_type, error.error or error.message)))
        text = text or head.decode("utf-8", "replace")
        return error, self._hidden(one_line(text, _LONGEST_REASON), text)

    def _hidden(self, line: str, *texts: str) -> str:
        """Return a line of an answer; a sentence instead if its texts have the beginning of a secret."""
        if any(secret in text for text in texts for secret in self._secrets):
            return "the answer repeats a header of the request"
        return line


ADDRESS_ANNOTATION: Final = "kaishare.dev/prometheus"
"""Annotation of the ConfigMap of the settings, which the chart writes from `settings.prometheus`."""
_OPERATOR_LABEL: Final = "operated-prometheus"
"""Label of the Service that the Prometheus operator makes for all Prometheus objects of a namespace
(prometheus-operator v0.80, pkg/prometheus/server/statefulset.go)."""
_MOST_CANDIDATES: Final = 100
_SERVICE: Final = re.compile(
    r"([^/]{1,63})/([^/:]{1,63}):([a-z0-9-]{1,15})((?:/[A-Za-z0-9._~-]{1,100}){0,8})/?"
)
GIVE_ONE: Final = "give either --prometheus URL or --service NAMESPACE/NAME:PORT"


async def _found(client: KubeClient, options: PrometheusOptions) -> PrometheusOptions:
    """Return the options with the address that the installation names, else that of an operator's Service.

    A tenant can write a Service with the operator's label. So Services in managed namespaces do not count,
    and several Services are an error. Raises UsageError if the address is unusable, or if none was found.
    """
    text = ""
    with contextlib.suppress(ApiError, Unreachable, *MALFORMED):
        settings = CONFIG_MAPS.decode(await client.get(CONFIG_MAPS.path(NAMESPACE, NAME)))
        text = settings.metadata.annotations.get(ADDRESS_ANNOTATION, "")
    if text:
        place = f"ConfigMap {NAME}"
        try:
            url, service = (parse_url(text), "") if "://" in text else ("", parse_service(text))
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from None
        where = f"Read {url or f'Service {service}'}, the address in {place}."
        return replace(options, url=url, service=service, where=where)
    services: list[str] = []
    try:
        managed = await fetch_namespaces(client, params={"labelSelector": QUEUE_LABEL})
        selector = {"labelSelector": f"{_OPERATOR_LABEL}=true"}
        async with client.list_objects(SERVICES.path(), params=selector) as items:
            async for item in items:
                found = SERVICES.decode(item)
                namespace, ports = found.metadata.namespace, found.spec.ports
                if ports and namespace not in managed and len(services) < _MOST_CANDIDATES:
                    services.append(f"{namespace}/{found.metadata.name}:{ports[0].port}")
    except (ApiError, Unreachable, *MALFORMED) as error:
        raise UsageError(f"no Prometheus was found: {one_line(str(error))}; {GIVE_ONE}") from None
    if len(services) != 1:
        names = first_few(services, 3)
        problem = f"several Prometheus were found: {names}" if services else "no Prometheus was found"
        raise UsageError(f"{problem}; {GIVE_ONE}")
    where = f"Read Service {services[0]}, found by its operator's label."
    return replace(options, service=services[0], where=where)


def parse_service(text: str) -> str:
    """Read `NAMESPACE/NAME:PORT`, with a path if it has one; raise ValueError for another form."""
    match = _SERVICE.fullmatch(text)
    is_valid = match is not None and is_dns_label(match[1]) and is_dns_label(match[2])
    if match is None or not is_valid or {".", ".."}.intersection(match[4].split("/")):
        raise ValueError(
            f"{quoted(text)} is not a service; allowed: NAMESPACE/NAME:PORT, such as"
            " monitoring/prometheus-operated:9090"
        )
    return text.rstrip("/")
