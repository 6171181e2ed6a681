"""Builds evidence for `kaishare why` from a few fields."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from console.cluster.facts import MISSING, Fact, Why
from console.why.evidence import PodEvidence
from kai import keys
from kai.queue import Queue
from kube.kinds import (
    BIND_REQUESTS,
    EVENTS,
    NODES,
    POD_GROUPS,
    QUEUES,
    BindRequest,
    Event,
    Node,
    Pod,
    PodGroup,
    PodOwner,
    decode_pod_with_document,
)
from tests.support.kinds import made

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
NAMESPACE, NAME = "team", "train-0"
GROUP = f"pg-{NAME}-11111111-2222-4333-8444-555555555555"


def at(seconds_ago: float) -> str:
    """Return a time before `NOW`, as the API server writes it."""
    return (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_pod(
    *, name: str = NAME, namespace: str = NAMESPACE, fraction: str | None = "0.5", whole: int = 0,
    labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
    scheduler: str = "kai-scheduler", node: str = "", phase: str = "Pending", age: float = 90,
    unschedulable: str = "", conditions: Sequence[Mapping[str, Any]] = (),
    containers: Sequence[Mapping[str, Any]] = (), spec: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None, status: Mapping[str, Any] | None = None, grouped: bool = True,
) -> Pod:  # fmt: skip
    """Return a pod; by default one that waits for KAI with half a GPU."""
    given = dict(annotations or {})
    if fraction is not None and not whole:
        given.setdefault(keys.GPU_FRACTION, fraction)
        given.setdefault(keys.SHARED_GPU_CONFIGMAP, f"{name}-shared-gpu")
    if grouped:
        given.setdefault(keys.POD_GROUP_NAME, GROUP)
    unscheduled = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
    ]
    resources = {"limits": {keys.GPU_RESOURCE: str(whole)}} if whole else {}
    document = made(
        "Pod", name, namespace,
        metadata={"creationTimestamp": at(age), "labels": {keys.QUEUE_LABEL: "vision", **(labels or {})},
            "annotations": given, **(metadata or {})},
        spec={"schedulerName": scheduler, "nodeName": node,
            "containers": [{"name": "main", "resources": resources}], **(spec or {})},
        status={"phase": phase, "conditions": [*(unscheduled if unschedulable else []), *conditions],
            "containerStatuses": list(containers), **(status or {})},
    )  # fmt: skip
    return decode_pod_with_document(json.dumps(document).encode())


def make_event(
    reason: str, message: str, *, kind: str = "Pod", name: str = NAME, age: float = 10, count: int = 1,
    component: str = "kai-scheduler", uid: str = "", type_: str = "Normal",
) -> Event:  # fmt: skip
    """Return an Event; by default one about the pod."""
    document = {
        "metadata": {"name": "e", "creationTimestamp": at(age)},
        "involvedObject": {"kind": kind, "name": name, "uid": uid}, "type": type_, "reason": reason,
        "message": message, "count": count, "firstTimestamp": at(age), "lastTimestamp": at(age),
        "source": {"component": component},
    }  # fmt: skip
    return EVENTS.decode(json.dumps(document).encode())


def make_pod_group(
    *, queue: str = "vision", age: float = 80, message: str = "", reason: str = "", details: Any = None,
    **spec: Any,
) -> PodGroup:  # fmt: skip
    """Return the pod's PodGroup; without a message KAI has said nothing about it."""
    reasons = [{"reason": reason, "message": message.removeprefix(f"{reason}: "), "details": details}]
    conditions = [{"message": message, "reasons": reasons if reason else []}] if message else []
    document = made(
        "PodGroup", GROUP, NAMESPACE, metadata={"creationTimestamp": at(age)},
        spec={"queue": queue, "minMember": 1, "priorityClassName": "train", **spec},
        status={"schedulingConditions": conditions,
            "resourcesStatus": {"allocated": {keys.GPU_RESOURCE: "500m"}}},
    )  # fmt: skip
    return POD_GROUPS.decode(json.dumps(document).encode())


def make_bind_request(*, age: float = 60, reason: str = "") -> BindRequest:
    """Return the pod's BindRequest; without a reason the binder has not answered."""
    spec = {"selectedNode": "node-1", "selectedGPUGroups": ["group-1"]}
    document = made("BindRequest", NAME, NAMESPACE, metadata={"creationTimestamp": at(age)}, spec=spec)
    if reason:
        document["status"] = {"phase": "Failed", "reason": reason}
    return BIND_REQUESTS.decode(json.dumps(document).encode())


def make_queue(
    name: str = "vision", *, parent: str = "research", children: Sequence[str] = (), display_name: str = "",
) -> Queue:  # fmt: skip
    """Return a queue; what it uses is unknown by default."""
    spec = {"parentQueue": parent, "displayName": display_name, "resources": {"gpu": {"quota": -1, "limit": -1}}}  # fmt: skip
    document = made("Queue", name, spec=spec, status={"childQueues": list(children)})
    return QUEUES.decode(json.dumps(document).encode())


def make_node(name: str = "node-1", *, gpus: int = 2) -> Node:
    """Return a node with GPUs of an A10."""
    labels, size = {keys.NODE_GPU_MEMORY: "23028"}, {keys.GPU_RESOURCE: str(gpus)}
    document = made("Node", name, labels=labels, status={"allocatable": size})
    return NODES.decode(json.dumps(document).encode())


def make_reservation(group: str = "group-1", *, gpu: str | None = "GPU-1") -> Pod:
    """Return a reservation pod of KAI; without a GPU it has not reported one yet."""
    return make_pod(
        name=f"gpu-reservation-{group}", namespace=keys.RESERVATION_APP, fraction=None, grouped=False,
        labels={keys.APP_LABEL: keys.RESERVATION_APP, keys.GPU_GROUP: group},
        annotations={} if gpu is None else {keys.RESERVED_GPU: gpu}, node="node-1", phase="Running",
    )  # fmt: skip


def make_owner(kind: str = "Deployment", name: str = "web", **fields: Any) -> PodOwner:
    return msgspec.convert({"kind": kind, "metadata": {"name": name}, **fields}, PodOwner)


def of_pod(pod: Mapping[str, Any], **fields: Any) -> PodEvidence:
    return make_evidence(make_pod(**pod), **fields)


def kai_says(words: str, pod: Mapping[str, Any] | None = None, **fields: Any) -> PodEvidence:
    """Return the evidence of a pod about which KAI says this."""
    return of_pod({"unschedulable": words, **(pod or {})}, **fields)


FORBIDDEN: Fact[Any] = Fact(why=Why.FORBIDDEN, line="you may not get it")
PARTIAL: Fact[Any] = Fact((), Why.PARTIAL, "not read whole")
UNSERVED: Fact[Any] = Fact(why=Why.UNSERVED, line="not served")
GONE: Fact[Any] = MISSING


def make_evidence(pod: Pod | Fact[Pod] | None = None, **fields: Any) -> PodEvidence:
    """Return the evidence of an administrator about a pod that KAI has grouped, and no more."""
    defaults: dict[str, Any] = {
        "now": NOW, "namespace": NAMESPACE, "name": NAME, "pod": make_pod() if pod is None else pod,
        "pod_group": make_pod_group(), "bind_request": MISSING, "pod_events": (), "group_events": (),
        "queues": {"vision": make_queue(), "research": make_queue("research", parent="", children=["vision"])},
    }  # fmt: skip
    given = defaults | fields
    given["queues"] = {name: _fact(queue) for name, queue in given["queues"].items()}
    facts: dict[str, Any] = {key: value if key in _PLAIN else _fact(value) for key, value in given.items()}
    return PodEvidence(**facts)


_PLAIN = frozenset(
    {*("now", "namespace", "kind", "name", "scheduler", "kai_version", "kai_namespace"),
        *("notes", "not_visible"), *("owners", "queues")}
)  # fmt: skip
"""Fields of the evidence that are no facts."""


def _fact(value: Any) -> Fact[Any]:
    if isinstance(value, Fact):
        return value
    is_of_events = isinstance(value, list) and all(isinstance(each, Event) for each in value)
    listed = sorted(value, key=lambda event: event.moment) if is_of_events else value
    return Fact(tuple(listed) if isinstance(value, list) else value)
