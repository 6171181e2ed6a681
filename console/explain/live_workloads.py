"""Explains what runs in a cluster (`--live`): which share a new pod of each workload would get.

The module reads the built-in workloads, the jobs of the training operators in `controllers.OPERATORS`, and
pods, the kinds of owners first. An object whose owner was listed before is left out, since the owner's
templates stand for it: the ReplicaSets of a Deployment, the Jobs of a CronJob or JobSet. Pods of other
owners, such as an Argo Workflow, are grouped by that owner. The newest pod that has not ended stands for the
group.

Left out and counted in a note are Jobs that have finished, pods without a workload that have ended, and
ReplicaSets without replicas whose owner was not listed: they are earlier revisions. Workloads that are scaled
to 0 stay, since they make pods when they are scaled up. A PodTemplate makes no pods and is not read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from dataclasses import replace as copied
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from console.cluster.served_kinds import ServedKind, discover_groups
from console.explain.document_parts import as_map, as_maps
from console.explain.explainer import ExplainedPod, Explainer, UnexplainedObject
from console.explain.gpu_sums import RunningPods, asked_now
from console.explain.live_pods import (
    LivePod,
    ObjectKey,
    OwnedMetadata,
    OwnedObject,
    OwnerReference,
    PodSums,
    TemplateRoles,
    as_new,
    decode_live_pod,
)
from console.explain.operators import OPERATORS
from console.explain.workload_kinds import WORKLOADS
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from service.tasks import LoopYield
from service.text import MALFORMED, counted, one_line

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


_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


def explain_object(
    explainer: Explainer, kind: ServedKind, metadata: OwnedMetadata, document: bytes, owner: str
) -> list[ExplainedPod | UnexplainedObject]:
    """Explain a workload by its templates, or a pod as a new one.

    An object that cannot be explained becomes an `UnexplainedObject` with the code `unreadable`.

    Args:
        explainer: decides about the pods.
        kind: the kind of the object.
        metadata: its name and namespace.
        document: the object as JSON, as an item of a list.
        owner: kind and name of an owner that is not explained; empty if there is none.
    """
    is_pod = (kind.group, kind.kind) == ("", "Pod")
    try:
        item = {
            **_decode_object(document),
            "apiVersion": kind.api_version,
            "kind": kind.kind,
        }  # lists omit both
        item.pop("status", None)
        items = list(explainer.explain(as_new(item) if is_pod else item))
    except (ValueError, TypeError, OverflowError, *MALFORMED) as error:
        unreadable = UnexplainedObject(
            kind=kind.kind,
            name=metadata.name,
            namespace=metadata.namespace or explainer.namespace,
            code="unreadable",
            message=one_line(str(error)),
        )
        return [unreadable]
    return [_of_cluster(each, metadata.name, owner, is_pod=is_pod) for each in items]


def _of_cluster(
    item: ExplainedPod | UnexplainedObject, name: str, owner: str, *, is_pod: bool
) -> ExplainedPod | UnexplainedObject:
    """Return an item with its owner and the name in the cluster, which a new pod may not have yet."""
    if not isinstance(item, ExplainedPod):
        return item
    pod = item.pod
    if is_pod:
        pod = replace(pod, name=name, owner=owner, is_sample=bool(owner))
    elif owner:
        pod = replace(pod, owner=owner)
    # The decoded pod keeps its JSON alive, a third of the memory of an item.
    return replace(item, pod=pod, mutation=msgspec.structs.replace(item.mutation, pod=None))


MOST_WORKLOADS: Final = 20_000
"""Number of workloads and pods that are explained; about 15 kB of memory each."""
_MOST_OWNERS: Final = 200_000
"""Number of objects whose owners are known; about 500 bytes of memory each."""
_LONG: Final = 65_536
"""Size in bytes from which an object is explained in a thread: it may take longer than 100 ms."""


def _served(kind: str) -> ServedKind:
    group = WORKLOADS[kind].group
    return ServedKind(group=group, version="v1", kind=kind, resource=f"{kind.lower()}s", is_namespaced=True)


_PODS: Final = _served("Pod")
_JOBS: Final = _served("Job")
_BUILT_IN: Final = tuple(
    map(
        _served,
        ("CronJob", "Deployment", "StatefulSet", "DaemonSet", "ReplicationController", "Job", "ReplicaSet"),
    )
)
"""The built-in kinds that are read; owners come before what they own."""
_MADE_THROUGH: Final[Mapping[str, Sequence[ServedKind]]] = {
    **{kind: (_served(workload.between),) for kind, workload in WORKLOADS.items() if workload.between},
    **{kind: (_JOBS, _served("StatefulSet")) for _, kind in OPERATORS},
}
"""The kinds between a workload and its pods."""
_FINISHED: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions of finished Jobs (batch), JobSets and jobs of Kubeflow's operators."""


class _Workload(OwnedObject):
    """The parts of a workload that tell its owners and its state."""

    status: Raw = Raw(b"null")


_decode: Final = msgspec.json.decode
_decode_workload: Final = msgspec.json.Decoder(_Workload).decode


@dataclass(frozen=True, slots=True)
class LiveWorkloads:
    """What runs in a cluster, with the decisions about new pods of it."""

    items: Sequence[ExplainedPod | UnexplainedObject]
    """By namespace and title. `running` is None for a template whose pods could not all be counted."""
    notes: Sequence[str] = ()
    """What was not read or is left out, one line each."""


async def live_workloads(
    client: KubeClient, explainer: Explainer, *, namespaces: Collection[str] | None
) -> LiveWorkloads:
    """Explain the workloads and pods that exist in a cluster, with the caller's rights.

    A kind that the caller may not list becomes a note. A kind that the API server does not serve is skipped.
    The caller should disable the collector of reference cycles (`gc.disable`): with 20,000 items in memory,
    one collection blocks the event loop for 0.8 s, and all of them take a fifth of the time.

    Args:
        client: for the API server.
        explainer: decides about the pods; its policies have the edits applied.
        namespaces: the namespaces to read, managed or not; None for all managed namespaces of the cluster.
    """
    managed = explainer.policies.keys() - explainer.rules.excluded_namespaces
    reading = _Reading(LiveLists(client, namespaces, managed), explainer)
    await reading.read_workloads(await _operators(client, reading.lists))
    await reading.read_pods()
    await reading.explain_samples()
    return LiveWorkloads(
        items=sorted([item async for item in reading.items()], key=_place),
        notes=[*reading.notes(), *reading.lists.notes],
    )


def _place(item: ExplainedPod | UnexplainedObject) -> tuple[str, str]:
    """Return a sort key that keeps the templates of an object in their order."""
    if isinstance(item, UnexplainedObject):
        return item.namespace, item.title
    return item.namespace, item.pod.owner if item.pod.is_sample else f"{item.pod.kind} {item.pod.name}"


async def _operators(client: KubeClient, lists: LiveLists) -> list[ServedKind]:
    """Return the kinds of training operators that the API server serves, each in its preferred version."""
    try:
        served = await discover_groups(client)
    except REQUEST_ERRORS as error:
        lists.note(f"jobs of training operators were not read: {one_line(str(error))}")
        return []
    kinds: dict[tuple[str, str], ServedKind] = {}
    for kind in served:
        if kind.is_namespaced and (kind.group, kind.kind) in OPERATORS:
            kinds.setdefault((kind.group, kind.kind), kind)
    return list(kinds.values())


@dataclass(slots=True)
class _Sample:
    """The newest pod of an owner that was not listed."""

    pod: LivePod
    document: bytes
    owner: OwnerReference


@dataclass(slots=True)
class _Reading:
    """The state of one reading of a cluster."""

    lists: LiveLists
    explainer: Explainer
    _tops: dict[ObjectKey, ObjectKey] = field(default_factory=dict)
    """The topmost owner of each listed object; the object itself if its owner was not listed before."""
    _explained: dict[ObjectKey, list[ExplainedPod | UnexplainedObject]] = field(default_factory=dict)
    _roles: dict[ObjectKey, TemplateRoles | None] = field(default_factory=dict)
    """How the pods of a workload tell their template; None if they do not."""
    _untold: set[ObjectKey] = field(default_factory=set)
    """Workloads with a pod whose template is not known."""
    _samples: dict[ObjectKey, _Sample] = field(default_factory=dict)
    _sums: PodSums = field(default_factory=PodSums)
    _finished: int = 0
    _revisions: int = 0
    """ReplicaSets without replicas whose owner was not listed."""
    _ended: int = 0
    """Pods without a workload that have ended."""
    _loop_yield: LoopYield = field(default_factory=LoopYield)
    _cut: bool = False
    """Whether there are more workloads than are explained."""

    async def items(self) -> AsyncIterator[ExplainedPod | UnexplainedObject]:
        """Yield what was explained, with the numbers of pods."""
        for key, items in self._explained.items():
            position = 0
            for item in items:
                if isinstance(item, ExplainedPod):
                    yield copied(item, running=self._running(key, position, item))
                    position += 1
                else:
                    yield item
            await self._loop_yield.maybe_yield()

    def notes(self) -> Iterator[str]:
        """Yield what is left out."""
        counts = (
            (self._finished, "job that has finished", "jobs that have finished"),
            (self._ended, "pod that has ended", "pods that have ended"),
            (self._revisions, "ReplicaSet without replicas", "ReplicaSets without replicas"),
        )
        left_out = [counted(count, singular, plural) for count, singular, plural in counts if count]
        if left_out:
            yield f"left out: {', '.join(left_out)}"
        if self._cut:
            yield f"only the first {MOST_WORKLOADS} workloads and pods are explained"
        if self._untold:
            workloads = counted(len(self._untold), "workload")
            yield f"the pods of {workloads} are not counted: no label tells which template they come from"

    async def read_workloads(self, operators: Iterable[ServedKind]) -> None:
        """Read the workloads; explain those whose owner was not listed before."""
        for kind in (*operators, *_BUILT_IN):
            async for workload, document in self.lists.read(kind, _decode_workload):
                metadata = workload.metadata
                if not self._add(kind, metadata):
                    continue
                if _is_finished(kind, workload):
                    self._finished += 1
                elif kind.kind == "ReplicaSet" and metadata.owner and _is_scaled_to_0(document):
                    self._revisions += 1
                else:
                    owner = metadata.owner.title if metadata.owner else ""
                    await self._explain(metadata.key, kind, metadata, document, owner=owner)

    async def read_pods(self) -> None:
        """Read all pods: count those of workloads, and explain those without one."""
        self._roles = {
            key: TemplateRoles.of([item.pod for item in items if isinstance(item, ExplainedPod)])
            for key, items in self._explained.items()
        }
        async for pod, document in self.lists.read(_PODS, decode_live_pod):
            if not pod.is_of_workload:
                if pod.has_ended:
                    self._ended += 1
                else:
                    self._sums.add(pod.metadata.key, 0, asked_now(document))
                    await self._explain(pod.metadata.key, _PODS, pod.metadata, document)
            elif not pod.has_ended:
                self._count(pod, document)

    async def explain_samples(self) -> None:
        """Explain the newest pod of each owner that was not listed."""
        for key, sample in self._samples.items():
            await self._explain(key, _PODS, sample.pod.metadata, sample.document, owner=sample.owner.title)
        self._samples.clear()

    def _add(self, kind: ServedKind, metadata: OwnedMetadata) -> bool:
        """Add an object to the owners, once; return whether it is a topmost one."""
        key, owner = metadata.key, metadata.owner_key
        if len(self._tops) >= _MOST_OWNERS:
            self.lists.cut_off(kind, metadata.namespace)
            self.lists.note(f"only the owners of {_MOST_OWNERS} objects were read")
            return False
        if key in self._tops:
            return False
        self._tops[key] = self._tops.get(owner, key) if owner else key
        return self._tops[key] == key

    async def _explain(
        self, key: ObjectKey, kind: ServedKind, metadata: OwnedMetadata, document: bytes, *, owner: str = ""
    ) -> None:
        """Explain one object, unless there are too many."""
        if len(self._explained) >= MOST_WORKLOADS:
            self._cut = True
            return
        await self._loop_yield.maybe_yield()
        arguments = self.explainer, kind, metadata, document, owner
        if len(document) > _LONG:
            self._explained[key] = await asyncio.to_thread(explain_object, *arguments)
        else:
            self._explained[key] = explain_object(*arguments)

    def _count(self, pod: LivePod, document: bytes) -> None:
        """Count a pod of a workload; keep it if it is the newest of an owner that was not listed."""
        metadata = pod.metadata
        owner, key = metadata.owner, metadata.owner_key
        if owner is None or key is None:
            return
        top = self._tops.get(key)
        if top is not None:
            if top not in self._explained:
                return  # the owner is left out
            roles = self._roles.get(top)
            position = None if roles is None else roles.position_of(metadata.labels or {})
            if position is None:
                self._untold.add(top)
            else:
                self._sums.add(top, position, asked_now(document))
            return
        newest = self._samples.get(key)
        if newest is None and len(self._samples) + len(self._explained) >= MOST_WORKLOADS:
            self._cut = True
            return
        self._sums.add(key, 0, asked_now(document))
        if newest is None or pod.age_key > newest.pod.age_key:
            self._samples[key] = _Sample(pod, document, owner)

    def _running(self, key: ObjectKey, position: int, item: ExplainedPod) -> RunningPods | None:
        """Return the pods of a template; None if not all were read."""
        between = _MADE_THROUGH.get(item.pod.kind, ()) if item.pod.path else ()
        is_complete = all(self.lists.is_complete(kind.resource, item.namespace) for kind in (_PODS, *between))
        return self._sums.of(key, position) if is_complete and key not in self._untold else None


def _is_finished(kind: ServedKind, workload: _Workload) -> bool:
    if kind != _JOBS and kind in _BUILT_IN:
        return False
    with suppress(*MALFORMED):  # the schema of a custom resource's status is its own
        conditions = as_maps(as_map(_decode(workload.status)).get("conditions"))
        return any(each.get("type") in _FINISHED and each.get("status") == "True" for each in conditions)
    return False


def _is_scaled_to_0(document: bytes) -> bool:
    with suppress(*MALFORMED):
        return as_map(as_map(_decode(document)).get("spec")).get("replicas") == 0
    return False
