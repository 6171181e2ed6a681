"""Stores a CA and a serving certificate in a directory: ca.crt, ca.key, tls.crt and tls.key.

A directory with `ca.key` is managed here. A directory without it belongs to its user (a mounted cert-manager
Secret has the other names) and is only read. A CA that kaishare did not create is never replaced. Only one
process at a time may write.
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
    """A certificate cannot be used; the message is one line with file, problem and remedy."""


@dataclass(frozen=True, slots=True)
class Served:
    """The files of a serving certificate."""

    certificate: Path
    key: Path
    ca: Path | None
    """The CA certificate for clients; None if the user's files have no `ca.crt`."""
    not_after: datetime
    """The end of the certificate's validity, in UTC."""
    made: bool
    """Whether the certificate was created by this call."""
    reason: str = ""
    """Why the certificate was created; empty for an existing one."""


def ensure(directory: Path, host_names: Sequence[str], *, now: datetime) -> Served:
    """Ensure that the directory contains a valid serving certificate, and return its files.

    A missing directory, and one without these files, is filled. In a managed directory the certificate is
    replaced when two thirds of its life have passed, when a name is missing, or when it is invalid; an
    expired CA is replaced, too.
    The user's own files are used unchanged, if clients would accept them.

    Args:
        directory: created with mode 0700 if missing.
        host_names: DNS names and IP addresses of the server; not used for the user's own files.
        now: the time, with a time zone.

    Raises:
        CertificateError: there is no usable certificate, and none can be created.
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
        existing, reason = _usable_pair(authority, certificate, key, frozenset(names), now)
        if existing is not None:
            return Served(certificate, key, ca, existing.not_after, made=False)
    else:
        _make_directory(directory)
        authority = Authority.create(now=now)
        # The certificate is written first. After a crash in between it shows that kaishare may replace the
        # CA. A key without a certificate could be the only copy of a user's CA.
        _write(ca, authority.pair.certificate_pem, _PUBLIC)
        _write(directory / CA_KEY, authority.pair.key_pem, _PRIVATE)
    pair = authority.issue(names, now=now, lifetime=LEAF_LIFETIME)
    # The key is written first, so that a process that waits for tls.crt finds both files. After a crash in
    # between, the next start replaces the mismatched pair.
    _write(key, pair.key_pem, _PRIVATE)
    _write(certificate, pair.certificate_pem, _PUBLIC)
    return Served(certificate, key, ca, pair.not_after, made=True, reason=reason)


def load_pair(certificate: Path, key: Path, *, now: datetime) -> KeyPair:
    """Read a certificate and its key from the user's files.

    A certificate whose validity begins within `BACKDATING` is accepted, because the issuer's clock may be
    ahead.

    Raises:
        CertificateError: a file is missing or unreadable, key and certificate do not belong together, or the
            certificate is not valid at this time.
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
    """Whether a directory without `ca.key` contains the user's own files.

    A `ca.crt` of kaishare without any other file remains after a crash of the first start.
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
    """Whether the user's `ca.crt` has content. Issuers that publish no CA certificate leave it empty."""
    pem = _read(path)
    if pem is None or not pem.strip():
        return False
    try:
        _ = KeyPair(pem, b"").certificate
    except ValueError as error:
        raise CertificateError(f"{path} holds {error}: replace it with the issuer's, or remove it") from None
    return True


def _authority(directory: Path, now: datetime) -> tuple[Authority | None, str]:
    """Return the directory's CA, or None and the reason for a new one.

    Only a CA that kaishare created is replaced; other CAs raise CertificateError.
    """
    ca, key = directory / CA_CERTIFICATE, directory / CA_KEY
    pair = _parsed(ca, key)
    is_replaceable = made_here(pair.certificate)
    if not pair.matches():
        if is_replaceable:
            return None, "the CA did not match its key"
        raise CertificateError(f"{ca} and {key} do not belong together: provide the CA's own key")
    if now >= pair.not_after:
        if is_replaceable:
            return None, "the CA had expired"
        raise CertificateError(f"{ca} expired on {_utc(pair.not_after)}: replace it with a renewed CA")
    start = pair.certificate.not_valid_before_utc
    if now < start:
        # A new CA would be invalid after the clock has been corrected.
        raise CertificateError(f"{ca} is not valid before {_utc(start)}: check the clock of this machine")
    try:
        return Authority.load(pair.certificate_pem, pair.key_pem), ""
    except ValueError as error:
        raise CertificateError(f"{ca} cannot issue: {error}; replace it, or empty {directory}") from None


def _usable_pair(
    authority: Authority, certificate_path: Path, key_path: Path, names: frozenset[str], now: datetime
) -> tuple[KeyPair | None, str]:
    """Return the existing pair if it is still usable, or None and the reason for a new one."""
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
    missing = names - names_of(certificate)
    if missing:
        return None, f"it lacked {', '.join(sorted(missing))}"
    if now < certificate.not_valid_before_utc:
        return None, "it was not valid yet"
    if now >= renew_at(certificate):
        return None, "it was past two thirds of its life"
    return pair, ""


def _parsed(certificate: Path, key: Path) -> KeyPair:
    """Read a pair of files that must exist, without checking that they belong together."""
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
        raise CertificateError(f"{directory} is not a directory: give a directory for certificates")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CertificateError(
            f"{directory} cannot be created ({error.strerror}): give a directory this user can write"
        ) from None


def _read(path: Path) -> bytes | None:
    """Return a file's content; None if the file does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror}): make it a file this user can read"
        ) from None


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically; the new file has `mode` from its creation on.

    The directory is synced as well, so that the order of files survives a power failure.
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
