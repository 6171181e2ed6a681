"""The recorded states of pods that do not start, as evidence for `kaishare why`.

A state is a folder of `KAISHARE_FIXTURES/why/RELEASE`: the objects as the API server returned them.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from console.why.evidence import Absence, PodEvidence, PolicyDecision
from console.why.evidence_objects import (
    EventObject,
    PodObject,
    decode_bind_request,
    decode_claim,
    decode_event,
    decode_node,
    decode_one_pod,
    decode_pod_group,
    decode_workload,
)
from console.why.membership import NamedObject, may_concern
from kai import keys
from kai.queue import decode_queue

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

    def pods(self) -> list[PodObject]:
        """Return the pods of the state."""
        return [decode_one_pod(_bytes(item)) for item in self.items("pod")]

    def evidence(self, name: str, *, kind: str = "Pod", is_edit: bool = False) -> PodEvidence:
        """Return what a reader knows about a pod or workload.

        Args:
            name: name of the pod, which need not exist, or of a workload.
            kind: `Pod`, or the kind of the workload.
            is_edit: for an account with the role edit in the namespace, instead of an administrator.
        """
        pods = {pod.name: pod for pod in self.pods()}
        pod = pods.get(name) if kind == "Pod" else None
        events = sorted(map(decode_event, map(_bytes, self.items("events"))), key=_time)
        workloads = [decode_workload(_bytes(item)) for item in self.items("owners")]
        evidence = PodEvidence(
            now=self.now,
            namespace=self.path.name,
            kind=kind,
            name=name,
            pod=pod or Absence.MISSING,
            workload=next(
                (w for w in workloads if (w.kind, w.metadata.name) == (kind, name)), Absence.MISSING
            ),
            owners=list(_owners(pod, workloads)) if pod else [],
            pod_events=[
                e for e in events if (e.involved_object.kind, e.involved_object.name) == ("Pod", name)
            ],
            group_events=[
                e
                for e in events
                if e.involved_object.kind == "PodGroup" and _may_concern(e.involved_object.name, pod, name)
            ],
            creation_events=[
                e
                for e in events
                if e.reason == "FailedCreate" and e.involved_object.name.startswith(f"{name}-")
            ],
            group_members=[each for each in pods.values() if pod and each.gpu_groups & pod.gpu_groups],
            claims={
                claim.metadata.name: claim
                for claim in (
                    decode_claim(_bytes(item))
                    for item in self.items("other")
                    if item["kind"] == "PersistentVolumeClaim"
                )
            },
            sees_all=not is_edit,
        )
        return self._of_edit(evidence) if is_edit else self._of_administrator(evidence, pods)

    def _of_administrator(self, evidence: PodEvidence, pods: dict[str, PodObject]) -> PodEvidence:
        pod = evidence.pod if isinstance(evidence.pod, PodObject) else None
        groups = {g.metadata.name: g for g in map(decode_pod_group, map(_bytes, self.items("podgroup")))}
        requests = {
            r.metadata.name: r for r in map(decode_bind_request, map(_bytes, self.items("bindrequest")))
        }
        queues = {q.name: q for q in map(decode_queue, map(_bytes, self.items("queue")))}
        reservations = [decode_one_pod(_bytes(item)) for item in self.items("reservation-pods")]
        evidence = replace(
            evidence,
            pod_group=groups.get(pod.pod_group_name, Absence.MISSING) if pod else Absence.MISSING,
            bind_request=requests.get(evidence.name, Absence.MISSING),
            nodes=[decode_node(_bytes(item)) for item in self.items("nodes")],
            shared_gpu_pods=[*(each for each in pods.values() if each.gpu_groups), *reservations],
            shards=Absence.UNSERVED,
        )
        named = [evidence.queue_name or keys.DEFAULT_QUEUE]
        read = {}
        while named:
            name = named.pop()
            queue = read[name] = queues.get(name, Absence.MISSING)
            if not isinstance(queue, Absence) and queue.parent not in ("", *read):
                named.append(queue.parent)
        return replace(evidence, queues=read)

    @staticmethod
    def _of_edit(evidence: PodEvidence) -> PodEvidence:
        forbidden = Absence.FORBIDDEN
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
    return replace(evidence, decision=PolicyDecision(reason="", now_reason="", now=""))


def _may_concern(group: str, pod: PodObject | None, name: str) -> bool:
    owners = [owner.name for owner in pod.metadata.owner_references] if pod else []
    return bool(pod and group == pod.pod_group_name) or any(
        may_concern(group, NamedObject(name=each)) for each in (name, *owners)
    )


def _owners(pod: PodObject, workloads: list[Any]) -> Iterator[Any]:
    names = [(owner.kind, owner.name) for owner in pod.metadata.owner_references]
    for workload in workloads:
        if (workload.kind, workload.metadata.name) in names:
            yield workload
            above = [(owner.kind, owner.name) for owner in workload.metadata.owner_references]
            yield from (each for each in workloads if (each.kind, each.metadata.name) in above)


def _time(event: EventObject) -> float:
    return event.last.timestamp() if event.last else 0.0


def _bytes(item: Any) -> bytes:
    return json.dumps(item).encode()
