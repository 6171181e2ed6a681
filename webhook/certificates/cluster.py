"""A serving certificate that the replicas make themselves, from a CA in a Secret."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from certs.authority import canonical_names
from certs.directory import CertificateError
from certs.manager import CertificateManager
from certs.rotation import Leaf, Lifetimes, Result
from kube.client import KubeClient
from service.log import INFO, WARNING, JsonLog
from service.tasks import restart_on_error
from webhook.metrics import Metrics
from webhook.server.tls import ServingContext


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfSignedSettings:
    """A CA in a Secret, trusted through the caBundle of our webhook configurations."""

    configuration: str
    """The name of both configurations."""
    secret: str
    """Its name."""
    namespace: str = ""
    """Of Secret and Service; empty: our own."""
    service: str
    """The name of the Service that leads here."""
    host_names: Sequence[str] = ()
    """What the certificate is for besides the Service."""
    lifetimes: Lifetimes = field(default_factory=Lifetimes)


class SelfSignedCertificate:
    """The serving certificate of one replica."""

    def __init__(
        self, settings: SelfSignedSettings, *, client: KubeClient, metrics: Metrics, log: JsonLog
    ) -> None:
        """Prepare; `run` gets a certificate.

        Raises:
            CertificateError: a name is no host name.
            AccessError: our own namespace is not known.
        """
        namespace = settings.namespace or client.namespace
        host = f"{settings.service}.{namespace}"
        self.issued = asyncio.Event()
        self._metrics = metrics
        self._log = log
        self._serving: ServingContext | None = None
        self._failures = 0
        names = (f"{host}.svc", host, *settings.host_names)
        try:
            canonical_names(names)
        except ValueError as error:
            raise CertificateError(str(error)) from None
        self._replica = CertificateManager(
            client,
            namespace=namespace,
            secret=settings.secret,
            configuration=settings.configuration,
            names=names,
            lifetimes=settings.lifetimes,
            on_leaf=self._take,
            on_look=self._show,
            on_result=self._tell,
            on_trouble=self._complain,
        )

    @property
    def context(self) -> ssl.SSLContext:
        """What to serve with.

        Raises:
            RuntimeError: there is no certificate yet.
        """
        if self._serving is None:
            raise RuntimeError("there is no certificate yet")
        return self._serving.outer

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the certificate yet."""
        return self._replica.problem

    async def run(self) -> None:
        """Have a certificate until cancelled."""
        await restart_on_error(self._replica.run, on_error=self._fail)

    def _take(self, leaf: Leaf, reason: str) -> None:
        if self._serving is None:
            self._serving = ServingContext(leaf.pair)
        else:
            self._serving.load(leaf.pair)
        self._metrics.certificate_expiry.labels("serving").set(leaf.pair.not_after.timestamp())
        self._metrics.certificate_rotations.labels("renewed").inc()
        self._log("certificate issued", reason=reason, not_after=leaf.pair.not_after.isoformat())
        self.issued.set()

    def _show(self) -> None:
        ring, failures = self._replica.ring, self._replica.failures
        if ring is not None:
            self._metrics.certificate_expiry.labels("ca").set(ring.current.pair.not_after.timestamp())
        if failures > self._failures:
            self._metrics.certificate_rotations.labels("failed").inc(failures - self._failures)
            self._metrics.failed("certificate")
            self._failures = failures

    def _tell(self, result: Result, reason: str) -> None:
        self._metrics.certificate_rotations.labels(result.value).inc()
        level = WARNING if result in (Result.REPLACED, Result.RESTORED) else INFO
        self._log(f"CA {result.value}", level, reason=reason)

    def _fail(self, error: Exception) -> None:
        self._metrics.failed("certificate")
        self._log.failure("internal error", error, stage="certificate")

    def _complain(self, part: str, problem: str) -> None:
        if problem:
            self._log("certificate trouble", WARNING, part=part, problem=problem)
        else:
            self._log("certificate trouble is over", part=part)
