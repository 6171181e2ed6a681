"""Decides how one CA follows another, without a leader and without untrusted certificates in between. Pure.

The CAs are stored in one Secret and trusted through one `caBundle`. Every replica has its own leaf in memory.

1. When two thirds of a CA's life have passed, a `next` CA is added to the Secret. It signs nothing yet.
2. Every replica adds the CAs of the Secret to the bundle, and removes no valid CA from it. A replica with an
   outdated view of the Secret is therefore harmless.
3. When a replica has seen `next` in the bundle for `bundle_wait`, by a monotonic clock, it makes `next` the
   `current` CA. The key of the old CA is destroyed, and its certificate is kept as `old`.
4. The other replicas switch to a leaf of the new CA after they have seen it in the bundle for as long. Their
   leaves stay trusted until then. A replica that starts uses the current CA of the Secret at once.
5. An old CA is removed when it has expired. No leaf outlives its CA, so this is safe even for replicas that
   had lost their connection.

If two replicas perform a step at the same time, the Secret's resourceVersion decides: the API server refuses
the second write, and that replica reads the Secret again and has nothing left to do.

The time is the API server's, because API servers verify the certificates, and because all replicas share it.
A replica whose own clock is wrong makes no mistake. A CA that is expired or not yet valid by this time is
replaced at once, because no API server trusts it. If the clocks of API servers differ by more than five
minutes, the CA of the slower one remains, which all of them accept. If they differ by more than a CA's life,
no certificate satisfies both: each replica creates a new CA at every pass, and logs it, until the clocks are
corrected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from cryptography import x509

from certs.authority import Authority, KeyPair, renew_at
from certs.ca_injector import blocks, certificate_of

CA_LIFETIME: Final = timedelta(days=90)
"""Default lifetime of a CA.

It is short, so that a rotation every 60 days proves itself, and 30 days remain to notice a failed one. A new
CA costs nothing, because no bundle is copied by hand.
"""

LEAF_LIFETIME: Final = timedelta(days=7)
BUNDLE_WAIT: Final = timedelta(minutes=2)
"""Time for which the bundle must contain a CA before a leaf of that CA is served.

One API server applies a changed configuration within a quarter of a second (Kubernetes 1.36.3, under load).
The delay of other API servers cannot be observed.
"""

_MOST_OLD: Final = 6
"""Maximum number of old CAs whose certificates are kept. Usually there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Lifetimes of CAs and leaves, and the wait for the bundle.

    Raises:
        ValueError: a rotation does not fit into the life of a CA.
    """

    ca: timedelta = CA_LIFETIME
    leaf: timedelta = LEAF_LIFETIME
    bundle_wait: timedelta = BUNDLE_WAIT

    def __post_init__(self) -> None:
        if min(self.ca, self.leaf) <= timedelta(0):
            raise ValueError("lifetimes must be greater than zero")
        if self.leaf > self.ca:
            raise ValueError("the leaf's lifetime must not exceed the CA's")
        if self.ca < 6 * self.bundle_wait:
            raise ValueError("the CA's lifetime must be at least six times the wait for the bundle")


@dataclass(frozen=True, slots=True, kw_only=True)
class CASet:
    """The CAs of an installation."""

    current: Authority  # the CA that signs leaves
    next: Authority | None = None  # the CA that will sign after it has been in the bundle for long enough
    old: tuple[bytes, ...] = ()  # certificates (PEM) of earlier CAs, whose keys are destroyed

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """Certificates (PEM) that API servers must trust."""
        signers = (self.current, *([self.next] if self.next else []))
        return (*(authority.pair.certificate_pem for authority in signers), *self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretContents:
    """The decoded contents of the Secret."""

    current: Authority | None = None
    next: Authority | None = None
    old: tuple[bytes, ...] = ()
    is_empty: bool = False
    faults: tuple[str, ...] = ()  # the unusable entries, each described in a few words


class Result(StrEnum):
    """The result of a rotation step; the value is the `result` label of a metric."""

    KEPT = "kept"
    CREATED = "created"
    RESTORED = "restored"
    ADDED = "added"
    SWITCHED = "switched"
    REPLACED = "replaced"
    CLEANED = "cleaned"


@dataclass(frozen=True, slots=True)
class RotationStep:
    """The required contents of the Secret, and the reason for a change."""

    result: Result
    ca_set: CASet
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A serving certificate and its issuer."""

    pair: KeyPair
    issuer: Authority


def read(data: Mapping[str, bytes]) -> SecretContents:
    """Decode the Secret's data."""
    faults: list[str] = []
    current = _authority(data, "ca", faults)
    following = _authority(data, "next", faults)
    old = data.get("old.crt", b"")
    certificates = tuple(pem for pem in blocks(old) if certificate_of(pem) is not None)
    if old.strip() and not certificates:
        faults.append("old.crt holds no readable PEM certificate")
    entries = (data.get(f"{name}.{part}") for name in ("ca", "next") for part in ("crt", "key"))
    return SecretContents(
        current=current,
        next=following,
        old=certificates,
        is_empty=not any(entries),
        faults=tuple(faults),
    )


def to_secret_data(ca_set: CASet) -> dict[str, bytes | None]:
    """Encode CAs as the Secret's data; None stands for a key to remove."""
    following = ca_set.next.pair if ca_set.next else None
    return {
        "ca.crt": ca_set.current.pair.certificate_pem,
        "ca.key": ca_set.current.pair.key_pem,
        "next.crt": following.certificate_pem if following else None,
        "next.key": following.key_pem if following else None,
        "old.crt": b"".join(ca_set.old) or None,
    }


def decide(
    contents: SecretContents,
    *,
    known: CASet | None,
    now: datetime,
    lifetimes: Lifetimes,
    next_is_trusted: bool,
) -> RotationStep:
    """Decide the next step of the rotation. The first line that applies wins; later passes do the rest.

        no usable current CA, and this replica knows a valid one   restore it
        no usable current CA                                       create one, or promote `next`
        the current CA is expired or not yet valid                 replace it
        `next` has been in the bundle for long enough              switch to it
        two thirds of the current CA's life have passed            add `next`
        the Secret contains unusable or expired entries            remove them
        otherwise                                                  keep everything

    `known` are the last usable contents that this replica has seen, and `next_is_trusted` says whether it has
    seen `contents.next` in the bundle for long enough.
    """
    current = contents.current
    if current is None:
        reason = "the Secret was empty" if contents.is_empty else "; ".join(contents.faults)
        if known is not None and not fault(known.current, now):
            return RotationStep(Result.RESTORED, _tidy(known, now), reason)
        result = Result.CREATED if contents.is_empty else Result.REPLACED
        following = contents.next or (known.next if known else None)
        ca_set = _succession(following, known.old if known else contents.old, now, lifetimes)
        return RotationStep(result, ca_set, reason)
    if problem := fault(current, now):
        old = (current.pair.certificate_pem, *contents.old)
        ca_set = _succession(contents.next, old, now, lifetimes)
        return RotationStep(Result.REPLACED, ca_set, f"the CA {problem}")
    following = contents.next
    if following is not None and next_is_trusted and not fault(following, now):
        ca_set = CASet(current=following, old=(current.pair.certificate_pem, *contents.old))
        return RotationStep(Result.SWITCHED, _tidy(ca_set, now), "the next CA is trusted for long enough")
    ca_set = _tidy(CASet(current=current, next=following, old=contents.old), now)
    if ca_set.next is None and now >= renew_at(current.pair.certificate):
        ca_set = replace(ca_set, next=Authority.create(now=now, lifetime=lifetimes.ca))
        return RotationStep(Result.ADDED, ca_set, "two thirds of the CA's life have passed")
    if contents.faults:
        return RotationStep(Result.CLEANED, ca_set, "; ".join(contents.faults))
    if ca_set != CASet(current=current, next=following, old=contents.old):
        return RotationStep(Result.CLEANED, ca_set, "a CA has expired or is not valid yet")
    return RotationStep(Result.KEPT, ca_set)


def next_leaf(
    leaf: Leaf | None,
    ca_set: CASet,
    *,
    names: Sequence[str],
    trusted_for: Callable[[Authority], timedelta | None],
    now: datetime,
    lifetimes: Lifetimes,
) -> tuple[Leaf | None, str]:
    """Return a new leaf and the reason for it; None if the current leaf stays.

    `trusted_for` returns for how long the bundle has contained a CA; None if it lacks the CA now.
    """
    current = ca_set.current
    if fault(current, now):
        return None, ""
    if leaf is None:
        return _issued(current, names, now, lifetimes), "there was none"
    certificate, issuer = leaf.pair.certificate, leaf.issuer
    if problem := _fault(certificate, now):
        return _issued(current, names, now, lifetimes), f"the leaf {problem}"
    if issuer.pair.certificate_pem != current.pair.certificate_pem:
        since = trusted_for(current)
        if since is not None and (since >= lifetimes.bundle_wait or trusted_for(issuer) is None):
            return _issued(current, names, now, lifetimes), "there is a new CA"
    ends_with_its_ca = leaf.pair.not_after >= issuer.pair.not_after
    if now >= renew_at(certificate) and not ends_with_its_ca:
        return _issued(issuer, names, now, lifetimes), "the leaf was past two thirds of its life"
    return None, ""


def fault(authority: Authority, now: datetime) -> str:
    """Return why a CA is not valid at this time, in a few words; empty if it is valid."""
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
    """Return CAs with the next CA, or a new one, in place of an unusable current CA."""
    if following is None or fault(following, now):
        following = Authority.create(now=now, lifetime=lifetimes.ca)
    return _tidy(CASet(current=following, old=tuple(old)), now)


def _tidy(ca_set: CASet, now: datetime) -> CASet:
    """Return the CAs without expired old ones, and without an invalid next CA."""
    following = ca_set.next if ca_set.next is not None and not fault(ca_set.next, now) else None
    signers = {authority.pair.certificate_pem for authority in (ca_set.current, following) if authority}
    old = [pem for pem in dict.fromkeys(ca_set.old) if pem not in signers and _is_unexpired(pem, now)]
    return CASet(current=ca_set.current, next=following, old=tuple(old[:_MOST_OLD]))


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
