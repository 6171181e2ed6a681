"""The next step for the CAs of an installation and for a replica's leaf."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from certs.authority import BACKDATING, Authority, names_of
from certs.rotation import (
    CASet,
    Leaf,
    Lifetimes,
    Result,
    RotationStep,
    SecretContents,
    decide,
    next_leaf,
    read,
    to_secret_data,
)

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
LIVES = Lifetimes(ca=timedelta(days=90), leaf=timedelta(days=7), bundle_wait=timedelta(minutes=2))
NAMES = ("kaishare-webhook.kaishare.svc",)
DAY = timedelta(days=1)


def made(age: timedelta) -> Authority:
    """Return a CA of that age."""
    return Authority.create(now=NOW - age, lifetime=LIVES.ca)


FRESH, DUE, EXPIRED, EARLY = made(DAY), made(61 * DAY), made(91 * DAY), made(-DAY)
OTHER = made(2 * DAY)
OLD, DEAD = made(70 * DAY).pair.certificate_pem, EXPIRED.pair.certificate_pem


def decided(contents: SecretContents, *, known: CASet | None = None, trusted: bool = False) -> RotationStep:
    return decide(contents, known=known, now=NOW, lifetimes=LIVES, next_is_trusted=trusted)


def stored(ca_set: CASet) -> dict[str, bytes]:
    return {key: value for key, value in to_secret_data(ca_set).items() if value is not None}


def is_new(authority: Authority | None) -> bool:
    """Return whether a CA was made just now."""
    assert authority is not None
    return authority.pair.certificate.not_valid_before_utc == NOW - BACKDATING


@pytest.mark.parametrize(
    ("ca_set", "result", "reason"),
    [
        (CASet(current=FRESH), Result.KEPT, ""),
        (CASet(current=FRESH, old=(OLD,)), Result.KEPT, ""),
        (CASet(current=DUE, next=FRESH), Result.KEPT, ""),
        (CASet(current=DUE), Result.ADDED, "two thirds of the CA's life have passed"),
        (CASet(current=DUE, next=EXPIRED), Result.ADDED, "two thirds of the CA's life have passed"),
        (CASet(current=FRESH, next=EARLY), Result.CLEANED, "a CA has expired or is not valid yet"),
        (CASet(current=FRESH, old=(OLD, DEAD)), Result.CLEANED, "a CA has expired or is not valid yet"),
        (CASet(current=EXPIRED), Result.REPLACED, "the CA expired on 2027-02-28 12:00 UTC"),
        (CASet(current=EARLY), Result.REPLACED, "the CA is not valid before 2027-03-02 11:55 UTC"),
    ],
    ids=[
        "a young CA", "an old one beside it", "the bundle is waited for", "due", "due, and the next one expired",
        "the next one is of the future", "an old one expired", "expired", "of the future",
    ],
)  # fmt: skip
def test_each_state_of_the_ca_set_has_its_step(ca_set: CASet, result: Result, reason: str) -> None:
    decision = decided(read(stored(ca_set)))
    assert (decision.result, decision.reason) == (result, reason)
    if result is Result.KEPT:
        assert decision.ca_set == ca_set
    if result is Result.ADDED:
        assert decision.ca_set.current == ca_set.current
        assert is_new(decision.ca_set.next)
    if result is Result.REPLACED:
        assert is_new(decision.ca_set.current)
        assert decision.ca_set.next is None
    assert DEAD not in decision.ca_set.certificates
    assert decided(read(stored(decision.ca_set)), known=decision.ca_set).result is Result.KEPT


def test_an_empty_secret_gets_a_ca() -> None:
    decision = decided(read({"unrelated": b"x"}))
    assert (decision.result, decision.reason) == (Result.CREATED, "the Secret was empty")
    assert is_new(decision.ca_set.current)
    assert decision.ca_set.current.pair.not_after == NOW + LIVES.ca


def test_the_next_ca_signs_once_the_bundle_has_held_it_and_the_keys_of_the_last_are_gone() -> None:
    before = CASet(current=DUE, next=FRESH, old=(OLD, DEAD))
    decision = decided(read(stored(before)), trusted=True)
    assert decision.result is Result.SWITCHED
    assert decision.ca_set == CASet(current=FRESH, old=(DUE.pair.certificate_pem, OLD))
    assert DUE.pair.key_pem not in stored(decision.ca_set).values()
    assert to_secret_data(decision.ca_set)["next.key"] is None


KNOWN = CASet(current=DUE, next=FRESH, old=(OLD, DEAD))
EARLY_PEM = EARLY.pair.certificate_pem
BROKEN_NEXT = "next.crt and next.key: no readable PEM certificate"

# what the Secret has, what the replica knows, whether clients trust the next CA; result, reason, and the CAs then
FURTHER: list[tuple[str, SecretContents, CASet | None, bool, Result, str | None, CASet | None]] = [
    ("a next CA that no client trusts never signs", SecretContents(current=DUE, next=EXPIRED), None, True, Result.ADDED, None, None),
    ("an expired CA gives way to the next at once", SecretContents(current=EXPIRED, next=FRESH), None, False,
     Result.REPLACED, None, CASet(current=FRESH)),
    ("an emptied Secret is restored", read({}), KNOWN, False, Result.RESTORED, "the Secret was empty",
     CASet(current=DUE, next=FRESH, old=(OLD,))),
    ("of an expired CA its successor is restored", read({}), CASet(current=EXPIRED, next=FRESH), False,
     Result.CREATED, None, CASet(current=FRESH)),
    ("a broken next CA is thrown away", read(stored(CASet(current=FRESH)) | {"next.crt": b"x", "next.key": b"y"}), None,
     False, Result.CLEANED, BROKEN_NEXT, CASet(current=FRESH)),
    ("broken old CAs are thrown away", read(stored(CASet(current=FRESH)) | {"old.crt": b"x"}), None, False,
     Result.CLEANED, None, CASet(current=FRESH)),
    ("another CA in the Secret is adopted", SecretContents(current=OTHER), CASet(current=FRESH), False,
     Result.KEPT, None, CASet(current=OTHER)),
]  # fmt: skip


@pytest.mark.parametrize("case", FURTHER, ids=lambda case: case[0])
def test_further_states(
    case: tuple[str, SecretContents, CASet | None, bool, Result, str | None, CASet | None],
) -> None:
    _, contents, known, trusted, result, reason, ca_set = case
    decision = decided(contents, known=known, trusted=trusted)
    assert decision.result is result
    assert reason in (None, decision.reason)
    assert ca_set in (None, decision.ca_set)
    if result is Result.ADDED:
        assert decision.ca_set.current == DUE


def test_new_cas_and_the_trust_in_those_before_them() -> None:
    assert is_new(decided(read({}), known=CASet(current=EXPIRED)).ca_set.current)
    assert decided(SecretContents(current=EARLY)).ca_set.old == (EARLY_PEM,), "its leaves are still trusted"
    for ca_set in (CASet(current=FRESH), CASet(current=DUE, next=FRESH), KNOWN):
        contents = read(stored(ca_set))
        assert (contents.current, contents.next, contents.old) == (ca_set.current, ca_set.next, ca_set.old)
        assert contents.faults == ()


GARBAGE: Mapping[str, Mapping[str, bytes]] = {
    "no PEM": {"ca.crt": b"x", "ca.key": b"y"},
    "no key": {"ca.crt": FRESH.pair.certificate_pem},
    "no certificate": {"ca.key": FRESH.pair.key_pem},
    "another's key": {"ca.crt": FRESH.pair.certificate_pem, "ca.key": OTHER.pair.key_pem},
    "a leaf": dict(
        zip(
            ("ca.crt", "ca.key"),
            ((pair := FRESH.issue(NAMES, now=NOW, lifetime=DAY)).certificate_pem, pair.key_pem),
            strict=True,
        )
    ),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize(
    "known", [None, CASet(current=OTHER, old=(OLD,))], ids=["a new replica", "one that knows"]
)
def test_garbage_is_replaced_by_the_known_ca_set_or_a_new_ca(data: Mapping[str, bytes], known: CASet | None) -> None:  # fmt: skip
    decision = decided(read(data), known=known)
    assert decision.reason.startswith("ca.crt and ca.key: ")
    if known:
        assert (decision.result, decision.ca_set) == (Result.RESTORED, known)
    else:
        assert decision.result is Result.REPLACED
        assert is_new(decision.ca_set.current)


@pytest.mark.parametrize(
    ("lives", "message"),
    [
        ({"ca": timedelta(0)}, "greater than zero"),
        ({"ca": DAY, "leaf": 2 * DAY}, "must not exceed"),
        ({"ca": DAY, "leaf": DAY, "bundle_wait": timedelta(hours=5)}, "six times the wait"),
    ],
)
def test_lifetimes_too_short_for_a_rotation_are_refused(lives: dict[str, timedelta], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lifetimes(**lives)


def leaf_of(issuer: Authority, age: timedelta = timedelta(0)) -> Leaf:
    return Leaf(issuer.issue(NAMES, now=NOW - age, lifetime=LIVES.leaf), issuer)


def renewed(leaf: Leaf | None, ca_set: CASet, **trusted_minutes: float) -> tuple[Leaf | None, str]:
    """Return the next leaf and its reason; the bundle has held the CAs `fresh`, `due`, … for those minutes."""
    known = {"fresh": FRESH, "due": DUE, "other": OTHER}
    minutes_by_ca = {known[name].pair.certificate_pem: minutes for name, minutes in trusted_minutes.items()}

    def trusted_for(authority: Authority) -> timedelta | None:
        minutes = minutes_by_ca.get(authority.pair.certificate_pem)
        return None if minutes is None else timedelta(minutes=minutes)

    return next_leaf(leaf, ca_set, names=NAMES, trusted_for=trusted_for, now=NOW, lifetimes=LIVES)


@pytest.mark.parametrize(
    ("leaf", "ca_set", "trusted_minutes", "issuer", "reason"),
    [
        (None, CASet(current=FRESH), {}, FRESH, "there was none"),
        (leaf_of(FRESH), CASet(current=FRESH), {"fresh": 9}, None, ""),
        (leaf_of(FRESH), CASet(current=FRESH), {}, None, ""),
        (leaf_of(FRESH, 5 * DAY), CASet(current=FRESH), {}, FRESH, "the leaf was past two thirds of its life"),
        (leaf_of(DUE, 8 * DAY), CASet(current=DUE), {}, DUE, "the leaf expired on 2027-02-28 12:00 UTC"),
        (leaf_of(DUE), CASet(current=DUE, next=FRESH), {"due": 9, "fresh": 9}, None, ""),
        (leaf_of(DUE), CASet(current=FRESH), {"due": 9, "fresh": 2}, FRESH, "there is a new CA"),
        (leaf_of(DUE), CASet(current=FRESH), {"due": 9, "fresh": 1.9}, None, ""),
        (leaf_of(DUE), CASet(current=FRESH), {"due": 9}, None, ""),
        (leaf_of(DUE), CASet(current=FRESH), {"fresh": 0}, FRESH, "there is a new CA"),
        (leaf_of(DUE), CASet(current=FRESH), {}, None, ""),
        (leaf_of(DUE, 5 * DAY), CASet(current=FRESH), {"due": 9, "fresh": 1}, DUE, "the leaf was past two thirds of its life"),
        (leaf_of(EXPIRED, 8 * DAY), CASet(current=FRESH), {}, FRESH, "the leaf expired on 2027-02-28 12:00 UTC"),
        (leaf_of(FRESH), CASet(current=EXPIRED), {}, None, ""),
    ],
    ids=[
        "the first", "young", "young, and nothing known of the bundle", "due", "expired", "of the CA before the next",
        "the bundle has held the new CA for long", "not for long enough", "not at all", "and not the old one",
        "neither", "due before that", "expired before that", "no CA to sign it",
    ],
)  # fmt: skip
def test_each_state_has_its_leaf(
    leaf: Leaf | None, ca_set: CASet, trusted_minutes: dict[str, float], issuer: Authority | None, reason: str
) -> None:
    new_leaf, why = renewed(leaf, ca_set, **trusted_minutes)
    assert why == reason
    if issuer is None:
        assert new_leaf is None
        return
    assert new_leaf is not None
    assert new_leaf.issuer == issuer
    new_leaf.pair.certificate.verify_directly_issued_by(issuer.pair.certificate)
    assert names_of(new_leaf.pair.certificate) == set(NAMES)
    assert new_leaf.pair.not_after == min(NOW + LIVES.leaf, issuer.pair.not_after)


def test_a_leaf_that_ends_with_its_ca_is_not_renewed_over_and_over() -> None:
    ending = Authority.create(now=NOW - 89 * DAY, lifetime=LIVES.ca)
    leaf = Leaf(ending.issue(NAMES, now=NOW - 5 * DAY, lifetime=LIVES.leaf), ending)
    assert renewed(leaf, CASet(current=ending)) == (None, "")
