"""One replica's part in the rotation: agrees with the others on the CAs, keeps the bundle, has a leaf."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from certs.authority import BACKDATING, Authority, canonical_names
from certs.ca_injector import CABundleInjector
from certs.rotation import CASet, Leaf, Lifetimes, Result, decide, next_leaf, read, to_secret_data
from certs.secret import Outdated, SecretMissing, SecretStore
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.watch import WatchTiming

LOOK_EVERY_SECONDS: Final = 10.0
"""How often the Secret is read."""

_FIRST_PAUSE: Final = 0.5
_SHORTEST: Final = 0.2
_GATHER: Final = 0.05
"""How long changes are gathered that come at once."""
_TRIES: Final = 5
_LONGEST_LIFE_TIMES: Final = 30
"""Looks there are in the life of a CA at least, however short that is."""


class CertificateManager:
    """Has a leaf that API servers trust, for as long as it runs.

    Needs the rights to get and to patch the Secret, and those of `CABundleInjector`. While the API server is
    unreachable it keeps its certificate; no API server calls the webhook then.
    """

    def __init__(  # noqa: PLR0913 - two of them are clocks
        self,
        client: KubeClient,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        names: Sequence[str],
        lifetimes: Lifetimes,
        on_leaf: Callable[[Leaf, str], None],
        on_look: Callable[[], None] = lambda: None,
        on_result: Callable[[Result, str], None] = lambda _result, _reason: None,
        on_trouble: Callable[[str, str], None] = lambda _part, _problem: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        watch_timing: WatchTiming | None = None,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            namespace: of the Secret.
            secret: its name.
            configuration: the name of the webhook configurations.
            names: what leaves are for.
            lifetimes: of what is made.
            on_leaf: told every new leaf, and why there is a new one. If it raises OSError the old one stays.
            on_look: called after every look.
            on_result: told what this replica did to the CAs, and why.
            on_trouble: told of a part (`secret`, `caBundle`, `clock`, `leaf`) in one line what is wrong when
                that changes, and "" when all is well again.
            clock: monotonic seconds.
            wall_clock: Unix seconds, where the API server does not say what time it is.
            watch_timing: of the watches, other than usual.

        Raises:
            ValueError: a name is no host name.
        """
        self.ring: CASet | None = None
        """The CAs as the Secret held them last."""
        self.leaf: Leaf | None = None
        self._client = client
        self._names = canonical_names(names)
        self._lifetimes = lifetimes
        self._on_leaf = on_leaf
        self._on_look = on_look
        self._on_result = on_result
        self._on_trouble = on_trouble
        self._clock = clock
        self._wall_clock = wall_clock
        self._secret = SecretStore(client, namespace=namespace, name=secret)
        self._woken = asyncio.Event()
        self._ca_injector = CABundleInjector(
            client,
            name=configuration,
            on_change=self._woken.set,
            on_trouble=lambda problem: self._say("caBundle", problem),
            clock=clock,
            timing=watch_timing,
        )
        shortest = min(lifetimes.leaf / 10, lifetimes.bundle_wait / 4, lifetimes.ca / _LONGEST_LIFE_TIMES)
        self._every = max(_SHORTEST, min(LOOK_EVERY_SECONDS, shortest.total_seconds()))
        self._due_at = clock()
        self._fruitless = 0
        """Tries in a row to agree on the CAs."""
        self._refused = 0
        self._said: dict[str, str] = {}
        self._was_trusted = False

    @property
    def problem(self) -> str:
        """Why no API server can trust the leaf yet, in one line; empty when they can.

        Once they could it stays empty: a bundle that somebody overwrites is right again within a second, and
        a replica that is taken out of service for it would be missed for longer.
        """
        if self._was_trusted:
            return ""
        if self.leaf is None:
            return self._said.get("secret") or self._said.get("leaf") or "it is being made"
        return (
            self._ca_injector.problem or f"the caBundle of {self._ca_injector.name} does not hold its CA yet"
        )

    @property
    def failures(self) -> int:
        """How often something was tried in vain; not that the API server was away, which needs no mending."""
        return self._refused + self._ca_injector.failures

    async def run(self) -> None:
        """Do so until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ca_injector.run())
            while True:
                self._woken.clear()
                pause = await self._look()
                self._on_look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                        await asyncio.sleep(_GATHER)

    def now(self) -> datetime:
        """Return the API server's time, this machine's where that is not known."""
        own = datetime.fromtimestamp(self._wall_clock(), UTC)
        said = self._client.server_time()
        if said is None:
            return own
        apart = (own - said).total_seconds()
        problem = ""
        if abs(apart) > BACKDATING.total_seconds():
            way = "ahead of" if apart > 0 else "behind"
            problem = f"this machine's clock is {abs(apart):.0f} s {way} the API server's: set it right"
        if not (problem and self._said.get("clock")):  # a second more or less is no news
            self._say("clock", problem)
        return said

    async def _look(self) -> float:
        """Do what there is to do; return how long to wait for the next time, in seconds."""
        if self._clock() >= self._due_at:
            await self._agree()
        pause = max(0.0, self._due_at - self._clock())
        if self.ring is None:
            return pause
        now = self.now()
        self._renew(self.ring, now)
        wanted = [*self.ring.certificates]
        if self.leaf is not None:
            wanted.append(self.leaf.issuer.pair.certificate_pem)
            is_held = self._held_for(self.leaf.issuer) is not None
            self._was_trusted = self._was_trusted or is_held
        again = await self._ca_injector.reconcile(wanted, now=now)
        return pause if again is None else min(pause, max(again, _SHORTEST))

    async def _agree(self) -> None:
        """Read the Secret and do the next step, if one is due; note when to look again."""
        problem = ""
        try:
            for _ in range(_TRIES):
                with contextlib.suppress(Outdated):
                    await self._step()
                    break
            else:
                problem = f"the Secret changed {_TRIES} times while it was being read"
        except (SecretMissing, ApiError, AccessError) as error:
            problem = str(error)
            self._refused += 1
        except Unreachable as error:
            problem = str(error)
        self._say("secret", problem)
        self._fruitless = self._fruitless + 1 if problem else 0
        pause = self._every
        if problem:
            pause = min(LOOK_EVERY_SECONDS, _FIRST_PAUSE * 2 ** min(self._fruitless - 1, 8))
        spread = random.uniform(0.8, 1.2)  # noqa: S311 - only keeps replicas apart
        self._due_at = self._clock() + pause * spread

    async def _step(self) -> None:
        stored = await self._secret.read()
        found = read(stored.data)
        held = self._held_for(found.next) if found.next else None
        decision = decide(
            found,
            held=self.ring,
            now=self.now(),
            lifetimes=self._lifetimes,
            next_is_trusted=held is not None and held >= self._lifetimes.bundle_wait,
        )
        if decision.result is not Result.KEPT:
            await self._secret.write(stored, to_secret_data(decision.ring))
            self._on_result(decision.result, decision.reason)
        self.ring = decision.ring

    def _renew(self, ring: CASet, now: datetime) -> None:
        leaf, reason = next_leaf(
            self.leaf,
            ring,
            names=self._names,
            held_for=self._held_for,
            now=now,
            lifetimes=self._lifetimes,
        )
        if leaf is None:
            return
        try:
            self._on_leaf(leaf, reason)
        except OSError as error:  # `ssl.SSLError` too
            self._refused += 1
            self._say("leaf", f"a new certificate cannot be served: {error}")
        else:
            self.leaf = leaf
            self._say("leaf", "")

    def _held_for(self, authority: Authority) -> timedelta | None:
        seconds = self._ca_injector.held_for(authority.pair.certificate_pem)
        return None if seconds is None else timedelta(seconds=seconds)

    def _say(self, part: str, problem: str) -> None:
        if problem != self._said.get(part, ""):
            self._said[part] = problem
            self._on_trouble(part, problem)
