"""The admission port: reviews on their paths, and nothing else.

Whatever is not a review is answered with a status and one line, never with a traceback. What would be too
much is answered 503 with Retry-After: an API server asks again by itself (verified on Kubernetes 1.36.3).
"""

import asyncio
import re
import secrets
import ssl
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Final

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter

from service.address import Address
from service.log import WARNING, JsonLog
from webhook.admission import BadReview
from webhook.connections import HANDSHAKE_SECONDS, BoundedServer
from webhook.deadlines import Deadlines
from webhook.endpoint import Endpoint, Unanswered
from webhook.intake import LARGEST_BODY, Intake, Overloaded
from webhook.metrics import Metrics

if TYPE_CHECKING:
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.web_protocol import RequestHandler

KEEP_ALIVE_SECONDS: Final = 180
"""Above the 90 s after which an API server drops an idle connection: else it may send a review into a closing
one, and a review cut off is never sent again (verified on Kubernetes 1.36.3)."""

MOST_IN_FLIGHT: Final = 512
MOST_CONNECTIONS: Final = 2048
LONGEST_WAIT_SECONDS: Final = 30.0
"""The longest timeoutSeconds that a webhook configuration may have."""

USUAL_WAIT_SECONDS: Final = 10.0
"""timeoutSeconds where nobody sets it (Kubernetes' default)."""

_JSON: Final = {"Content-Type": "application/json"}
_SHUTDOWN_SECONDS: Final = 10.0
_TIMEOUT = re.compile(r"(?:^|&)timeout=([^&]*)")
_DURATION = re.compile(r"(?:([0-9.]+)h)?(?:([0-9.]+)m(?!s))?(?:([0-9.]+)s)?(?:([0-9.]+)ms)?")


class AdmissionPort:
    """Serves reviews over TLS.

    Built on aiohttp's low-level server: a router and middlewares cost as much CPU as reading a review does.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        metrics: Metrics,
        log: JsonLog,
        most_in_flight: int = MOST_IN_FLIGHT,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._endpoints = endpoints
        self._metrics = metrics
        self._log = log
        self._most_in_flight = most_in_flight
        self._most_connections = most_connections
        self._intake = Intake()
        self._deadlines = Deadlines()
        self._is_draining = False
        self._ids = count(1)
        self._id_prefix = secrets.token_hex(4)
        self._server: BoundedServer | None = None
        self._listener: asyncio.Server | None = None
        self._sweeps: list[asyncio.Task[None]] = []

    async def start(self, address: Address, context: ssl.SSLContext) -> Address:
        """Listen; return the address that came of it.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        self._server = BoundedServer(
            self.handle,
            most=self._most_connections,
            request_factory=_request,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
        )
        self._listener = await loop.create_server(
            self._server,
            address.host or None,
            address.port,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=1.0,
            backlog=1024,
        )
        self._sweeps = [
            asyncio.create_task(self._server.close_silent()),
            asyncio.create_task(self._deadlines.sweep()),
        ]
        host, port = self._listener.sockets[-1].getsockname()[:2]
        return Address(host, port)

    def drain(self) -> None:
        """Ask every client to go: from now on each answer closes its connection."""
        self._is_draining = True

    async def stop(self) -> None:
        """Stop listening, close what is idle, finish what is in flight."""
        if self._listener is not None:
            self._listener.close()
        if self._server is not None:
            await asyncio.sleep(0)  # let requests that are already here begin
            self._server.pre_shutdown()
            await self._server.shutdown(_SHUTDOWN_SECONDS)
        for sweep in self._sweeps:
            sweep.cancel()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every error becomes a status and one line."""
        request_id = f"{self._id_prefix}-{next(self._ids):x}"
        self._metrics.in_flight += 1
        try:
            response = await self._answer(request, request_id)
        finally:
            self._metrics.in_flight -= 1
        response.headers["X-Request-Id"] = request_id
        if self._is_draining:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest, request_id: str) -> web.Response:
        endpoint = self._endpoints.get(request.path)
        if endpoint is None:
            return _line(404, "no such path; reviews are posted to " + ", ".join(self._endpoints))
        if request.method != "POST":
            return _line(405, "reviews are posted", Allow="POST")
        if self._metrics.in_flight > self._most_in_flight:
            return self._shed()
        deadline = self._deadlines.begin(patience(request.query_string))
        try:
            body = await self._intake.read(request, deadline)
            return web.Response(body=await endpoint.answer(body, request_id, deadline), headers=_JSON)
        except BadReview as error:
            self._log("bad review", WARNING, request=request_id, path=request.path, problem=str(error))
            return _line(400, str(error))
        except Overloaded:
            return self._shed()
        except TimeoutError:
            self._metrics.failed("slow-body")
            return _closing(_line(408, "the body did not arrive in time"))
        except web.HTTPRequestEntityTooLarge:
            self._metrics.failed("too-large")
            return _closing(_line(413, f"the body is larger than {LARGEST_BODY} bytes"))
        except Unanswered:
            return _line(500, "internal error; the log has its traceback")
        except (ConnectionError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            self._metrics.failed("http")
            self._log.failure("internal error", error, request=request_id, path=request.path)
            return _line(500, "internal error; the log has its traceback")
        finally:
            self._deadlines.finish(deadline)

    def _shed(self) -> web.Response:
        self._metrics.shed.inc()
        return _line(503, "too many reviews at once", **{"Retry-After": "1"})


@lru_cache(maxsize=64)
def patience(query: str) -> float:
    """Seconds the API server waits, from `?timeout=5s`; `USUAL_WAIT_SECONDS` if nothing there can be read.

    The parameter is a Go duration, and what is really left, less than timeoutSeconds where the client's own
    deadline is nearer (verified on Kubernetes 1.36.3).
    """
    found = _TIMEOUT.search(query)
    duration = _DURATION.fullmatch(found[1]) if found and found[1] else None
    if duration is None:
        return USUAL_WAIT_SECONDS
    try:
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in duration.groups())
    except ValueError:
        return USUAL_WAIT_SECONDS
    total = hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    return min(total, LONGEST_WAIT_SECONDS) or USUAL_WAIT_SECONDS


def _request(
    message: "RawRequestMessage",
    payload: StreamReader,
    protocol: "RequestHandler",
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    loop = task.get_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY)


def _line(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response
