"""Creates a CA and a serving certificate in a directory: ca.crt, ca.key, tls.crt and tls.key.

Existing files are never changed, so that a directory may belong to its user, as a mounted Secret does.
"""

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from certs.authority import Authority
from service.http.tls_files import CERTIFICATE, KEY

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"

LEAF_LIFETIME: Final = timedelta(days=365)

_PRIVATE, _PUBLIC = 0o600, 0o644


def create_if_missing(directory: Path, host_names: Sequence[str], *, now: datetime) -> None:
    """Create tls.crt and tls.key if the directory has neither, signed by its CA, which is created if missing.

    Args:
        directory: created with mode 0700 if missing.
        host_names: DNS names and IP addresses of the server.
        now: the time, with a time zone.

    Raises:
        ValueError: a host name is invalid, or the directory's CA cannot issue certificates.
        OSError: a file cannot be read or written.
    """
    certificate, key = directory / CERTIFICATE, directory / KEY
    if certificate.exists() or key.exists():
        return
    ca, ca_key = directory / CA_CERTIFICATE, directory / CA_KEY
    has_ca = ca.exists() or ca_key.exists()
    authority = Authority.load(ca.read_bytes(), ca_key.read_bytes()) if has_ca else Authority.create(now=now)
    leaf = authority.issue(host_names, now=now, lifetime=LEAF_LIFETIME)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not has_ca:
        _create(ca, authority.pair.certificate_pem, _PUBLIC)
        _create(ca_key, authority.pair.key_pem, _PRIVATE)
    # The key is written first, so that a process that waits for tls.crt finds both files.
    _create(key, leaf.key_pem, _PRIVATE)
    _create(certificate, leaf.certificate_pem, _PUBLIC)


def _create(path: Path, content: bytes, mode: int) -> None:
    """Create a file; it has `mode` from its creation on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
