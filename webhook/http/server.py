"""Both ports and the three webhooks together."""

import ssl
from typing import Final

from service.address import Address
from service.log import JsonLog
from webhook.decide import Rules
from webhook.endpoint import Endpoint, Judge
from webhook.http.ops import OpsPort
from webhook.http.port import MOST_CONNECTIONS, MOST_IN_FLIGHT, AdmissionPort
from webhook.metrics import Metrics
from webhook.mutating import MutatingWebhook
from webhook.policies.source import PolicySource
from webhook.validating import NamespaceValidator, PodValidator

_JSON: Final = {"Content-Type": "application/json"}
_MOST_OPS_CONNECTIONS: Final = 128
_OPS_KEEP_ALIVE_SECONDS: Final = 180.0
_OPS_FINISH_SECONDS: Final = 2.0
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


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
