"""Asking the API server with the caller's own rights; what cannot be had is said, and is never nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, problem, unknown
from service.text import MALFORMED, one_line

T = TypeVar("T")

MOST_OBJECTS: Final = 20_000
"""As many of one kind as are looked through; of some 2 kB each, 40 MB of PodGroups."""

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404


class Completeness(Enum):
    """How much of what was asked for is known."""

    WHOLE = "whole"
    PART = "part"
    """There is more than anybody looks through, or some of it cannot be read."""
    UNSERVED = "unserved"
    """The API server has no such kind."""
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class ListResult(Generic[T]):
    """Objects of one kind."""

    items: tuple[T, ...] = ()
    extent: Completeness = Completeness.UNREAD

    @property
    def is_known(self) -> bool:
        """Whether the items are all, or nearly all, there are."""
        return self.extent in (Completeness.WHOLE, Completeness.PART)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSpec:
    """One kind of objects, and what becomes of the doctor without."""

    resource: str
    path: str
    """Of the list."""
    without: str
    """What is not checked, as the rest of a sentence."""
    group: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    accept: str = "application/json"
    verb: str = "list"
    is_needed: bool = False
    """Whether it is a problem not to know."""

    @property
    def right(self) -> str:
        """As RBAC has it: `list queues.scheduling.run.ai`."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


class ApiReader:
    """Lists objects and remembers what it could not have."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._refused: defaultdict[tuple[str, bool], dict[str, None]] = defaultdict(dict)
        """By what is then not checked, and whether that is a problem: the missing rights, in order."""
        self._failed: dict[CheckResult, None] = {}

    @property
    def missing(self) -> Iterator[CheckResult]:
        """What could not be read, each once; missing rights that matter for the same thing in one line."""
        for (without, is_needed), rights in self._refused.items():
            make = problem if is_needed else unknown
            missing = ", ".join(rights)
            yield make("rights", f"{without}: the caller may not {missing}", f"allow it to {missing}")
        yield from self._failed

    async def list(self, asked: ListSpec, read: Callable[[bytes], T | None]) -> ListResult[T]:
        """List all objects of a kind.

        Args:
            asked: what.
            read: makes of an object's JSON what is kept, None to leave it out; may raise what msgspec does.
        """
        found: list[T] = []
        count = unreadable = 0
        extent = Completeness.WHOLE
        try:
            async with self.client.list_objects(
                asked.path, params=asked.params, accept=asked.accept
            ) as objects:
                async for item in objects:
                    if count == MOST_OBJECTS:
                        extent = Completeness.PART
                        self._lack(asked, f"only the first {count} were looked at")
                        break
                    count += 1
                    try:
                        kept = read(item)
                    except MALFORMED:
                        unreadable += 1
                        continue
                    if kept is not None:
                        found.append(kept)
        except ApiError as error:
            if error.status == _NOT_FOUND and not asked.is_needed:
                return ListResult(extent=Completeness.UNSERVED)
            self._error(asked, error)
            return ListResult()
        except (Unreachable, AccessError) as error:
            self._error(asked, error)
            return ListResult()
        if unreadable:
            extent = Completeness.PART
            self._lack(asked, f"{unreadable} of them cannot be read")
        return ListResult(tuple(found), extent)

    async def get(self, asked: ListSpec, name: str, read: Callable[[bytes], T]) -> T | Completeness | None:
        """Get one object; None: there is none; `Completeness.UNREAD`: no telling."""
        try:
            return read(await self.client.get(f"{asked.path}/{name}"))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            self._error(asked, error)
        except (Unreachable, AccessError, *MALFORMED) as error:
            self._error(asked, error)
        return Completeness.UNREAD

    def _error(self, asked: ListSpec, error: Exception) -> None:
        if isinstance(error, ApiError) and error.status == _FORBIDDEN:
            self._refused[asked.without, asked.is_needed][asked.right] = None
        else:
            self._lack(asked, f"{one_line(str(error))}: {asked.without}")

    def _lack(self, asked: ListSpec, what: str) -> None:
        make = problem if asked.is_needed else unknown
        self._failed[make(asked.resource, what)] = None
