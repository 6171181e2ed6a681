"""TLS with a certificate from files, which is replaced while the server runs."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

from service.file_watch import LOOK_EVERY_SECONDS, FileWatch
from service.http.replaceable_context import ReplaceableContext
from service.log import ERROR, JsonLog

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class TlsFilesError(ValueError):
    """The certificate or its key cannot be used; the message is one line."""


class TlsFiles:
    """The TLS context of `tls.crt` and `tls.key` in a directory, as a mounted Secret has them."""

    def __init__(self, directory: Path, *, log: JsonLog) -> None:
        """Read the files.

        Raises:
            TlsFilesError: they cannot be used.
        """
        self._certificate, self._key = directory / CERTIFICATE, directory / KEY
        self._log = log
        self._files = FileWatch(self._certificate, self._key)
        self._reload_problem = ""
        """Why the current content of the files was not loaded; empty if it was."""
        self._serving = ReplaceableContext(self._load)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the port, also for later certificates."""
        return self._serving.outer

    async def run(self) -> None:
        """Reload changed files until cancelled; an invalid pair never replaces a valid one."""
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
                    self._log(
                        "certificate not reloaded, keeping the last valid one",
                        ERROR,
                        problem=self._reload_problem,
                    )
            else:
                self._reload_problem = ""
                self._log("certificate reloaded", certificate=str(self._certificate))

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            # Without a password function OpenSSL asks for an encrypted key's password on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except OSError as error:  # `ssl.SSLError` too
            if isinstance(error, ssl.SSLError):
                problem = "no PEM certificate with its unencrypted key"
            else:
                problem = error.strerror or str(error)
            raise TlsFilesError(f"{self._certificate} and {self._key}: {problem}") from None
