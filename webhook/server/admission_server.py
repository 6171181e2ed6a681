"""The admission server: answers reviews over HTTPS.

Other requests get a status and one line, never a traceback. Overload is answered with 503 and Retry-After,
and the API server then repeats the request by itself (verified on Kubernetes 1.36.3).
"""

import asyncio
import re
import secrets
import ssl
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Final

from aiohttp import web

from service.http.bounded_server import BoundedServer
from service.http.fair_queue import FairQueue
from service.http.limits import Address, ConnectionLimits
from service.log import ERROR, WARNING, JsonLog, LimitedLog
from webhook.admission.handler import AdmissionWebhook, ReviewFailed, ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.review import BadReview
from webhook.admission.validating import NamespaceValidator, PodValidator
from webhook.admission.workloads import WorkloadAdvisor
from webhook.metrics import Metrics
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.decision_settings import DecisionSettings
from webhook.server.bodies import LARGEST_BODY, Body, Intake, Overloaded, Room

MOST_IN_FLIGHT: Final = 512
ADMISSION_CONNECTIONS: Final = ConnectionLimits(max_connections=2048)
LONGEST_WAIT_SECONDS: Final = 30.0
"""The maximum timeoutSeconds of a webhook configuration."""

USUAL_WAIT_SECONDS: Final = 10.0
"""Kubernetes' default of timeoutSeconds."""

_JSON: Final = {"Content-Type": "application/json"}
_LEAST_MARGIN_SECONDS: Final = 0.1
_LONGEST_MARGIN_SECONDS: Final = 0.5
_FINISH_SECONDS: Final = 10.0
_SERVER_ERROR: Final = 500
_INTERNAL: Final = "an internal error; the log has its traceback"
_TIMEOUT = re.compile(r"(?:^|&)timeout=([0-9]+(?:\.[0-9]*)?)(m?s)(?:&|$)")


class AdmissionServer:
    """An HTTPS server for the reviews of the four webhooks, with limits on requests, bytes and time.

    It uses aiohttp's low-level server, because a router and middlewares would cost as much CPU as decoding a
    review.
    """

    def __init__(
        self,
        *,
        policies: PolicySource,
        rules: Callable[[], DecisionSettings],
        metrics: Metrics,
        log: JsonLog,
        max_in_flight: int = MOST_IN_FLIGHT,
        limits: ConnectionLimits = ADMISSION_CONNECTIONS,
    ) -> None:
        webhooks: dict[str, AdmissionWebhook] = {
            "/mutate": MutatingWebhook(policies=policies, rules=rules, metrics=metrics),
            "/validate/pods": PodValidator(policies=policies, rules=rules),
            "/validate/namespaces": NamespaceValidator(rules=rules),
            "/warn/workloads": WorkloadAdvisor(policies=policies, rules=rules),
        }
        self._endpoints = {
            path: ReviewHandler(webhook, metrics=metrics, log=log) for path, webhook in webhooks.items()
        }
        self._metrics = metrics
        self._log = log
        self._bad_requests = LimitedLog(log)
        self._limits = limits
        self._intake = Intake()
        self._in_flight = Room(max_in_flight)
        self._is_draining = False
        self._ids = count(1)
        self._id_prefix = secrets.token_hex(4)
        self._server: BoundedServer | None = None

    async def start(self, address: Address, context: ssl.SSLContext) -> Address:
        """Listen; return the actual address (port 0 selects a free port).

        Raises:
            OSError: the address cannot be listened on.
        """
        self._server = server = BoundedServer(
            lambda request: self._handle(request, server),
            refuse=self._refuse,
            limits=self._limits,
            log=self._log,
            context=context,
        )
        return await server.listen(address)

    def drain(self) -> None:
        """Close each connection after its next answer from now on."""
        self._is_draining = True

    @property
    def has_recent_connections(self) -> bool:
        """Whether a client has connected within the last two seconds."""
        return self._server is not None and self._server.has_recent_connections

    async def stop(self) -> None:
        """Stop listening, close idle connections, and finish the requests in flight."""
        self.drain()
        if self._server is None:
            return
        self._intake.shorten_deadlines()
        cut_off = await self._server.finish(_FINISH_SECONDS)
        if cut_off:
            self._log("requests cut off", WARNING, count=cut_off, after_seconds=_FINISH_SECONDS)

    async def _handle(self, request: web.BaseRequest, server: BoundedServer) -> web.StreamResponse:
        """Answer one request; errors are answered with a status and one line.

        Raises:
            ConnectionResetError: the client has disconnected.
        """
        request_id, peer, queue = self._next_id(), server.peer_of(request), server.queue
        endpoint = self._endpoints.get(request.path)
        response = None
        if endpoint is not None and request.method == "POST":
            response = await self._answer(request, request_id, endpoint, peer, queue)
        if response is None:
            await queue.take(peer)
            if endpoint is None:
                response = _line(404, "no such path; reviews are accepted at " + ", ".join(self._endpoints))
            elif request.method != "POST":
                response = _line(405, "only POST is allowed", Allow="POST")
            else:
                self._metrics.shed.inc()
                response = _line(503, "too many reviews at once", **{"Retry-After": "1"})
        return self._with_request_id(response, request_id)

    async def _answer(
        self, request: web.BaseRequest, request_id: str, endpoint: ReviewHandler, peer: str, queue: FairQueue
    ) -> web.Response | None:
        """Return the answer; None if the server is overloaded, whose answer waits without the body."""
        try:
            return await self._review(request, request_id, endpoint, peer, queue)
        except Overloaded:
            return None
        except BadReview as error:
            return self._bad(400, str(error), request_id, request.path)
        except TimeoutError:
            self._metrics.failed("slow-body")
            return _closing(self._bad(408, "the body did not arrive in time", request_id, request.path))
        except web.HTTPRequestEntityTooLarge:
            self._metrics.failed("too-large")
            text = f"the body is larger than {LARGEST_BODY} bytes"
            return _closing(self._bad(413, text, request_id, request.path))
        except ReviewFailed as error:
            return _line(500, str(error))
        except ConnectionResetError:
            raise
        except Exception as error:  # noqa: BLE001 - the traceback belongs in the log
            self._metrics.failed("http")
            self._log.failure("internal error", error, request=request_id, path=request.path)
            return _line(500, _INTERNAL)

    async def _review(
        self, request: web.BaseRequest, request_id: str, endpoint: ReviewHandler, peer: str, queue: FairQueue
    ) -> web.Response:
        deadline = asyncio.get_running_loop().time() + request_timeout(request.query_string)
        data = await self._intake.read(request, peer, deadline, queue)
        body = Body(peer, len(data))
        self._in_flight.enter(body)
        self._metrics.in_flight += 1
        try:
            if not queue.try_take(peer, body.size):
                await _wait_for_turn(body, queue, deadline)
                if request.transport is None:
                    raise ConnectionResetError
            answer = await endpoint.answer(data, request_id, deadline, peer)
        finally:
            self._metrics.in_flight -= 1
            self._in_flight.leave(body)
        return web.Response(body=answer, headers=_JSON)

    def _refuse(self, status: int, problem: str) -> web.StreamResponse:
        """Answer a connection whose bytes are not a valid HTTP request."""
        request_id = self._next_id()
        if status < _SERVER_ERROR:
            self._metrics.failed("decode")
            response = self._bad(status, problem, request_id)
        else:
            self._metrics.failed("http")
            self._log("internal error", ERROR, request=request_id, problem=problem)
            response = _line(status, _INTERNAL)
        return self._with_request_id(response, request_id)

    def _next_id(self) -> str:
        return f"{self._id_prefix}-{next(self._ids):x}"

    def _with_request_id(self, response: web.Response, request_id: str) -> web.Response:
        response.headers["X-Request-Id"] = request_id
        if self._is_draining:
            response.force_close()
        return response

    def _bad(self, status: int, problem: str, request_id: str, path: str = "") -> web.Response:
        self._bad_requests("bad review", WARNING, request=request_id, path=path, problem=problem)
        return _line(status, problem)


async def _wait_for_turn(body: Body, queue: FairQueue, deadline: float) -> None:
    """Wait for the turn of a review that is in flight.

    Raises:
        Overloaded: the API server waits no longer, or the body was dropped to make room for another one.
    """
    try:
        async with asyncio.timeout_at(deadline) as body.timeout:
            await queue.take(body.peer, body.size)
    except TimeoutError:
        raise Overloaded from None
    body.timeout = None


@lru_cache(maxsize=64)
def request_timeout(query: str) -> float:
    """Return the time limit of a request in seconds, from its query parameter `timeout` (such as `5s`).

    The parameter is a Go duration with the remaining time, which is less than timeoutSeconds if the client's
    own deadline is nearer (verified on Kubernetes 1.36.3). It is at most 30 s, so that it has one part, such
    as `5s`, `1.5s` or `500ms`. A margin is subtracted, because that time began
    before the request arrived and the answer has to travel. Without a readable parameter Kubernetes' default
    applies.
    """
    limit = min(_duration(query) or USUAL_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    return limit - min(_LEAST_MARGIN_SECONDS + limit / 10, limit / 2, _LONGEST_MARGIN_SECONDS)


def _duration(query: str) -> float:
    """Return the query parameter `timeout` in seconds; 0 if it is missing or unreadable."""
    parameter = _TIMEOUT.search(query)
    if parameter is None:
        return 0
    return float(parameter[1]) * (0.001 if parameter[2] == "ms" else 1)


def _line(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response
