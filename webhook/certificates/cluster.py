"""A self-signed serving certificate: each replica issues its own from a CA in a Secret."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from certs.manager import CertificateManager
from certs.rotation import Leaf, Lifetimes, Result
from kube.client import KubeClient
from service.log import INFO, WARNING, JsonLog
from service.tls import ReplaceableContext, load_pem
from webhook.metrics import Metrics
from webhook.server.tls import CertificateError


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfSignedSettings:
    """Settings for a CA in a Secret that the caBundle of kaishare's webhook configurations trusts."""

    configuration: str
    """Name of both webhook configurations."""
    secret: str
    """Name of the Secret."""
    namespace: str = ""
    """Namespace of Secret and Service; empty for the caller's own namespace."""
    service: str
    """Name of the Service in front of the webhook."""
    host_names: Sequence[str] = ()
    """Names for the certificate in addition to the Service's."""
    lifetimes: Lifetimes = field(default_factory=Lifetimes)


class SelfSignedCertificate:
    """The serving certificate of one replica."""

    def __init__(
        self, settings: SelfSignedSettings, *, client: KubeClient, metrics: Metrics, log: JsonLog
    ) -> None:
        """Set up the certificate manager; call `run` to obtain a certificate.

        Raises:
            CertificateError: a name is not a valid host name.
            AccessError: the caller's own namespace is not known.
        """
        namespace = settings.namespace or client.namespace
        host = f"{settings.service}.{namespace}"
        self.issued = asyncio.Event()
        self._metrics = metrics
        self._log = log
        self._serving: ReplaceableContext | None = None
        self._failures = 0
        try:
            self._manager = CertificateManager(
                client,
                namespace=namespace,
                secret=settings.secret,
                configuration=settings.configuration,
                names=(f"{host}.svc", host, *settings.host_names),
                lifetimes=settings.lifetimes,
                on_leaf=self._serve,
                on_look=self._update_metrics,
                on_result=self._log_result,
                on_trouble=self._log_problem,
            )
        except ValueError as error:
            raise CertificateError(str(error)) from None

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the admission port.

        Raises:
            RuntimeError: no certificate has been issued yet.
        """
        if self._serving is None:
            raise RuntimeError("there is no certificate yet")
        return self._serving.outer

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the certificate yet, in one line; empty when they can."""
        return self._manager.problem

    async def run(self) -> None:
        """Keep the certificate valid until cancelled."""
        await self._metrics.supervised(self._manager.run, stage="certificate", log=self._log)()

    def _serve(self, leaf: Leaf, reason: str) -> None:
        load = partial(load_pem, certificate=leaf.pair.certificate_pem, key=leaf.pair.key_pem)
        if self._serving is None:
            self._serving = ReplaceableContext(load)
        else:
            self._serving.replace(load)
        self._metrics.certificate_expiry.labels("serving").set(leaf.pair.not_after.timestamp())
        self._metrics.certificate_rotations.labels("renewed").inc()
        self._log("certificate issued", reason=reason, not_after=leaf.pair.not_after.isoformat())
        self.issued.set()

    def _update_metrics(self) -> None:
        ca_set, failures = self._manager.ca_set, self._manager.failures
        if ca_set is not None:
            self._metrics.certificate_expiry.labels("ca").set(ca_set.current.pair.not_after.timestamp())
        if failures > self._failures:
            self._metrics.certificate_rotations.labels("failed").inc(failures - self._failures)
            self._metrics.failed("certificate")
            self._failures = failures

    def _log_result(self, result: Result, reason: str) -> None:
        self._metrics.certificate_rotations.labels(result.value).inc()
        level = WARNING if result in (Result.REPLACED, Result.RESTORED) else INFO
        self._log(f"CA {result.value}", level, reason=reason)

    def _log_problem(self, part: str, problem: str) -> None:
        if problem:
            self._log("certificate problem", WARNING, part=part, problem=problem)
        else:
            self._log("certificate problem resolved", part=part)
