"""A serving certificate in two files, taken up anew when they change."""

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
    """A directory with a certificate, filled by us if it is empty; or two given files."""

    directory: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    host_names: Sequence[str] = LOCAL_NAMES
    """For a certificate that is made here."""


class FileCertificate:
    """The serving certificate of some files."""

    problem: Final = ""
    """Whether anybody trusts it is the affair of whoever keeps the files."""

    def __init__(self, files: FileSettings, *, metrics: Metrics, log: JsonLog) -> None:
        """Read the files; a directory of ours is filled first.

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
        self._refused = ""
        """Why what is in the files now was not taken up."""
        pair = load_pair(self._certificate, self._key, now=now)
        try:
            self._serving = ServingContext(pair)
        except OSError as error:  # `ssl.SSLError` too
            raise CertificateError(f"{self._certificate} cannot be served: {error}") from None
        self._show(pair)
        self.issued = asyncio.Event()
        self.issued.set()

    @property
    def context(self) -> ssl.SSLContext:
        """What to serve with."""
        return self._serving.outer

    async def run(self) -> None:
        """Look for a new pair until cancelled; one that does not match never replaces a good one.

        What could not be taken up is tried again without being changed: its time may come.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            is_new = await asyncio.to_thread(self._files.changed)
            if is_new:
                self._refused = ""
            if not is_new and not self._refused:
                continue
            try:
                pair = await asyncio.to_thread(self._load)
            except Exception as error:  # noqa: BLE001 - whatever it is, the last good pair stays
                is_said = isinstance(error, CertificateError | OSError)
                problem = str(error) if is_said else f"{type(error).__name__}: {error}"
                if problem != self._refused:
                    self._refused = problem
                    self._metrics.failed("certificate")
                    self._log("certificate not taken up, the last good one stays", ERROR, problem=problem)
            else:
                self._refused = ""
                self._show(pair)
                self._log("certificate changed", not_after=pair.not_after.isoformat())

    def _load(self) -> KeyPair:
        pair = load_pair(self._certificate, self._key, now=datetime.now(UTC))
        self._serving.load(pair)
        return pair

    def _show(self, pair: KeyPair) -> None:
        self._metrics.certificate_expiry.labels("serving").set(pair.not_after.timestamp())
