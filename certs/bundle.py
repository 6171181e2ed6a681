"""Computes the content of a `caBundle`, and records for how long bundles have contained each CA. Pure."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import KeyPair

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")

MOST_BLOCKS: Final = 64
"""Maximum number of certificates read from a text. One takes about 30 µs, and 1.5 MB can contain 27,000."""

_MOST: Final = 16
"""Maximum number of certificates in a bundle. The oldest certificates that are not required are removed."""


def blocks(text: bytes) -> list[bytes]:
    """Return the last 64 PEM certificate blocks of a text, each with its line end.

    The last blocks are in use, because new certificates are appended to a bundle.
    """
    return [block + b"\n" for block in _BLOCK.findall(text)[-MOST_BLOCKS:]]


def certificate_of(pem: bytes) -> x509.Certificate | None:
    """Return the first certificate of a PEM text; None if it cannot be read."""
    try:
        return KeyPair(pem, b"").certificate
    except ValueError:
        return None


def der(pem: bytes) -> bytes:
    """Return the DER form of the first certificate, which identifies it regardless of PEM formatting.

    Raises:
        ValueError: the certificate cannot be read.
    """
    return KeyPair(pem, b"").certificate.public_bytes(Encoding.DER)


def merged(bundle: bytes, required: Collection[bytes], *, now: datetime) -> bytes:
    """Return the bundle with all required certificates added; the same bytes if nothing has to change.

    Valid certificates stay, whatever their origin, because other replicas may serve leaves of another CA.
    Expired and unreadable certificates are removed.

    Args:
        bundle: PEM; other content is replaced.
        required: certificates in PEM.
        now: the time at which certificates must be valid.
    """
    present = blocks(bundle)
    valid, added = _valid(present, now), _valid(required, now)
    if len(valid) == len(present) <= _MOST and added.keys() <= valid.keys():
        return bundle
    others = [key for key in valid if key not in added]
    for key in others[: max(0, len(others) + len(added) - _MOST)]:
        del valid[key]
    return b"".join((valid | added).values())


def _valid(certificates: Collection[bytes], now: datetime) -> dict[bytes, bytes]:
    """Return the readable certificates that have not expired as PEM, by DER form.

    The PEM has the certificate and nothing else: a text that contains a private key beside its certificate
    must not reach a caBundle.
    """
    return {
        certificate.public_bytes(Encoding.DER): certificate.public_bytes(Encoding.PEM)
        for certificate in map(certificate_of, certificates)
        if certificate is not None and now < certificate.not_valid_after_utc
    }


def certificates_in(bundle: bytes) -> frozenset[bytes]:
    """Return the certificates of a bundle in DER form."""
    certificates = map(certificate_of, blocks(bundle))
    return frozenset(item.public_bytes(Encoding.DER) for item in certificates if item is not None)


class BundleHistory:
    """Records for how long all bundles have contained each certificate."""

    def __init__(self) -> None:
        self._since: Mapping[bytes, float] = {}

    def see(self, bundles: Collection[bytes], *, at: float) -> None:
        """Record the current bundles. Only certificates that all bundles contain count.

        Args:
            bundles: PEM, one for each webhook; without bundles no certificate counts.
            at: monotonic seconds.
        """
        common = frozenset.intersection(*map(certificates_in, bundles)) if bundles else frozenset()
        self._since = {key: self._since.get(key, at) for key in common}

    def trusted_for(self, certificate_pem: bytes, *, at: float) -> timedelta | None:
        """Return for how long all bundles have contained a certificate; None if one lacks it now."""
        since = self._since.get(der(certificate_pem))
        return None if since is None else timedelta(seconds=at - since)
