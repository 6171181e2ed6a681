"""Bundles: their certificates, and the time for which each certificate has been in them."""

from datetime import UTC, datetime, timedelta

import pytest

from certs.authority import Authority
from certs.ca_injector import MOST_BLOCKS, BundleHistory, certificate_of, certificates_in, der, merged

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def ca(name: str = "kaishare webhook CA", days: int = 1) -> bytes:
    """Return the certificate of a CA that expires in that many days."""
    made = Authority.create(now=NOW - timedelta(days=9), lifetime=timedelta(days=9 + days), common_name=name)
    return made.pair.certificate_pem


A, B, THEIRS, EXPIRED = ca(), ca(), ca("theirs", 2000), ca(days=0)


@pytest.mark.parametrize(
    ("bundle", "wanted", "expected"),
    [
        (b"", [A], [A]),
        (A, [A, B], [A, B]),
        (A + B, [A], [A, B]),
        (EXPIRED + A, [A], [A]),
        (THEIRS, [A], [THEIRS, A]),
        (b"Zm9v\n", [A], [A]),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + A, [A, B], [A, B]),
        (A + A, [A], [A]),
        (b"\xff\x00", [A, A], [A]),
        (A, [A, EXPIRED], [A]),
    ],
    ids=[
        "nothing", "one more", "one that is not asked for", "an expired one", "a foreign one", "no PEM",
        "no certificate", "twice", "twice wanted",
        "an expired one wanted",
    ],
)  # fmt: skip
def test_wanted_certificates_are_added_and_valid_ones_stay(
    bundle: bytes, wanted: list[bytes], expected: list[bytes]
) -> None:
    right = merged(bundle, wanted, now=NOW)
    assert certificates_in(right) == {der(pem) for pem in expected}
    assert right.count(b"BEGIN CERTIFICATE") == len(expected)
    assert merged(right, wanted, now=NOW) == right


@pytest.mark.parametrize("bundle", [A, A + B, b"# a remark\n" + A.replace(b"\n", b"\r\n"), THEIRS + A])
def test_a_correct_bundle_keeps_its_exact_bytes(bundle: bytes) -> None:
    assert merged(bundle, [A], now=NOW) == bundle


HEADER = b"-----BEGIN CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "written",
    [
        Authority.create(now=NOW).pair.key_pem + A, A + Authority.create(now=NOW).pair.key_pem,
        A.replace(b"CERTIFICATE", b"X509 CERTIFICATE"), A.replace(HEADER, HEADER + b"Proc-Type: 4,CLEAR\n\n"),
    ],
    ids=["a key before it", "a key behind it", "the old type", "a header"],
)  # fmt: skip
def test_a_wanted_certificate_is_added_without_the_text_around_it(written: bytes) -> None:
    """A caBundle is public, and Go skips PEM blocks of another type or with headers."""
    assert merged(b"", [written], now=NOW) == A
    assert merged(A, [written], now=NOW) == A


def test_the_size_of_a_bundle_is_bounded_and_kaishares_cas_stay() -> None:
    many = [ca(f"theirs {number}") for number in range(20)]
    right = certificates_in(merged(b"".join([A, *many]), [A, B], now=NOW))
    assert len(right) == 16
    assert {der(A), der(B), der(many[-1])} <= right
    assert der(many[0]) not in right


def test_only_the_first_blocks_of_a_large_bundle_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for module in ("certs.ca_injector", "certs.rotation"):
        monkeypatch.setattr(f"{module}.certificate_of", lambda pem: read.append(pem) or certificate_of(pem))
    block = b"-----BEGIN CERTIFICATE-----AAAA-----END CERTIFICATE-----\n"
    bundle = block * 20_000 + A
    assert certificates_in(bundle) == {der(A)}
    assert len(read) == MOST_BLOCKS
    assert certificates_in(merged(bundle, [A, B], now=NOW)) == {der(A), der(B)}


def test_the_time_of_a_certificate_counts_from_the_last_bundle_without_it() -> None:
    seen = BundleHistory()
    # the bundles that are seen, and for how many seconds A and B have been in all of them five seconds later
    for at, bundles, trusted in (
        (0, [], (None, None)),
        (10, [A, B], (None, None)),
        (20, [A, A + B], (5, None)),
        (30, [A + B, A + B], (15, 5)),
        (40, [B], (None, 15)),
        (50, [A], (5, None)),
        (60, [], (None, None)),
    ):
        seen.see(bundles, at=at)
        times = (seen.trusted_for(certificate, at=at + 5) for certificate in (A, B))
        assert tuple(time and time.total_seconds() for time in times) == trusted, at
