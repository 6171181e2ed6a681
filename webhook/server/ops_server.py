"""The plain port: metrics, health and policies."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from service.http.limits import ConnectionLimits, plain_port_limits
from service.http.listeners import Address
from service.http.page_server import Page, PageServer, text_page
from service.log import JsonLog
from webhook.metrics import Metrics
from webhook.namespaces.source import PolicySource
from webhook.policy.labels import NamespacePolicy

OPS_CONNECTIONS: Final = plain_port_limits(128)
_JSON: Final = {"Content-Type": "application/json"}
_OPS_FINISH_SECONDS: Final = 2.0
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class OpsServer:
    """Serves `/metrics`, `/policies`, `/healthz` and `/readyz` in the clear."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        metrics: Metrics,
        log: JsonLog,
        certificate_problem: Callable[[], str] = lambda: "",
        limits: ConnectionLimits = OPS_CONNECTIONS,
    ) -> None:
        self._policies = policies
        self._certificate_problem = certificate_problem
        self._metrics = metrics
        self._limits = limits
        self._is_draining = False
        self._large_page = asyncio.Lock()
        """Held while one large page is written: 10,000 namespaces with errors take 50 MB of `/policies`."""
        pages = {
            "/metrics": self._scrape,
            "/policies": self._list_policies,
            "/healthz": self._alive,
            "/readyz": self._ready,
        }
        self._server = PageServer(
            pages,
            not_found="no such page; there are " + ", ".join(pages),
            method_not_allowed="pages are read",
            log=log,
            on_error=lambda: metrics.failed("http"),
        )

    async def start(self, address: Address) -> Address:
        """Listen; return the address that came of it.

        Raises:
            OSError: the address cannot be listened on.
        """
        return await self._server.start(address, self._limits)

    def drain(self) -> None:
        """Be not ready from now on."""
        self._is_draining = True

    async def stop(self) -> None:
        """Stop listening and close."""
        await self._server.stop(_OPS_FINISH_SECONDS)

    async def _scrape(self) -> Page:
        async with self._large_page:
            return Page(body=await asyncio.to_thread(self._metrics.text), headers=_PROMETHEUS)

    async def _list_policies(self) -> Page:
        async with self._large_page:
            known = self._policies.all()
            if known is None:
                return text_page("no policies are known yet; the log says why\n", status=503)
            return Page(body=await asyncio.to_thread(_as_json, known), headers=_JSON)

    async def _alive(self) -> Page:
        return text_page("ok\n")

    async def _ready(self) -> Page:
        if self._is_draining:
            return text_page("draining\n", status=503)
        if not self._policies.ready:
            return text_page("no policies, or none that are recent; the log says why\n", status=503)
        if problem := self._certificate_problem():
            return text_page(f"no trusted certificate yet: {problem}\n", status=503)
        return text_page("ok\n")


def _as_json(policies: Mapping[str, NamespacePolicy]) -> bytes:
    """Write all policies; for a thread of its own, since thousands take up to a second.

    Each policy is encoded by itself: one encoding of all of them would hold the interpreter for 60 ms.
    """
    encoded = (orjson.dumps(policy_json(policy)) for _, policy in sorted(policies.items()))
    return b"[" + b",".join(encoded) + b"]"


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
