"""Combines the three webhooks, the admission server and the ops server."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from service.http.limits import ConnectionLimits
from service.http.listeners import Address
from service.http.page_server import OPEN_PORT, PortSecurity
from service.log import JsonLog
from webhook.admission.handler import AdmissionWebhook, ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.validating import NamespaceValidator, PodValidator
from webhook.metrics import Metrics
from webhook.namespaces.source import PolicySource
from webhook.policy.rules import Rules
from webhook.server.admission_server import ADMISSION_CONNECTIONS, MOST_IN_FLIGHT, AdmissionServer
from webhook.server.ops_server import OPS_CONNECTIONS, OpsServer


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Connection limits of both ports."""

    admission: ConnectionLimits = ADMISSION_CONNECTIONS
    ops: ConnectionLimits = OPS_CONNECTIONS

    def within(self, descriptors: int) -> "PortLimits":
        """Return limits for a number of file descriptors, of which the plain port gets at most a quarter."""
        ops = self.ops.within(descriptors // 4)
        return PortLimits(admission=self.admission.within(descriptors - ops.max_connections), ops=ops)


PORT_LIMITS: Final = PortLimits()


class Server:
    """The admission server and the ops server, started, drained and stopped together."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        rules: Callable[[], Rules],
        metrics: Metrics,
        log: JsonLog,
        certificate_problem: Callable[[], str] = lambda: "",
        max_in_flight: int = MOST_IN_FLIGHT,
        limits: PortLimits = PORT_LIMITS,
    ) -> None:
        webhooks: dict[str, AdmissionWebhook] = {
            "/mutate": MutatingWebhook(policies=policies, rules=rules, metrics=metrics),
            "/validate/pods": PodValidator(policies=policies, rules=rules),
            "/validate/namespaces": NamespaceValidator(rules=rules),
        }
        self._ops = OpsServer(
            policies=policies,
            metrics=metrics,
            log=log,
            certificate_problem=certificate_problem,
            limits=limits.ops,
        )
        self._admission = AdmissionServer(
            {path: ReviewHandler(webhook, metrics=metrics, log=log) for path, webhook in webhooks.items()},
            metrics=metrics,
            log=log,
            max_in_flight=max_in_flight,
            limits=limits.admission,
        )

    async def open_ops(self, listen: Address, security: PortSecurity = OPEN_PORT) -> Address:
        """Open the ops port; return the actual address (port 0 selects a free port).

        Raises:
            OSError: the address cannot be listened on.
        """
        return await self._ops.start(listen, security)

    async def open_admission(self, listen: Address, context: ssl.SSLContext) -> Address:
        """Open the admission port; return the actual address. Raises as `open_ops`."""
        return await self._admission.start(listen, context)

    def drain(self) -> None:
        """Report not ready, and close each connection after its next answer."""
        self._ops.drain()
        self._admission.drain()

    @property
    def has_recent_connections(self) -> bool:
        """Whether a client has connected to the admission port within the last two seconds."""
        return self._admission.has_recent_connections

    async def stop(self) -> None:
        """Stop listening and finish the requests in flight, on the admission port first."""
        await self._admission.stop()
        await self._ops.stop()
