"""The Events about a pod or workload, by uids and names: which of a namespace's Events concern it.

A name alone does not tell the Job `train-2` from what a controller makes for the Job `train`: the uid decides
where it is known, else the form of the names that the kind's controller gives. Any tenant can write Events in
its namespace: the newest are kept, in bounded memory.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from console.cluster.facts import Fact, FactReader, Listing, items
from console.why.evidence import PodEvidence
from kube.kinds import EVENTS, Event, FullMeta, Pod

MOST_EVENTS: Final = 500  # number of Events kept of one list; up to twice as many while it is read
LARGEST: Final = 16 * 1024  # maximum size of a kept Event as JSON; programs write about 1 kB
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


def workload_of(group: str) -> tuple[str, str]:
    """Return the workload in a PodGroup's name `pg-WORKLOAD-UID`, and the uid; a name made by hand has none.

    It is the pod itself, or the owner whose pods KAI schedules together (v0.9.8, v0.13.4, v0.17.0).
    """
    match = _NAME.fullmatch(group)
    return (match[1], match[2]) if match else (group, "")


def is_made_for(name: str, owner: str, kind: str = "") -> bool:
    """Whether a controller may have given this name to an object of an owner, of a kind if it is known."""
    added = name.removeprefix(f"{owner}-")
    return added != name and re.fullmatch(_ADDED.get(kind, _GENERATED), added) is not None


def may_concern(group: str, target: NamedObject) -> bool:
    """Whether a PodGroup may be for a pod or workload, or for a pod of it."""
    workload, uid = workload_of(group)
    is_same = workload == target.name and (uid == target.uid or not (uid and target.uid))
    return is_same or is_made_for(workload, target.name, target.kind)


def creates_for(kind: str, name: str, uid: str, target: NamedObject) -> bool:
    """Whether an object, by its kind, name and uid, may create the pods of a workload."""
    if kind == target.kind and uid and target.uid:
        return uid == target.uid
    if target.kind not in _ADDED:  # the objects in between are not known
        return name == target.name or is_made_for(name, target.name)
    if kind == target.kind:
        return name == target.name
    return kind == _BETWEEN.get(target.kind) and is_made_for(name, target.name, target.kind)


async def events_about_pod(reader: FactReader, evidence: PodEvidence) -> Listing[Event]:
    """Return the Events about the pod, oldest first, without those about an earlier pod of the name."""
    pod = evidence.pod.known

    def keep(event: Event) -> bool:
        return pod is None or is_of(pod, event.involved_object.uid, event.metadata)

    name = pod.name if pod else evidence.name
    return await _read(reader, evidence, f"involvedObject.kind=Pod,involvedObject.name={name}", keep)


async def events_about_groups(reader: FactReader, evidence: PodEvidence) -> Listing[Event]:
    """Return the Events about PodGroups of the pod or workload, and of earlier pods of it, oldest first."""
    pod, workload, related = evidence.pod.known, evidence.workload.known, [*_related(evidence)]
    owners = {owner.name for owner in workload.metadata.owner_references} if workload else set()

    def keep(event: Event) -> bool:
        group = event.involved_object.name
        name, _ = workload_of(group)
        # The owners of an object that is gone are not known.
        is_above = name in owners or (not (pod or workload) and is_made_for(evidence.name, name))
        is_own = pod is not None and group == pod.pod_group_name
        return is_own or is_above or any(may_concern(group, each) for each in related)

    return await _read(reader, evidence, "involvedObject.kind=PodGroup", keep)


async def events_about_creation(reader: FactReader, evidence: PodEvidence) -> Listing[Event]:
    """Return the Events about pods that could not be created for the workload, oldest first."""
    workload = evidence.workload.known
    target = NamedObject(evidence.kind, evidence.name, workload.metadata.uid if workload else "")

    def keep(event: Event) -> bool:
        about = event.involved_object
        return creates_for(about.kind, about.name, about.uid, target)

    lists = [await _read(reader, evidence, f"reason={reason}", keep) for reason in _NOT_CREATED]
    events = tuple(sorted(chain.from_iterable(map(items, lists)), key=attrgetter("moment")))
    unread = next((each for each in lists if not each.is_known), lists[0])
    return Fact(events, unread.why, unread.line)


def _related(evidence: PodEvidence) -> Iterator[NamedObject]:
    pod, workload = evidence.pod.known, evidence.workload.known
    of_pod = None if pod is None else _COMPLETION_INDEX in pod.metadata.annotations
    is_indexed = of_pod if workload is None else workload.spec.completion_mode == "Indexed"
    uid = workload.metadata.uid if workload else ""
    yield NamedObject(_kind(evidence.kind, is_indexed), evidence.name, uid)
    if pod is not None:
        yield NamedObject("Pod", pod.name)
        yield from (
            NamedObject(_kind(each.kind, of_pod), each.name) for each in pod.metadata.owner_references
        )


async def _read(
    reader: FactReader, evidence: PodEvidence, selector: str, keep: Callable[[Event], bool]
) -> Listing[Event]:
    """List Events, oldest first, without very large ones; of many, the newest are kept."""
    events: list[Event] = []

    def add(document: bytes) -> None:
        if len(document) > LARGEST:
            reader.note(f"Events of more than {LARGEST >> 10} KiB were not read")
        elif keep(event := EVENTS.decode(document)):
            events.append(event)
        if len(events) > 2 * MOST_EVENTS:
            events[:] = sorted(events, key=attrgetter("moment"))[-MOST_EVENTS:]
            reader.note(f"there are more Events than the newest {MOST_EVENTS}, which were read")

    query = {"fieldSelector": selector}
    listing = await reader.list(EVENTS, evidence.namespace, query=query, decode=add, what="Events")
    newest = tuple(sorted(events, key=attrgetter("moment")))
    return Fact(newest if listing.is_known else newest or listing.value, listing.why, listing.line)


def _kind(kind: str, is_indexed: bool | None) -> str:  # empty for a Job that may have either form
    return {None: "", True: INDEXED_JOB, False: kind}[is_indexed] if kind == "Job" else kind


def is_of(pod: Pod, uid: str, metadata: FullMeta) -> bool:
    """Whether an object is about this pod: by the pod's uid in it, else by their times of creation."""
    if uid and pod.metadata.uid:
        return uid == pod.metadata.uid
    created, since = metadata.creation_timestamp, pod.metadata.creation_timestamp
    return since is None or created is None or created >= since
