"""Loads a certificate and its key from memory, because `ssl` reads only files."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator


def load_pem(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key into a TLS context. No key is written to a disk, if possible.

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
