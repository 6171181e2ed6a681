"""TLS contexts whose certificates come from memory or files, and are replaced while connections stay open."""

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from service.file_watch import LOOK_EVERY_SECONDS, FileWatch
from service.log import ERROR, JsonLog

LoadCertificate = Callable[[ssl.SSLContext], None]
"""Loads a certificate and its key into a new context; raises an error if it cannot."""


class ReplaceableContext:
    """An SSLContext whose certificate is replaced atomically.

    A mismatched pair would break a live context, and an old key of another type stays in it (measured with
    OpenSSL 3.0). So each pair has its own context, and the outer one passes every handshake to the newest.
    """

    def __init__(self, load: LoadCertificate) -> None:
        """Create the contexts for a first pair; raises as `load`."""
        self._current = _context(load)
        self.outer = _context(load)
        self.outer.sni_callback = self._choose

    def replace(self, load: LoadCertificate) -> None:
        """Serve a new pair from the next handshake on; raises as `load`, and the old pair stays."""
        self._current = _context(load)

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(load: LoadCertificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # what API servers offer to a Service
    context.num_tickets = 0  # API servers resume no sessions, and a resumed session shows the old certificate
    load(context)
    return context


def client_context(**trusted: Any) -> ssl.SSLContext:
    """Return a client's TLS context; arguments and errors as `ssl.create_default_context`."""
    context = ssl.create_default_context(**trusted)
    # Python 3.13 is stricter than client-go, and not every cluster's CA passes the strict check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def load_pem(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key from memory, although `ssl` reads only files.

    No key is written to a disk, if possible. OSError (`ssl.SSLError` too) if the pair cannot be loaded.
    """
    with _as_file(certificate + b"\n" + key) as file:
        # Without a password function OpenSSL would ask for the pass phrase on the terminal.
        context.load_cert_chain(file, password=lambda: b"")


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide bytes as a file in memory, else as a private temporary file, which is deleted.

    A kernel, a sandbox or a build of Python (such as python-build-standalone) may not support the first.
    """
    try:
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(content)
            file.flush()
            yield file.name
        return
    with os.fdopen(descriptor, "wb") as memory:
        memory.write(content)
        memory.flush()
        yield f"/proc/self/fd/{descriptor}"


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
        """Read the certificate, which its chain may follow, and its key in PEM; raises TlsFilesError.

        Args:
            certificate: path of the certificate.
            key: path of the unencrypted key.
            log: the log.
            check: called before a pair is served; returns fields for the log, or raises OSError or ValueError
                to refuse the pair.
            on_failure: called once for each problem of changed files.
        """
        self._certificate, self._key = certificate, key
        self._log = log
        self._check = check
        self._on_failure = on_failure
        self._fields: Mapping[str, str] = {}  # log fields of the last pair that was read
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
                    message = "certificate not reloaded, keeping the last valid one"
                    self._log(message, ERROR, problem=self._reload_problem)
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
