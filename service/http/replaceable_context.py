"""A TLS context whose certificate is replaced while connections stay open."""

import ssl
from collections.abc import Callable
from typing import Any

LoadCertificate = Callable[[ssl.SSLContext], None]
"""Loads a certificate and its key into a new context; raises an error if it cannot."""


class ReplaceableContext:
    """An SSLContext whose certificate is replaced atomically.

    Loading a mismatched pair into a live context breaks the context, and an old key of another type stays in
    it (measured with OpenSSL 3.0). Each pair therefore gets its own context, and the outer context passes
    every handshake to the newest one.
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
