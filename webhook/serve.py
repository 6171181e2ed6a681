"""The command `kaishare-webhook serve`: starts the server and its background tasks, and stops on a signal."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kube.client import KubeClient, find_access
from kube.tokens import TokenAuthorizer
from service.http.authentication import Authentication
from service.http.limits import Address, descriptors_for_connections
from service.http.page_server import PortSecurity
from service.http.tls_files import TlsFiles
from service.log import WARNING, JsonLog
from service.version import version
from webhook.certificates import (
    CertificateSource,
    FileCertificate,
    FileSettings,
    SelfSignedCertificate,
    SelfSignedSettings,
)
from webhook.metrics import Metrics
from webhook.namespaces.decision_inputs import DecisionInputs, Work, open_cluster, open_files
from webhook.policy.decision_settings import DecisionSettings
from webhook.registration.call_order import OrderWatch
from webhook.registration.configurations import CONFIGURATION_NAME
from webhook.server.admission_server import ADMISSION_CONNECTIONS, MOST_IN_FLIGHT, AdmissionServer
from webhook.server.ops_server import AUDIENCE, OPS_CONNECTIONS, OpsServer
from webhook.settings.decision_options import DEFAULT_CLASS, SETTINGS
from webhook.settings.published_settings import PublishedSettings, SettingsPublisher

DRAIN_SECONDS: Final = 5.0
"""Minimum time to keep serving after SIGTERM. The server is not ready, and each answer closes its connection.

Two conditions must hold before the end. Every node must have removed the endpoint, which takes a second or
two and longer in a large cluster; new connections arrive until then. Every open connection of an API server
must have been closed by an answer, because a review that is cut off on it is never repeated. With this drain
Kubernetes 1.36.3 lost 0 of 2,000 creates; it lost 4 when a replica had left the endpoints but stopped at once
after SIGTERM.

A `preStop` sleep is no substitute, because it leaves old connections open until the end. It is not needed in
addition either, because the drain continues while new connections arrive.
"""

_LONGEST_DRAIN: Final = 3
"""Maximum drain time while new connections arrive, as a multiple of the drain time.

Every answer closes its connection, so new connections arrive as long as reviews do.
terminationGracePeriodSeconds must exceed the maximum drain time plus 10 s for reviews in flight. Later
connections are refused, and the pod is admitted unchanged (failurePolicy Ignore).
"""

_LOOK_EVERY_SECONDS: Final = 0.1

_SWITCH_SECONDS: Final = 0.0005
"""Interpreter switch interval in seconds (Python's default is 5 ms).

It bounds how long a thread that reads files or renders metrics can delay a review.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `serve`."""

    rules: DecisionSettings
    certificates: FileSettings | SelfSignedSettings
    listen: Address
    ops_listen: Address
    authenticates: bool = False
    """Whether the ops port asks for a token, which the API server checks."""
    ops_certificate_directory: Path | None = None
    """Directory of tls.crt and tls.key of the ops port; None for a port without TLS."""
    policies: Path | None = None
    """File or directory with policies; None reads them from the cluster's namespaces."""
    kubeconfig: str | None = None
    """Kubeconfig of the cluster; None uses the default of kube.access.find_access."""
    webhook_configuration: str = CONFIGURATION_NAME
    """Name of kaishare's webhook configurations, whose call order is watched."""
    settings_namespace: str | None = None
    """Namespace of the ConfigMap in which these settings are published; None does not publish them."""
    drain_seconds: float = DRAIN_SECONDS
    max_in_flight: int = MOST_IN_FLIGHT


async def serve(settings: Settings, log: JsonLog) -> None:
    """Serve until a signal arrives.

    SIGTERM drains before the end. SIGINT, or a second SIGTERM, only finishes the requests in flight.

    Raises:
        webhook.namespaces.file_policies.PoliciesError: the policies cannot be read.
        kube.access.AccessError: a cluster is needed, such as for policies or CA, and no access to it is
            configured.
        webhook.certificates.CertificateError: there is no usable certificate.
        service.http.tls_files.TlsFilesError: the certificate of the ops port cannot be used.
        OSError: an address cannot be listened on.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop, drain = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: stop.set() if drain.is_set() else drain.set())

    listen_error: OSError | None = None
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        metrics.show_log(lambda: log.lines_lost)
        inputs, certificate, security, work = await _open(settings, stack, metrics, log)
        descriptors = descriptors_for_connections()
        ops_limits = OPS_CONNECTIONS.within(descriptors // 4)
        ops_server = OpsServer(
            policies=inputs.policies,
            queues=lambda: inputs.rules().queues,
            metrics=metrics,
            log=log,
            certificate_problem=lambda: certificate.problem,
            limits=ops_limits,
        )
        admission_server = AdmissionServer(
            policies=inputs.policies,
            rules=inputs.rules,
            metrics=metrics,
            log=log,
            max_in_flight=settings.max_in_flight,
            limits=ADMISSION_CONNECTIONS.within(descriptors - ops_limits.max_connections),
        )
        stack.push_async_callback(ops_server.stop)
        stack.push_async_callback(admission_server.stop)  # stops first
        scheme = "https" if security.context else "http"
        ops = f"{scheme}://{await ops_server.start(settings.ops_listen, security)}"
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(each()) for each in work]
            if not certificate.issued.is_set():
                log("waiting for a certificate", ops=ops)
                await _wait_for(stop, drain, certificate.issued)
            if certificate.issued.is_set():
                try:
                    admission = await admission_server.start(settings.listen, certificate.context)
                except OSError as error:  # raised after the task group, so that it is no ExceptionGroup
                    listen_error = error
                    stop.set()
                else:
                    gc.collect()
                    gc.freeze()  # a full collection of all imports would delay a review by about 15 ms
                    managed = inputs.policies.all()
                    known: dict[str, Any] = {} if managed is None else {"namespaces": len(managed)}
                    log(
                        "serving",
                        admission=f"https://{admission}",
                        ops=ops,
                        default_mode=settings.rules.default_mode,
                        **known,
                    )
            await _wait_for(stop, drain)
            if not stop.is_set():
                log("draining", seconds=settings.drain_seconds)
                ops_server.drain()
                admission_server.drain()
                if not await drained(
                    lambda: admission_server.has_recent_connections, settings.drain_seconds, stop
                ):
                    log("drain ended while clients still connect; a longer --drain may help", WARNING)
            log("stopping")
            for task in running:
                task.cancel()
    if listen_error is not None:
        raise listen_error
    log("stopped")


async def drained(has_recent_connections: Callable[[], bool], seconds: float, stop: asyncio.Event) -> bool:
    """Wait for the end of a drain; return False if clients still connect at the maximum drain time.

    That is `_LONGEST_DRAIN` times the minimum time in `seconds`; a drain of zero seconds returns True in any
    case. The event `stop` ends the drain at once.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _LONGEST_DRAIN * seconds
    await _wait_for(stop, seconds=seconds)
    while has_recent_connections() and not stop.is_set():
        if loop.time() >= end:
            return not seconds
        await _wait_for(stop, seconds=_LOOK_EVERY_SECONDS)
    return True


async def _wait_for(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set or the time has passed."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _open(
    settings: Settings, stack: AsyncExitStack, metrics: Metrics, log: JsonLog
) -> tuple[DecisionInputs, CertificateSource, PortSecurity, list[Work]]:
    """Return what the servers need, and the tasks to run meanwhile. The API server is asked if needed.

    Raises:
        kube.access.AccessError: no access to an API server is configured.
    """
    opened: list[KubeClient] = []

    async def cluster() -> KubeClient:
        if not opened:
            client = KubeClient(await find_access(settings.kubeconfig))
            opened.append(await stack.enter_async_context(client))
        return opened[0]

    work: list[Work] = []
    if settings.policies is not None:
        inputs = await open_files(settings.policies, settings.rules, metrics=metrics, log=log)
    else:
        inputs = open_cluster(await cluster(), settings.rules, metrics=metrics, log=log)
        order = OrderWatch(await cluster(), own=settings.webhook_configuration, log=log)
        metrics.show_order(lambda: order.is_ok)
        metrics.show_watch(order.watch)
        work.append(metrics.supervised(order.run, stage="order", log=log))
    options = settings.certificates
    certificate: CertificateSource
    if isinstance(options, SelfSignedSettings):
        certificate = SelfSignedCertificate(options, client=await cluster(), metrics=metrics, log=log)
    else:
        certificate = FileCertificate(options, metrics=metrics, log=log)
    directory = settings.ops_certificate_directory
    tls = TlsFiles.in_directory(directory, log=log) if directory else None
    namespace = settings.settings_namespace
    if namespace is not None:

        def current() -> PublishedSettings:
            return PublishedSettings(
                version=version(),
                policies="cluster" if settings.policies is None else "files",
                rules=inputs.rules(),
                known=SETTINGS if inputs.knows_default_class() else SETTINGS - {DEFAULT_CLASS},
            )

        publisher = SettingsPublisher(await cluster(), current, namespace=namespace, log=log)
        work.append(metrics.supervised(publisher.run, stage="settings", log=log))
    authentication = None
    if settings.authenticates:
        authorizer = TokenAuthorizer(await cluster(), audience=AUDIENCE)
        authentication = Authentication(authorizer.refusal, accepts_own_header=False, log=log)
    security = PortSecurity(authentication=authentication, context=tls.context if tls else None)
    return inputs, certificate, security, [*inputs.work, *work, certificate.run, *([tls.run] if tls else ())]
