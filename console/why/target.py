"""The pod or workload that `kaishare why` explains, and the Events that concern it.

A name alone does not tell the Job `train-2` from what a controller makes for the Job `train`: the uid decides
where it is known, else the form of the names that the kind's controller gives. Any tenant can write Events in
its namespace: the newest are kept, in bounded memory.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from console.cluster.facts import MISSING, NOT_READ, Fact, FactReader, Listing, Why, is_read, items
from console.why.evidence import PodEvidence
from kube.kinds import (
    EVENTS,
    PODS,
    Event,
    FullMeta,
    Kind,
    ObjectOwner,
    Pod,
    PodOwner,
    decode_pod_with_document,
)
from service.command import UsageError
from service.names import is_dns_label, is_dns_subdomain, is_label_value
from service.text import quoted

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
    if target.kind not in _ADDED:  # the objects in between are not known, and may have its name (Notebook)
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
        for owner in pod.metadata.owner_references:
            yield NamedObject(_kind(owner.kind, of_pod), owner.name)


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


_TRAINING: Final = "training.kubeflow.org/job-name"


class WorkloadKind(NamedTuple):
    """A kind that makes pods."""

    group: str
    version: str
    name: str
    short: str = "-"  # its short name in kubectl
    label: str = ""  # the label of its pods that has its name

    @property
    def kind(self) -> Kind[PodOwner]:
        """The kind, for paths."""
        return Kind(self.group, self.version, f"{self.name.lower()}s", self.name, PodOwner)

    def is_named(self, word: str) -> bool:
        """Whether a word names the kind, as in kubectl: `deploy`, `Deployment`, `jobs.v1.batch`."""
        name, _, rest = word.lower().partition(".")
        names = {self.name.lower(), self.kind.resource, self.short}
        return name in names and rest in {"", self.group, f"{self.version}.{self.group}".rstrip(".")}


# API version, kinds, kubectl's short name, and the label of their pods with their name, which is that of
# `webhook.policy.operators`, and of KubeRay's common/label.go.
_TABLE: Final = """
v1 Pod po
apps/v1 Deployment deploy
apps/v1 ReplicaSet rs
apps/v1 StatefulSet sts
apps/v1 DaemonSet ds
batch/v1 Job
batch/v1 CronJob cj
v1 ReplicationController rc
kubeflow.org/v1 PyTorchJob,TFJob,XGBoostJob,JAXJob,PaddleJob,MPIJob - training.kubeflow.org/job-name
kubeflow.org/v2beta1 MPIJob - training.kubeflow.org/job-name
kubeflow.org/v1 Notebook
jobset.x-k8s.io/v1alpha2 JobSet - jobset.sigs.k8s.io/jobset-name
leaderworkerset.x-k8s.io/v1 LeaderWorkerSet lws leaderworkerset.sigs.k8s.io/name
ray.io/v1 RayCluster - ray.io/cluster
ray.io/v1 RayJob,RayService
"""
_ROWS: Final = [row.split() for row in _TABLE.strip().splitlines()]
POD, *_WORKLOADS = (
    WorkloadKind(row[0].rpartition("/")[0], row[0].rpartition("/")[2], name, *row[2:])
    for row in _ROWS
    for name in row[1].split(",")
)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def parse_target(text: str) -> tuple[Sequence[WorkloadKind], str]:
    """Read `POD` or `KIND/NAME`; return the kinds of that name, and the object's name. Raises ValueError."""
    word, slash, name = text.rpartition("/")
    kinds = [each for each in (POD, *_WORKLOADS) if each.is_named(word or "pod")]
    if not kinds or (slash and not word):
        raise ValueError(f"{quoted(word)} is not the name of a known kind; give the pod")
    if not is_dns_subdomain(name):
        raise ValueError(f"{quoted(name)} is not the name of an object; give POD or KIND/NAME")
    return kinds, name


def owner_kind(owner: ObjectOwner) -> Kind[PodOwner] | None:
    """Return the kind of an owner, in the reference's version; None for one that is not to be asked for.

    A tenant writes the reference, so that nothing of it goes into a path unchecked.
    """
    group, _, version = owner.api_version.rpartition("/")
    is_known = any((each.group, each.name) == (group, owner.kind) for each in _WORKLOADS)
    return WorkloadKind(group, version, owner.kind).kind if is_known and is_dns_label(version) else None


async def find_pod(
    reader: FactReader, namespace: str, kinds: Sequence[WorkloadKind], name: str
) -> tuple[Fact[Pod], Fact[PodOwner]]:
    """Find the pod of an answer; return it, and the workload if that is named by one of several versions.

    Raises UsageError if the pod or the list of pods cannot be read, or if the kind is not served.
    """
    if kinds[0] == POD:
        pod = await reader.get(PODS, name, namespace, decode=decode_pod_with_document)
        if not pod.is_known:
            raise UsageError(_unreadable(reader, pod, f"get pods in namespace {namespace}"))
        return pod, NOT_READ
    for each in kinds:
        workload = await reader.get(each.kind, name, namespace)
        if workload.why is not Why.UNSERVED:
            break
    else:
        raise UsageError(f"the API server does not serve the kind {kinds[0].name}")
    target = NamedObject(each.name, name, workload.known.metadata.uid if workload.known else "")
    return MISSING if workload.is_missing else await _newest_pod(reader, namespace, each, target), workload


async def _newest_pod(
    reader: FactReader, namespace: str, kind: WorkloadKind, target: NamedObject
) -> Fact[Pod]:
    selector = f"{kind.label}={target.name}" if kind.label and is_label_value(target.name) else ""
    best: list[Pod] = []

    def add(document: bytes) -> None:
        pod = decode_pod_with_document(document)
        owners = pod.metadata.owner_references
        if selector or any(creates_for(each.kind, each.name, each.uid, target) for each in owners):
            best[:] = [max([*best, pod], key=_rank)]

    query = {"labelSelector": selector} if selector else None
    listing = await reader.list(PODS, namespace, query=query, decode=add, what="pods")
    if not listing.is_known and not (is_read(listing) and best):
        raise UsageError(_unreadable(reader, listing, f"list pods in namespace {namespace}"))
    return Fact(best[0]) if best else MISSING


def _rank(pod: Pod) -> tuple[bool, datetime, str]:  # pods that wait are the highest, then new ones
    waits = pod.status.phase not in ("Running", "Succeeded", "Failed") and not pod.metadata.deletion_timestamp
    return waits, pod.metadata.creation_timestamp or _EARLIEST, pod.name


def _unreadable(reader: FactReader, fact: Fact[Any], right: str) -> str:
    if fact.why is Why.FORBIDDEN:
        return f"you may not {right}"
    if fact.why is Why.UNSERVED:
        return f"the server {reader.client.server} serves no pods; is it an API server?"
    return next(iter(reader.notes), f"not read: {right}")
