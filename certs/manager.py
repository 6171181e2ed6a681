"""Keeps one replica's certificate valid: shares CAs with other replicas in a Secret.

Each write carries the resourceVersion that was read, so that the API server refuses concurrent changes.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from certs.authority import BACKDATING, canonical_names
from certs.ca_injector import CABundleInjector
from certs.rotation import CASet, Leaf, Lifetimes, Result, decide, next_leaf, read, to_secret_data
from kube.access import AccessError
from kube.answers import ApiError, Unreachable, decode_answer
from kube.client import MERGE_PATCH, KubeClient
from kube.metadata import VersionedMeta
from service.backoff import JITTER_AROUND, Backoff, jittered


class SecretMissing(Exception):
    """The Secret does not exist; the message says in one line how to create it."""


class Outdated(Exception):
    """The Secret has changed since it was read."""


class _Secret(Struct):
    metadata: VersionedMeta
    data: dict[str, bytes] | None = None  # decoded from base64


_secret = msgspec.json.Decoder(_Secret)


class SecretStore:
    """Reads and patches one Secret.

    It never creates the Secret, because RBAC cannot limit the right to create Secrets to one name.
    """

    def __init__(self, client: KubeClient, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        self._version = ""
        """The resourceVersion of the last read."""

    async def read(self) -> Mapping[str, bytes]:
        """Return the Secret's data.

        Raises:
            SecretMissing: the Secret does not exist.
            ApiError, Unreachable, kube.access.AccessError: the Secret cannot be read.
        """
        request_line = f"GET {self._path}"
        secret = decode_answer(_secret, await self._request("GET"), request_line, expected="a Secret")
        if not secret.metadata.resource_version:
            raise Unreachable(f"{request_line}: expected a Secret: no resourceVersion")
        self._version = secret.metadata.resource_version
        return secret.data or {}

    async def write(self, data: Mapping[str, bytes | None]) -> None:
        """Set the given keys, and remove those with the value None. Other keys stay unchanged.

        Raises:
            Outdated: the Secret has changed since it was read.
            SecretMissing: the Secret has been deleted.
            ApiError, Unreachable, kube.access.AccessError: the Secret cannot be written.
        """
        patch = {"metadata": {"resourceVersion": self._version}, "data": data}
        try:
            await self._request("PATCH", msgspec.json.encode(patch))  # writes bytes as base64
        except ApiError as error:
            if error.status == 409:
                raise Outdated from None
            raise

    async def _request(self, method: str, body: bytes | None = None) -> bytes:
        try:
            return await self._client.request(method, self._path, body=body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            raise SecretMissing(
                f"Secret {self._namespace}/{self._name} does not exist: create it with"
                f" `kubectl create secret generic {self._name} -n {self._namespace}`"
            ) from None


LOOK_EVERY_SECONDS: Final = 10.0  # maximum interval between two reads of the Secret

_FIRST_PAUSE: Final = 0.5
_SHORTEST: Final = 0.2
_GATHER: Final = 0.05  # delay that combines changes that arrive together
_TRIES: Final = 5
_LONGEST_LIFE_TIMES: Final = 30  # minimum number of reads during the life of a CA, however short that life is


class CertificateManager:
    """Keeps a leaf certificate that API servers trust.

    It needs the rights to get and patch the Secret, and those of `CABundleInjector`. While the API server is
    unreachable the certificate stays unchanged; no API server calls the webhook then.
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
    ) -> None:
        """Set up the manager; call `run` to start it.

        `names` are host names and addresses for leaves. `on_leaf` is called with every new leaf and the
        reason; if it raises OSError, the old leaf stays. `on_look` is called after every pass, and
        `on_result` with each change of the CAs by this replica and the reason. `on_trouble` is called with a
        part (`secret`, `caBundle`, `clock`, `leaf`) and one line when the problem of that part changes, and
        with "" when it is resolved. `wall_clock` is used while the API server's time is not known.

        Raises:
            ValueError: a name is not a valid host name.
        """
        self.ca_set: CASet | None = None  # the CAs of the last read of the Secret
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
        )
        shortest = min(lifetimes.leaf / 10, lifetimes.bundle_wait / 4, lifetimes.ca / _LONGEST_LIFE_TIMES)
        self._every = max(_SHORTEST, min(LOOK_EVERY_SECONDS, shortest.total_seconds()))
        self._due_at = clock()
        self._backoff = Backoff(first=_FIRST_PAUSE, most=LOOK_EVERY_SECONDS, jitter=JITTER_AROUND)
        """Back-off of failed attempts to update the CAs."""
        self._failures = 0
        self._problems: dict[str, str] = {}  # the current problem of each part; empty if it is resolved
        self._was_trusted = False

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the leaf yet, in one line; empty when they can.

        The property stays empty after the leaf has been trusted once. An overwritten caBundle is corrected
        within a second, and taking the replica out of service would last longer.
        """
        if self._was_trusted:
            return ""
        if self.leaf is None:
            return self._problems.get("secret") or self._problems.get("leaf") or "it is being created"
        return (
            self._ca_injector.problem
            or f"the caBundle of {self._ca_injector.name} does not contain its CA yet"
        )

    @property
    def failures(self) -> int:
        """Number of failed attempts. Times without contact to the API server do not count."""
        return self._failures + self._ca_injector.failures

    async def run(self) -> None:
        """Keep the certificate valid until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ca_injector.run())
            while True:
                self._woken.clear()
                pause = await self._reconcile()
                self._on_look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                        await asyncio.sleep(_GATHER)

    def now(self) -> datetime:
        """Return the API server's time, or this machine's if that is not known."""
        own_time = datetime.fromtimestamp(self._wall_clock(), UTC)
        server_time = self._client.server_time()
        if server_time is None:
            return own_time
        seconds_ahead = (own_time - server_time).total_seconds()
        problem = ""
        if abs(seconds_ahead) > BACKDATING.total_seconds():
            way = "ahead of" if seconds_ahead > 0 else "behind"
            problem = f"this machine's clock is {abs(seconds_ahead):.0f} s {way} the API server's: correct it"
        if not (problem and self._problems.get("clock")):  # reported once, not for each second of change
            self._say("clock", problem)
        return server_time

    async def _reconcile(self) -> float:
        """Perform all due steps; return the number of seconds until the next pass."""
        if self._clock() >= self._due_at:
            await self._update_cas()
        pause = max(0.0, self._due_at - self._clock())
        if self.ca_set is None:
            return pause
        now = self.now()
        self._renew(self.ca_set, now)
        required = [*self.ca_set.certificates]
        if self.leaf is not None:
            required.append(self.leaf.issuer.pair.certificate_pem)
            is_trusted = self._ca_injector.trusted_for(self.leaf.issuer) is not None
            self._was_trusted = self._was_trusted or is_trusted
        retry_after = await self._ca_injector.reconcile(required, now=now)
        return pause if retry_after is None else min(pause, max(retry_after, _SHORTEST))

    async def _update_cas(self) -> None:
        """Read the Secret, perform the next rotation step if one is due, and schedule the next read."""
        problem = ""
        try:
            for _ in range(_TRIES):
                with contextlib.suppress(Outdated):
                    await self._step()
                    break
            else:
                problem = f"the Secret changed during each of {_TRIES} attempts to update it"
        except (SecretMissing, ApiError, AccessError) as error:
            problem = str(error)
            self._failures += 1
        except Unreachable as error:
            problem = str(error)
        self._say("secret", problem)
        if problem:
            pause = self._backoff.step()
        else:
            self._backoff.reset()
            pause = jittered(self._every, JITTER_AROUND)
        self._due_at = self._clock() + pause

    async def _step(self) -> None:
        contents = read(await self._secret.read())
        trusted_for = self._ca_injector.trusted_for(contents.next) if contents.next else None
        step = decide(
            contents,
            known=self.ca_set,
            now=self.now(),
            lifetimes=self._lifetimes,
            next_is_trusted=trusted_for is not None and trusted_for >= self._lifetimes.bundle_wait,
        )
        if step.result is not Result.KEPT:
            await self._secret.write(to_secret_data(step.ca_set))
            self._on_result(step.result, step.reason)
        self.ca_set = step.ca_set

    def _renew(self, ca_set: CASet, now: datetime) -> None:
        leaf, reason = next_leaf(
            self.leaf,
            ca_set,
            names=self._names,
            trusted_for=self._ca_injector.trusted_for,
            now=now,
            lifetimes=self._lifetimes,
        )
        if leaf is None:
            return
        try:
            self._on_leaf(leaf, reason)
        except OSError as error:  # `ssl.SSLError` too
            self._failures += 1
            self._say("leaf", f"a new certificate cannot be served: {error}")
        else:
            self.leaf = leaf
            self._say("leaf", "")

    def _say(self, part: str, problem: str) -> None:
        if problem != self._problems.get(part, ""):
            self._problems[part] = problem
            self._on_trouble(part, problem)
