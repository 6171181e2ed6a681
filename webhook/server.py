"""The two ports together; and the plain one, with metrics, health and policies."""

import ssl
from typing import Final

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from service.address import Address
from service.log import JsonLog
from webhook.decide import Rules
from webhook.endpoint import Endpoint, Judge
from webhook.metrics import Metrics
from webhook.mutating import MutatingWebhook
from webhook.policies import PolicySource
from webhook.policy import NamespacePolicy
from webhook.port import MOST_CONNECTIONS, MOST_IN_FLIGHT, AdmissionPort
from webhook.validating import NamespaceValidator, PodValidator

_JSON: Final = {"Content-Type": "application/json"}
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class OpsPort:
    """Serves `/metrics`, `/policies`, `/healthz` and `/readyz` in the clear."""

    def __init__(self, *, policies: PolicySource, metrics: Metrics, log: JsonLog) -> None:
        self._policies = policies
        self._metrics = metrics
        self._log = log
        self._is_draining = False
        self._runner: web.AppRunner | None = None

    async def start(self, address: Address) -> Address:
        """Listen; return the address that came of it.

        Raises:
            OSError: the address cannot be listened on.
        """
        app = web.Application(middlewares=[_plain_errors(self._metrics, self._log)])
        app.router.add_get("/metrics", self._scrape)
        app.router.add_get("/policies", self._list_policies)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, address.host or None, address.port).start()
        host, port = self._runner.addresses[-1][:2]
        return Address(host, port)

    def drain(self) -> None:
        """Be not ready from now on."""
        self._is_draining = True

    async def stop(self) -> None:
        """Stop listening and close."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers=_PROMETHEUS)

    async def _list_policies(self, _request: web.Request) -> web.Response:
        shown = [policy_json(policy) for _, policy in sorted(self._policies.all().items())]
        return web.Response(body=orjson.dumps(shown), headers=_JSON)

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._is_draining:
            return web.Response(status=503, text="draining\n")
        if not self._policies.ready:
            return web.Response(status=503, text="no policies yet\n")
        return web.Response(text="ok\n")


def _plain_errors(metrics: Metrics, log: JsonLog) -> Middleware:
    """Turn every error of the plain port into a status and one line."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n")
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            metrics.failed("http")
            log.failure("internal error", error, path=request.path)
            return web.Response(status=500, text="internal error; the log has its traceback\n")

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
    """Both ports and the three webhooks, started, drained and stopped together."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        rules: Rules,
        metrics: Metrics,
        log: JsonLog,
        context: ssl.SSLContext,
        most_in_flight: int = MOST_IN_FLIGHT,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        judges: dict[str, Judge] = {
            "/mutate": MutatingWebhook(policies=policies, rules=rules, metrics=metrics),
            "/validate/pods": PodValidator(policies=policies, rules=rules),
            "/validate/namespaces": NamespaceValidator(),
        }
        self._context = context
        self._ops = OpsPort(policies=policies, metrics=metrics, log=log)
        self._admission = AdmissionPort(
            {path: Endpoint(judge, metrics=metrics, log=log) for path, judge in judges.items()},
            metrics=metrics,
            log=log,
            most_in_flight=most_in_flight,
            most_connections=most_connections,
        )

    async def start(self, listen: Address, ops_listen: Address) -> tuple[Address, Address]:
        """Listen; return the addresses that came of it (port 0 takes any free one).

        Raises:
            OSError: an address cannot be listened on.
        """
        ops = await self._ops.start(ops_listen)
        return await self._admission.start(listen, self._context), ops

    def drain(self) -> None:
        """Be not ready, and let every client go after its next answer."""
        self._ops.drain()
        self._admission.drain()

    async def stop(self) -> None:
        """Stop listening, finish what is in flight, close; the admission port first."""
        await self._admission.stop()
        await self._ops.stop()
