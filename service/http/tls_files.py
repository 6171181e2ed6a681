"""TLS with a certificate from files, which is replaced while the server runs."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from service.file_watch import LOOK_EVERY_SECONDS, FileWatch
from service.log import ERROR, JsonLog
from service.tls import ReplaceableContext

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class TlsFilesError(ValueError):
    """The certificate or its key cannot be used; the message is one line."""


class TlsFiles:
    """The TLS context of a certificate and its key, as a mounted Secret has them."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        log: JsonLog,
        check: Callable[[], Mapping[str, str]] = dict,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the files.

        Args:
            certificate: PEM file of the certificate, which its chain may follow.
            key: PEM file of the unencrypted key.
            log: the log.
            check: called before a pair is served; returns fields for the log, or raises OSError or ValueError
                to refuse the pair.
            on_failure: called once for each problem of changed files.

        Raises:
            TlsFilesError: they cannot be used.
        """
        self._certificate, self._key = certificate, key
        self._log = log
        self._check = check
        self._on_failure = on_failure
        self._fields: Mapping[str, str] = {}
        """Log fields of the last pair that was read."""
        self._files = FileWatch(certificate, key)
        self._reload_problem = ""
        """Why the current content of the files was not loaded; empty if it was."""
        self._serving = ReplaceableContext(self._load)

    @classmethod
    def in_directory(cls, directory: Path, *, log: JsonLog) -> "TlsFiles":
        """Read tls.crt and tls.key of a directory; raises TlsFilesError."""
        return cls(directory / CERTIFICATE, directory / KEY, log=log)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the port, also for later certificates."""
        return self._serving.outer

    async def run(self) -> None:
        """Reload changed files until cancelled; an invalid pair never replaces a valid one.

        A pair that could not be loaded is tried again even if it has not changed, because it may become valid
        later.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            is_new = await asyncio.to_thread(self._files.changed)
            if not is_new and not self._reload_problem:
                continue
            try:
                await asyncio.to_thread(self._serving.replace, self._load)
            except TlsFilesError as error:
                if str(error) != self._reload_problem:
                    self._reload_problem = str(error)
                    self._on_failure()
                    self._log(
                        "certificate not reloaded, keeping the last valid one",
                        ERROR,
                        problem=self._reload_problem,
                    )
            else:
                self._reload_problem = ""
                self._log("certificate reloaded", certificate=str(self._certificate), **self._fields)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            # Without a password function OpenSSL asks for an encrypted key's password on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
            self._fields = self._check()
        except ssl.SSLError as error:
            is_other_key = error.reason == "KEY_VALUES_MISMATCH"
            problem = "not a pair" if is_other_key else "no PEM certificate with its unencrypted key"
            raise self._error(problem) from None
        except OSError as error:
            raise self._error(error.strerror or str(error)) from None
        except ValueError as error:
            raise TlsFilesError(f"{self._certificate}: {error}") from None

    def _error(self, problem: str) -> TlsFilesError:
        return TlsFilesError(f"{self._certificate} and {self._key}: {problem}")
