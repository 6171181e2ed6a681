"""Facts: what the API server says with the caller's rights, or why it is unknown.

An object that cannot be read is never treated as missing, and nothing is concluded from a part of a list: a
tenant's pods can fill any limit. A right that the caller lacks is no problem: a developer has rights in a few
namespaces only.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from kube.answers import REQUEST_ERRORS, ApiError, decode_answer
from kube.client import KubeClient, RequestLimitReached
from kube.kinds import Kind
from service.json_depth import shallow_object
from service.names import is_dns_subdomain
from service.text import MALFORMED, counted, listed, one_line
from service.units import size

T = TypeVar("T")

MOST_OBJECTS: Final = 20_000  # kept of one list: 40 MB for PodGroups of about 2 kB each
MOST_BYTES: Final = 64 * 1024 * 1024  # of the kept objects of one list as JSON; a pod may have 1.5 MB
_READ_ERRORS: Final = (*REQUEST_ERRORS, TimeoutError, *MALFORMED)
# Asks for all groups in one answer (aggregated discovery, stable since Kubernetes 1.30).
_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


class _Resource(Struct, rename="camel"):
    resource: str = ""
    scope: str = ""
    response_kind: dict[str, str] | None = None


class _Version(Struct):
    version: str = ""
    resources: list[_Resource] = []


class _Group(Struct):
    metadata: dict[str, Any] = {}
    versions: list[_Version] = []


class _Groups(Struct):
    items: list[_Group]


_groups = msgspec.json.Decoder(_Groups)


class Why(StrEnum):
    """Why something is unknown."""

    NOT_READ = "not-read"  # it was not requested, or no request was left for it
    FORBIDDEN = "forbidden"  # the caller may not read it
    UNSERVED = "unserved"  # by this API server: KAI is not installed, or runs on the host of a vCluster
    FAILED = "failed"  # the request failed
    PARTIAL = "partial"  # the list exceeds a limit, or an object of it cannot be decoded


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value as read, or why it is unknown. A known None is an object that does not exist."""

    value: T | None = None  # the value; of a list that was read in part, that part
    why: Why | None = None  # why the value is unknown; None if it is known
    line: str = ""  # why the value is unknown, in one line; empty if it is known or was not requested

    @property
    def is_known(self) -> bool:
        """Whether the whole value is known, or it is known that there is none."""
        return self.why is None

    @property
    def is_answered(self) -> bool:
        """Whether the value is known, or the API server serves no such kind."""
        return self.why in (None, Why.UNSERVED)

    @property
    def is_missing(self) -> bool:
        """Whether it is known that the object does not exist."""
        return self.why is None and self.value is None

    @property
    def known(self) -> T | None:
        """The value; None if there is none or if it is unknown, also if a part of it is known."""
        return self.value if self.why is None else None


NOT_READ: Final[Fact[Any]] = Fact(why=Why.NOT_READ)
MISSING: Final[Fact[Any]] = Fact()

Listing = Fact[tuple[T, ...]]  # the objects of one kind; of a list read in part, `items` has that part


def items(listing: Fact[tuple[T, ...]]) -> tuple[T, ...]:
    """Return the objects that were read: all, a part, or none."""
    return listing.value or ()


def is_read(listing: Fact[tuple[T, ...]]) -> bool:
    """Whether objects were read, all or a part, so that findings about single objects are possible."""
    return listing.value is not None


class MissingRight(NamedTuple):
    """Objects that the caller may not read."""

    objects: str  # in a few words, such as `Queue team-a` or `pods in kaishare`
    right: str  # as in RBAC messages: `list pods in kaishare`


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind that the API server serves in one version of its group."""

    group: str  # API group; empty for the core group
    version: str
    kind: str
    resource: str  # name in paths, such as `deployments`
    is_namespaced: bool

    @property
    def api_version(self) -> str:
        """The field apiVersion of its objects."""
        return f"{self.group}/{self.version}".lstrip("/")

    @property
    def name(self) -> str:
        """The resource with its group, as in `kubectl get`: `deployments.apps`."""
        return f"{self.resource}.{self.group}".rstrip(".")


class FactReader:
    """Reads objects with the caller's rights, each within `seconds`, and records each failure once."""

    def __init__(
        self, client: KubeClient, *, most_requests: int | None = None, seconds: float = 20.0
    ) -> None:
        self._most = most_requests  # of HTTP; None for no limit
        self.client = client if most_requests is None else client.limited(most_requests)
        self._seconds = seconds
        self.missing_rights: dict[MissingRight, None] = {}  # what RBAC denied, in the order of the requests
        self._failures, self._omitted = dict[str, None](), dict[str, None]()
        self._served: Fact[tuple[ServedKind, ...]] | None = None

    @property
    def remaining(self) -> float:
        """Number of requests that can still be sent; infinite without a limit."""
        return self.client.remaining

    @property
    def not_visible(self) -> tuple[str, ...]:
        """The objects that RBAC denied, in a few words each."""
        return tuple(dict.fromkeys(refusal.objects for refusal in self.missing_rights))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not read for another reason, one line each."""
        omitted = f"not read, since one answer sends at most {self._most} requests: {listed(self._omitted)}"
        return (*self._failures, *([omitted] if self._omitted else []))

    def note(self, sentence: str) -> None:
        """Record a sentence for the reader of the answer."""
        self._failures[sentence] = None

    def refuse(self, objects: str, right: str) -> None:
        """Record objects that the caller may not read."""
        self.missing_rights[MissingRight(objects, right)] = None

    async def get(
        self, kind: Kind[T], name: str, namespace: str = "", *, decode: Callable[[bytes], T] | None = None
    ) -> Fact[T]:
        """Get one object. A name that no object can have is missing: tenants write such names.

        `decode` takes the place of the kind's decoder; it may raise msgspec's errors.
        """
        if not is_dns_subdomain(name):
            return MISSING
        what = f"{kind.name} {name}"
        try:
            async with asyncio.timeout(self._seconds):
                body = await self.client.get(kind.path(namespace, name))
            return Fact((decode or kind.decode)(shallow_object(body)))
        except _READ_ERRORS as error:
            return self.record(error, what, f"get {kind.full_resource}{_place(namespace)}")

    async def list(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        query: Mapping[str, str] | None = None,
        decode: Callable[[bytes], T | None] | None = None,
        accept: str = "application/json",
        what: str = "",
        keeps_little: bool = False,
    ) -> Fact[tuple[T, ...]]:
        """List objects, in one namespace or in all.

        `decode` takes the place of the kind's decoder; it may raise msgspec's errors, and returns None to
        omit the object. With `keeps_little` it keeps little of each object, so that its size is no limit.
        `what` are the objects in a few words; by default the resource and the namespace.
        """
        what = what or f"{kind.resource}{_place(namespace)}"
        read = decode or kind.decode
        kept: list[T] = []
        kept_bytes = unreadable = 0
        is_cut = False
        try:
            async with (
                asyncio.timeout(self._seconds),
                self.client.list_objects(kind.path(namespace), params=query or {}, accept=accept) as objects,
            ):
                async for document in objects:
                    try:
                        item = read(document)
                    except MALFORMED:
                        unreadable += 1
                        continue
                    if item is None:
                        continue
                    kept_bytes += 0 if keeps_little else len(document)
                    is_cut = kept_bytes > MOST_BYTES or len(kept) == MOST_OBJECTS
                    if is_cut:
                        break
                    kept.append(item)
        except _READ_ERRORS as error:
            return self.record(error, what, f"list {kind.full_resource}{_place(namespace)}", is_list=True)
        if not is_cut and not unreadable:
            return Fact(tuple(kept))
        line = f"{counted(unreadable, 'object')} of {what} cannot be decoded"
        if is_cut:
            line = f"{what} not read whole: more than {MOST_OBJECTS} objects or {size(MOST_BYTES)}"
        self.note(line)
        return Fact(tuple(kept), Why.PARTIAL, line)

    async def served(self) -> Fact[tuple[ServedKind, ...]]:
        """Return the kinds of all API groups but the core group, preferred versions first; asked once."""
        if self._served is not None:
            return self._served
        try:
            answer = await self.client.get("/apis", accept=_DISCOVERY)
            groups = decode_answer(_groups, answer, "GET /apis", expected="aggregated discovery").items
        except _READ_ERRORS as error:
            self._served = self.record(error, "the kinds that the API server serves", "get /apis")
            return self._served
        by_name = ((str(group.metadata.get("name", "")), group.versions) for group in groups)
        kinds = [
            ServedKind(name, version.version, kind, each.resource, each.scope == "Namespaced")
            for name, versions in by_name
            for version in versions
            for each in version.resources
            if (kind := (each.response_kind or {}).get("kind", ""))
        ]
        self._served = Fact(tuple(kinds))
        return self._served

    def record(self, error: BaseException, what: str, right: str, *, is_list: bool = False) -> Fact[Any]:
        """Record why objects were not read; `right` is what the request needs, as in RBAC messages."""
        match error:
            case RequestLimitReached():
                self._omitted[what] = None
                return Fact(why=Why.NOT_READ, line=f"{what} not read: the limit of requests is reached")
            case ApiError(is_forbidden=True):
                self.refuse(what, right)
                return Fact(why=Why.FORBIDDEN, line=f"you may not {right}")
            case ApiError(is_not_found=True):
                # An answer about a list names no object: its path is not served.
                if error.object_name and not is_list:
                    return MISSING
                return Fact(why=Why.UNSERVED, line=f"the API server does not serve {what}")
        reason = "no answer in time" if isinstance(error, TimeoutError) else one_line(str(error))
        if isinstance(error, ApiError) and error.is_unauthorized:
            reason += "; the API server does not accept your credentials: log in again"
        line = f"{what} not read: {reason}"
        self.note(line)
        return Fact(why=Why.FAILED, line=line)


def not_visible_line(objects: Iterable[str]) -> str:
    """Return the one wording for what the caller may not see: `not visible to you: nodes, Queue team-a`."""
    return f"not visible to you: {listed(dict.fromkeys(objects))}"


def _place(namespace: str) -> str:
    return f" in {namespace}" if namespace else ""
