"""Lists what runs in a cluster (`--live`), and gives each workload and pod to the explainer as a manifest.

The kinds of owners are listed first. An object whose owner was listed before is left out, since the owner's
templates stand for it. Pods of other owners, such as an Argo Workflow, are grouped by that owner, and the
newest pod stands for the group. Left out are Jobs and pods that have ended, and ReplicaSets without replicas
whose owner was not listed: earlier revisions. Workloads that are scaled to 0 stay: they can be scaled up.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from console.cluster.facts import FactReader, ServedKind, Why, items
from console.explain.explainer import (
    ExplainedPod,
    Explainer,
    Item,
    PodRequests,
    UnexplainedObject,
    as_new,
    asked_now,
)
from kai import keys
from kube.client import KubeClient
from kube.kinds import FullMeta, Kind, ObjectOwner
from service.text import MALFORMED, counted, one_line
from webhook.policy.operators import OPERATORS
from webhook.policy.pod_parts import as_map, as_maps
from webhook.policy.templates import WORKLOADS

MOST_WORKLOADS: Final = 20_000  # number of workloads and pods that are explained; about 15 kB of memory each
_MOST_OWNERS: Final = 200_000  # number of objects whose owners are known; about 500 bytes of memory each
_MOST_SECONDS: Final = 600.0  # for one list, with the explanation of its objects
_NAME_SHOWN: Final = 63

# Namespace and uid. An owner in another namespace does not count, as in Kubernetes' garbage collector.
ObjectKey = tuple[str, str]


class _Object(Struct):
    """The parts of a listed object that tell its owners and its state."""

    metadata: FullMeta
    spec: Raw = Raw(b"null")
    status: Raw = Raw(b"null")


_decode: Final = msgspec.json.Decoder(_Object).decode
_decode_document: Final = msgspec.json.Decoder(dict[str, Any]).decode


def explain_object(
    explainer: Explainer, kind: ServedKind, metadata: FullMeta, document: bytes, owner: ObjectOwner | None
) -> list[Item]:
    """Explain a workload by its templates, or a pod as a new one; `owner` is one that is not explained.

    An object that cannot be explained becomes an `UnexplainedObject` with the code `unreadable`.
    """
    is_pod = (kind.group, kind.kind) == ("", "Pod")
    try:
        item = _decode_document(document)
        item |= {"apiVersion": kind.api_version, "kind": kind.kind}  # lists omit both
        item.pop("status", None)
        items = list(explainer.explain(as_new(item) if is_pod else item))
    except (ValueError, TypeError, OverflowError, *MALFORMED) as error:
        namespace, message = metadata.namespace or explainer.namespace, one_line(str(error))
        return [UnexplainedObject(kind.kind, metadata.name, namespace, "unreadable", message)]
    title = f"{one_line(owner.kind, _NAME_SHOWN)} {one_line(owner.name, _NAME_SHOWN)}" if owner else ""
    for position, each in enumerate(items):
        if isinstance(each, ExplainedPod):
            # A new pod may have no name yet. The decoded pod keeps its JSON alive, a third of the item.
            pod = replace(each.pod, name=metadata.name) if is_pod else each.pod
            mutation = msgspec.structs.replace(each.mutation, pod=None)
            is_sample = is_pod and owner is not None
            items[position] = replace(each, pod=pod, mutation=mutation, owner=title, is_sample=is_sample)
    return items


def _served(kind: str) -> ServedKind:
    group = WORKLOADS[kind].group
    return ServedKind(group=group, version="v1", kind=kind, resource=f"{kind.lower()}s", is_namespaced=True)


SERVED_PODS: Final = _served("Pod")
_OWNERS_FIRST: Final = "CronJob Deployment StatefulSet DaemonSet ReplicationController Job ReplicaSet"
_BUILT_IN: Final = tuple(map(_served, _OWNERS_FIRST.split()))
_NEEDED_TO_COUNT: Final = ("pods", "replicasets", "jobs", "statefulsets")  # the last make pods for owners
_FINISHED: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed", "Aborted", "Terminated"})
"""Conditions of finished Jobs (batch), JobSets and jobs of Kubeflow's operators, and phases of Volcano's."""


async def live_workloads(
    client: KubeClient, explainer: Explainer, namespaces: Collection[str] | None
) -> tuple[list[Item], list[str]]:
    """Explain the workloads and pods that exist in a cluster, with the caller's rights; return also notes.

    `running` is None for one of several templates, and where pods could not all be counted. A kind that the
    caller may not list becomes a note. A kind that the API server does not serve is skipped. `namespaces` are
    those to read, managed or not; None reads all managed namespaces of the cluster.
    """
    reading = _Reading(FactReader(client, seconds=_MOST_SECONDS), explainer, namespaces)
    for kind in (*await reading.operators(), *_BUILT_IN):
        await reading.list(kind, partial(reading.take_workload, kind))
    await reading.list(SERVED_PODS, reading.take_pod)
    return sorted(reading.items(), key=lambda item: (item.namespace, item.title)), list(reading.notes())


@dataclass(slots=True)
class _Group:
    """A workload, or the pods of an owner that was not listed, with what it runs."""

    items: list[Item] = field(default_factory=list)
    running: PodRequests = field(default_factory=PodRequests)  # not of ended pods
    newest: FullMeta | None = None  # the newest pod of an owner that was not listed


@dataclass(slots=True)
class _Reading:
    """The state of one reading of a cluster."""

    reader: FactReader
    explainer: Explainer
    namespaces: Collection[str] | None  # to be listed one by one; None: each kind in all at once
    tops: dict[ObjectKey, ObjectKey] = field(default_factory=dict)  # topmost listed owners, else the objects
    groups: dict[ObjectKey, _Group] = field(default_factory=dict)
    sentences: dict[str, None] = field(default_factory=dict)  # about what was not read
    unmanaged: set[str] = field(default_factory=set)  # namespaces with objects that are not kept
    uncounted: set[str] = field(default_factory=set)  # namespaces whose pods are not all counted; empty: all
    is_cut: bool = False  # whether there are more workloads than are explained

    def items(self) -> Iterator[Item]:
        """Yield what was explained, with the numbers of pods."""
        for group in self.groups.values():
            for item in group.items:
                if isinstance(item, ExplainedPod):
                    is_known = not item.has_siblings and not {"", item.namespace} & self.uncounted
                    yield replace(item, running=group.running if is_known else None)
                else:
                    yield item

    def notes(self) -> Iterator[str]:
        """Yield what is left out and what was not read."""
        if self.is_cut:
            yield f"only the first {MOST_WORKLOADS} workloads and pods are explained"
        items = (item for group in self.groups.values() for item in group.items[:1])
        if several := sum(isinstance(item, ExplainedPod) and item.has_siblings for item in items):
            yield f"the pods of {counted(several, 'workload')} with several templates are not counted"
        yield from self.sentences
        if self.unmanaged:
            namespaces = counted(len(self.unmanaged), "namespace")
            yield f"left out: the objects of {namespaces} that kaishare does not manage, or that are excluded"

    async def operators(self) -> Iterable[ServedKind]:
        """Return the kinds of training operators that are served, each in its preferred version."""
        kinds: dict[tuple[str, str], ServedKind] = {}
        served = await self.reader.served()
        for kind in items(served):
            if kind.is_namespaced and (kind.group, kind.kind) in OPERATORS:
                kinds.setdefault((kind.group, kind.kind), kind)
        if not served.is_known:
            self.sentences[f"jobs of training operators are left out: {served.line}"] = None
        return kinds.values()

    async def list(self, kind: ServedKind, take: Callable[[_Object, bytes], None]) -> None:
        """Take the objects of a kind, decoded and as JSON, as they arrive; a failed list is a note."""
        managed = self.explainer.policies.keys() - self.explainer.rules.excluded_namespaces
        path = Kind(kind.group, kind.version, kind.resource, kind.kind, _Object)

        def read(document: bytes) -> None:
            item = _decode(document)
            if self.namespaces is None and item.metadata.namespace not in managed:
                self.unmanaged.add(item.metadata.namespace)
            else:
                take(item, document)

        for namespace in [""] if self.namespaces is None else sorted(self.namespaces):
            fact = await self.reader.list(path, namespace, decode=read)
            if fact.why in (Why.FORBIDDEN, Why.FAILED) and kind.resource in _NEEDED_TO_COUNT:
                self.uncounted.add(namespace)
            if fact.why not in (None, Why.UNSERVED):
                self.sentences[fact.line] = None

    def take_workload(self, kind: ServedKind, workload: _Object, document: bytes) -> None:
        """Explain a workload whose owner was not listed before."""
        metadata, owner = workload.metadata, workload.metadata.owner
        if not self._is_topmost(metadata):
            return
        status = _map(workload.status)
        ended = as_map(status.get("state")).get("phase") in _FINISHED or any(
            each.get("type") in _FINISHED and each.get("status") == "True"
            for each in as_maps(status.get("conditions"))
        )
        is_over = ended and (kind.kind == "Job" or kind not in _BUILT_IN)
        is_empty = kind.kind == "ReplicaSet" and owner and _map(workload.spec).get("replicas") == 0
        if not is_over and not is_empty and (group := self._group((metadata.namespace, metadata.uid))):
            group.items = explain_object(self.explainer, kind, metadata, document, owner)

    def _is_topmost(self, metadata: FullMeta) -> bool:
        """Add an object to the owners, once; return whether it is a topmost one."""
        key, owner = (metadata.namespace, metadata.uid), metadata.owner
        if len(self.tops) >= _MOST_OWNERS:
            self.uncounted.add("")
            self.sentences[f"only the owners of {_MOST_OWNERS} objects were read"] = None
            return False
        if key in self.tops:
            return False
        self.tops[key] = self.tops.get((metadata.namespace, owner.uid), key) if owner else key
        return self.tops[key] == key

    def take_pod(self, pod: _Object, document: bytes) -> None:
        """Count a pod of a workload; explain one without, and the newest of an owner that was not listed."""
        metadata = pod.metadata
        # A mirror pod's owner is its node, which creates nothing.
        owner = None if keys.MIRROR_POD in metadata.annotations else metadata.owner
        if str(_map(pod.status).get("phase")) in keys.FINISHED_PHASES:
            return
        key = metadata.namespace, owner.uid if owner else metadata.uid
        top = self.tops.get(key)
        if top is not None and top not in self.groups:
            return  # the owner is left out
        group = self._group(top or key)
        if group is None:
            return
        group.running += asked_now(document)
        if top is None and (group.newest is None or _age_key(metadata) > _age_key(group.newest)):
            group.newest = metadata
            group.items = explain_object(self.explainer, SERVED_PODS, metadata, document, owner)

    def _group(self, key: ObjectKey) -> _Group | None:
        """Return the group of a workload, pod or owner, a new one if needed; None if there are too many."""
        if key not in self.groups and len(self.groups) >= MOST_WORKLOADS:
            self.is_cut = True
            return None
        return self.groups.setdefault(key, _Group())


def _age_key(metadata: FullMeta) -> tuple[str, str]:  # larger for newer objects, different for all
    created = metadata.creation_timestamp
    return created.isoformat() if created else "", metadata.name


def _map(part: Raw) -> dict[str, Any]:
    with suppress(*MALFORMED):  # the status of a custom resource may have any form
        return as_map(msgspec.json.decode(part))
    return {}
