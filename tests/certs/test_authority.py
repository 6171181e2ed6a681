"""Certificates of the authority, verified with openssl and with cryptography's verifier."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.authority import BACKDATING, CA_LIFETIME, Authority, KeyPair, canonical_names, names_of, renew_at

Kind = TypeVar("Kind", bound=x509.ExtensionType)
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SERVICE = "webhook.kaishare.svc"
LONG = ".".join(["a" * 63] * 3 + ["a" * 61])  # the 253 characters a name may have
IPV4_MAPPED = str(ip_address("::ffff:10.0.0.7"))  # Python 3.13 and newer keep the IPv4 form
CA = Authority.create(now=NOW)


def leaf(
    *names: str, lifetime: timedelta = timedelta(days=365), now: datetime = NOW, ca: Authority = CA
) -> KeyPair:
    return ca.issue(names or (SERVICE,), now=now, lifetime=lifetime)


def extension(pair: KeyPair, kind: type[Kind]) -> tuple[Kind, bool]:
    parsed = pair.certificate.extensions.get_extension_for_class(kind)
    return parsed.value, parsed.critical


def foreign_ca(key: CertificateIssuerPrivateKeyTypes, *extensions: x509.ExtensionType) -> KeyPair:
    """Return a CA as another tool would have made it, with the given extensions only."""
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(NOW).not_valid_after(NOW + timedelta(days=90))
    for value in extensions:
        critical = not isinstance(value, x509.SubjectKeyIdentifier)  # as RFC 5280 wants them
        builder = builder.add_extension(value, critical=critical)
    certificate = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256())
    return KeyPair(certificate.public_bytes(Encoding.PEM), key_pem(key))


def key_pem(key: CertificateIssuerPrivateKeyTypes, passphrase: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def openssl_verify(directory: Path, ca: bytes, certificate: bytes, *options: str) -> str:
    """Verify strictly as of `NOW` and return openssl's error; "" if it accepts."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT VERIFIED: there is no openssl binary to check the chain with")
    (directory / "ca.pem").write_bytes(ca)
    (directory / "leaf.pem").write_bytes(certificate)
    words = f"verify -x509_strict -purpose sslserver -attime {NOW.timestamp():.0f}"
    files = ["-CAfile", str(directory / "ca.pem"), str(directory / "leaf.pem")]
    command = [openssl, *words.split(), *options, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (SERVICE, "-verify_hostname"), (LONG, "-verify_hostname"), ("127.0.0.1", "-verify_ip"),
        ("::1", "-verify_ip"),
    ],
)  # fmt: skip
def test_openssl_accepts_the_chain_strictly(tmp_path: Path, name: str, option: str) -> None:
    issued = leaf("other.example", name)
    other = Authority.create(now=NOW).pair.certificate_pem
    for ca in (CA.pair.certificate_pem, other + CA.pair.certificate_pem):
        assert openssl_verify(tmp_path, ca, issued.certificate_pem, option, name) == ""
    refused = openssl_verify(
        tmp_path, CA.pair.certificate_pem, issued.certificate_pem, "-verify_hostname", "other.svc"
    )
    assert "hostname mismatch" in refused.lower()
    assert "unable to get local issuer" in openssl_verify(tmp_path, other, issued.certificate_pem)


def test_a_ca_may_sign_and_nothing_else() -> None:
    assert extension(CA.pair, x509.BasicConstraints) == (x509.BasicConstraints(ca=True, path_length=0), True)
    usage, critical = extension(CA.pair, x509.KeyUsage)
    assert critical
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    key = CA.pair.key
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_a_leaf_may_serve_and_nothing_else() -> None:
    pair = leaf()
    assert extension(pair, x509.BasicConstraints) == (x509.BasicConstraints(ca=False, path_length=None), True)
    usage, critical = extension(pair, x509.KeyUsage)
    assert critical
    assert (usage.digital_signature, usage.key_cert_sign, usage.crl_sign) == (True, False, False)
    assert extension(pair, x509.ExtendedKeyUsage)[0] == x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH]
    )
    identifier = extension(pair, x509.AuthorityKeyIdentifier)[0].key_identifier
    assert identifier == extension(CA.pair, x509.SubjectKeyIdentifier)[0].digest
    assert identifier != extension(pair, x509.SubjectKeyIdentifier)[0].digest
    assert pair.matches()


def test_validity() -> None:
    ca, issued = CA.pair.certificate, leaf(lifetime=timedelta(days=7)).certificate
    assert (ca.not_valid_before_utc, ca.not_valid_after_utc) == (NOW - BACKDATING, NOW + CA_LIFETIME)
    assert (issued.not_valid_before_utc, issued.not_valid_after_utc) == (
        NOW - BACKDATING,
        NOW + timedelta(days=7),
    )
    late = leaf(now=NOW + CA_LIFETIME - timedelta(days=1))
    assert late.not_after == CA.pair.not_after, "a leaf never outlives its CA"
    with pytest.raises(ValueError, match=r"^the CA expired on 2036-05-01 12:00 UTC$"):
        leaf(now=NOW + CA_LIFETIME)
    assert leaf(now=NOW.astimezone(timezone(timedelta(hours=-9)))).not_after == leaf().not_after
    with pytest.raises(ValueError, match="time zone"):
        Authority.create(now=NOW.replace(tzinfo=None))
    assert renew_at(leaf(lifetime=timedelta(seconds=30)).certificate) == NOW + timedelta(seconds=20)


def test_only_the_certificate_of_a_stored_ca_is_published() -> None:
    """A PEM file may have the private key beside its certificate; the certificate goes into the caBundle."""
    pair, other = Authority.create(now=NOW).pair, Authority.create(now=NOW).pair
    for text in (
        pair.certificate_pem,
        pair.key_pem + pair.certificate_pem,
        pair.certificate_pem + other.certificate_pem,
    ):
        assert Authority.load(text, pair.key_pem).pair == pair
    assert "PRIVATE" not in repr(CA)
    assert "key_pem" not in repr(CA)


@pytest.mark.parametrize("has_identifier", [True, False])
@pytest.mark.parametrize("kind", ["rsa", "p384"])
def test_openssl_accepts_the_leaf_of_a_foreign_ca(tmp_path: Path, kind: str, has_identifier: bool) -> None:
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP384R1())
    own = x509.SubjectKeyIdentifier(b"chosen by hand")
    usage = extension(CA.pair, x509.KeyUsage)[0]
    made = foreign_ca(key, x509.BasicConstraints(ca=True, path_length=None), usage, *[own] * has_identifier)
    ca = Authority.load(made.certificate_pem, made.key_pem)
    issued = leaf(ca=ca)
    if has_identifier:
        assert openssl_verify(tmp_path, made.certificate_pem, issued.certificate_pem) == ""
    expected = own if has_identifier else x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    assert extension(issued, x509.AuthorityKeyIdentifier)[0].key_identifier == expected.digest
    issued.certificate.verify_directly_issued_by(ca.pair.certificate)


def unloadable() -> dict[str, tuple[bytes, bytes, str]]:
    cert, key = CA.pair.certificate_pem, CA.pair.key_pem
    p256 = ec.generate_private_key(ec.SECP256R1())
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    plain = foreign_ca(p256)
    odd = foreign_ca(ed25519.Ed25519PrivateKey.generate(), constraints)
    mute = foreign_ca(p256, constraints, extension(leaf(), x509.KeyUsage)[0])
    served = leaf()
    return {
        "an empty certificate": (b"", key, "no readable PEM certificate"),
        "a certificate of noise": (b"\x00\xff\n" * 9, key, "no readable PEM certificate"),
        "a cut certificate": (cert[:200], key, "no readable PEM certificate"),
        "a key for a certificate": (key, key, "no readable PEM certificate"),
        "an empty key": (cert, b"", "no PEM private key"),
        "a certificate for a key": (cert, cert, "no PEM private key"),
        "a key with a passphrase": (cert, key_pem(p256, b"secret"), "without a passphrase"),
        "another's key": (cert, Authority.create(now=NOW).pair.key_pem, "do not belong together"),
        "a key of another kind": (cert, odd.key_pem, "do not belong together"),
        "a leaf": (served.certificate_pem, served.key_pem, "not a CA's"),
        "a certificate without extensions": (plain.certificate_pem, plain.key_pem, "not a CA's"),
        "a CA that may not sign": (mute.certificate_pem, mute.key_pem, "not a CA's"),
        "a CA with an Ed25519 key": (odd.certificate_pem, odd.key_pem, "has to be ECDSA or RSA"),
    }


UNLOADABLE = unloadable()


@pytest.mark.parametrize("case", UNLOADABLE)
def test_an_invalid_ca_is_refused_in_one_line(case: str) -> None:
    certificate, key, message = UNLOADABLE[case]
    with pytest.raises(ValueError, match=message) as caught:
        Authority.load(certificate, key)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("webhook", "webhook"), ("Webhook.KaiShare.SVC", SERVICE), ("1x.example", "1x.example"), (LONG, LONG),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"), ("10.0.0.7", "10.0.0.7"),
        ("2001:DB8:0:0::1", "2001:db8::1"), ("::ffff:10.0.0.7", IPV4_MAPPED),
    ],
)  # fmt: skip
def test_names_are_stored_in_canonical_form(given: str, canonical: str) -> None:
    assert names_of(leaf(given).certificate) == {canonical} == set(canonical_names([given]))


def test_addresses_and_names_are_distinguished_and_written_once() -> None:
    names, critical = extension(leaf("b.svc", "10.0.0.7", "B.svc", "::1"), x509.SubjectAlternativeName)
    assert critical  # the subject is empty
    assert names_of(CA.pair.certificate) == frozenset()
    assert list(names) == [
        x509.DNSName("b.svc"), x509.IPAddress(ip_address("10.0.0.7")), x509.IPAddress(ip_address("::1")),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "", " ", ".", "a..b", "a.b.", ".a", "-a", "a-", "a_b", "a b", "*.example", "a\nb", "http://a",
        "a:9443", "a/b", "bücher.example", "\u212aube", "\u0661.example", "a" * 64, f"{LONG}a", "10.0.0", "10.0.0.256",
        "1.2.3.4.5", "10.0.0.0/8", "[::1]", "fe80::1%eth0", "::1::",
    ],
)  # fmt: skip
def test_an_invalid_host_name_is_named_in_the_error(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a host name; allowed: a DNS name .* or an IP address"
    ) as caught:
        leaf(SERVICE, name)
    assert str(caught.value).startswith(repr(name))
    assert len(str(caught.value).splitlines()) == 1
