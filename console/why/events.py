"""The Events about a pod or workload, by uids and names: which of a namespace's Events concern it.

A name alone does not tell the Job `train-2` from what a controller makes for the Job `train`: the uid decides
where it is known, else the form of the names that the kind's controller gives. Any tenant can write Events in
its namespace: the newest are kept, in bounded memory.
"""

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec.structs import replace

from console.cluster.facts import Fact, FactReader, Listing, items
from kube.kinds import EVENTS, Event, FullMeta, Pod, PodOwner
from service.names import LONGEST_SUBDOMAIN
from service.text import shorten

MOST_EVENTS: Final = 500  # maximum number of Events kept of one list
LONGEST_MESSAGE: Final = 4096  # maximum length of a kept message, in characters
_LONGEST_WORD: Final = 128  # maximum length of a reason and of a component's name, in characters
_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an Indexed Job."""
_NOT_CREATED: Final = ("FailedCreate", "FailedCreatePod")
"""Reasons of Events about pods that a controller could not create: Kubernetes', and training-operator's."""
_NAME: Final = re.compile(r"pg-(.{1,253})-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
INDEXED_JOB: Final = "Job, Indexed"
"""Kind of a Job whose pods have an index; the kind `Job` is one whose pods have none."""
_RANDOM: Final = "[bcdfghjklmnpqrstvwxz2456789]{5}"  # without vowels (apimachinery, `util/rand`)
_HASH: Final = f"[bcdfghjklmnpqrstvwxz2456789]{{5,10}}(?:-{_RANDOM})?"
_ROLE: Final = "(?:chief|evaluator|head|launcher|leader|master|ps|server|worker)-[0-9]{1,5}"
_ADDED: Final = {
    "Pod": "(?!)",
    **dict.fromkeys(("ReplicaSet", "ReplicationController", "DaemonSet", "Job"), _RANDOM),
    INDEXED_JOB: f"[0-9]{{1,10}}-{_RANDOM}",
    "StatefulSet": "[0-9]{1,10}",
    "Deployment": _HASH,
    "CronJob": f"[0-9]{{8,10}}(?:-[0-9]{{1,10}})?(?:-{_RANDOM})?",
    **dict.fromkeys(("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob"), _ROLE),
}
"""What the controllers of Kubernetes and of training-operator add to the name of an object of the kind."""
_GENERATED: Final = f"{_HASH}|[0-9]{{1,10}}(?:-[0-9]{{1,5}})?(?:-{_RANDOM})?|{_ROLE}|raycluster-{_RANDOM}"
"""What any controller adds to an owner's name, KubeRay among them (for a RayJob or RayService)."""
_BETWEEN: Final = {"Deployment": "ReplicaSet", "CronJob": "Job"}
"""Kinds that create pods by objects of another kind."""


class NamedObject(NamedTuple):
    """A pod or workload, as far as it is known."""

    kind: str  # empty if it may be any
    name: str
    uid: str = ""  # empty if it is not known
    is_read: bool = False  # whether the object or one that it owns was read, so that its owners are known


def workload_of(group: str) -> str:
    """Return the workload in a PodGroup's name `pg-WORKLOAD-UID`; the whole name of one made by hand.

    It is the pod itself, or the owner whose pods KAI schedules together (v0.9.8, v0.13.4, v0.17.0).
    """
    match = _NAME.fullmatch(group)
    return match[1] if match else group


def is_made_for(name: str, owner: str, kind: str = "") -> bool:
    """Whether a controller may have given this name to an object of an owner, of a kind if it is known."""
    added = name.removeprefix(f"{owner}-")
    return added != name and re.fullmatch(_ADDED.get(kind, _GENERATED), added) is not None


def may_concern(group: str, target: NamedObject) -> bool:
    """Whether a PodGroup may be for a pod or workload, for a pod of it or, if it was not read, its owner."""
    match = _NAME.fullmatch(group)
    workload, uid = (match[1], match[2]) if match else (group, "")
    if workload == target.name:
        return not (uid and target.uid) or uid == target.uid
    return is_made_for(workload, target.name, target.kind) or (
        not target.is_read and is_made_for(target.name, workload)
    )


def creates_for(kind: str, name: str, uid: str, target: NamedObject) -> bool:
    """Whether an object, by its kind, name and uid, may create the pods of a workload."""
    if kind == target.kind and uid and target.uid:
        return uid == target.uid
    if target.kind not in _ADDED:  # the objects in between are not known
        return name == target.name or is_made_for(name, target.name)
    if kind == target.kind:
        return name == target.name
    return kind == _BETWEEN.get(target.kind) and is_made_for(name, target.name, target.kind)


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads the Events that concern a pod or workload that was named."""

    reader: FactReader
    namespace: str
    kind: str
    name: str

    async def about_pod(self, name: str, pod: Pod | None) -> Listing[Event]:
        """Return the Events about a pod, oldest first, without those about an earlier pod of the name."""

        def keep(event: Event) -> bool:
            return pod is None or is_of(pod, event.involved_object.uid, event.metadata)

        return await self._read(f"involvedObject.kind=Pod,involvedObject.name={name}", keep)

    async def about_groups(self, pod: Pod | None, workload: PodOwner | None) -> Listing[Event]:
        """Return the Events about PodGroups of the pod or workload, and of earlier pods of it."""
        related = [*self._related(pod, workload)]
        above = {owner.name for owner in workload.metadata.owner_references} if workload else set()

        def keep(event: Event) -> bool:
            group = event.involved_object.name
            is_own = pod is not None and group == pod.pod_group_name
            return is_own or workload_of(group) in above or any(may_concern(group, each) for each in related)

        return await self._read("involvedObject.kind=PodGroup", keep)

    async def about_creation(self, workload: PodOwner | None) -> Listing[Event]:
        """Return the Events about pods that could not be created for the workload, oldest first."""
        target = NamedObject(self.kind, self.name, workload.metadata.uid if workload else "")

        def keep(event: Event) -> bool:
            about = event.involved_object
            return creates_for(about.kind, about.name, about.uid, target)

        lists = [await self._read(f"reason={reason}", keep) for reason in _NOT_CREATED]
        events = tuple(sorted(chain.from_iterable(map(items, lists)), key=attrgetter("moment")))
        unread = next((each for each in lists if not each.is_known), lists[0])
        return Fact(events, unread.why, unread.line)

    def _related(self, pod: Pod | None, workload: PodOwner | None) -> Iterator[NamedObject]:
        of_pod = None if pod is None else _COMPLETION_INDEX in pod.metadata.annotations
        is_indexed = of_pod if workload is None else workload.spec.completion_mode == "Indexed"
        uid = workload.metadata.uid if workload is not None else ""
        is_read = pod is not None or workload is not None
        yield NamedObject(_kind(self.kind, is_indexed), self.name, uid, is_read)
        if pod is not None:
            yield NamedObject("Pod", pod.name, is_read=True)
            for owner in pod.metadata.owner_references:
                yield NamedObject(_kind(owner.kind, of_pod), owner.name, is_read=True)

    async def _read(self, selector: str, keep: Callable[[Event], bool]) -> Listing[Event]:
        """List Events, and keep the newest ones, each with a bounded size."""
        heap: list[tuple[float, int, Event]] = []
        arrivals = count()

        def add(document: bytes) -> None:
            event = EVENTS.decode(document)
            if not keep(event):
                return
            push = heapq.heappush if len(heap) < MOST_EVENTS else heapq.heappushpop
            number = next(arrivals)
            push(heap, (event.moment, number, _bounded(event)))
            if number == MOST_EVENTS:
                self.reader.note(f"there are more Events than the newest {MOST_EVENTS}, which were read")

        query = {"fieldSelector": selector}
        listing = await self.reader.list(EVENTS, self.namespace, query=query, decode=add, what="Events")
        newest = tuple(event for _, _, event in sorted(heap, key=lambda entry: entry[:2]))
        return Fact(newest if listing.is_known else newest or listing.value, listing.why, listing.line)


def _kind(kind: str, is_indexed: bool | None) -> str:  # empty for a Job that may have either form
    return {None: "", True: INDEXED_JOB, False: kind}[is_indexed] if kind == "Job" else kind


def is_of(pod: Pod, uid: str, metadata: FullMeta) -> bool:
    """Whether an object is about this pod: by the pod's uid in it, else by their times of creation."""
    if uid and pod.metadata.uid:
        return uid == pod.metadata.uid
    created, since = metadata.creation_timestamp, pod.metadata.creation_timestamp
    return since is None or created is None or created >= since


def _bounded(event: Event) -> Event:
    def word(text: str) -> str:
        return shorten(text, _LONGEST_WORD)

    about, old = event.involved_object, event.metadata
    return replace(
        event,
        metadata=FullMeta(old.name, old.namespace, creation_timestamp=old.creation_timestamp),
        involved_object=replace(about, name=shorten(about.name, LONGEST_SUBDOMAIN), uid=word(about.uid)),
        reason=word(event.reason),
        message=shorten(event.message, LONGEST_MESSAGE),
        source={"component": word(event.source.get("component", ""))},
        reporting_component=word(event.reporting_component),
    )
