"""Both ports and the three webhooks together."""

import ssl
from collections.abc import Callable

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


class Server:
    """Both ports and the three webhooks, started, drained and stopped together."""

    def __init__(
        self,
        *,
        policies: PolicySource,
        rules: Rules,
        metrics: Metrics,
        log: JsonLog,
        certificate_problem: Callable[[], str] = lambda: "",
        most_in_flight: int = MOST_IN_FLIGHT,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        judges: dict[str, Judge] = {
            "/mutate": MutatingWebhook(policies=policies, rules=rules, metrics=metrics),
            "/validate/pods": PodValidator(policies=policies, rules=rules),
            "/validate/namespaces": NamespaceValidator(),
        }
        self._ops = OpsPort(
            policies=policies, metrics=metrics, log=log, certificate_problem=certificate_problem
        )
        self._admission = AdmissionPort(
            {path: Endpoint(judge, metrics=metrics, log=log) for path, judge in judges.items()},
            metrics=metrics,
            log=log,
            most_in_flight=most_in_flight,
            most_connections=most_connections,
        )

    async def open_ops(self, listen: Address) -> Address:
        """Open the plain port; return the address that came of it (port 0 takes any free one).

        Raises:
            OSError: the address cannot be listened on.
        """
        return await self._ops.start(listen)

    async def open_admission(self, listen: Address, context: ssl.SSLContext) -> Address:
        """Open the admission port, as `open_ops`."""
        return await self._admission.start(listen, context)

    def drain(self) -> None:
        """Be not ready, and let every client go after its next answer."""
        self._ops.drain()
        self._admission.drain()

    @property
    def is_sought(self) -> bool:
        """Whether somebody has connected to the admission port within the last two seconds."""
        return self._admission.is_sought

    async def stop(self) -> None:
        """Stop listening, finish what is in flight, close; the admission port first."""
        await self._admission.stop()
        await self._ops.stop()
