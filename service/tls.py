"""TLS contexts whose certificates come from memory, or are replaced while connections stay open."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
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


def load_pem(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key from memory, although `ssl` reads only files.

    No key is written to a disk, if possible.

    Args:
        context: the context.
        certificate: PEM, optionally followed by its chain.
        key: PEM, unencrypted.

    Raises:
        OSError: the pair cannot be loaded (`ssl.SSLError` too).
    """
    with _as_file(certificate + b"\n" + key) as file:
        # Without a password function OpenSSL would ask for the pass phrase on the terminal.
        context.load_cert_chain(file, password=lambda: b"")


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide bytes as a file in memory.

    If the kernel, a sandbox or the build of Python (such as python-build-standalone) does not support that,
    a private temporary file is used and deleted.

    Raises:
        OSError: neither kind of file can be created.
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
