"""Reads objects with the caller's rights, and records what could not be read.

An object that cannot be read is never treated as missing. A right that the caller lacks is no problem: a
developer has rights in a few namespaces only.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from console.cluster.served_kinds import ServedKind, discover_groups
from console.doctor.check_results import CheckResult, problem, unknown
from console.doctor.shared_checks import API_SERVER
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from kube.metadata import resource_path
from service.text import MALFORMED, counted, listed, one_line

T = TypeVar("T")

MOST_OBJECTS: Final = 20_000
"""Maximum number of objects read of one kind: 40 MB for PodGroups of about 2 kB each."""


class ListOutcome(Enum):
    """The result of a request for a list: how much of it could be read."""

    WHOLE = "whole"
    PART = "part"
    """The list exceeds `MOST_OBJECTS`, or some objects cannot be decoded."""
    UNSERVED = "unserved"
    """The API server does not serve the kind."""
    UNREAD = "unread"
    """The request failed."""


@dataclass(frozen=True, slots=True)
class ListResult(Generic[T]):
    """The objects of one kind that could be read."""

    items: tuple[T, ...] = ()
    outcome: ListOutcome = ListOutcome.UNREAD

    @property
    def is_known(self) -> bool:
        """Whether the items are all, or nearly all, objects of the kind."""
        return self.outcome in (ListOutcome.WHOLE, ListOutcome.PART)


UNREAD: Final[ListResult[Any]] = ListResult()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSpec:
    """A request for objects of one kind, and the consequence if it fails."""

    resource: str
    without: str
    """The check that fails without the list, as a clause for a message."""
    group: str = ""
    version: str = "v1"
    namespace: str = ""
    """The namespace of the objects; empty for all, and for a kind without namespaces."""
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    accept: str = "application/json"
    verb: str = "list"
    is_needed: bool = False
    """Whether a request that fails without an answer about rights is a problem; otherwise it is unknown."""
    is_namespaced: bool = False
    """Whether a reader for one namespace lists the objects of that namespace only."""

    @property
    def path(self) -> str:
        """Path of the list."""
        return resource_path(self.group, self.version, self.resource, self.namespace)

    @property
    def right(self) -> str:
        """The RBAC right that the request needs, such as `list queues.scheduling.run.ai`."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{self._place}"

    @property
    def objects(self) -> str:
        """The objects in a few words, such as `queues` or `pods in kaishare`."""
        return f"{self.resource}{self._place}"

    @property
    def _place(self) -> str:
        return f" in {self.namespace}" if self.namespace else ""


class ApiReader:
    """Lists objects and records failed requests."""

    def __init__(self, client: KubeClient, namespace: str | None = None) -> None:
        """Set the cluster.

        Args:
            client: for the API server, with the caller's rights.
            namespace: the only namespace whose objects are listed; None for all.
        """
        self.client = client
        self.namespace = namespace
        self._refused: dict[ListSpec, None] = {}
        """Requests that RBAC denied, in order."""
        self._failed: dict[CheckResult, None] = {}
        self._kinds: Sequence[ServedKind] | None = None

    @property
    def missing(self) -> Iterator[CheckResult]:
        """The findings about failed requests, each once.

        Missing rights for one check share a line. A caller who sees some namespaces only, as a developer,
        gets one line: a namespace is named, or the list of namespaces is denied.
        """
        is_limited = self.namespace is not None or any(
            spec.resource == "namespaces" for spec in self._refused
        )
        if self._refused and is_limited:
            objects = {spec.objects for spec in self._refused}
            yield unknown(
                "rights",
                f"not visible to you: {listed(objects)}; the checks of these objects did not run",
                ""
                if self.namespace
                else "kaishare doctor -n NAMESPACE checks one namespace with your rights",
            )
        else:
            by_check: defaultdict[str, dict[str, None]] = defaultdict(dict)
            for spec in self._refused:
                by_check[spec.without][spec.right] = None
            for without, names in by_check.items():
                rights = ", ".join(names)
                yield unknown(
                    "rights", f"{without}: the caller may not {rights}", f"grant the right to {rights}"
                )
        yield from self._failed

    def refuse(self, spec: ListSpec) -> None:
        """Record a request that RBAC denied."""
        self._refused[spec] = None

    async def served_kinds(self) -> Sequence[ServedKind]:
        """Return the kinds of all API groups, preferred versions first; empty if the request failed.

        The API server is asked once.
        """
        if self._kinds is None:
            try:
                self._kinds = await discover_groups(self.client)
            except REQUEST_ERRORS as error:
                what = f"{one_line(str(error))}: the kinds that it serves are not known"
                self._failed[unknown(API_SERVER, what)] = None
                self._kinds = ()
        return self._kinds

    async def list(self, spec: ListSpec, read: Callable[[bytes], T | None]) -> ListResult[T]:
        """List all objects of a kind.

        Args:
            spec: the request.
            read: decodes an object's JSON; returns None to omit the object; may raise msgspec's errors.
        """
        if self.namespace is not None and spec.is_namespaced:
            spec = replace(spec, namespace=self.namespace)
        items: list[T] = []
        count = unreadable = 0
        outcome = ListOutcome.WHOLE
        try:
            async with self.client.list_objects(spec.path, params=spec.params, accept=spec.accept) as objects:
                async for item in objects:
                    if count == MOST_OBJECTS:
                        outcome = ListOutcome.PART
                        self._fail(spec, f"only the first {count} objects were checked")
                        break
                    count += 1
                    try:
                        value = read(item)
                    except MALFORMED:
                        unreadable += 1
                        continue
                    if value is not None:
                        items.append(value)
        except REQUEST_ERRORS as error:
            if isinstance(error, ApiError) and error.is_not_found and not spec.is_needed:
                return ListResult(outcome=ListOutcome.UNSERVED)
            self._error(spec, error)
            return UNREAD
        if unreadable:
            outcome = ListOutcome.PART
            self._fail(spec, f"{counted(unreadable, 'object')} cannot be decoded")
        return ListResult(tuple(items), outcome)

    async def first(self, spec: ListSpec, read: Callable[[bytes], T], most: int) -> Sequence[T] | ListOutcome:
        """Get at most a number of the first objects of a list; `ListOutcome.UNREAD` without an answer."""
        params = {**spec.params, "limit": str(most)}
        items: list[T] = []
        try:
            async with self.client.list_objects(spec.path, params=params, accept=spec.accept) as objects:
                async for item in objects:
                    items.append(read(item))
                    if len(items) == most:
                        break
        except (*REQUEST_ERRORS, *MALFORMED) as error:
            self._error(spec, error)
            return ListOutcome.UNREAD
        return items

    async def get(self, spec: ListSpec, name: str, read: Callable[[bytes], T]) -> T | ListOutcome | None:
        """Get one object; None if it does not exist, `ListOutcome.UNREAD` if the request failed."""
        try:
            return read(await self.client.get(f"{spec.path}/{name}"))
        except (*REQUEST_ERRORS, *MALFORMED) as error:
            if isinstance(error, ApiError) and error.is_not_found:
                return None
            self._error(spec, error)
            return ListOutcome.UNREAD

    def _error(self, spec: ListSpec, error: Exception) -> None:
        if isinstance(error, ApiError) and error.is_forbidden:
            self.refuse(spec)
        else:
            self._fail(spec, f"{one_line(str(error))}: {spec.without}")

    def _fail(self, spec: ListSpec, message: str) -> None:
        make = problem if spec.is_needed else unknown
        self._failed[make(spec.resource, message)] = None
