"""Reads the newest Events of a namespace in bounded memory. Any tenant can write Events in its namespace."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import chain, count
from typing import Final

import msgspec

from console.why.evidence import Absence, known
from console.why.evidence_objects import EventObject, Meta, decode_event
from console.why.membership import INDEXED_JOB, NamedObject, creates_for, may_concern, workload_of
from console.why.reading.bounded_requests import Requests
from console.why.reading.target import POD, Subject
from kube.metadata import resource_path
from service.names import LONGEST_SUBDOMAIN
from service.text import shorten

MOST_EVENTS: Final = 500
"""Maximum number of Events kept of one list."""

LONGEST_MESSAGE: Final = 4096
"""Maximum length of a kept message, in characters."""

_LONGEST_WORD: Final = 128
"""Maximum length of a reason and of a component's name, in characters."""

_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an Indexed Job."""

_NOT_CREATED: Final = ("FailedCreate", "FailedCreatePod")
"""Reasons of Events about pods that a controller could not create: Kubernetes', and training-operator's."""


class EventReader:
    """Reads Events of one namespace."""

    def __init__(self, requests: Requests, namespace: str) -> None:
        """Set the namespace.

        Args:
            requests: for the API server.
            namespace: the namespace.
        """
        self.is_cut = False
        """Whether a list had more Events than are kept."""
        self.are_read = True
        """Whether every list was read."""
        self._requests = requests
        self._path = resource_path("", "v1", "events", namespace)

    async def about_pod(self, name: str, since: datetime | None) -> Sequence[EventObject]:
        """Return the Events about a pod, oldest first.

        Args:
            name: the pod's name.
            since: creation of the pod; older Events are about an earlier pod of the name. None keeps all.
        """

        def keep(event: EventObject) -> bool:
            return is_since(since, event.metadata)

        selector = f"involvedObject.kind={POD.kind},involvedObject.name={name}"
        return await self._read(selector, keep)

    async def about_groups(self, subject: Subject, name: str) -> Sequence[EventObject]:
        """Return the Events about PodGroups of a pod or workload, also of earlier pods of it, oldest first.

        Args:
            subject: the pod, and the workload that was named.
            name: name of the pod or workload.
        """
        pod, workload = known(subject.pod), known(subject.workload)
        related = _related(subject, name)
        above = {owner.name for owner in workload.metadata.owner_references} if workload else set()

        def keep(event: EventObject) -> bool:
            group = event.involved_object.name
            is_own = pod is not None and group == pod.pod_group_name
            return is_own or workload_of(group) in above or any(may_concern(group, each) for each in related)

        return await self._read("involvedObject.kind=PodGroup", keep)

    async def about_creation(self, subject: Subject, name: str) -> Sequence[EventObject]:
        """Return the Events about pods that could not be created for a workload, oldest first."""
        workload = known(subject.workload)
        target = NamedObject(kind=subject.kind, name=name, uid=workload.metadata.uid if workload else "")

        def keep(event: EventObject) -> bool:
            about = event.involved_object
            return creates_for(about.kind, about.name, about.uid, target)

        lists = [await self._read(f"reason={reason}", keep) for reason in _NOT_CREATED]
        return sorted(chain.from_iterable(lists), key=_seconds)

    async def _read(self, selector: str, keep: Callable[[EventObject], bool]) -> Sequence[EventObject]:
        newest = _Newest(keep)
        params = {"fieldSelector": selector}
        absence = await self._requests.stream(self._path, decode_event, "Events", newest.add, params=params)
        self.are_read &= absence in (None, Absence.PARTIAL)
        self.is_cut |= newest.is_cut
        return list(newest)


def _related(subject: Subject, name: str) -> list[NamedObject]:
    """Return the named object, its pod and the owners of the pod."""
    pod, workload = known(subject.pod), known(subject.workload)
    is_indexed = None if pod is None else _COMPLETION_INDEX in pod.metadata.annotations
    if workload is not None:
        is_indexed = workload.spec.completion_mode == "Indexed"
    uid = workload.metadata.uid if workload is not None else ""
    is_read = pod is not None or workload is not None
    named = NamedObject(kind=_kind(subject.kind, is_indexed=is_indexed), name=name, uid=uid, is_read=is_read)
    if pod is None:
        return [named]
    is_indexed = _COMPLETION_INDEX in pod.metadata.annotations
    owners = [
        NamedObject(kind=_kind(owner.kind, is_indexed=is_indexed), name=owner.name, is_read=True)
        for owner in pod.metadata.owner_references
    ]
    return [named, NamedObject(kind=POD.kind, name=pod.name, is_read=True), *owners]


def _kind(kind: str, *, is_indexed: bool | None) -> str:
    """Return a kind, by which the names of its pods are known; empty for a Job that may have either form."""
    if kind != "Job" or is_indexed is False:
        return kind
    return INDEXED_JOB if is_indexed else ""


def is_since(since: datetime | None, metadata: Meta) -> bool:
    """Whether an object is not older than a pod, by the API server's times; unknown times count as newer."""
    created = metadata.creation_timestamp
    return since is None or created is None or created >= since


class _Newest:
    """The newest Events of a list, each with a bounded size; the oldest first."""

    def __init__(self, keep: Callable[[EventObject], bool]) -> None:
        self.is_cut = False
        self._keep = keep
        self._heap: list[tuple[float, int, EventObject]] = []
        self._arrivals = count()

    def add(self, event: EventObject, _document: bytes) -> bool:
        """Add an Event; return True, so that the list is read to its end."""
        if not self._keep(event):
            return True
        entry = _seconds(event), next(self._arrivals), _bounded(event)
        if len(self._heap) < MOST_EVENTS:
            heapq.heappush(self._heap, entry)
        else:
            self.is_cut = True
            heapq.heappushpop(self._heap, entry)
        return True

    def __iter__(self) -> Iterator[EventObject]:
        return (event for _, _, event in sorted(self._heap, key=lambda entry: entry[:2]))


def _seconds(event: EventObject) -> float:
    """Return the Unix time at which an Event was told last; its writer may have chosen any year."""
    last = event.last
    try:
        return last.timestamp() if last is not None else 0.0
    except (OverflowError, ValueError, OSError):
        return 0.0


def _bounded(event: EventObject) -> EventObject:
    metadata, about, source = event.metadata, event.involved_object, event.source
    return msgspec.structs.replace(
        event,
        metadata=Meta(
            name=metadata.name, namespace=metadata.namespace, creation_timestamp=metadata.creation_timestamp
        ),
        involved_object=msgspec.structs.replace(
            about, name=shorten(about.name, LONGEST_SUBDOMAIN), uid=shorten(about.uid, _LONGEST_WORD)
        ),
        reason=shorten(event.reason, _LONGEST_WORD),
        message=shorten(event.message, LONGEST_MESSAGE),
        source=msgspec.structs.replace(source, component=shorten(source.component, _LONGEST_WORD)),
        reporting_component=shorten(event.reporting_component, _LONGEST_WORD),
    )
