"""Where policies come from: the seam `PolicySource`, and the source that reads files."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from service.documents import DocumentError, document_files, load_file, unlisted
from service.watching import LOOK_EVERY_SECONDS, Watched
from webhook.policy import NamespacePolicy
from webhook.reasons import quoted

Labels = Mapping[str, str]
_AT_ONCE = 20  # namespaces; some 0.3 ms of reading labels before requests get their turn


class PoliciesError(ValueError):
    """Policies cannot be read; the message is one line that names the input and what is wrong."""


class PolicySource(Protocol):
    """Namespace name to policy. Reading is cheap, and never waits while the answer is known."""

    async def find(self, namespace: str) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed."""

    def all(self) -> Mapping[str, NamespacePolicy]:
        """Return every managed namespace's policy as known now."""

    @property
    def ready(self) -> bool:
        """Whether the source knows enough to serve."""

    async def run(self) -> None:
        """Keep the policies up to date until cancelled."""


class FilePolicies:
    """Policies from Namespace objects in a file, or in the .yaml, .yml and .json files of a directory.

    A change on disk is taken up within two seconds; a broken edit keeps the last good policies.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_change: Callable[[Mapping[str, NamespacePolicy]], None] = lambda _policies: None,
        on_broken: Callable[[PoliciesError], None] = lambda _error: None,
    ) -> None:
        """Read the files.

        Args:
            path: file or directory.
            on_change: told the policies each time they were taken up anew.
            on_broken: told why an edit was not taken up, once per edit.

        Raises:
            PoliciesError: they cannot be read.
        """
        self._path = path
        self._on_change = on_change
        self._on_broken = on_broken
        self._files = Watched(path)
        self._labels = read_namespaces(path)
        self._policies = dict(_policies(self._labels))

    async def find(self, namespace: str) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed."""
        return self._policies.get(namespace)

    def all(self) -> Mapping[str, NamespacePolicy]:
        """Return every managed namespace's policy."""
        return self._policies

    @property
    def ready(self) -> bool:
        """Files were read in full before there was a source."""
        return True

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            if not await asyncio.to_thread(self._files.changed):
                continue
            try:
                labels = await asyncio.to_thread(read_namespaces, self._path)
            except PoliciesError as error:
                self._on_broken(error)
            else:
                await self._take_up(labels)

    async def _take_up(self, labels: dict[str, Labels]) -> None:
        """Read what changed, a few namespaces at a time, and swap everything in at once."""
        kept = {name: self._policies[name] for name in labels if name in self._policies}
        changed = {name: found for name, found in labels.items() if self._labels.get(name) != found}
        for index, (name, found) in enumerate(changed.items()):
            if index % _AT_ONCE == 0:
                await asyncio.sleep(0)
            policy = NamespacePolicy.from_labels(name, found)
            if policy is None:
                kept.pop(name, None)
            else:
                kept[name] = policy
        self._labels, self._policies = labels, kept
        self._on_change(kept)


def read_policies(path: Path) -> dict[str, NamespacePolicy]:
    """Read the policies of a file or directory, by namespace.

    Raises:
        PoliciesError: as `read_namespaces`.
    """
    return dict(_policies(read_namespaces(path)))


def read_namespaces(path: Path) -> dict[str, Labels]:
    """Read the labels of every namespace in a file or directory.

    Raises:
        PoliciesError: something in it is not a Namespace with labels, or stands there twice.
    """
    labels: dict[str, Labels] = {}
    seen: dict[str, Path] = {}
    for file in _files(path):
        for name, found in _namespaces(file):
            if name in seen:
                also = "twice" if seen[name] == file else f"also in {seen[name]}"
                raise PoliciesError(f"{file}: namespace {quoted(name)} is {also}; name it once")
            seen[name] = file
            labels[name] = found
    return labels


def _policies(labels: Mapping[str, Labels]) -> Iterator[tuple[str, NamespacePolicy]]:
    for name, found in labels.items():
        policy = NamespacePolicy.from_labels(name, found)
        if policy is not None:
            yield name, policy


def _files(path: Path) -> list[Path]:
    try:
        return document_files(path)
    except DocumentError as error:
        raise PoliciesError(str(error)) from None


def _namespaces(file: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    try:
        documents = list(unlisted(load_file(file)))
    except DocumentError as error:
        raise PoliciesError(str(error)) from None
    for document in documents:
        yield _namespace(file, document)


def _namespace(file: Path, document: Any) -> tuple[str, Mapping[str, str]]:
    if not isinstance(document, dict) or document.get("kind") != "Namespace":
        kind = document.get("kind") if isinstance(document, dict) else document
        raise PoliciesError(f"{file}: {quoted(kind)} is not a Namespace; a policies file holds only those")
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise PoliciesError(f"{file}: a Namespace has no metadata.name")
    labels = metadata.get("labels") or {}
    if not isinstance(labels, dict):
        raise PoliciesError(f"{file}: namespace {quoted(name)}: metadata.labels must be a map")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise PoliciesError(
                f"{file}: namespace {quoted(name)}: label {key}: {value} must be a string; put it in quotes"
            )
    return name, labels
