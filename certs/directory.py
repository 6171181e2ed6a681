"""A CA and a serving certificate in a directory: ca.crt, ca.key, tls.crt and tls.key.

With `ca.key` the directory is ours to keep in order; without it somebody else put the files there (a
mounted cert-manager Secret has the same names without that one) and they are only looked at. A CA that
we did not make is never replaced. One process at a time is expected to write.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.authority import (
    BACKDATING,
    LEAF_LIFETIME,
    Authority,
    KeyPair,
    canonical_names,
    made_here,
    names_of,
    renew_at,
)

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"

_PRIVATE, _PUBLIC = 0o600, 0o644


class CertificateError(ValueError):
    """A certificate cannot be used; the message is one line for the user: file, fault, remedy."""


@dataclass(frozen=True, slots=True)
class Served:
    """What to serve with."""

    certificate: Path
    key: Path
    ca: Path | None
    """What clients verify with; None where somebody's own files have no `ca.crt`."""
    not_after: datetime
    """When the certificate expires, in UTC."""
    made: bool
    """Whether the certificate was made just now, perhaps with a new CA."""
    reason: str = ""
    """Why it was made; empty for one that was kept."""


def ensure(directory: Path, host_names: Sequence[str], *, now: datetime) -> Served:
    """See to it that the directory holds a certificate to serve with.

    A missing or empty directory is filled. Where our CA is, its certificate is replaced when it is past
    two thirds of its life, lacks one of the names or is unfit in another way, and the CA with it once
    that expired. Somebody's own files are taken as they are, unless no client would accept them.

    Args:
        directory: made with mode 0700 if missing.
        host_names: DNS names and IP addresses the server is reached by; unused for somebody's own files.
        now: the time, aware of its zone.

    Raises:
        CertificateError: there is no usable certificate, and none can be made here.
    """
    _require_directory(directory)
    ca, certificate, key = directory / CA_CERTIFICATE, directory / CERTIFICATE, directory / KEY
    authority, reason = None, "there was none"
    if _read(directory / CA_KEY) is not None:
        authority, reason = _authority(directory, now)
    elif _is_foreign(directory):
        pair = load_pair(certificate, key, now=now)
        return Served(certificate, key, ca if _has_ca(ca) else None, pair.not_after, made=False)

    try:
        names = canonical_names(host_names)
    except ValueError as error:
        raise CertificateError(str(error)) from None
    if authority is not None:
        kept, reason = _kept(authority, certificate, key, frozenset(names), now)
        if kept is not None:
            return Served(certificate, key, ca, kept.not_after, made=False)
    else:
        _make_directory(directory)
        authority = Authority.create(now=now)
        # The certificate first: after a crash in between it says that the key beside it is ours to
        # replace. A key alone says nothing, and may be the only copy of somebody's CA.
        _write(ca, authority.pair.certificate_pem, _PUBLIC)
        _write(directory / CA_KEY, authority.pair.key_pem, _PRIVATE)
    made = authority.issue(names, now=now, lifetime=LEAF_LIFETIME)
    # Here the key first: whoever waits for tls.crt to appear finds both. A crash in between leaves a pair
    # that does not match, beside the CA that replaces it at the next start.
    _write(key, made.key_pem, _PRIVATE)
    _write(certificate, made.certificate_pem, _PUBLIC)
    return Served(certificate, key, ca, made.not_after, made=True, reason=reason)


def load_pair(certificate: Path, key: Path, *, now: datetime) -> KeyPair:
    """Read a certificate and its key from files that somebody else keeps.

    A certificate from the near future is accepted: the issuer's clock may be ahead by `BACKDATING`.

    Raises:
        CertificateError: a file is missing or unreadable, the two do not belong together, or no client
            would accept the certificate at this time.
    """
    pair = _parsed(certificate, key)
    if not pair.matches():
        raise CertificateError(
            f"{certificate} and {key} do not belong together: provide the key the certificate was made for"
        )
    if now >= pair.not_after:
        raise CertificateError(
            f"{certificate} expired on {_utc(pair.not_after)}: replace it with a renewed certificate"
        )
    start = pair.certificate.not_valid_before_utc
    if now < start - BACKDATING:
        raise CertificateError(
            f"{certificate} is not valid before {_utc(start)}: check the clock of this machine"
        )
    return pair


def _is_foreign(directory: Path) -> bool:
    """Whether files of a directory without `ca.key` are somebody else's.

    A `ca.crt` of ours without any other file is what a crash of the very first start leaves.
    """
    if any(_read(directory / name) is not None for name in (CERTIFICATE, KEY)):
        return True
    ca = _read(directory / CA_CERTIFICATE)
    if ca is None:
        return False
    try:
        return not made_here(KeyPair(ca, b"").certificate)
    except ValueError:
        return True


def _has_ca(path: Path) -> bool:
    """Whether somebody's `ca.crt` is there; issuers without a CA certificate to show leave it empty."""
    pem = _read(path)
    if pem is None or not pem.strip():
        return False
    try:
        _ = KeyPair(pem, b"").certificate
    except ValueError as error:
        raise CertificateError(f"{path} holds {error}: replace it with the issuer's, or remove it") from None
    return True


def _authority(directory: Path, now: datetime) -> tuple[Authority | None, str]:
    """Return the directory's CA, or None and why a new one is due; only one of ours is ever replaced."""
    ca, key = directory / CA_CERTIFICATE, directory / CA_KEY
    pair = _parsed(ca, key)
    ours = made_here(pair.certificate)
    if not pair.matches():
        if ours:
            return None, "the CA did not match its key"
        raise CertificateError(f"{ca} and {key} do not belong together: provide the CA's own key")
    if now >= pair.not_after:
        if ours:
            return None, "the CA had expired"
        raise CertificateError(f"{ca} expired on {_utc(pair.not_after)}: replace it with a renewed CA")
    start = pair.certificate.not_valid_before_utc
    if now < start:
        # A new CA would be worth nothing once the clock is right again.
        raise CertificateError(f"{ca} is not valid before {_utc(start)}: check the clock of this machine")
    try:
        return Authority.load(pair.certificate_pem, pair.key_pem), ""
    except ValueError as error:
        raise CertificateError(f"{ca} cannot issue: {error}; replace it, or empty {directory}") from None


def _kept(
    authority: Authority, certificate_path: Path, key_path: Path, names: frozenset[str], now: datetime
) -> tuple[KeyPair | None, str]:
    """Return the pair to go on with, or None and why a new one is due."""
    certificate_pem, key_pem = _read(certificate_path), _read(key_path)
    if certificate_pem is None or key_pem is None:
        return None, "certificate or key was missing"
    pair = KeyPair(certificate_pem, key_pem)
    try:
        certificate, matches = pair.certificate, pair.matches()
    except ValueError as error:
        return None, f"there was {error}"
    if not matches:
        return None, "the certificate did not match its key"
    if not authority.signed(certificate):
        return None, "another CA had issued it"
    lacking = names - names_of(certificate)
    if lacking:
        return None, f"it lacked {', '.join(sorted(lacking))}"
    if now < certificate.not_valid_before_utc:
        return None, "it was not valid yet"
    if now >= renew_at(certificate):
        return None, "it was past two thirds of its life"
    return pair, ""


def _parsed(certificate: Path, key: Path) -> KeyPair:
    """Read a pair that has to be there; whether it matches is not checked."""
    pems = []
    for path in (certificate, key):
        pem = _read(path)
        if pem is None:
            raise CertificateError(f"{path} does not exist: provide both {certificate.name} and {key.name}")
        pems.append(pem)
    pair = KeyPair(*pems)
    try:
        _ = pair.certificate
    except ValueError as error:
        raise CertificateError(f"{certificate} holds {error}: replace it") from None
    try:
        _ = pair.key
    except ValueError as error:
        raise CertificateError(f"{key} holds {error}: replace it") from None
    return pair


def _require_directory(directory: Path) -> None:
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CertificateError(f"{directory} cannot be read ({error.strerror}): give another path") from None
    if not stat.S_ISDIR(mode):
        raise CertificateError(f"{directory} is not a directory: give one to keep certificates in")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CertificateError(
            f"{directory} cannot be made ({error.strerror}): give a directory this user can write"
        ) from None


def _read(path: Path) -> bytes | None:
    """Return a file's content, None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror}): make it a file this user can read"
        ) from None


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file at once; `mode` holds from its first byte on.

    The directory is synced as well: the order in which files appear has to outlast a power cut.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be written ({error.strerror}): give a directory this user can write"
        ) from None


def _sync(directory: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot sync a directory
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
