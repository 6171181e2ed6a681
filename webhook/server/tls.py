"""TLS for the admission port: the certificate can be exchanged while connections stay open."""

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from typing import Any, Protocol

from certs.authority import KeyPair


class ServingContext:
    """An SSLContext whose certificate is swapped whole.

    Loading a new pair into a live context leaves it broken if the pair does not match, and keeps an old key
    of another type (measured with OpenSSL 3.0). So each pair gets a context of its own, and the outer one
    hands every handshake to the newest that loaded.
    """

    def __init__(self, pair: KeyPair) -> None:
        """Serve a pair.

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
    context.num_tickets = (
        0  # API servers resume no session, and one that is resumed shows the old certificate
    )
    with _as_file(pair.certificate_pem + b"\n" + pair.key_pem) as file:
        context.load_cert_chain(file)
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Give bytes a file name, which is all that `ssl` takes: in memory, so that no key is on any disk.

    Where the kernel or a sandbox has no such files, a private one that is gone at the end.

    Raises:
        OSError: there is no place for either.
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
    """A serving certificate that may change while it is served."""

    @property
    def issued(self) -> asyncio.Event:
        """Set once there is a certificate; the admission port is opened then."""

    @property
    def context(self) -> ssl.SSLContext:
        """What the admission port serves with, whatever comes later; only once `issued` is set."""

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the certificate yet, in one line; empty when they can."""

    async def run(self) -> None:
        """Look for a new certificate until cancelled."""
