"""Sends the requests of one answer: few, in parallel, and each failure is recorded once."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from console.why.evidence import Absence
from kube.answers import REQUEST_ERRORS, ApiError, Unreachable
from kube.client import KubeClient, RequestLimitReached
from service.json_depth import shallow_object
from service.text import MALFORMED, counted, listed, one_line
from service.units import size

T = TypeVar("T")

MOST_REQUESTS: Final = 12
"""Maximum number of HTTP requests for one answer."""

MOST_OBJECTS: Final = 20_000
"""Maximum number of objects kept of one list."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the kept objects of one list as JSON. A tenant's pod may have 1.5 MB."""

_SECONDS: Final = 20.0
"""Time limit of one read; a list of 20,000 pods takes less."""
_READ_ERRORS: Final = (*REQUEST_ERRORS, TimeoutError)


class Requests:
    """Reads objects with at most `MOST_REQUESTS` HTTP requests, and records what was not read."""

    def __init__(self, client: KubeClient) -> None:
        """Set the API server.

        Args:
            client: for the API server, with the caller's rights.
        """
        self.client = client.limited(MOST_REQUESTS)
        """The client that counts; every request of the answer is sent with it."""
        self._refused: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._omitted: dict[str, None] = {}

    @property
    def remaining(self) -> float:
        """Number of requests that can still be sent."""
        return self.client.remaining

    @property
    def not_visible(self) -> tuple[str, ...]:
        """The objects that RBAC denied, in the order of the requests."""
        return tuple(self._refused)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not read for another reason, one line each."""
        omitted = (
            f"not read, since one answer sends at most {MOST_REQUESTS} requests: {listed(self._omitted)}"
        )
        return (*self._failed, *([omitted] if self._omitted else []))

    async def get(self, path: str, decode: Callable[[bytes], T], what: str) -> T | Absence:
        """Get one object.

        Args:
            path: path of the object.
            decode: decodes its JSON; may raise ValueError or RecursionError.
            what: the object in a few words, such as `Queue team-a`.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                body = await self.client.get(path)
            return decode(shallow_object(body))
        except _READ_ERRORS as error:
            return self.record(error, what)
        except (ValueError, RecursionError) as error:
            return self.record(Unreachable(f"unexpected answer: {one_line(str(error))}"), what)

    async def list(
        self,
        path: str,
        decode: Callable[[bytes], T],
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        keep: Callable[[T], bool] = lambda _: True,
    ) -> list[T] | Absence:
        """List objects; PARTIAL, with a note, if one cannot be decoded or the list exceeds a limit.

        What is not in a part of a list proves nothing, and a tenant's pods can fill any limit.

        Args:
            path: path of the list.
            decode: decodes an object's JSON; may raise msgspec's errors.
            what: the objects in a few words, such as `nodes`.
            params: query parameters.
            keep: selects the objects to keep.
        """
        kept: list[T] = []
        kept_bytes = 0

        def add(item: T, document: bytes) -> bool:
            nonlocal kept_bytes
            if not keep(item):
                return True
            kept_bytes += len(document)
            if len(kept) == MOST_OBJECTS or kept_bytes > MOST_BYTES:
                self.note(f"{what} not read: more than {MOST_OBJECTS} objects or {size(MOST_BYTES)}")
                return False
            kept.append(item)
            return True

        absence = await self.stream(path, decode, what, add, params=params)
        return kept if absence is None else absence

    async def stream(
        self,
        path: str,
        decode: Callable[[bytes], T],
        what: str,
        add: Callable[[T, bytes], bool],
        *,
        params: Mapping[str, str] | None = None,
    ) -> Absence | None:
        """Pass each object of a list to a function; return why the list was not read whole, or None.

        Args:
            path: path of the list.
            decode: decodes an object's JSON; may raise msgspec's errors.
            what: the objects in a few words.
            add: takes an object and its JSON; returns whether to continue.
            params: query parameters.
        """
        unreadable = 0
        is_cut = False
        try:
            async with asyncio.timeout(_SECONDS), self.client.list_objects(path, params=params) as objects:
                async for document in objects:
                    try:
                        item = decode(document)
                    except MALFORMED:
                        unreadable += 1
                        continue
                    if not add(item, document):
                        is_cut = True
                        break
        except _READ_ERRORS as error:
            absence = self.record(error, what)
            # A list names no object: its path is not served.
            return Absence.UNSERVED if absence is Absence.MISSING else absence
        if unreadable:
            self.note(f"{counted(unreadable, 'object')} of {what} cannot be decoded")
        return Absence.PARTIAL if unreadable or is_cut else None

    def record(self, error: Exception, what: str) -> Absence:
        """Record why objects were not read, and return it."""
        match error:
            case RequestLimitReached():
                self._omitted[what] = None
                return Absence.NOT_READ
            case ApiError(is_forbidden=True):
                self.refuse(what)
                return Absence.FORBIDDEN
            case ApiError(is_not_found=True):
                return Absence.MISSING if error.object_name else Absence.UNSERVED
            case TimeoutError():
                self.note(f"{what} not read: no answer in time")
            case _:
                self.note(f"{what} not read: {one_line(str(error))}")
        return Absence.FAILED

    def refuse(self, what: str) -> None:
        """Record objects that the caller may not read."""
        self._refused[what] = None

    def note(self, sentence: str) -> None:
        """Record a sentence for the reader of the answer."""
        self._failed[sentence] = None
