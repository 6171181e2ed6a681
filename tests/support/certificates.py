"""Certificates for loopback servers and their clients."""

import io
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.authority import Authority, KeyPair
from service.http.tls_files import TlsFiles
from service.log import JsonLog
from webhook.certificates import create_if_missing

A_DAY = timedelta(days=1)


def serving_context(
    authority: Authority, folder: Path, *, asks_for_certificate: bool = False, age: timedelta = timedelta(0)
) -> ssl.SSLContext:
    """Return a server's TLS context for 127.0.0.1; its certificate is valid for a day."""
    names = ["127.0.0.1", "localhost", "api.example"]
    pair = authority.issue(names, now=datetime.now(UTC) - age, lifetime=A_DAY)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    if asks_for_certificate:
        context.load_verify_locations(cadata=authority.pair.certificate_pem.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def directory_context(directory: Path) -> ssl.SSLContext:
    """Create certificates for this machine in a directory, and return a server's TLS context of them."""
    create_if_missing(directory, ["localhost", "127.0.0.1"])
    return TlsFiles(directory / "tls.crt", directory / "tls.key", log=JsonLog(io.BytesIO())).context


def client_pair(authority: Authority, user: str, *groups: str) -> KeyPair:
    """Return a user's client certificate: the subject has user and groups, as Kubernetes reads them."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = authority.pair.key
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)]))
        .issuer_name(authority.pair.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + A_DAY)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(issuer_key, SHA256())
    )
    return KeyPair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
