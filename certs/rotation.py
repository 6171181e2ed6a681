"""How one CA follows another: without a leader, and without a moment in which a served leaf is not trusted.

The CAs are kept in one Secret and trusted through one `caBundle`; every replica has a leaf of its own in
memory. Pure: nothing here waits, writes, or reads a clock.

1. A CA is past two thirds of its life: a `next` one is added to the Secret. It signs nothing yet.
2. Every replica adds what the Secret holds to the bundle, and takes nothing from it that is still valid. So
   it does not matter which of them knows the Secret as it is now.
3. A replica that has itself seen the bundle hold `next` for `bundle_wait`, by a monotonic clock, makes it
   `current`. Its predecessor's key is destroyed, and its certificate kept as `old`.
4. The other replicas change to a leaf of the new CA once they have seen as much; theirs is trusted until
   then. One that starts now believes the Secret.
5. An old CA is forgotten when it has expired. No leaf outlives its CA, so that holds for replicas that were
   cut off, too, whatever they were told last.

Two replicas that do a step at once are told apart by the Secret's resourceVersion: one of them is refused,
reads again and finds nothing left to do.

The time is the API server's: it is the one that will look at the certificates, and it is the same for all
replicas. A CA that this clock calls expired or not yet valid is trusted by no API server, so it is replaced
at once and nothing is waited for. A replica whose own clock is wrong does nothing wrong for it. API servers
whose clocks are more than five minutes apart end with a CA of the slower one, which all of them accept; were
they further apart than a CA lives, no certificate could suit both, and each replica would make a new one at
every look: seconds apart, told in the log every time, and over when the clocks are right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from cryptography import x509

from certs.authority import Authority, KeyPair, renew_at
from certs.bundle import blocks, certificate_of

CA_LIFETIME: Final = timedelta(days=90)
"""Short: a rotation that happens every 60 days is one that is known to work, and 30 days are left to notice
one that does not. Nothing has to be copied by hand that would make a new CA costly."""

LEAF_LIFETIME: Final = timedelta(days=7)
BUNDLE_WAIT: Final = timedelta(minutes=2)
"""For how long the bundle is to be seen holding a CA before a leaf of it is served. One API server takes up a
changed configuration within a quarter of a second (Kubernetes 1.36.3, under load); how far others lag behind
cannot be seen from here."""

_MOST_OLD: Final = 6
"""Predecessors whose certificates are kept; there is one unless clocks or people went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long things last, and how long is waited.

    Raises:
        ValueError: a rotation would not fit into the life of a CA.
    """

    ca: timedelta = CA_LIFETIME
    leaf: timedelta = LEAF_LIFETIME
    bundle_wait: timedelta = BUNDLE_WAIT

    def __post_init__(self) -> None:
        if min(self.ca, self.leaf) <= timedelta(0):
            raise ValueError("certificates need a life of more than nothing")
        if self.leaf > self.ca:
            raise ValueError("leaves cannot outlive their CA: the leaf's lifetime is to be the shorter one")
        if self.ca < 6 * self.bundle_wait:
            raise ValueError(
                "a rotation has the last third of a CA's life:"
                " the CA's lifetime is to be at least six times the wait for the bundle"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CASet:
    """The CAs of an installation."""

    current: Authority
    """Signs."""
    next: Authority | None = None
    """Is made known."""
    old: tuple[bytes, ...] = ()
    """Certificates (PEM) of those that signed before; their keys are gone."""

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """What is to be trusted, in PEM."""
        signers = (self.current, *([self.next] if self.next else []))
        return (*(authority.pair.certificate_pem for authority in signers), *self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretContents:
    """What the Secret holds."""

    current: Authority | None = None
    next: Authority | None = None
    old: tuple[bytes, ...] = ()
    is_empty: bool = False
    faults: tuple[str, ...] = ()
    """What in it cannot be used, each in a few words."""


class Result(StrEnum):
    """What became of the CAs; the value is a metric's label."""

    KEPT = "kept"
    CREATED = "created"
    RESTORED = "restored"
    ADDED = "added"
    SWITCHED = "switched"
    REPLACED = "replaced"
    CLEANED = "cleaned"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationStep:
    """What the Secret should hold, and why."""

    result: Result
    ring: CASet
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A serving certificate, and who signed it."""

    pair: KeyPair
    issuer: Authority


def read(data: Mapping[str, bytes]) -> SecretContents:
    """Read the Secret's data."""
    faults: list[str] = []
    current = _authority(data, "ca", faults)
    following = _authority(data, "next", faults)
    old = data.get("old.crt", b"")
    certificates = tuple(pem for pem in blocks(old) if certificate_of(pem) is not None)
    if old.strip() and not certificates:
        faults.append("old.crt holds no readable PEM certificate")
    ours = (data.get(f"{name}.{part}") for name in ("ca", "next") for part in ("crt", "key"))
    return SecretContents(
        current=current,
        next=following,
        old=certificates,
        is_empty=not any(ours),
        faults=tuple(faults),
    )


def to_secret_data(ring: CASet) -> dict[str, bytes | None]:
    """Return what the Secret's data should be; None: the key should not be there."""
    following = ring.next.pair if ring.next else None
    return {
        "ca.crt": ring.current.pair.certificate_pem,
        "ca.key": ring.current.pair.key_pem,
        "next.crt": following.certificate_pem if following else None,
        "next.key": following.key_pem if following else None,
        "old.crt": b"".join(ring.old) or None,
    }


def decide(
    found: SecretContents, *, held: CASet | None, now: datetime, lifetimes: Lifetimes, next_is_trusted: bool
) -> RotationStep:
    """Say what the Secret should hold; the first line that applies wins, and a later look does the rest.

    Args:
        found: what it holds.
        held: what it held when this replica last saw something usable in it.
        now: the API server's time.
        lifetimes: of a new CA.
        next_is_trusted: whether this replica has seen the bundle hold `found.next` for long enough.
    """
    current = found.current
    if current is None:
        why = "the Secret was empty" if found.is_empty else "; ".join(found.faults)
        if held is not None and not fault(held.current, now):
            return RotationStep(result=Result.RESTORED, ring=_tidy(held, now), reason=why)
        result = Result.CREATED if found.is_empty else Result.REPLACED
        following = found.next or (held.next if held else None)
        ring = _succession(following, held.old if held else found.old, now, lifetimes)
        return RotationStep(result=result, ring=ring, reason=why)
    if why := fault(current, now):
        old = (current.pair.certificate_pem, *found.old)
        ring = _succession(found.next, old, now, lifetimes)
        return RotationStep(result=Result.REPLACED, ring=ring, reason=f"the CA {why}")
    following = found.next
    if following is not None and next_is_trusted and not fault(following, now):
        ring = CASet(current=following, old=(current.pair.certificate_pem, *found.old))
        return RotationStep(
            result=Result.SWITCHED, ring=_tidy(ring, now), reason="the bundle has held the next CA for long"
        )
    ring = _tidy(CASet(current=current, next=following, old=found.old), now)
    if ring.next is None and now >= renew_at(current.pair.certificate):
        ring = replace(ring, next=Authority.create(now=now, lifetime=lifetimes.ca))
        return RotationStep(result=Result.ADDED, ring=ring, reason="the CA is past two thirds of its life")
    if found.faults:
        return RotationStep(result=Result.CLEANED, ring=ring, reason="; ".join(found.faults))
    if ring != CASet(current=current, next=following, old=found.old):
        return RotationStep(result=Result.CLEANED, ring=ring, reason="a CA has expired, or is not valid yet")
    return RotationStep(result=Result.KEPT, ring=ring)


def next_leaf(
    leaf: Leaf | None,
    ring: CASet,
    *,
    names: Sequence[str],
    held_for: Callable[[Authority], timedelta | None],
    now: datetime,
    lifetimes: Lifetimes,
) -> tuple[Leaf | None, str]:
    """Return the leaf to serve from now on and why; None to go on with the one there is.

    Args:
        leaf: what is served.
        ring: the CAs.
        names: what the leaf is for.
        held_for: for how long this replica has seen the bundle hold a CA; None: it does not now.
        now: the API server's time.
        lifetimes: of a new leaf.
    """
    current = ring.current
    if fault(current, now):
        return None, ""
    if leaf is None:
        return _issued(current, names, now, lifetimes), "there was none"
    certificate, issuer = leaf.pair.certificate, leaf.issuer
    if why := _fault(certificate, now):
        return _issued(current, names, now, lifetimes), f"the leaf {why}"
    if issuer.pair.certificate_pem != current.pair.certificate_pem:
        seen = held_for(current)
        if seen is not None and (seen >= lifetimes.bundle_wait or held_for(issuer) is None):
            return _issued(current, names, now, lifetimes), "there is a new CA"
    ends_with_its_ca = leaf.pair.not_after >= issuer.pair.not_after
    if now >= renew_at(certificate) and not ends_with_its_ca:
        return _issued(issuer, names, now, lifetimes), "the leaf was past two thirds of its life"
    return None, ""


def fault(authority: Authority, now: datetime) -> str:
    """Why no API server trusts a CA at this time, in a few words; empty if they can."""
    return _fault(authority.pair.certificate, now)


def _fault(certificate: x509.Certificate, now: datetime) -> str:
    if now >= certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def _succession(
    following: Authority | None, old: Iterable[bytes], now: datetime, lifetimes: Lifetimes
) -> CASet:
    """Put the next CA, or a new one, in the place of one that is worth nothing."""
    if following is None or fault(following, now):
        following = Authority.create(now=now, lifetime=lifetimes.ca)
    return _tidy(CASet(current=following, old=tuple(old)), now)


def _tidy(ring: CASet, now: datetime) -> CASet:
    """Leave out what has expired, and a next CA that nobody would trust."""
    following = ring.next if ring.next is not None and not fault(ring.next, now) else None
    signers = {authority.pair.certificate_pem for authority in (ring.current, following) if authority}
    old = [pem for pem in dict.fromkeys(ring.old) if pem not in signers and _is_unexpired(pem, now)]
    return CASet(current=ring.current, next=following, old=tuple(old[:_MOST_OLD]))


def _is_unexpired(pem: bytes, now: datetime) -> bool:
    certificate = certificate_of(pem)
    return certificate is not None and now < certificate.not_valid_after_utc


def _issued(issuer: Authority, names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> Leaf:
    return Leaf(issuer.issue(names, now=now, lifetime=lifetimes.leaf), issuer)


def _authority(data: Mapping[str, bytes], name: str, faults: list[str]) -> Authority | None:
    certificate, key = data.get(f"{name}.crt", b""), data.get(f"{name}.key", b"")
    if not certificate and not key:
        return None
    try:
        return Authority.load(certificate, key)
    except ValueError as error:
        faults.append(f"{name}.crt and {name}.key: {error}")
        return None
