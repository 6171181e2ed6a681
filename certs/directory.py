"""Creates a CA and a serving certificate in a directory: ca.crt, ca.key, tls.crt and tls.key.

Existing files are never changed, so that a directory may belong to its user, as a mounted Secret does. Each
file appears whole, the key before its certificate: a process that is killed leaves at most a key alone.
"""

import os
import tempfile
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
        ValueError: a host name is invalid, a certificate or key is alone, or the directory's CA cannot issue
            certificates.
        OSError: a file cannot be read or written.
    """
    certificate, key = directory / CERTIFICATE, directory / KEY
    if _are_there(certificate, key):
        return
    ca, ca_key = directory / CA_CERTIFICATE, directory / CA_KEY
    has_ca = _are_there(ca, ca_key)
    authority = Authority.load(ca.read_bytes(), ca_key.read_bytes()) if has_ca else Authority.create(now=now)
    leaf = authority.issue(host_names, now=now, lifetime=LEAF_LIFETIME)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not has_ca:
        _create(ca_key, authority.pair.key_pem, _PRIVATE)
        _create(ca, authority.pair.certificate_pem, _PUBLIC)
    # The key is written first, so that a process that waits for tls.crt finds both files.
    _create(key, leaf.key_pem, _PRIVATE)
    _create(certificate, leaf.certificate_pem, _PUBLIC)


def _are_there(certificate: Path, key: Path) -> bool:
    """Return whether both files exist.

    Raises:
        ValueError: one of them is alone.
    """
    has_certificate, has_key = certificate.exists(), key.exists()
    if has_certificate is has_key:
        return has_key
    alone, other = (certificate, key) if has_certificate else (key, certificate)
    raise ValueError(f"{alone.name} is there without {other.name}: add {other.name}, or delete {alone.name}")


def _create(path: Path, content: bytes, mode: int) -> None:
    """Create a file with its content at once; it has `mode` from its creation on."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:  # mode 0600
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), mode)
        os.link(file.name, path)
