"""Certificates one after the other in PEM text, some of which may be anything."""

import re

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.authority import KeyPair

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


def blocks(text: bytes) -> list[bytes]:
    """Return what looks like a certificate, each with its line end, without what stands between."""
    return [block + b"\n" for block in _BLOCK.findall(text)]


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
