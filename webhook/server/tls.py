"""TLS for the admission port, with a certificate that can be replaced while connections stay open."""

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from typing import Protocol

from certs.authority import KeyPair
from service.http.replaceable_context import LoadCertificate, ReplaceableContext


class CertificateError(ValueError):
    """A serving certificate cannot be used or created; the message is one line."""


class ServingContext(ReplaceableContext):
    """The TLS context of the admission port, whose certificate comes from memory."""

    def __init__(self, pair: KeyPair) -> None:
        """Create the contexts for a first pair.

        Raises:
            OSError: the pair cannot be loaded (`ssl.SSLError` too).
        """
        super().__init__(_loading(pair))

    def load(self, pair: KeyPair) -> None:
        """Serve a new pair from the next handshake on.

        Raises:
            OSError: the pair cannot be loaded (`ssl.SSLError` too); the old one stays.
        """
        self.replace(_loading(pair))


def _loading(pair: KeyPair) -> LoadCertificate:
    def load(context: ssl.SSLContext) -> None:
        with _as_file(pair.certificate_pem + b"\n" + pair.key_pem) as file:
            context.load_cert_chain(file)

    return load


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide bytes as a file, because `ssl` loads certificates only from files.

    The file is in memory, so that no key is written to a disk. If the kernel, a sandbox or the build of
    Python (such as python-build-standalone) does not support that, a private temporary file is used and
    deleted.

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
