"""Bundles: what they should hold, and since when they have been seen holding it."""

from datetime import UTC, datetime, timedelta

import pytest

from certs.authority import Authority
from certs.bundle import MOST_BLOCKS, BundleHistory, certificate_of, certificates_in, der, merged

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def ca(name: str = "kaishare webhook CA", days: int = 1) -> bytes:
    """The certificate of a CA that ends so many days from now."""
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
        "nothing", "one more", "one that is not asked for", "an expired one", "somebody else's", "no PEM",
        "no certificate", "twice", "twice wanted",
        "an expired one wanted",
    ],
)  # fmt: skip
def test_what_is_wanted_is_added_and_what_is_valid_stays(
    bundle: bytes, wanted: list[bytes], expected: list[bytes]
) -> None:
    right = merged(bundle, wanted, now=NOW)
    assert certificates_in(right) == {der(pem) for pem in expected}
    assert right.count(b"BEGIN CERTIFICATE") == len(expected)
    assert merged(right, wanted, now=NOW) == right


@pytest.mark.parametrize("bundle", [A, A + B, b"# a remark\n" + A.replace(b"\n", b"\r\n"), THEIRS + A])
def test_a_right_bundle_stays_as_it_is_down_to_its_bytes(bundle: bytes) -> None:
    assert merged(bundle, [A], now=NOW) == bundle


def test_a_bundle_does_not_grow_for_ever_and_ours_stay() -> None:
    many = [ca(f"theirs {number}") for number in range(20)]
    right = certificates_in(merged(b"".join([A, *many]), [A, B], now=NOW))
    assert len(right) == 16
    assert {der(A), der(B), der(many[-1])} <= right
    assert der(many[0]) not in right


def test_a_bundle_of_many_blocks_costs_the_reading_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for module in ("certs.bundle", "certs.rotation"):
        monkeypatch.setattr(f"{module}.certificate_of", lambda pem: read.append(pem) or certificate_of(pem))
    block = b"-----BEGIN CERTIFICATE-----AAAA-----END CERTIFICATE-----\n"
    bundle = block * 20_000 + A
    assert certificates_in(bundle) == {der(A)}
    assert len(read) == MOST_BLOCKS
    assert certificates_in(merged(bundle, [A, B], now=NOW)) == {der(A), der(B)}


def test_a_certificate_is_held_since_every_bundle_has_held_it() -> None:
    seen = BundleHistory()
    assert seen.held_for(A, at=0) is None
    seen.see([A, B], at=1)
    assert seen.held_for(A, at=5) is None
    seen.see([A, A + B], at=10)
    assert seen.held_for(A, at=15) == 5
    assert seen.held_for(B, at=15) is None
    seen.see([A + B, A + B], at=20)
    assert (seen.held_for(A, at=25), seen.held_for(B, at=25)) == (15, 5)


def test_a_break_begins_it_anew() -> None:
    seen = BundleHistory()
    seen.see([A], at=0)
    seen.see([B], at=50)
    assert seen.held_for(A, at=50) is None
    seen.see([A], at=60)
    assert seen.held_for(A, at=61) == 1
    seen.see([], at=70)
    assert seen.held_for(A, at=70) is None
