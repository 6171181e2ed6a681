"""The two ports: admission over TLS, and metrics, health and policies in the clear.

The admission port serves nothing but reviews. Whatever is not a review is answered with a status and one
line, never with a traceback.
"""

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

import orjson
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler, Middleware

from service.address import Address
from service.log import JsonLog
from webhook.admission import BadReview
from webhook.metrics import Metrics
from webhook.mutating import MutatingWebhook
from webhook.policies import PolicySource
from webhook.policy import NamespacePolicy

if TYPE_CHECKING:
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.web_protocol import RequestHandler

LARGEST_BODY: Final = 8 * 1024 * 1024
"""Bytes. A review holds an object and its old self; API servers accept objects of 3 MiB."""

KEEP_ALIVE_SECONDS: Final = 180
"""Above the 90 s after which an API server drops an idle connection: else it may send a review into a closing
one, and a review cut off is never sent again (verified on Kubernetes 1.36.3)."""

_SHUTDOWN_SECONDS: Final = 10.0
_JSON: Final = {"Content-Type": "application/json"}
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class AdmissionPort:
    """Serves reviews on their paths, and nothing else.

    Built on aiohttp's low-level server: a router and middlewares cost as much CPU as reading a review does.
    """

    def __init__(self, *, mutating: MutatingWebhook, metrics: Metrics, log: JsonLog) -> None:
        self._paths = {"/mutate": mutating.answer}
        self._metrics = metrics
        self._log = log

    def runner(self) -> web.ServerRunner:
        """Make the runner; call it in a running event loop."""
        server = web.Server(
            self.handle, request_factory=_request, access_log=None, keepalive_timeout=KEEP_ALIVE_SECONDS
        )
        return web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every error becomes a status and one line."""
        answer = self._paths.get(request.path)
        if answer is None:
            return _line(404, "no such path; reviews are posted to " + ", ".join(self._paths))
        if request.method != "POST":
            return _line(405, "reviews are posted", Allow="POST")
        self._metrics.in_flight += 1
        try:
            return web.Response(body=await answer(await request.read()), headers=_JSON)
        except BadReview as error:
            return _line(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            self._metrics.failed("too-large")
            return _line(413, f"the body is larger than {LARGEST_BODY} bytes", Connection="close")
        except (ConnectionError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            self._metrics.failed("http")
            self._log.failure("internal error", error, path=request.path)
            return _line(500, "internal error; the log has its traceback")
        finally:
            self._metrics.in_flight -= 1


def _request(
    message: "RawRequestMessage",
    payload: StreamReader,
    protocol: "RequestHandler",
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    loop = task.get_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY)


def ops_app(policies: PolicySource, metrics: Metrics, log: JsonLog) -> web.Application:
    """The application of the plain port."""

    async def scrape(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers=_PROMETHEUS)

    async def list_policies(_request: web.Request) -> web.Response:
        shown = [policy_json(policy) for _, policy in sorted(policies.all().items())]
        return web.Response(body=orjson.dumps(shown), headers=_JSON)

    async def alive(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if policies.ready else _line(503, "no policies yet")

    app = web.Application(middlewares=[_plain_errors(metrics, log)])
    app.router.add_get("/metrics", scrape)
    app.router.add_get("/policies", list_policies)
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    return app


def _plain_errors(metrics: Metrics, log: JsonLog) -> Middleware:
    """Turn every error of the plain port into a status and one line."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _line(error.status, error.reason)
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            metrics.failed("http")
            log.failure("internal error", error, path=request.path)
            return _line(500, "internal error; the log has its traceback")

    return middleware


def policy_json(policy: NamespacePolicy) -> dict[str, object]:
    """Show a policy as it is applied, and what of it is not."""
    return {
        "namespace": policy.namespace,
        "state": policy.state,
        "mode": policy.mode,
        "queue": policy.queue,
        "scheduler": policy.scheduler,
        "share": {policy.share.annotation: policy.share.value} if policy.share else None,
        "shareFor": policy.share_for,
        "maxGpuFraction": policy.max_fraction,
        "maxGpuMemory": policy.max_memory_mib,
        "priority": policy.priority,
        "gpuToleration": policy.inject_toleration,
        "overShare": policy.over_share,
        "overShareGraceSeconds": policy.over_share_grace_seconds,
        "problems": [{"label": p.label, "value": p.value, "message": str(p)} for p in policy.problems],
    }


class Server:
    """Both ports, started and stopped together."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        mutating: MutatingWebhook,
        metrics: Metrics,
        log: JsonLog,
        context: ssl.SSLContext,
    ) -> None:
        self._context = context
        self._admission = AdmissionPort(mutating=mutating, metrics=metrics, log=log)
        self._ops = ops_app(policies, metrics, log)
        self._runners: list[web.BaseRunner] = []

    async def start(self, listen: Address, ops_listen: Address) -> tuple[Address, Address]:
        """Listen; return the addresses that came of it (port 0 takes any free one).

        Raises:
            OSError: an address cannot be listened on.
        """
        ops = await self._listen(
            web.AppRunner(self._ops, access_log=None, handle_signals=False), ops_listen, None
        )
        return await self._listen(self._admission.runner(), listen, self._context), ops

    async def _listen(
        self, runner: web.BaseRunner, address: Address, context: ssl.SSLContext | None
    ) -> Address:
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, address.host or None, address.port, ssl_context=context).start()
        host, port = runner.addresses[-1][:2]
        return Address(host, port)

    async def stop(self) -> None:
        """Stop listening, finish what is in flight, close; the admission port first."""
        while self._runners:
            await self._runners.pop().cleanup()


def _line(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=headers)
