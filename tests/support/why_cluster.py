"""The objects around one pod of a Deployment, as an API server returns them, for tests of `kaishare why`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.published_settings import settings_object
from webhook.policy.decision_settings import DecisionSettings

TEAM, NAME = "team", "web-7f6b5d-abcde"
UID = "11111111-2222-4333-8444-555555555555"
GROUP = f"pg-{NAME}-{UID}"
CREATED = "2026-05-01T12:00:00Z"
FULL = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."

Item = dict[str, Any]


def owner(kind: str, name: str, api_version: str = "apps/v1") -> Item:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": UID, "controller": True}


def make(kind: str, name: str, namespace: str = TEAM, **more: Any) -> Item:
    metadata = {"name": name, "uid": UID, "creationTimestamp": CREATED, **more.pop("metadata", {})}
    return {"kind": kind, "metadata": metadata | ({"namespace": namespace} if namespace else {}), **more}


def make_pod(
    name: str = NAME, namespace: str = TEAM, *, message: str = FULL, labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None, owners: Sequence[Item] = (), node: str = "",
    phase: str = "Pending", **spec: Any,
) -> Item:  # fmt: skip
    """Return a pod of KAI with half a GPU; by default one that waits."""
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return make(
        "Pod", name, namespace,
        metadata={"labels": {"kai.scheduler/queue": "vision", **(labels or {})},
            "annotations": {"gpu-fraction": "0.5", "pod-group-name": GROUP, **(annotations or {})},
            "ownerReferences": list(owners)},
        spec={"schedulerName": "kai-scheduler", "nodeName": node, "containers": [{"name": "main"}], **spec},
        status={"phase": phase, "conditions": [condition] if message and not node else []},
    )  # fmt: skip


def make_event(
    number: int = 0, *, kind: str = "Pod", about: str = NAME, message: str = FULL, **more: Any
) -> Item:
    return make(
        "Event", f"event-{number}", involvedObject={"kind": kind, "name": about},
        reason=more.pop("reason", "Unschedulable"), message=message,
        lastTimestamp=f"2026-05-01T{12 + number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z", **more,
    )  # fmt: skip


def make_queue(name: str, parent: str = "") -> Item:
    return make("Queue", name, "", spec={"parentQueue": parent})


def cluster(**pod: Any) -> list[Item]:
    group = make(
        "PodGroup", GROUP, spec={"queue": "vision", "minMember": 1},
        status={"resourcesStatus": {"allocated": {"nvidia.com/gpu": "500m"}}},
    )  # fmt: skip
    chain = [owner("ReplicaSet", "web-7f6b5d")]
    return [
        make("Namespace", TEAM, "",
            metadata={"labels": {"kai.scheduler/queue": "vision", "kaishare.dev/gpu-fraction": "0.5"}}),
        settings_object(DecisionSettings()), make_pod(**{"owners": chain, **pod}),
        make("ReplicaSet", "web-7f6b5d", metadata={"ownerReferences": [owner("Deployment", "web")]}),
        make("Deployment", "web", spec={"selector": {"matchLabels": {"kai.scheduler/queue": "vision"}}}), group,
        make_queue("vision", "research"), make_queue("research"), make("Node", "node-1", ""),
        make_pod("other", "rivals", labels={"runai-gpu-group": "group-1"}, node="node-1", phase="Running"),
        make_event(), make_event(1, kind="PodGroup", about=GROUP),
    ]  # fmt: skip
