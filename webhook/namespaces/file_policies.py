"""Policies from Namespace objects in files."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from service.documents import DocumentError, document_files, flatten_lists, load_file
from service.file_watch import LOOK_EVERY_SECONDS, FileWatch
from service.tasks import LoopYield
from service.text import LONGEST_VALUE, one_line, quoted
from webhook.namespaces.policy_source import ANY_MODE
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata


class PoliciesError(ValueError):
    """Policies cannot be read; the message is one line that names the input and the problem."""


def read_namespaces(path: Path) -> dict[str, PolicyMetadata]:
    """Read the policy's metadata of every namespace in a file or directory, managed or not.

    Raises:
        PoliciesError: a file has no document, a document is not a valid Namespace, or a namespace occurs
            twice.
    """
    namespaces: dict[str, PolicyMetadata] = {}
    seen: dict[str, Path] = {}
    for file in _files(path):
        for name, metadata in _namespaces(file):
            if name in seen:
                also = "twice" if seen[name] == file else f"also in {seen[name]}"
                raise PoliciesError(f"{file}: namespace {quoted(name)} is {also}; name it once")
            seen[name] = file
            namespaces[name] = metadata
    return namespaces


def _files(path: Path) -> list[Path]:
    try:
        return document_files(path)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    except OSError as error:
        raise PoliciesError(f"{path}: {error.strerror}") from None


def _namespaces(file: Path) -> Iterator[tuple[str, PolicyMetadata]]:
    try:
        documents = load_file(file)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    if not documents:  # such as `kubectl get namespaces -o yaml > FILE` leaves it without an API server
        raise PoliciesError(f"{file}: contains no document; for no namespaces, write a List with items: []")
    for document in flatten_lists(documents):
        yield _namespace(file, document)


def _namespace(file: Path, document: Any) -> tuple[str, PolicyMetadata]:
    if not isinstance(document, dict) or document.get("kind") != "Namespace":
        kind = document.get("kind") if isinstance(document, dict) else document
        raise PoliciesError(
            f"{file}: {quoted(kind)} is not a Namespace; a policies file may contain only Namespaces"
        )
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise PoliciesError(f"{file}: a Namespace has no metadata.name")
    place = f"{file}: namespace {quoted(name)}"
    labels = _texts(place, metadata, "labels", "label")
    return name, PolicyMetadata.select(labels, _texts(place, metadata, "annotations", "annotation"))


def _texts(place: str, metadata: dict[str, Any], field: str, kind: str) -> dict[str, str]:
    """Return a map of metadata; every key and value must be a string, as the API server demands."""
    texts = metadata.get(field)
    if texts is None:
        return {}
    if not isinstance(texts, dict):
        raise PoliciesError(f"{place}: metadata.{field} must be a map")
    for key, value in texts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise PoliciesError(
                f"{place}: {kind} {one_line(str(key), LONGEST_VALUE)}: {one_line(str(value), LONGEST_VALUE)}"
                " must be a string; put it in quotes"
            )
    return texts


_RETRY_SECONDS: Final = 30.0
"""Time until the next attempt after an error, which may pass without an edit of the files."""

_MOST_UNSETTLED: Final = 3
"""Maximum number of reads in a row that are discarded, because a file changed meanwhile.

An unrelated file of the directory may change all the time.
"""


class FilePolicies:
    """Policies from Namespace objects in a file, or in the .yaml, .yml and .json files of a directory.

    A change on disk is loaded within two seconds. After an invalid edit the last valid policies stay.
    """

    def __init__(
        self,
        path: Path,
        *,
        default_mode: Mode = Mode.DEFAULT,
        on_change: Callable[[Mapping[str, NamespacePolicy]], Awaitable[None]] | None = None,
        on_broken: Callable[[PoliciesError], None] = lambda _error: None,
    ) -> None:
        """Read the files.

        `on_change` is called with the policies after each reload, and `on_broken` with the error once for
        each edit that cannot be loaded, and for another error of a later attempt.

        Raises:
            PoliciesError: the files cannot be read.
        """
        self._path = path
        self._default_mode = default_mode
        self._on_change = on_change
        self._on_broken = on_broken
        self._files = FileWatch(path)
        self._unsettled_reads = 0
        """Reads in a row during which a file changed."""
        self._metadata: Mapping[str, PolicyMetadata] = read_namespaces(path)
        self._policies = dict(_policies(self._metadata, default_mode))

    async def find(
        self,
        namespace: str,
        *,
        modes: Collection[Mode] = ANY_MODE,  # noqa: ARG002 - part of the protocol
        peer: str = "",  # noqa: ARG002 - part of the protocol
    ) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed."""
        return self._policies.get(namespace)

    def all(self) -> Mapping[str, NamespacePolicy]:
        """Return the policies by namespace."""
        return self._policies

    @property
    def ready(self) -> bool:
        """Always True, because the constructor reads all files."""
        return True

    async def run(self) -> None:
        """Reload changed files until cancelled."""
        loop = asyncio.get_running_loop()
        retry_at = math.inf
        reported = ""
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            is_edited = await asyncio.to_thread(self._files.changed)
            if not is_edited and loop.time() < retry_at:
                continue
            retry_at = math.inf
            problem: PoliciesError | None = None
            try:
                metadata = await asyncio.to_thread(self._read)
                if metadata is not None:
                    await self._reload(metadata)
            except PoliciesError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 - after any error the last valid policies stay
                problem = PoliciesError(f"{self._path}: {type(error).__name__}: {error}")
            if problem is not None:
                retry_at = loop.time() + _RETRY_SECONDS
                if is_edited or str(problem) != reported:
                    self._on_broken(problem)
            reported = "" if problem is None else str(problem)

    def _read(self) -> Mapping[str, PolicyMetadata] | None:
        """Read the files; None if one of them changed meanwhile. A later look reads such files again.

        Raises:
            PoliciesError: the files cannot be read.
        """
        try:
            metadata = read_namespaces(self._path)
        except PoliciesError:
            if self._accept_read():
                raise
            return None
        return metadata if self._accept_read() else None

    def _accept_read(self) -> bool:
        """Count the reads in a row during which a file changed; return whether the result of this one counts.

        It counts if no file changed meanwhile, or if several results before it were discarded.
        """
        is_given_up = self._unsettled_reads == _MOST_UNSETTLED
        self._unsettled_reads = 0 if is_given_up or self._files.is_unchanged() else self._unsettled_reads + 1
        return not self._unsettled_reads

    async def _reload(self, metadata: Mapping[str, PolicyMetadata]) -> None:
        """Parse changed metadata, yielding to other tasks, and then replace all policies at once."""
        policies = {name: self._policies[name] for name in metadata if name in self._policies}
        changed = {name: own for name, own in metadata.items() if self._metadata.get(name) != own}
        loop_yield = LoopYield()
        for name, own in changed.items():
            policy = own.policy(name, self._default_mode)
            if policy is None:
                policies.pop(name, None)
            else:
                policies[name] = policy
            await loop_yield.maybe_yield()
        self._metadata, self._policies = metadata, policies
        if self._on_change is not None:
            await self._on_change(policies)


def _policies(
    metadata: Mapping[str, PolicyMetadata], default_mode: Mode
) -> Iterator[tuple[str, NamespacePolicy]]:
    for name, own in metadata.items():
        policy = own.policy(name, default_mode)
        if policy is not None:
            yield name, policy
