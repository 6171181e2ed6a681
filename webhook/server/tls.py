"""TLS for the admission port, with a certificate that can be replaced while connections stay open."""

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from typing import Any, Protocol

from certs.authority import KeyPair


class ServingContext:
    """An SSLContext whose certificate is replaced atomically.

    Loading a mismatched pair into a live context breaks the context, and an old key of another type stays in
    it (measured with OpenSSL 3.0). Each pair therefore gets its own context, and the outer context passes
    every handshake to the newest one.
    """

    def __init__(self, pair: KeyPair) -> None:
        """Create the contexts for a first pair.

        Raises:
            OSError: the pair cannot be loaded (`ssl.SSLError` too).
        """
        self._current = _context(pair)
        self.outer = _context(pair)
        self.outer.sni_callback = self._choose

    def load(self, pair: KeyPair) -> None:
        """Serve a new pair from the next handshake on.

        Raises:
            OSError: the pair cannot be loaded (`ssl.SSLError` too); the old one stays.
        """
        self._current = _context(pair)

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # what API servers offer to a Service
    context.num_tickets = 0  # API servers resume no sessions, and a resumed session shows the old certificate
    with _as_file(pair.certificate_pem + b"\n" + pair.key_pem) as file:
        context.load_cert_chain(file)
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide bytes as a file, because `ssl` loads certificates only from files.

    The file is in memory, so that no key is written to a disk. If the kernel or a sandbox does not support
    that, a private temporary file is used and deleted.

    Raises:
        OSError: neither kind of file can be created.
    """
    try:
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    except OSError:
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(content)
            file.flush()
            yield file.name
        return
    with os.fdopen(descriptor, "wb") as memory:
        memory.write(content)
        memory.flush()
        yield f"/proc/self/fd/{descriptor}"


class CertificateSource(Protocol):
    """A source of serving certificates that may change at any time."""

    @property
    def issued(self) -> asyncio.Event:
        """Event that is set as soon as there is a certificate; the admission port opens then."""

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the admission port, also for later certificates; valid once `issued` is set."""

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the certificate yet, in one line; empty when they can."""

    async def run(self) -> None:
        """Keep the certificate up to date until cancelled."""
