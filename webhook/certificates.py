"""Sources of the serving certificate, and their options: two files, or a CA that replicas share."""

import argparse
import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from certs.authority import BACKDATING, Authority, KeyPair
from certs.manager import CertificateManager
from certs.rotation import Leaf, Lifetimes, Result
from kube.client import KubeClient
from service.command import UsageError, read_by
from service.http.tls_files import CERTIFICATE, KEY, ReplaceableContext, TlsFiles, TlsFilesError, load_pem
from service.log import INFO, WARNING, JsonLog
from service.units import parse_duration
from webhook.metrics import Metrics
from webhook.registration.configurations import CONFIGURATION_NAME


class CertificateError(ValueError):
    """A serving certificate cannot be used or created; the message is one line."""


LOCAL_NAMES: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Settings for certificate files."""

    certificate: Path
    key: Path
    host_names: Sequence[str] = ()
    """Names for a certificate that is created if both files are missing; empty to create none."""

    @classmethod
    def in_directory(cls, directory: Path, host_names: Sequence[str] = LOCAL_NAMES) -> "FileSettings":
        """Return settings for tls.crt and tls.key, which are created if the directory has neither."""
        return cls(certificate=directory / CERTIFICATE, key=directory / KEY, host_names=host_names)


class FileCertificate:
    """The serving certificate of a pair of files."""

    problem: Final = ""
    """Always empty: trust in the certificate is the responsibility of the owner of the files."""

    def __init__(self, files: FileSettings, *, metrics: Metrics, log: JsonLog) -> None:
        """Read the files.

        Raises:
            CertificateError: there is no usable certificate.
        """
        self._files = files
        self._metrics = metrics
        try:
            if files.host_names:
                create_if_missing(files.certificate.parent, files.host_names)
            self._tls = TlsFiles(
                files.certificate,
                files.key,
                log=log,
                check=self._check,
                on_failure=lambda: metrics.failed("certificate"),
            )
        except TlsFilesError as error:
            raise CertificateError(str(error)) from None
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}: no certificate created") from None
        except ValueError as error:
            raise CertificateError(f"{files.certificate}: no certificate created: {error}") from None
        self.context = self._tls.context
        """The TLS context of the admission port, also for later certificates."""
        self.issued = asyncio.Event()
        self.issued.set()

    async def run(self) -> None:
        """Reload changed files until cancelled; an invalid pair never replaces a valid one."""
        await self._tls.run()

    def _check(self) -> Mapping[str, str]:
        """Return the end of the certificate's validity as a log field, and show it in the metrics.

        A certificate whose validity begins within `BACKDATING` is accepted, because the issuer's clock may be
        ahead.

        Raises:
            ValueError: the certificate is not valid at this time, or cannot be read.
            OSError: the file cannot be read.
        """
        certificate = KeyPair(self._files.certificate.read_bytes(), b"").certificate
        now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now >= end:
            raise ValueError(f"expired on {end:%Y-%m-%d %H:%M} UTC: replace it with a renewed certificate")
        if now < start - BACKDATING:
            raise ValueError(f"not valid before {start:%Y-%m-%d %H:%M} UTC: check this machine's clock")
        self._metrics.certificate_expiry.labels("serving").set(end.timestamp())
        return {"not_after": end.isoformat()}


_LEAF_LIFETIME: Final = timedelta(days=365)


def create_if_missing(directory: Path, host_names: Sequence[str]) -> None:
    """Create tls.crt and tls.key if the directory has neither, signed by its CA, which is created if missing.

    Each file appears whole, and the key before its certificate.

    Raises:
        ValueError: a host name is invalid, or the directory's CA cannot issue certificates.
        OSError: a file cannot be read or written.
    """
    certificate, key, ca, ca_key = (directory / name for name in (CERTIFICATE, KEY, "ca.crt", "ca.key"))
    if certificate.exists() or key.exists():
        return
    now, has_ca = datetime.now(UTC), ca.exists() or ca_key.exists()
    authority = Authority.load(ca.read_bytes(), ca_key.read_bytes()) if has_ca else Authority.create(now=now)
    leaf = authority.issue(host_names, now=now, lifetime=_LEAF_LIFETIME)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = {ca_key: authority.pair.key_pem, ca: authority.pair.certificate_pem} if not has_ca else {}
    for path, content in (made | {key: leaf.key_pem, certificate: leaf.certificate_pem}).items():
        new = path.with_name(f".{path.name}.new")
        new.touch(0o600 if path in (ca_key, key) else 0o644)
        new.write_bytes(content)
        new.rename(path)


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
        """Set as soon as there is a certificate; the admission port opens then."""
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


CertificateSource = FileCertificate | SelfSignedCertificate
SELF: Final = "self"
"""The value of --certs for a self-signed certificate. A directory of that name must be given as `./self`."""


def add_certificate_options(parser: argparse.ArgumentParser) -> None:
    """Add the certificate options to a parser."""
    duration = read_by(parse_duration)
    parser.add_argument(
        "--certs",
        metavar="self|DIR",
        help="self: issue certificates from a CA in a Secret, which is rotated automatically; DIR: use"
        " tls.crt and tls.key in that directory, created there if it has none (default self)",
    )
    parser.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="certificate to serve, instead of --certs"
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of --tls-cert")
    parser.add_argument(
        "--host-name",
        action="append",
        metavar="NAME",
        help="DNS name or IP address for the certificate, in addition to the Service's names with --certs"
        " self; may be repeated (default with --certs DIR: localhost and 127.0.0.1)",
    )
    own = parser.add_argument_group("with --certs self")
    own.add_argument(
        "--certs-secret",
        default="kaishare-webhook-ca",
        metavar="NAME",
        help="Secret that stores the CA; it must exist and may be empty (default %(default)s)",
    )
    own.add_argument(
        "--namespace",
        metavar="NAMESPACE",
        help="namespace of Secret and Service (default: the service account's, or the kubeconfig context's)",
    )
    own.add_argument(
        "--service",
        default="kaishare-webhook",
        metavar="NAME",
        help="Service in front of this webhook (default %(default)s)",
    )
    own.add_argument(
        "--webhook-configuration",
        default=CONFIGURATION_NAME,
        metavar="NAME",
        help="name of kaishare's webhook configurations, whose caBundle is maintained and whose call order is"
        " watched (default %(default)s)",
    )
    own.add_argument(
        "--ca-lifetime",
        type=duration,
        default="2160h",
        metavar="DURATION",
        help="lifetime of a CA; its successor is created after two thirds of it (default %(default)s)",
    )
    own.add_argument(
        "--leaf-lifetime",
        type=duration,
        default="168h",
        metavar="DURATION",
        help="lifetime of a serving certificate; it is renewed after two thirds (default %(default)s)",
    )
    own.add_argument(
        "--bundle-wait",
        type=duration,
        default="2m",
        metavar="DURATION",
        help="time between the addition of a new CA to the caBundle and its use (default %(default)s)",
    )


def parse_certificate_options(arguments: argparse.Namespace) -> FileSettings | SelfSignedSettings:
    """Convert the parsed options into settings.

    Raises:
        UsageError: the options contradict each other.
    """
    given = (arguments.tls_cert, arguments.tls_key)
    if any(given) and not all(given):
        raise UsageError("--tls-cert and --tls-key must be given together")
    if arguments.certs is not None and all(given):
        raise UsageError("give either --certs, or --tls-cert and --tls-key")
    host_names = tuple(arguments.host_name or ())
    if all(given):
        return FileSettings(certificate=arguments.tls_cert, key=arguments.tls_key)
    if arguments.certs not in (None, SELF):
        return FileSettings.in_directory(Path(arguments.certs), host_names or LOCAL_NAMES)
    try:
        lifetimes = Lifetimes(
            ca=timedelta(seconds=arguments.ca_lifetime),
            leaf=timedelta(seconds=arguments.leaf_lifetime),
            bundle_wait=timedelta(seconds=arguments.bundle_wait),
        )
    except ValueError as error:
        raise UsageError(f"--ca-lifetime, --leaf-lifetime, --bundle-wait: {error}") from None
    return SelfSignedSettings(
        configuration=arguments.webhook_configuration,
        secret=arguments.certs_secret,
        namespace=arguments.namespace or "",
        service=arguments.service,
        host_names=host_names,
        lifetimes=lifetimes,
    )
