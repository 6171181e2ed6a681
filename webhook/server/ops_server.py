"""The HTTP server for metrics, health and policies."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from service.http.limits import Address, ConnectionLimits, plain_port_limits
from service.http.page_server import OPEN_PORT, Page, PageServer, PortSecurity, SharedText, text_page
from service.log import JsonLog
from webhook.metrics import Metrics
from webhook.namespaces.policy_source import PolicySource
from webhook.policy.labels import NamespacePolicy, policy_json, with_queue_problem

OPS_CONNECTIONS: Final = plain_port_limits(128)
AUDIENCE: Final = "kaishare-webhook"
"""Audience of tokens for this service alone."""
_JSON: Final = {"Content-Type": "application/json"}
_OPS_FINISH_SECONDS: Final = 2.0
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class OpsServer:
    """An HTTP server for `/metrics`, `/policies`, `/healthz` and `/readyz`."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        metrics: Metrics,
        log: JsonLog,
        queues: Callable[[], frozenset[str] | None] = lambda: None,
        certificate_problem: Callable[[], str] = lambda: "",
        limits: ConnectionLimits = OPS_CONNECTIONS,
    ) -> None:
        self._policies = policies
        self._queues = queues
        self._certificate_problem = certificate_problem
        self._metrics = metrics
        self._limits = limits
        self._is_draining = False
        self._large_page = asyncio.Lock()
        """Held while a large page is built: `/policies` of 10,000 namespaces with errors takes 50 MB."""
        pages = {
            "/metrics": self._scrape,
            "/policies": self._list_policies,
            "/healthz": self._alive,
            "/readyz": self._ready,
        }
        self._server = PageServer(
            pages,
            not_found="no such page; available: " + ", ".join(pages),
            method_not_allowed="only GET and HEAD are allowed",
            log=log,
            on_error=lambda: metrics.failed("http"),
        )

    async def start(self, address: Address, security: PortSecurity = OPEN_PORT) -> Address:
        """Listen; return the actual address (port 0 selects a free port).

        Raises:
            OSError: the address cannot be listened on.
        """
        limits = self._limits.with_tls() if security.context else self._limits
        return await self._server.start(address, limits, security=security)

    def drain(self) -> None:
        """Report not ready from now on."""
        self._is_draining = True

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        await self._server.stop(_OPS_FINISH_SECONDS)

    async def _scrape(self) -> Page:
        async with self._large_page:
            text = SharedText(await asyncio.to_thread(self._metrics.text))
            return Page(body=text, headers=_PROMETHEUS)

    async def _list_policies(self) -> Page:
        async with self._large_page:
            policies = self._policies.all()
            if policies is None:
                return text_page("policies not loaded yet; see the log\n", status=503)
            text = SharedText(await asyncio.to_thread(_as_json, policies, self._queues()))
            return Page(body=text, headers=_JSON)

    async def _alive(self) -> Page:
        return text_page("ok\n")

    async def _ready(self) -> Page:
        if self._is_draining:
            return text_page("draining\n", status=503)
        if not self._policies.ready:
            return text_page("policies not loaded or stale; see the log\n", status=503)
        if problem := self._certificate_problem():
            return text_page(f"no trusted certificate yet: {problem}\n", status=503)
        return text_page("ok\n")


def _as_json(policies: Mapping[str, NamespacePolicy], queues: frozenset[str] | None) -> bytes:
    """Encode all policies as JSON. Call it in a thread, because thousands of policies take up to a second.

    Policies are encoded one by one, because encoding all at once would hold the interpreter lock for 60 ms.
    """
    checked = (with_queue_problem(policy, queues) for _, policy in sorted(policies.items()))
    encoded = (orjson.dumps(policy_json(policy)) for policy in checked)
    return b"[" + b",".join(encoded) + b"]"
