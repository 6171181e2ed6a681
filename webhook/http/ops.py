"""The plain port: metrics, health and policies."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import orjson
from aiohttp import web

from service.address import Address
from service.log import JsonLog
from webhook.http.connections import BoundedServer
from webhook.metrics import Metrics
from webhook.policies.source import PolicySource
from webhook.policy import NamespacePolicy

_JSON: Final = {"Content-Type": "application/json"}
_MOST_OPS_CONNECTIONS: Final = 128
_OPS_KEEP_ALIVE_SECONDS: Final = 180.0
_OPS_FINISH_SECONDS: Final = 2.0
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class OpsPort:
    """Serves `/metrics`, `/policies`, `/healthz` and `/readyz` in the clear."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        metrics: Metrics,
        log: JsonLog,
        certificate_problem: Callable[[], str] = lambda: "",
    ) -> None:
        self._policies = policies
        self._certificate_problem = certificate_problem
        self._metrics = metrics
        self._log = log
        self._is_draining = False
        self._server: BoundedServer | None = None
        self._pages: dict[str, Callable[[], Awaitable[web.Response]]] = {
            "/metrics": self._scrape,
            "/policies": self._list_policies,
            "/healthz": self._alive,
            "/readyz": self._ready,
        }

    async def start(self, address: Address) -> Address:
        """Listen; return the address that came of it.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._server = BoundedServer(
            self._answer,
            refuse=self._refuse,
            most=_MOST_OPS_CONNECTIONS,
            keep_alive_seconds=_OPS_KEEP_ALIVE_SECONDS,
        )
        return await self._server.listen(address)

    def drain(self) -> None:
        """Be not ready from now on."""
        self._is_draining = True

    async def stop(self) -> None:
        """Stop listening and close."""
        if self._server is not None:
            await self._server.finish(_OPS_FINISH_SECONDS)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        page = self._pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="no such page; there are " + ", ".join(self._pages) + "\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="pages are read\n", headers={"Allow": "GET, HEAD"})
        try:
            return await page()
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            self._metrics.failed("http")
            self._log.failure("internal error", error, path=request.path)
            return web.Response(status=500, text="internal error; the log has its traceback\n")

    def _refuse(self, status: int, error: BaseException | None) -> web.StreamResponse:
        response = web.Response(status=status, text=f"no HTTP request: {type(error).__name__}\n")
        response.force_close()
        return response

    async def _scrape(self) -> web.Response:
        return web.Response(body=await asyncio.to_thread(self._metrics.text), headers=_PROMETHEUS)

    async def _list_policies(self) -> web.Response:
        known = self._policies.all()
        if known is None:
            return web.Response(status=503, text="no policies are known yet; the log says why\n")
        return web.Response(body=await asyncio.to_thread(_as_json, known), headers=_JSON)

    async def _alive(self) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self) -> web.Response:
        if self._is_draining:
            return web.Response(status=503, text="draining\n")
        if not self._policies.ready:
            return web.Response(status=503, text="no policies, or none that are recent; the log says why\n")
        if problem := self._certificate_problem():
            return web.Response(status=503, text=f"no trusted certificate yet: {problem}\n")
        return web.Response(text="ok\n")


def _as_json(policies: Mapping[str, NamespacePolicy]) -> bytes:
    """Thousands take their time, which is no review's: for another thread."""
    return orjson.dumps([policy_json(policy) for _, policy in sorted(policies.items())])


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
