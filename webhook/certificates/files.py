"""A serving certificate from two files, reloaded when they change."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.authority import KeyPair
from certs.directory import CertificateError, ensure, load_pair
from service.file_watch import LOOK_EVERY_SECONDS, FileWatch
from service.log import ERROR, JsonLog
from webhook.metrics import Metrics
from webhook.server.tls import ServingContext

LOCAL_NAMES: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Settings for certificate files: a directory, which is filled if it is empty, or two given files."""

    directory: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    host_names: Sequence[str] = LOCAL_NAMES
    """Names for a certificate that is created in the directory."""


class FileCertificate:
    """The serving certificate of a pair of files."""

    problem: Final = ""
    """Always empty: trust in the certificate is the responsibility of the owner of the files."""

    def __init__(self, files: FileSettings, *, metrics: Metrics, log: JsonLog) -> None:
        """Read the files; an empty directory is filled first.

        Raises:
            CertificateError: there is no usable certificate.
        """
        now = datetime.now(UTC)
        if files.directory is not None:
            served = ensure(files.directory, files.host_names, now=now)
            self._certificate, self._key = served.certificate, served.key
        elif files.certificate is not None and files.key is not None:
            self._certificate, self._key = files.certificate, files.key
        else:
            raise ValueError("a certificate needs its key")
        self._metrics = metrics
        self._log = log
        self._files = FileWatch(self._certificate, self._key)
        self._reload_problem = ""
        """Why the current content of the files was not loaded; empty if it was."""
        pair = load_pair(self._certificate, self._key, now=now)
        try:
            self._serving = ServingContext(pair)
        except OSError as error:  # `ssl.SSLError` too
            raise CertificateError(f"{self._certificate} cannot be served: {error}") from None
        self._update_expiry(pair)
        self.issued = asyncio.Event()
        self.issued.set()

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the admission port."""
        return self._serving.outer

    async def run(self) -> None:
        """Reload changed files until cancelled; an invalid pair never replaces a valid one.

        A pair that could not be loaded is tried again even if it has not changed, because it may become valid
        later.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            is_new = await asyncio.to_thread(self._files.changed)
            if is_new:
                self._reload_problem = ""
            if not is_new and not self._reload_problem:
                continue
            try:
                pair = await asyncio.to_thread(self._load)
            except Exception as error:  # noqa: BLE001 - after any error the last valid pair stays
                is_readable = isinstance(error, CertificateError | OSError)
                problem = str(error) if is_readable else f"{type(error).__name__}: {error}"
                if problem != self._reload_problem:
                    self._reload_problem = problem
                    self._metrics.failed("certificate")
                    self._log("certificate not reloaded, keeping the last valid one", ERROR, problem=problem)
            else:
                self._reload_problem = ""
                self._update_expiry(pair)
                self._log("certificate reloaded", not_after=pair.not_after.isoformat())

    def _load(self) -> KeyPair:
        pair = load_pair(self._certificate, self._key, now=datetime.now(UTC))
        self._serving.load(pair)
        return pair

    def _update_expiry(self, pair: KeyPair) -> None:
        self._metrics.certificate_expiry.labels("serving").set(pair.not_after.timestamp())
