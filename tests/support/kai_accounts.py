"""Queues, PodGroups, nodes and bound pods of a cluster with KAI, with the figures that KAI writes."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any

from console.cluster.facts import Listing
from console.doctor.accounting import evaluate, persistent_findings
from console.doctor.accounting_reading import Reading, read_request
from console.doctor.cluster_state import read_gpu_node
from kai.numbers import parse_quantity
from kai.releases import Version
from kube.kinds import POD_GROUPS, QUEUES
from tests.support.cluster_facts import but, installed, whole
from tests.support.kinds import made

GPU = "nvidia.com/gpu"
GROUP = "63ba70c6-6b9e-4365-8165-0956d8d5f9f1"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MEMORY = "23028"
"""`nvidia.com/gpu.memory` of an A10, as on the nodes of the recordings."""


def queue(name: str, parent: str = "department", *, limit: float | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"parentQueue": parent} if parent else {}
    if limit is not None:
        spec["resources"] = {"gpu": {"limit": limit, "overQuotaWeight": 1, "quota": 0}}
    return made("Queue", name, spec=spec)


def node(name: str, gpus: int = 2, *, memory: str | None = MEMORY, **status: Any) -> dict[str, Any]:
    """Return a node; `allocatable=` or `capacity=` replaces a part of its status."""
    labels = {} if memory is None else {"nvidia.com/gpu.memory": memory}
    amounts = {GPU: str(gpus)}
    return made("Node", name, labels=labels, status={"allocatable": amounts, "capacity": amounts, **status})


@dataclass
class KaiAccounts:
    queues: list[dict[str, Any]] = field(default_factory=list)
    pod_groups: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of_two_nodes(cls, *, limit: float | None = None) -> "KaiAccounts":
        """Return a cluster of two nodes with two GPUs; `limit` is the limit of team-b."""
        queues = [queue("department", ""), queue("team-a"), queue("team-b", limit=limit)]
        return cls(queues=queues, nodes=[node("gpu-node-0"), node("gpu-node-1")])

    def run(
        self, name: str, gpus: int = 0, *, fraction: str = "", counted: str | None = None,
        queue: str = "team-b", namespace: str = "team-b", node: str = "gpu-node-0", group: str = GROUP,
        labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Add a running pod and its PodGroup."""
        amounts = {GPU: str(gpus)} if gpus else {}
        pod_labels = {"kai.scheduler/queue": queue, **({"runai-gpu-group": group} if fraction else {})}
        pod_annotations = {
            "pod-group-name": f"pg-{name}",
            "received-resource-type": "Fraction" if fraction else "Regular",
            **({"gpu-fraction": fraction} if fraction else {}),
        }
        pod = made(
            "Pod", name, namespace, labels=pod_labels | (labels or {}),
            annotations=pod_annotations | (annotations or {}),
            spec={"nodeName": node, "schedulerName": "kai-scheduler",
                "containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]},
            status={"phase": "Running"},
        )  # fmt: skip
        allocated = {GPU: (fraction or str(gpus)) if counted is None else counted}
        group_of_pod = made(
            "PodGroup", f"pg-{name}", namespace, labels={"kai.scheduler/queue": queue},
            spec={"queue": queue, "minMember": 1}, status={"resourcesStatus": {"allocated": allocated}},
        )  # fmt: skip
        self.pods.append(pod)
        self.pod_groups.append(group_of_pod)
        return pod

    def pod(
        self, name: str, gpus: int = 0, *, many: int = 1, ungrouped: bool = False, **fields: Any
    ) -> "KaiAccounts":
        """Add pods; the parts `spec`, `status` and `metadata` are merged into each of them."""
        parts = {part: fields.pop(part) for part in ("spec", "status", "metadata") if part in fields}
        for number in range(many):
            each = {key: value(number) if callable(value) else value for key, value in fields.items()}
            made = self.run(f"{name}{number}" if many > 1 else name, gpus, **each)
            for part, changes in parts.items():
                made[part] |= changes
            if ungrouped:
                self.pod_groups.pop()
        return self

    def annotated(self, **annotations: str | None) -> "KaiAccounts":
        """Change the annotations of the newest pod."""
        kept = self.pods[-1]["metadata"]["annotations"]
        for key, value in annotations.items():
            kept[key.replace("_", "-")] = value
            if value is None:
                del kept[key.replace("_", "-")]
        return self

    def edit(self, change: Callable[["KaiAccounts"], object]) -> "KaiAccounts":
        change(self)
        return self

    def add_up(self, *, by_label: bool = False) -> "KaiAccounts":
        """Write `Queue.status` as KAI's queue-controller does; return the cluster."""
        sums: dict[str, Fraction] = {}
        for group in self.pod_groups:
            allocated = group.get("status", {}).get("resourcesStatus", {}).get("allocated", {})
            label = (group["metadata"].get("labels") or {}).get("kai.scheduler/queue", "")
            name = label if by_label else group["spec"]["queue"]
            sums[name] = sums.get(name, Fraction(0)) + parse_quantity(allocated.get(GPU, "0"))
        parents = {each["metadata"]["name"]: each["spec"].get("parentQueue") for each in self.queues}
        totals = dict.fromkeys(parents, Fraction(0))
        for name, amount in sums.items():
            above: str | None = name
            while above in totals:
                totals[above] += amount
                above = parents[above]
        for each in self.queues:
            nanos = totals[each["metadata"]["name"]] * 10**9
            each["status"] = {"allocated": {GPU: f"{int(nanos)}n"}}
        return self

    def reading(self, version: str | None = "v0.17.0") -> Reading:
        """Decode the objects as the check does."""
        release = None if version is None else Version.parse(version)
        read: dict[str, Any] = {
            "queues": QUEUES.decode, "pod_groups": POD_GROUPS.decode, "nodes": read_gpu_node,
            "pods": partial(read_request, schedulers={"kai-scheduler"},
                reservation_namespace="kai-resource-reservation",
                reads_container_memory=release is not None and release.reads_container_memory),
        }  # fmt: skip
        lists: dict[str, Listing[Any]] = {}
        for name, decode in read.items():
            items = [decode(json.dumps(item).encode()) for item in getattr(self, name)]
            lists[name] = whole(*(item for item in items if item is not None))
        pods = lists.pop("pods")
        scheduler = None if version is None else installed(program="scheduler", tag=version)
        return Reading(but(**lists, installation=scheduler, now=NOW), pods)

    def findings(self, version: str | None = "v0.17.0") -> list[str]:
        """Return the findings of two equal readings as lines."""
        reading = evaluate(self.reading(version))
        return [f"{finding.state}: {finding.what}" for finding in persistent_findings(reading, reading)]
