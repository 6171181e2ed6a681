"""HTTP server of the agent.

It shows all tenants' pods, and is for administrators of the host. `/api/v1/shares?namespace=NAME` has the
pods of one namespace, for users with that right in it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from gpuagent.api_types import HISTORY_PATH, SHARES_PATH, AgentResponse
from gpuagent.evaluation.status import Evaluation
from gpuagent.server.api import NO_LINKS, PageLinks, history_json, of_namespace, response_of, shares_json
from gpuagent.server.exposition import Metrics, SampleText, content_key
from service.http.authentication import HEALTH_PATHS
from service.http.host_names import HostNames
from service.http.limits import Address, ConnectionLimits, plain_port_limits
from service.http.page_server import OPEN_PORT, Page, PageServer, PortSecurity, SharedText, text_page
from service.log import JsonLog
from service.page import static_pages

AGENT_CONNECTIONS: Final = plain_port_limits(256)
FORWARDED_PATHS: Final = HEALTH_PATHS | {SHARES_PATH, HISTORY_PATH}
"""Paths that the API server's pod proxy may request under the API server's host name."""
AUDIENCE: Final = "kaishare-agent"
"""Audience of the tokens in X-Kaishare-Token."""

_JSON: Final = {"Content-Type": "application/json"}
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class HttpServer:
    """Serves the page at `/`, `/metrics`, `/api/v1/shares`, `/api/v1/history`, `/healthz` and `/readyz`."""

    def __init__(
        self,
        *,
        status: Callable[[], Evaluation],
        unhealthy_reason: Callable[[], str],
        metrics: Metrics,
        node: str,
        is_simulated: bool,
        log: JsonLog,
        page_links: PageLinks = NO_LINKS,
    ) -> None:
        """Set the sources of the responses.

        `unhealthy_reason` returns one line if the agent must restart, else an empty string. `page_links` are
        addresses outside of the agent to which the page links.
        """
        self._status = status
        self._unhealthy_reason = unhealthy_reason
        self._metrics = metrics
        self._node = node
        self._metrics_text = SampleText(metrics.sample_parts)
        self._shares_text = SampleText(
            lambda status: (shares_json(status, node=node, is_simulated=is_simulated, links=page_links),)
        )
        self._response: tuple[object, AgentResponse] | None = None
        self._respond = partial(response_of, node=node, is_simulated=is_simulated, links=page_links)
        self._history_text = SampleText(lambda status: (history_json(status, node=node),))
        self._server = PageServer(
            {
                **{path: partial(_unchanged, page) for path, page in static_pages().items()},
                "/metrics": self._scrape,
                SHARES_PATH: self._shares,
                HISTORY_PATH: self._history,
                "/healthz": self._alive,
                "/readyz": self._ready,
            },
            not_found=f"not found; available paths: /, {SHARES_PATH}, {HISTORY_PATH}, /metrics, /healthz,"
            " /readyz",
            method_not_allowed="Method Not Allowed",
            log=log,
            parts={SHARES_PATH: self._shares_of},
        )

    async def start(
        self,
        address: Address,
        limits: ConnectionLimits = AGENT_CONNECTIONS,
        host_names: Iterable[str] = (),
        security: PortSecurity = OPEN_PORT,
    ) -> Address:
        """Listen, and return the actual address; OSError if the address is not available.

        `host_names` are accepted beside IP addresses, localhost and the node's name.
        """
        names = frozenset(name.removesuffix(".").lower() for name in (self._node, *host_names)) - {""}
        return await self._server.start(
            address, limits, HostNames(names=names, forwarded_paths=FORWARDED_PATHS), security
        )

    async def stop(self) -> None:
        """Stop listening and close."""
        await self._server.stop(1.0)

    async def _scrape(self) -> Page:
        status = self._status()
        text = self._metrics_text.at(status)
        return Page(body=text, after=self._metrics.agent_text(status), headers=_PROMETHEUS)

    async def _shares(self) -> Page:
        return Page(body=self._shares_text.at(self._status()), headers=_JSON)

    async def _shares_of(self, namespace: str) -> Page:
        """Return a namespace's part; all parts of a sample are cut from one response."""
        status = self._status()
        key = content_key(status)
        if self._response is None or self._response[0] != key:
            self._response = key, self._respond(status)
        part = of_namespace(self._response[1], namespace)
        return Page(body=SharedText(msgspec.json.encode(part)), headers=_JSON)

    async def _history(self) -> Page:
        return Page(body=self._history_text.at(self._status()), headers=_JSON)

    async def _alive(self) -> Page:
        unhealthy_reason = self._unhealthy_reason()
        return text_page(f"{unhealthy_reason}\n", status=503) if unhealthy_reason else text_page("ok\n")

    async def _ready(self) -> Page:
        """Answer that the agent answers.

        The state of driver and pods is a metric and a problem. If it counted here, one broken node would stop
        the update of every agent: the DaemonSet controller counts pods that are not ready as unavailable.
        """
        return text_page("ok\n")


async def _unchanged(page: Page) -> Page:
    return page
