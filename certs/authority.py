"""A certificate authority that issues serving certificates. It stores nothing and reads no clock.

Issued certificates pass `openssl verify -x509_strict`, which Python 3.13 requires by default.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from service.names import is_dns_label, is_dns_subdomain

AUTHORITY_NAME: Final = "kaishare webhook CA"  # default subject of a CA

CA_LIFETIME: Final = timedelta(days=3650)
"""Default lifetime of a CA. It is long, because a new CA must reach every `caBundle`, some copied by hand."""

BACKDATING: Final = timedelta(minutes=5)
"""Tolerated difference between the clocks of an API server and of the issuer."""

_ALLOWED = (
    "a DNS name (letters, digits and '-' between dots, each part 63 characters at most, all 253,"
    " no wildcard) or an IP address"
)
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
_NO_EXTENSION = (
    ValueError,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (PEM, optionally followed by its chain) and its private key (PEM, unencrypted)."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @property
    def certificate(self) -> x509.Certificate:
        """The first certificate of the PEM text.

        Raises:
            ValueError: the text contains no readable certificate.
        """
        try:
            return x509.load_pem_x509_certificate(self.certificate_pem)
        except _UNREADABLE:
            raise ValueError("no readable PEM certificate") from None

    @property
    def key(self) -> PrivateKeyTypes:
        """The private key.

        Raises:
            ValueError: the key is missing or unreadable, or it needs a passphrase.
        """
        try:
            return load_pem_private_key(self.key_pem, password=None)
        except _UNREADABLE:
            raise ValueError("no PEM private key that is readable without a passphrase") from None

    @property
    def not_after(self) -> datetime:
        """The end of the certificate's validity, in UTC.

        Raises:
            ValueError: there is no readable certificate.
        """
        return self.certificate.not_valid_after_utc

    def matches(self) -> bool:
        """Whether the key belongs to the certificate.

        Raises:
            ValueError: one of them cannot be read.
        """
        certificate, key = self.certificate, self.key
        try:
            return certificate.public_key() == key.public_key()
        except _UNREADABLE:
            return False  # the library does not know this type of key


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA with its key. `create` and `load` ensure that the pair can issue certificates."""

    pair: KeyPair

    @classmethod
    def create(
        cls, *, now: datetime, common_name: str = AUTHORITY_NAME, lifetime: timedelta = CA_LIFETIME
    ) -> "Authority":
        """Create a self-signed CA with a new ECDSA P-256 key, valid from `now`, which has a time zone.

        Raises:
            ValueError: an argument is out of range; `common_name` has 1 to 64 characters.
        """
        if now.utcoffset() is None:
            raise ValueError("the time has no time zone")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = _builder(subject, subject, key.public_key(), now, now + lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(is_ca=True), critical=True)
        return cls(_key_pair(builder.sign(key, SHA256()), key))

    @classmethod
    def load(cls, certificate_pem: bytes, key_pem: bytes) -> "Authority":
        """Load any CA, expired or not.

        Only the first certificate of the text is kept, without the rest of the text. The certificate is
        published in the caBundle, and a PEM file may contain the private key, too.

        Raises:
            ValueError: certificate or key cannot be read, they do not belong together, the certificate is not
                a CA's, or the type of the key is not supported.
        """
        pair = KeyPair(certificate_pem, key_pem)
        certificate = pair.certificate
        if not pair.matches():
            raise ValueError("the CA certificate and the key do not belong together")
        constraints = _extension(certificate, x509.BasicConstraints)
        usage = _extension(certificate, x509.KeyUsage)
        if constraints is None or not constraints.ca or (usage is not None and not usage.key_cert_sign):
            raise ValueError("the certificate is not a CA's: it may not sign others")
        _signing_key(pair)
        return cls(KeyPair(certificate.public_bytes(Encoding.PEM), key_pem))

    def issue(self, host_names: Sequence[str], *, now: datetime, lifetime: timedelta) -> KeyPair:
        """Issue a serving certificate with a new ECDSA P-256 key. It never outlives the CA.

        Raises:
            ValueError: a host name is invalid, there is none, or the CA has expired.
        """
        names = [_general_name(name) for name in canonical_names(host_names)]
        issuer, issuer_key = self.pair.certificate, _signing_key(self.pair)
        if now >= issuer.not_valid_after_utc:
            raise ValueError(f"the CA expired on {issuer.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        key = ec.generate_private_key(ec.SECP256R1())
        # The subject is empty, because a common name holds only 64 characters and a Service's name may be
        # longer. The SAN must therefore be critical (RFC 5280, 4.2.1.6).
        not_after = min(now + lifetime, issuer.not_valid_after_utc)
        builder = _builder(x509.Name([]), issuer.subject, key.public_key(), now, not_after)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(is_ca=False), critical=True)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        builder = builder.add_extension(_authority_identifier(issuer, issuer_key), critical=False)
        return _key_pair(builder.sign(issuer_key, SHA256()), key)


def canonical_names(host_names: Sequence[str]) -> tuple[str, ...]:
    """Normalise names as `names_of` returns them: lower case, short IPv6, without duplicates, in order.

    Raises:
        ValueError: a name is invalid, or there is none; the message says what is allowed.
    """
    if not host_names:
        raise ValueError(f"no host name given; allowed: {_ALLOWED}")
    return tuple(dict.fromkeys(_canonical_name(name) for name in host_names))


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """Return the DNS names and IP addresses of a certificate, in the form of `canonical_names`.

    Names in the subject are ignored, as in Go. Without a readable SAN the result is empty.
    """
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return frozenset()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return frozenset({*(name.lower() for name in names.get_values_for_type(x509.DNSName)), *addresses})


def renew_at(certificate: x509.Certificate) -> datetime:
    """Return the time of renewal in UTC: after two thirds of the certificate's life, as in cert-manager.

    The life begins when the certificate was issued; `BACKDATING` is not part of it.
    """
    start, end = certificate.not_valid_before_utc + BACKDATING, certificate.not_valid_after_utc
    return start + (end - start) * 2 / 3


def _signing_key(pair: KeyPair) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    key = pair.key
    if isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        return key
    raise ValueError("the key of a CA has to be ECDSA or RSA")


def _canonical_name(name: str) -> str:
    text = name.lower() if name.isascii() else ""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        labels = text.split(".")
        # A name whose last part is a number is a mistyped address, because no top-level domain is a number.
        if is_dns_subdomain(text) and all(map(is_dns_label, labels)) and not labels[-1].isdigit():
            return text
    else:
        if "%" not in text:  # certificates cannot contain an IPv6 zone
            return str(address)
    raise ValueError(f"{name!r} is not a host name; allowed: {_ALLOWED}")


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATING)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_identifier(
    issuer: x509.Certificate, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
) -> x509.AuthorityKeyIdentifier:
    """Return the issuer's key identifier; a foreign CA may have computed its own differently."""
    identifier = _extension(issuer, x509.SubjectKeyIdentifier)
    if identifier is None:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _key_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except _NO_EXTENSION:
        return None
