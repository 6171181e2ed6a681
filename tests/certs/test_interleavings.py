"""Replicas and API servers that see each other's changes late: every served leaf is trusted at all times.

Everything that decides is the real thing; the Secret, the bundle and time are the test's.
"""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certs.authority import Authority
from certs.ca_injector import BundleHistory, certificates_in, der, merged
from certs.rotation import (
    CASet,
    Leaf,
    Lifetimes,
    Result,
    SecretContents,
    decide,
    next_leaf,
    read,
    to_secret_data,
)

START = datetime(2027, 3, 1, 12, tzinfo=UTC)
WAIT = 120
LIVES = Lifetimes(ca=timedelta(hours=1), leaf=timedelta(minutes=20), bundle_wait=timedelta(seconds=WAIT))
NAMES = ("webhook.kaishare.svc",)
SECONDS = 80 * 60
STEP = 15
MOST_IDLE = 8
"""Steps in a row that a replica may do nothing: two minutes, for one that looks every ten seconds."""

see = lru_cache(maxsize=64)(certificates_in)


@lru_cache(maxsize=64)
def found_in(data: tuple[tuple[str, bytes], ...]) -> SecretContents:
    return read(dict(data))


@dataclass
class World:
    """The Secret, the bundle with its history, and the time."""

    second: int = 0
    version: int = 1
    data: dict[str, bytes] = field(default_factory=dict)
    bundles: list[tuple[int, bytes]] = field(default_factory=lambda: [(0, b"")])
    switches: int = 0

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.second)

    def bundle_of(self, second: int) -> bytes:
        return next(bundle for since, bundle in reversed(self.bundles) if since <= second)

    def views(self) -> list[frozenset[bytes]]:
        """Return every bundle that an API server may have now; a change reaches it within `WAIT`."""
        recent = [bundle for since, bundle in self.bundles if self.second - WAIT < since <= self.second]
        return [see(bundle) for bundle in [self.bundle_of(max(0, self.second - WAIT)), *recent]]


@dataclass
class Participant:
    """A replica with its own memory, which sees an earlier state of the bundle."""

    lag: int
    ca_set: CASet | None = None
    leaf: Leaf | None = None
    sightings: BundleHistory = field(default_factory=BundleHistory)
    idle: int = 0
    read_version: int = 0
    read_data: dict[str, bytes] = field(default_factory=dict)

    def trusted_for(self, authority: Authority, second: int) -> timedelta | None:
        return self.sightings.trusted_for(authority.pair.certificate_pem, at=second)

    def read_secret(self, world: World) -> None:
        self.read_version, self.read_data = world.version, dict(world.data)

    def decide_and_write(self, world: World) -> None:
        """Decide on the last state that was read, which may be outdated."""
        if not self.read_version:
            return
        contents = found_in(tuple(self.read_data.items()))
        seen = self.trusted_for(contents.next, world.second) if contents.next else None
        decision = decide(
            contents,
            known=self.ca_set,
            now=world.now,
            lifetimes=LIVES,
            next_is_trusted=seen is not None and seen >= LIVES.bundle_wait,
        )
        if decision.result is not Result.KEPT:
            if self.read_version != world.version:
                return  # 409
            world.version += 1
            world.data = {key: value for key, value in to_secret_data(decision.ca_set).items() if value}
            world.switches += decision.result is Result.SWITCHED
            self.read_secret(world)
        self.ca_set = decision.ca_set

    def look_at_bundle(self, world: World) -> None:
        self.sightings.see([world.bundle_of(max(0, world.second - self.lag))], at=world.second)

    def mend_bundle(self, world: World) -> None:
        if self.ca_set is None:
            return
        wanted = [*self.ca_set.certificates, *([self.leaf.issuer.pair.certificate_pem] if self.leaf else [])]
        before = world.bundles[-1][1]
        after = merged(before, wanted, now=world.now)
        if after != before:
            world.bundles.append((world.second, after))

    def renew(self, world: World) -> None:
        if self.ca_set is None:
            return
        leaf, _ = next_leaf(
            self.leaf,
            self.ca_set,
            names=NAMES,
            trusted_for=lambda authority: self.trusted_for(authority, world.second),
            now=world.now,
            lifetimes=LIVES,
        )
        self.leaf = leaf or self.leaf


STEPS = (
    Participant.read_secret, Participant.decide_and_write, Participant.look_at_bundle, Participant.mend_bundle, Participant.renew,
)  # fmt: skip


def run(seed: int, replicas: int, idle: float, restarts: float) -> World:
    """Run the replicas' steps in any order and at any time; check every leaf at every instant."""
    chance = random.Random(seed)
    world = World()
    participants = [Participant(lag=chance.randrange(30)) for _ in range(replicas)]
    first = participants[0]
    for step in (*STEPS, *STEPS[2:]):
        step(first, world)
    world.second = WAIT + 1  # the first CA is known everywhere; it has nothing to follow upon
    while world.second < SECONDS:
        world.second += STEP
        for number in range(replicas):
            if chance.random() < restarts:
                participants[number] = Participant(lag=chance.randrange(30))
            participant = participants[number]
            participant.idle += 1
            if chance.random() < idle and participant.idle < MOST_IDLE:
                continue
            participant.idle = 0
            for step in chance.sample(STEPS, len(STEPS)):
                step(participant, world)
        for participant in participants:
            if participant.leaf is None:
                continue
            assert world.now < participant.leaf.pair.not_after
            issuer = der(participant.leaf.issuer.pair.certificate_pem)
            for view in world.views():
                assert issuer in view, f"distrusted at second {world.second} with seed {seed}"
    return world


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    replicas=st.integers(2, 3),
    idle=st.sampled_from([0.0, 0.5, 0.9]),
    restarts=st.sampled_from([0.0, 0.002]),
)
def test_every_view_trusts_every_leaf(seed: int, replicas: int, idle: float, restarts: float) -> None:
    world = run(seed, replicas, idle, restarts)
    assert world.switches >= 1
    assert len(see(world.bundles[-1][1])) <= 3


def test_without_the_wait_a_leaf_would_be_distrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried = Lifetimes(ca=LIVES.ca, leaf=LIVES.leaf, bundle_wait=timedelta(0))
    monkeypatch.setattr(f"{__name__}.LIVES", hurried)
    with pytest.raises(AssertionError, match="distrusted at second"):
        run(1, 3, 0.0, 0.0)


@pytest.mark.parametrize("years", [2, -2, 40])
def test_the_rotation_survives_a_clock_that_jumps_by_years_and_back(years: int) -> None:
    world = World()
    participants = [Participant(lag=0), Participant(lag=0)]

    def live(second: int) -> None:
        world.second = second
        for _ in range(3):
            for participant in participants:
                for step in (*STEPS, *STEPS):
                    step(participant, world)
        for participant in participants:
            assert participant.leaf is not None
            certificate = participant.leaf.pair.certificate
            assert certificate.not_valid_before_utc <= world.now < certificate.not_valid_after_utc
            certificate.verify_directly_issued_by(participant.leaf.issuer.pair.certificate)
            assert der(participant.leaf.issuer.pair.certificate_pem) in see(world.bundles[-1][1])
            assert participant.leaf.issuer == participant.ca_set.current == participants[0].ca_set.current  # type: ignore[union-attr]

    live(0)
    jumped = years * 365 * 86400
    live(jumped)
    live(jumped + 60)
    versions = world.version
    live(jumped + 70)
    assert world.version == versions, "nothing is left to do"
    world.bundles = [(0, world.bundles[-1][1])]
    live(80)
    versions = world.version
    live(90)
    assert world.version == versions, "nothing is left to do"
    assert len(world.data["old.crt"].split(b"BEGIN")) - 1 <= 2
