"""Lists the objects of a cluster with the caller's rights, and notes what could not be read."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from kube.client import KubeClient
from kube.discovery import ServedKind
from kube.errors import REQUEST_ERRORS, ApiError
from service.text import MALFORMED, counted, one_line
from webhook.explain.live.owners import OwnedObject

T = TypeVar("T", bound=OwnedObject)


@dataclass(slots=True)
class LiveLists:
    """Lists objects of the namespaces that are explained."""

    client: KubeClient
    namespaces: Collection[str] | None
    """The namespaces to list one by one; None lists each kind in all namespaces at once."""
    managed: Collection[str]
    """The namespaces whose objects are kept if all namespaces are listed."""
    _notes: dict[str, None] = field(default_factory=dict)
    _unreadable: dict[str, int] = field(default_factory=dict)
    """Number of objects that cannot be decoded, by kind."""
    _left_out: set[str] = field(default_factory=set)
    """Namespaces with objects that are not kept."""
    _incomplete: set[tuple[str, str]] = field(default_factory=set)
    """Kinds and namespaces of which a part was not read; the namespace is empty for all."""

    @property
    def notes(self) -> Iterator[str]:
        """What was not read, one line each."""
        yield from self._notes
        for kind, count in self._unreadable.items():
            yield f"{counted(count, 'object')} of {kind} cannot be decoded"
        if self._left_out:
            namespaces = counted(len(self._left_out), "namespace")
            yield f"left out: the objects of {namespaces} that kaishare does not manage, or that are excluded"

    def note(self, sentence: str) -> None:
        """Add a note, once."""
        self._notes[sentence] = None

    def cut_off(self, kind: ServedKind, namespace: str) -> None:
        """Record that objects of a kind were not kept."""
        self._incomplete.add((kind.resource, "" if self.namespaces is None else namespace))

    def is_complete(self, resource: str, namespace: str) -> bool:
        """Whether all objects of a kind in a namespace were read."""
        return not self._incomplete & {(resource, ""), (resource, namespace)}

    async def read(self, kind: ServedKind, decode: Callable[[bytes], T]) -> AsyncIterator[tuple[T, bytes]]:
        """Yield the objects of a kind, decoded and as JSON, as they arrive.

        A list that fails is noted and ends early.

        Args:
            kind: the kind, which is namespaced.
            decode: decodes the needed part; may raise msgspec's errors.
        """
        for namespace in [""] if self.namespaces is None else sorted(self.namespaces):
            path = kind.path_in(namespace) if namespace else kind.path
            try:
                async with self.client.list_objects(path) as objects:
                    async for item in objects:
                        try:
                            value = decode(item)
                        except MALFORMED:
                            self._unreadable[kind.name] = self._unreadable.get(kind.name, 0) + 1
                            continue
                        if self._keeps(value.metadata.namespace):
                            yield value, item
            except REQUEST_ERRORS as error:
                self._failed(kind, namespace, error)

    def _keeps(self, namespace: str) -> bool:
        if self.namespaces is not None or namespace in self.managed:
            return True
        self._left_out.add(namespace)
        return False

    def _failed(self, kind: ServedKind, namespace: str, error: Exception) -> None:
        if isinstance(error, ApiError) and error.is_not_found:
            return  # the API server does not serve the kind
        self._incomplete.add((kind.resource, namespace))
        place = f"in namespace {namespace}" if namespace else "in all namespaces"
        if isinstance(error, ApiError) and error.is_forbidden:
            self.note(f"you may not list {kind.name} {place}")
        else:
            self.note(f"not all {kind.name} {place} were read: {one_line(str(error))}")
