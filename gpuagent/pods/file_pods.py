"""Pods of a node from a file: the output of `kubectl get … -o json`, or the same format written by hand."""

import asyncio
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuagent.pods.assemble import AssembledInventory, EndedPods, build, counts, log_invalid
from gpuagent.pods.bind_requests import LastBindRequests, UnplacedPods
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.objects import KubernetesObject, ObjectError, decode_object, objects_of
from service.documents import DocumentError, decode_text, load_text
from service.file_watch import FileWatch
from service.log import INFO, WARNING, JsonLog, NewLines
from service.text import MALFORMED

_LOOK_EVERY_SECONDS: Final = 0.4
_MOST_LOOKS_TO_SETTLE: Final = 3
_LOOKS_TO_RETRY: Final = 75
"""Looks until a file that could not be read is read again, as the reason may pass without an edit."""


class FilePods:
    """Keeps an Inventory in line with a v1 PodList or List that may change at any time.

    The file may also contain Node, Namespace and BindRequest objects. A change takes effect within
    2 s. If a change breaks the file, the last valid inventory stays, and the log has one line. A BindRequest
    that is removed from the file counts until its pod ends.

    Raises:
        DocumentError: the file is missing or broken at the start; the message names the file.
    """

    def __init__(
        self,
        *,
        path: Path,
        node: str,
        reservation_namespace: str,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._node = node
        self._reservation_namespace = reservation_namespace
        self._log = log
        self._clock = clock
        self._watched = FileWatch(path)
        self._invalid = NewLines()
        self._problem = ""
        """Why the file could not be read at the last attempt; empty if it could."""
        self._ended = EndedPods()
        self._last_bind_requests = LastBindRequests()
        self._has_bind_requests = False
        """Whether the file has had a BindRequest; a file without any says nothing about them."""
        self._unplaced = UnplacedPods()
        self._inventory = self._take(self._read())
        self._contact = clock()

    @property
    def inventory(self) -> Inventory | None:
        """The last valid inventory."""
        return self._inventory

    def seconds_since_contact(self) -> float:
        """Return the seconds since the file was last valid, on the injected clock."""
        return self._clock() - self._contact

    async def run(self) -> None:
        """Follow the file until cancelled.

        A file that is being written could be read as a shorter list of pods. It is therefore read when it has
        been unchanged for one check, or after a few checks if it keeps changing.
        """
        looks = broken = 0
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            if self._watched.changed():
                looks += 1
                if looks < _MOST_LOOKS_TO_SETTLE:
                    continue
            broken = broken + 1 if self._problem else 0
            if looks or broken >= _LOOKS_TO_RETRY:
                await self._read_again(is_edited=looks > 0)
                looks = broken = 0
            if not self._problem:
                self._contact = self._clock()

    async def _read_again(self, *, is_edited: bool) -> None:
        try:
            assembled = await asyncio.to_thread(self._read)
        except DocumentError as error:
            if is_edited or str(error) != self._problem:
                self._log("pods file invalid, keeping the last valid one", WARNING, error=str(error))
            self._problem = str(error)
            return
        self._problem = ""
        self._inventory = self._take(assembled)

    def _take(self, assembled: AssembledInventory) -> Inventory:
        inventory = assembled.inventory
        about = {"node": self._node, **counts(inventory), "pods_elsewhere": assembled.elsewhere}
        self._log("pods file read", INFO, file=str(self._path), **about)
        log_invalid(self._log, self._invalid, assembled.lines, file=str(self._path))
        self._ended.add(inventory.pods.values())
        present = inventory.bind_requests
        for key, request in present.items():
            self._last_bind_requests.add(key, request)
        self._has_bind_requests = self._has_bind_requests or bool(present)
        bind_requests = self._last_bind_requests.of(inventory.pods, present)
        return replace(
            inventory,
            bind_requests=bind_requests,
            unplaced_uids=self._unplaced.of(
                inventory.pods,
                present,
                bind_requests,
                inventory.bind_requests_unknown,
                epoch=True if self._has_bind_requests else None,
            ),
            ended=self._ended.without(inventory.pods.keys()),
        )

    def _read(self) -> AssembledInventory:
        objects: list[KubernetesObject] = []
        lines: list[str] = []
        try:
            for document, kind in objects_of(_documents(self._path)):
                try:
                    object_ = decode_object(document, kind=kind)
                except ObjectError as error:
                    lines.append(f"{error}; skipped")
                    continue
                if object_ is not None:
                    objects.append(object_)
        except ObjectError as error:
            raise DocumentError(f"{self._path}: {error}") from None
        assembled = build(objects, node=self._node, reservation_namespace=self._reservation_namespace)
        return replace(assembled, lines=(*lines, *assembled.lines))


def _documents(path: Path) -> list[Any]:
    """Read the documents of the file. JSON has its own reader: the YAML reader needs 100 times the memory.

    Raises:
        DocumentError: the file is not readable, neither YAML nor JSON, or empty.
    """
    data = _content(path)
    if data.lstrip()[:1] == b"{":
        # YAML may start like this, too, and its reader reports the line of an error.
        with suppress(*MALFORMED):
            return [msgspec.json.decode(data)]
    documents = load_text(decode_text(data, str(path)), str(path))
    if not documents:
        raise DocumentError(f"{path}: empty; expected a v1 PodList or a v1 List")
    return documents


def _content(path: Path) -> bytes:
    """Read a regular file. A pipe could be read only once, and a read of it could wait forever.

    Raises:
        DocumentError: the file is not readable, or not a regular file.
    """
    try:
        # Without O_NONBLOCK the opening of a pipe waits for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DocumentError(f"{path}: not a regular file")
            return file.read()
    except OSError as error:
        raise DocumentError(f"{path}: {error.strerror}") from None
