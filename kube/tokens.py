"""Tokens and rights, as the API server checks them: TokenReview and access reviews.

The right is the verb `get` on a nonResourceURL, see `right_url`; or, for the part of a page that is about one
namespace, on a resource in that namespace, so that a Role can give it.
"""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from kube.answers import REQUEST_ERRORS, decode_answer, expect_kind
from kube.client import KubeClient
from service.backoff import TokenBucket
from service.http.authentication import AccessRefusal, BearerToken
from service.text import one_line

_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1"
AUTHENTICATION_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS: Final = f"{_AUTHORIZATION}/subjectaccessreviews"
_KINDS: Final = {AUTHENTICATION_REVIEWS: "TokenReview", ACCESS_REVIEWS: "SubjectAccessReview"}


class _User(Struct):
    username: str = ""
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = {}


class ReviewStatus(Struct):
    """The API server's answer about one right, or about one token."""

    allowed: bool = False
    denied: bool = False
    error: str = msgspec.field(name="evaluationError", default="")
    authenticated: bool = False
    user: _User | None = None
    audiences: Sequence[str] = ()


class _Review(Struct):
    status: ReviewStatus


_decoder = msgspec.json.Decoder(_Review)


async def _review(client: KubeClient, path: str, spec: object, seconds: float) -> ReviewStatus:
    """Create a review, which the API server answers with its status. Raises as `KubeClient.request`."""
    kind, version = _KINDS.get(path, "SelfSubjectAccessReview"), path.split("/", 2)[2].rpartition("/")[0]
    body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
    answer = await client.request("POST", path, body=body, seconds=seconds)
    expect_kind(answer, kind, f"POST {path}")
    return decode_answer(_decoder, answer, f"POST {path}", expected=kind).status


async def review_right(
    client: KubeClient, *, verb: str, resource: str, group: str = "", subresource: str = ""
) -> ReviewStatus:
    """Ask whether the caller has a right in all namespaces; raises as `KubeClient.request`."""
    attributes = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
    spec = {"resourceAttributes": attributes}
    return await _review(client, f"{_AUTHORIZATION}/selfsubjectaccessreviews", spec, 10.0)


ALLOWED_SECONDS: Final = 60.0
"""Time for which a right is not asked for again. A revoked token or role is in force after that time."""
REFUSED_SECONDS: Final = 10.0  # time for which a refusal is not asked for again
CHECK_SECONDS: Final = 5.0  # longest time for all reviews of one check
MOST_ALLOWED: Final = 128  # allowed pairs of token and path that are remembered
MOST_REFUSED: Final = 1024
MOST_USER_BYTES: Final = 32 * 1024
"""Longest description of a user (name, groups, extra) that is passed on to the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """Limits of the checks of one kind of token. A check is at most four requests to the API server."""

    most_waiting: int
    """Requests that may wait for a check; a further one is answered 503."""
    concurrent: int
    per_second: float
    burst: int


KNOWN_LIMITS: Final = ReviewLimits(most_waiting=32, concurrent=4, per_second=10, burst=40)
"""Limits for tokens that were allowed before. Other tokens never use up these limits."""
UNKNOWN_LIMITS: Final = ReviewLimits(most_waiting=16, concurrent=2, per_second=2, burst=20)
"""Limits for all other tokens, which any client can invent."""
CLIENT_LIMITS: Final = ReviewLimits(most_waiting=12, concurrent=1, per_second=0.2, burst=10)
"""Limits for such tokens of one client's address, so that one client cannot use up the limits of all."""
MOST_CLIENTS: Final = 256  # addresses of clients whose limits are remembered
_TOKEN_START: Final = 8  # characters by which an error's token is recognised; shorter ones are no secrets
_BUSY: Final = AccessRefusal(status=503, problem="too many tokens to check; try again in a few seconds")
VIEW: Final = {"group": "kaishare.dev", "resource": "shares", "verb": "get"}
"""The right to the figures of a namespace, of a resource that no server serves."""

_Key = tuple[bytes, bool, str, str]
"""Hash of a token, whether it must be for this service alone, a path, and a namespace or nothing."""
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def right_url(path: str) -> str:
    """Return the nonResourceURL whose `get` is the right to read a path.

    `/metrics` is itself, as for kube-rbac-proxy and controller-runtime, so that a role of Prometheus has it.
    All other paths have a prefix. Without one every service account could read `/api/v1/shares`: Kubernetes'
    ClusterRole `system:discovery` allows `/api/*` to all authenticated users (seen on 1.36.3).
    """
    return path if path == "/metrics" else f"/kaishare{path}"


class _Lane:
    """The checks of one kind of token or of one client, within their limits."""

    def __init__(self, limits: ReviewLimits, clock: Callable[[], float]) -> None:
        self.most_waiting = limits.most_waiting
        self.waiting = 0  # requests that wait for a check
        self.concurrent = asyncio.Semaphore(limits.concurrent)  # held during a check
        self.checks = TokenBucket(per_second=limits.per_second, burst=limits.burst, clock=clock)


class TokenAuthorizer:
    """Checks tokens with the API server, and remembers the results by a keyed hash of the token.

    A token in the header for this service must have its audience. Another token must be for the API server,
    as a service account's usual token is, or have this service's audience. A check that fails refuses.
    """

    def __init__(
        self, client: KubeClient, *, audience: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._audience = audience
        self._clock = clock
        self._hash_key = os.urandom(32)
        self._allowed: OrderedDict[_Key, float] = OrderedDict()
        """Until when a right holds; expired entries stay, as tokens that were allowed before."""
        self._refused: OrderedDict[_Key, tuple[float, AccessRefusal]] = OrderedDict()
        self._checks: dict[_Key, asyncio.Task[AccessRefusal | None]] = {}
        """Checks in flight; all requests with the same key wait for the same one."""
        self._known, self._unknown = _Lane(KNOWN_LIMITS, clock), _Lane(UNKNOWN_LIMITS, clock)
        self._clients: OrderedDict[str, _Lane] = OrderedDict()  # of unknown tokens, by address

    async def refusal(
        self, token: BearerToken, path: str, client: str, namespace: str = ""
    ) -> AccessRefusal | None:
        """Return why the token's user may not get the path, or its part about a namespace; None if allowed.

        The client is the address of the connection's peer: the API server's for all users of its proxy.
        """
        digest = blake2b(token.value.encode(), key=self._hash_key, digest_size=32).digest()
        key = (digest, token.is_own, path, namespace)
        now = self._clock()
        is_known = key in self._allowed
        if is_known and now < self._allowed[key]:
            self._allowed.move_to_end(key)
            return None
        until, refusal = self._refused.get(key, (0.0, None))
        if refusal is not None and now < until:
            return refusal
        lanes: Sequence[_Lane] = (self._known,)
        if not is_known:  # the lane of the client seen longest ago is forgotten
            lane = self._clients.get(client) or _Lane(CLIENT_LIMITS, self._clock)
            _remember(self._clients, client, lane, MOST_CLIENTS)
            lanes = (lane, self._unknown)
        if any(lane.waiting >= lane.most_waiting for lane in lanes):
            return _BUSY
        check = self._checks.get(key)
        if check is None:
            if not all(lane.checks.take() for lane in lanes):
                return _BUSY
            check = self._checks[key] = asyncio.create_task(self._check(key, token, lanes))
            check.add_done_callback(lambda _: self._checks.pop(key, None))
        for lane in lanes:
            lane.waiting += 1
        try:
            return await asyncio.shield(check)
        finally:
            for lane in lanes:
                lane.waiting -= 1

    async def _check(self, key: _Key, token: BearerToken, lanes: Sequence[_Lane]) -> AccessRefusal | None:
        try:
            async with asyncio.timeout(CHECK_SECONDS), AsyncExitStack() as running:
                for lane in lanes:
                    await running.enter_async_context(lane.concurrent)
                refusal = await self._review(token, *key[2:])
        except TimeoutError:
            return _unavailable("the API server gave no answer in time")
        except REQUEST_ERRORS as error:
            return _unavailable(_without_token(str(error), token.value))
        if refusal is None:
            _remember(self._allowed, key, self._clock() + ALLOWED_SECONDS, MOST_ALLOWED)
            self._refused.pop(key, None)
        else:
            self._allowed.pop(key, None)
            _remember(self._refused, key, (self._clock() + REFUSED_SECONDS, refusal), MOST_REFUSED)
        return refusal

    async def _review(self, token: BearerToken, path: str, namespace: str) -> AccessRefusal | None:
        user = None if token.is_own else await self._user(token.value)
        user = user or await self._user(token.value, self._audience)
        if user is None:
            return AccessRefusal(status=401, problem="the token is not valid here")
        name = one_line(user.username)
        if len(msgspec.json.encode(user)) > MOST_USER_BYTES:
            problem = f"the token's user has more than {MOST_USER_BYTES} bytes of groups"
            return AccessRefusal(status=403, problem=problem, user=name)
        identity = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
        rights = [{"nonResourceAttributes": {"path": right_url(path), "verb": "get"}}]
        if namespace:
            rights.insert(0, {"resourceAttributes": {**VIEW, "namespace": namespace}})
        for right in rights:
            status = await _review(self._client, ACCESS_REVIEWS, identity | right, CHECK_SECONDS)
            if status.allowed and not status.denied:
                return None
        problem = f'the user may not get the nonResourceURL "{right_url(path)}"; a ClusterRole can allow it'
        if namespace:
            problem = f"the user may not get shares.kaishare.dev in namespace {namespace}"
        return AccessRefusal(status=403, problem=problem, user=name)

    async def _user(self, token: str, audience: str | None = None) -> _User | None:
        """Return the user of a token; None if it is not valid for the audience, by default the API server."""
        spec = {"token": token} | ({} if audience is None else {"audiences": [audience]})
        status = await _review(self._client, AUTHENTICATION_REVIEWS, spec, CHECK_SECONDS)
        # The list is empty if the authenticator knows no audiences; the token is then for the API server.
        is_for_audience = audience is None or audience in status.audiences
        is_valid = status.authenticated and is_for_audience and status.user and status.user.username
        return status.user if is_valid else None


def _without_token(text: str, token: str) -> str:
    """Cut a text where the token begins: a server may quote it, and long texts are shortened already."""
    start = token[:_TOKEN_START]
    return text.partition(start)[0] + "…" if len(start) == _TOKEN_START and start in text else text


def _unavailable(problem: str) -> AccessRefusal:
    return AccessRefusal(status=503, problem=f"the token cannot be checked: {problem}")


def _remember(entries: OrderedDict[KeyT, ValueT], key: KeyT, value: ValueT, most: int) -> None:
    """Store an entry as the newest one; drop the oldest one above the limit."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > most:
        entries.popitem(last=False)
