"""Policies from Namespace objects in files."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from service.file_watch import LOOK_EVERY_SECONDS, FileWatch
from service.tasks import LoopYield
from webhook.namespaces.documents import Labels, PoliciesError, read_namespaces
from webhook.namespaces.source import ANY_MODE
from webhook.policy.labels import Mode, NamespacePolicy, own_labels

_AGAIN_SECONDS: Final = 30.0
"""When to read again what could not be read through no fault of its own."""


class FilePolicies:
    """Policies from Namespace objects in a file, or in the .yaml, .yml and .json files of a directory.

    A change on disk is taken up within two seconds; a broken edit keeps the last good policies.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_change: Callable[[Mapping[str, NamespacePolicy]], Awaitable[None]] | None = None,
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
        self._files = FileWatch(path)
        self._labels: Mapping[str, Labels] = _read(path)
        self._policies = dict(_policies(self._labels))

    async def find(
        self,
        namespace: str,
        *,
        modes: Collection[Mode] = ANY_MODE,  # noqa: ARG002 - files are never behind
    ) -> NamespacePolicy | None:
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
        loop = asyncio.get_running_loop()
        again_at = math.inf
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            if not await asyncio.to_thread(self._files.changed) and loop.time() < again_at:
                continue
            again_at = math.inf
            try:
                await self._take_up(await asyncio.to_thread(_read, self._path))
            except PoliciesError as error:
                self._on_broken(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the last good policies stay
                self._on_broken(PoliciesError(f"{self._path}: {type(error).__name__}: {error}"))
                again_at = loop.time() + _AGAIN_SECONDS

    async def _take_up(self, labels: Mapping[str, Labels]) -> None:
        """Read what changed, a little at a time, and swap everything in at once."""
        kept = {name: self._policies[name] for name in labels if name in self._policies}
        changed = {name: found for name, found in labels.items() if self._labels.get(name) != found}
        loop_yield = LoopYield()
        for name, found in changed.items():
            policy = NamespacePolicy.from_labels(name, found)
            if policy is None:
                kept.pop(name, None)
            else:
                kept[name] = policy
            await loop_yield.maybe_yield()
        self._labels, self._policies = labels, kept
        if self._on_change is not None:
            await self._on_change(kept)


def _read(path: Path) -> dict[str, Labels]:
    """Read the policy labels of every namespace in a file or directory; raises as `read_namespaces`."""
    return {name: own_labels(labels) for name, labels in read_namespaces(path).items()}


def _policies(labels: Mapping[str, Labels]) -> Iterator[tuple[str, NamespacePolicy]]:
    for name, found in labels.items():
        policy = NamespacePolicy.from_labels(name, found)
        if policy is not None:
            yield name, policy
