"""The recorded states of pods that do not start, as evidence for `kaishare why`.

A state is a folder of `KAISHARE_FIXTURES/why/RELEASE`: the objects as the API server returned them.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from console.cluster.facts import Fact, Why
from console.why.events import NamedObject, may_concern
from console.why.evidence import PodEvidence, PolicyDecision
from kai import keys
from kai.queue import Queue
from kube.kinds import (
    BIND_REQUESTS,
    EVENTS,
    NODES,
    POD_GROUPS,
    QUEUES,
    VOLUME_CLAIMS,
    Event,
    Pod,
    PodOwner,
    decode_pod_with_document,
)
from tests.support.why_evidence import decode_owner

T = TypeVar("T")
RELEASES = ("kai-v0.17.0", "kai-v0.13.4", "kai-v0.9.8")


def folder() -> Path | None:
    """Return the folder of the recordings; None without one."""
    fixtures = os.environ.get("KAISHARE_FIXTURES")
    path = Path(fixtures) / "why" if fixtures else None
    return path if path is not None and path.is_dir() else None


@dataclass(frozen=True)
class State:
    """One recorded state."""

    path: Path

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of one file."""
        path = self.path / f"{kind}.json"
        if not path.exists() and kind == "nodes":
            path = self.path.parent / "nodes.json"
        return json.loads(path.read_text())["items"] if path.exists() else []

    @property
    def now(self) -> datetime:
        """When the state was recorded: the time of its newest Event or object, at least 38 s after the pods'."""
        times = [
            time
            for kind in ("pod", "events", "podgroup", "bindrequest")
            for item in self.items(kind)
            for time in (item["metadata"].get("creationTimestamp"), item.get("lastTimestamp"))
            if time
        ]
        return datetime.fromisoformat(max(times)) + timedelta(seconds=38)

    def pods(self) -> list[Pod]:
        """Return the pods of the state."""
        return [decode_pod_with_document(_bytes(item)) for item in self.items("pod")]

    def evidence(self, name: str, *, kind: str = "Pod", is_edit: bool = False) -> PodEvidence:
        """Return what a reader knows about a pod or workload.

        Args:
            name: name of the pod, which need not exist, or of a workload.
            kind: `Pod`, or the kind of the workload.
            is_edit: for an account with the role edit in the namespace, instead of an administrator.
        """
        pods = {pod.name: pod for pod in self.pods()}
        pod = pods.get(name) if kind == "Pod" else None
        events = sorted(map(EVENTS.decode, map(_bytes, self.items("events"))), key=_time)
        workloads = [decode_owner(_bytes(item)) for item in self.items("owners")]
        evidence = PodEvidence(
            now=self.now,
            namespace=self.path.name,
            kind=kind,
            name=name,
            pod=Fact(pod),
            workload=Fact(next((w for w in workloads if (w.kind, w.metadata.name) == (kind, name)), None)),
            owners=list(_owners(pod, workloads)) if pod else [],
            pod_events=_listed(
                e for e in events if (e.involved_object.kind, e.involved_object.name) == ("Pod", name)
            ),
            group_events=_listed(
                e
                for e in events
                if e.involved_object.kind == "PodGroup" and _may_concern(e.involved_object.name, pod, name)
            ),
            creation_events=_listed(
                e
                for e in events
                if e.reason == "FailedCreate" and e.involved_object.name.startswith(f"{name}-")
            ),
            group_members=[each for each in pods.values() if pod and each.gpu_groups & pod.gpu_groups],
            claims=_listed(
                VOLUME_CLAIMS.decode(_bytes(item))
                for item in self.items("other")
                if item["kind"] == "PersistentVolumeClaim"
            ),
        )
        return self._of_edit(evidence) if is_edit else self._of_administrator(evidence, pods)

    def _of_administrator(self, evidence: PodEvidence, pods: dict[str, Pod]) -> PodEvidence:
        pod = evidence.pod.known
        groups = {g.metadata.name: g for g in map(POD_GROUPS.decode, map(_bytes, self.items("podgroup")))}
        requests = {
            r.metadata.name: r for r in map(BIND_REQUESTS.decode, map(_bytes, self.items("bindrequest")))
        }
        queues = {q.name: q for q in map(QUEUES.decode, map(_bytes, self.items("queue")))}
        reservations = [decode_pod_with_document(_bytes(item)) for item in self.items("reservation-pods")]
        evidence = replace(
            evidence,
            pod_group=Fact(groups.get(pod.pod_group_name) if pod else None),
            bind_request=Fact(requests.get(evidence.name)),
            nodes=_listed(NODES.decode(_bytes(item)) for item in self.items("nodes")),
            shared_gpu_pods=_listed([*(each for each in pods.values() if each.gpu_groups), *reservations]),
            shards=Fact(why=Why.UNSERVED),
        )
        named = [evidence.queue_name or keys.DEFAULT_QUEUE]
        read: dict[str, Fact[Queue]] = {}
        while named:
            name = named.pop()
            queue = queues.get(name)
            read[name] = Fact(queue)
            if queue is not None and queue.parent not in ("", *read):
                named.append(queue.parent)
        return replace(evidence, queues=read)

    @staticmethod
    def _of_edit(evidence: PodEvidence) -> PodEvidence:
        forbidden: Fact[Any] = Fact(why=Why.FORBIDDEN, line="you may not get it")
        return replace(
            evidence,
            pod_group=forbidden,
            bind_request=forbidden,
            nodes=forbidden,
            shared_gpu_pods=forbidden,
            shards=forbidden,
            queues={evidence.queue_name: forbidden},
        )


def states(release: str) -> Iterator[State]:
    """Yield the recorded states of a release."""
    root = folder()
    if root is not None:
        yield from (State(path) for path in sorted((root / release).iterdir()) if path.is_dir())


def managed(evidence: PodEvidence) -> PodEvidence:
    """Return the evidence for a namespace that kaishare manages."""
    return replace(evidence, decision=Fact(PolicyDecision()))


def _may_concern(group: str, pod: Pod | None, name: str) -> bool:
    owners = [owner.name for owner in pod.metadata.owner_references] if pod else []
    return bool(pod and group == pod.pod_group_name) or any(
        may_concern(group, NamedObject(name=each)) for each in (name, *owners)
    )


def _owners(pod: Pod, workloads: list[PodOwner]) -> Iterator[PodOwner]:
    names = [(owner.kind, owner.name) for owner in pod.metadata.owner_references]
    for workload in workloads:
        if (workload.kind, workload.metadata.name) in names:
            yield workload
            above = [(owner.kind, owner.name) for owner in workload.metadata.owner_references]
            yield from (each for each in workloads if (each.kind, each.metadata.name) in above)


def _listed(objects: Iterable[T]) -> Fact[tuple[T, ...]]:
    return Fact(tuple(objects))


def _time(event: Event) -> float:
    return event.last.timestamp() if event.last else 0.0


def _bytes(item: Any) -> bytes:
    return json.dumps(item).encode()
