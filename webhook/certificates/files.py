"""A serving certificate from two files, reloaded when they change."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.authority import BACKDATING, KeyPair
from certs.directory import create_if_missing
from service.http.tls_files import CERTIFICATE, KEY, TlsFiles, TlsFilesError
from service.log import JsonLog
from webhook.metrics import Metrics
from webhook.server.tls import CertificateError

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
        if files.host_names:
            _create(files)
        self._files = files
        self._metrics = metrics
        try:
            self._tls = TlsFiles(
                files.certificate,
                files.key,
                log=log,
                check=self._check,
                on_failure=lambda: metrics.failed("certificate"),
            )
        except TlsFilesError as error:
            raise CertificateError(str(error)) from None
        self.issued = asyncio.Event()
        self.issued.set()

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the admission port."""
        return self._tls.context

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


def _create(files: FileSettings) -> None:
    try:
        create_if_missing(files.certificate.parent, files.host_names, now=datetime.now(UTC))
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}: no certificate created") from None
    except ValueError as error:
        raise CertificateError(f"{files.certificate}: no certificate created: {error}") from None
