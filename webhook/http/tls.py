"""TLS for the admission port: the certificate can be exchanged while connections stay open."""

import ssl
from pathlib import Path
from typing import Any


class ServingContext:
    """An SSLContext whose certificate is swapped whole.

    Loading a new pair into a live context leaves it broken if the pair does not match, and keeps an old key
    of another type (measured with OpenSSL 3.0). So each pair gets a context of its own, and the outer one
    hands every handshake to the newest that loaded.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._current = _context(certificate, key)
        self.outer = _context(certificate, key)
        self.outer.sni_callback = self._choose

    def load(self, certificate: Path, key: Path) -> None:
        """Serve a new pair from the next handshake on.

        Raises:
            OSError: the pair cannot be loaded (`ssl.SSLError` too); the old one stays.
        """
        self._current = _context(certificate, key)

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # what API servers offer to a Service
    context.num_tickets = (
        0  # API servers resume no session, and one that is resumed shows the old certificate
    )
    context.load_cert_chain(certificate, key)
    return context
