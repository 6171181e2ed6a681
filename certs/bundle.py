"""What a `caBundle` should hold, and since when bundles have been seen holding what. Pure."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import KeyPair

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


MOST_BLOCKS: Final = 64
"""Certificates that are read of one text. One takes some 30 µs, and a text of 1.5 MB can hold 27,000."""


def blocks(text: bytes) -> list[bytes]:
    """Return the last 64 PEM blocks that look like a certificate, each with its line end.

    New certificates are appended to a bundle, so the last ones are in use.
    """
    return [block + b"\n" for block in _BLOCK.findall(text)[-MOST_BLOCKS:]]


def certificate_of(pem: bytes) -> x509.Certificate | None:
    """Return the first certificate, None if it cannot be read."""
    try:
        return KeyPair(pem, b"").certificate
    except ValueError:
        return None


def der(pem: bytes) -> bytes:
    """Return the first certificate's DER, by which it is told from others however its text is set.

    Raises:
        ValueError: it cannot be read.
    """
    return KeyPair(pem, b"").certificate.public_bytes(Encoding.DER)


_MOST: Final = 16
"""Certificates in a bundle; the first of those that are not asked for give way."""


def merged(bundle: bytes, wanted: Collection[bytes], *, now: datetime) -> bytes:
    """Return the bundle that trusts all that is wanted too; the same bytes if it does already.

    What is there stays while it is valid, whoever put it there: other replicas may serve leaves of it, of a
    CA that this one does not know yet, or of an authority that served here before. What has expired or cannot
    be read goes.

    Args:
        bundle: PEM, or whatever is in its place.
        wanted: certificates in PEM.
        now: the time by which certificates expire.
    """
    found = blocks(bundle)
    kept, asked = _valid(found, now), _valid(wanted, now)
    if len(kept) == len(found) <= _MOST and asked.keys() <= kept.keys():
        return bundle
    others = [key for key in kept if key not in asked]
    for key in others[: max(0, len(others) + len(asked) - _MOST)]:
        del kept[key]
    return b"".join((kept | asked).values())


def _valid(certificates: Collection[bytes], now: datetime) -> dict[bytes, bytes]:
    """Return those that can be read and have not expired, by their DER."""
    valid: dict[bytes, bytes] = {}
    for pem in certificates:
        certificate = certificate_of(pem)
        if certificate is not None and now < certificate.not_valid_after_utc:
            valid.setdefault(der(pem), pem.strip() + b"\n")
    return valid


def held(bundle: bytes) -> frozenset[bytes]:
    """Return the certificates of a bundle, in DER."""
    return frozenset(der(pem) for pem in blocks(bundle) if certificate_of(pem) is not None)


class BundleHistory:
    """Since when all bundles have been seen holding a certificate."""

    def __init__(self) -> None:
        self._since: Mapping[bytes, float] = {}

    def see(self, bundles: Collection[bytes], *, at: float) -> None:
        """Take down what the bundles hold now; what any of them lacks is held by none.

        Args:
            bundles: PEM, one a webhook; none at all hold nothing.
            at: monotonic seconds.
        """
        common = frozenset.intersection(*map(held, bundles)) if bundles else frozenset()
        self._since = {key: self._since.get(key, at) for key in common}

    def held_for(self, certificate_pem: bytes, *, at: float) -> float | None:
        """Return for how many seconds a certificate has been held without a break; None if it is not now."""
        since = self._since.get(der(certificate_pem))
        return None if since is None else at - since
