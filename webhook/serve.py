"""`kaishare-webhook serve`: put the parts together, run until told to stop."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube.access import find_access
from kube.client import KubeClient
from service.descriptors import descriptors_for_connections
from service.http.listeners import Address
from service.log import WARNING, JsonLog
from webhook.certificates.cluster import SelfSignedCertificate, SelfSignedSettings
from webhook.certificates.files import FileCertificate, FileSettings
from webhook.metrics import Metrics
from webhook.namespaces.cluster_rules import ClusterRules
from webhook.namespaces.open import Work, open_cluster, open_files
from webhook.namespaces.source import PolicySource
from webhook.policy.decide import Rules
from webhook.registration.configurations import CONFIGURATION_NAME
from webhook.registration.order import open_order
from webhook.server.admission_server import MOST_IN_FLIGHT
from webhook.server.drain import DRAIN_SECONDS, drained, wait_for
from webhook.server.server import PORT_LIMITS, Server
from webhook.server.tls import CertificateSource

_SWITCH_SECONDS = 0.0005
"""How long a thread that looks at files or renders metrics may keep reviews waiting; 5 ms by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `serve` is told."""

    rules: Rules
    certificates: FileSettings | SelfSignedSettings
    listen: Address
    ops_listen: Address
    policies: Path | None = None
    """File or directory; None: the namespaces of the cluster."""
    kubeconfig: str | None = None
    """How to reach the cluster, other than as kube.access.find_access would."""
    webhook_configuration: str = CONFIGURATION_NAME
    """The name of our own, whose place among others is watched."""
    drain_seconds: float = DRAIN_SECONDS
    most_in_flight: int = MOST_IN_FLIGHT


async def serve(settings: Settings, log: JsonLog) -> None:
    """Serve until SIGTERM, then drain; until SIGINT, or a second SIGTERM, then only finish what is in flight.

    Raises:
        webhook.namespaces.documents.PoliciesError: the policies cannot be read.
        kube.access.AccessError: they, or the CA, are in a cluster, and there is no way to its API server.
        certs.directory.CertificateError: no usable certificate.
        OSError: an address cannot be listened on.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop, drain = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: stop.set() if drain.is_set() else drain.set())

    unheard: OSError | None = None
    async with AsyncExitStack() as stack:
        metrics, cluster = Metrics(), _Cluster(settings.kubeconfig, stack)
        metrics.show_log(lambda: log.lines_lost)
        opened = await _open_policies(settings, cluster, metrics, log)
        policies = opened.source
        certificate = await _certificate(settings, cluster, metrics, log)
        server = Server(
            policies=policies,
            rules=opened.rules,
            metrics=metrics,
            log=log,
            certificate_problem=lambda: certificate.problem,
            most_in_flight=settings.most_in_flight,
            limits=PORT_LIMITS.within(descriptors_for_connections()),
        )
        stack.push_async_callback(server.stop)
        ops = await server.open_ops(settings.ops_listen)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(work()) for work in (*opened.work, certificate.run)]
            if not certificate.issued.is_set():
                log("waiting for a certificate", ops=f"http://{ops}")
                await wait_for(stop, drain, certificate.issued)
            if certificate.issued.is_set():
                try:
                    admission = await server.open_admission(settings.listen, certificate.context)
                except OSError as error:  # raised below, and not as one of a group
                    unheard = error
                    stop.set()
                else:
                    gc.collect()
                    gc.freeze()  # a full collection of all imports would stop a review for some 15 ms
                    log("serving", admission=f"https://{admission}", ops=f"http://{ops}", **_known(policies))
            await wait_for(stop, drain)
            if not stop.is_set():
                log("draining", seconds=settings.drain_seconds)
                server.drain()
                if not await drained(lambda: server.has_recent_connections, settings.drain_seconds, stop):
                    log("connections still arrive, and will be refused: a longer --drain may help", WARNING)
            log("stopping")
            for task in running:
                task.cancel()
    if unheard is not None:
        raise unheard
    log("stopped")


def _known(policies: PolicySource) -> dict[str, Any]:
    """How many namespaces are managed, as soon as that is known."""
    known = policies.all()
    return {} if known is None else {"namespaces": len(known)}


class _Cluster:
    """The one connection to the API server, made when somebody needs it."""

    def __init__(self, kubeconfig: str | None, stack: AsyncExitStack) -> None:
        self._kubeconfig = kubeconfig
        self._stack = stack
        self._client: KubeClient | None = None

    async def client(self) -> KubeClient:
        """Return it.

        Raises:
            kube.access.AccessError: there is no way to an API server.
        """
        if self._client is None:
            client = KubeClient(await find_access(self._kubeconfig))
            self._client = await self._stack.enter_async_context(client)
        return self._client


@dataclass(frozen=True, slots=True)
class _Decisive:
    """All that decisions rest on, and the work that keeps it up to date."""

    source: PolicySource
    rules: Callable[[], Rules]
    work: Sequence[Work]


async def _open_policies(
    settings: Settings, cluster: "_Cluster", metrics: Metrics, log: JsonLog
) -> _Decisive:
    """Open the source of policies; in a cluster also the watches on facts about it and on webhooks' order."""
    if settings.policies is not None:
        opened = await open_files(settings.policies, metrics=metrics, log=log)
        return _Decisive(opened.source, lambda: settings.rules, opened.work)
    client = await cluster.client()
    opened = open_cluster(client, metrics=metrics, log=log)
    order = open_order(client, own=settings.webhook_configuration, metrics=metrics, log=log)
    rules = ClusterRules(client, settings.rules, log=log, on_error=lambda: metrics.failed("cluster-rules"))
    metrics.show_watch(rules.watch)
    return _Decisive(opened.source, lambda: rules.current, (*opened.work, order, rules.run))


async def _certificate(
    settings: Settings, cluster: "_Cluster", metrics: Metrics, log: JsonLog
) -> CertificateSource:
    told = settings.certificates
    if isinstance(told, SelfSignedSettings):
        return SelfSignedCertificate(told, client=await cluster.client(), metrics=metrics, log=log)
    return FileCertificate(told, metrics=metrics, log=log)
