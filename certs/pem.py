"""Certificates one after the other in PEM text, some of which may be anything."""

import re
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
