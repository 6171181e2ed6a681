"""Builds an Inventory from Kubernetes objects, and remembers the pods that have ended. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.bind_requests import bind_request
from gpuagent.pods.bounds import LABELS, bounded
from gpuagent.pods.inventory import BindRequest, EndedPod, Inventory, NodePod, ReservationPod
from gpuagent.pods.node_pods import gpus_offered, node_pod
from gpuagent.pods.objects import KubernetesObject, ObjectError
from gpuagent.pods.pod_owners import tenant_of, workload_of
from kai import keys
from kai.share_bytes import Card
from service.log import WARNING, JsonLog, NewLines

MOST_ENDED: Final = 1 << 13
"""Maximum of remembered pods that have ended: about 4 MB."""


class EndedPods:
    """Names of pods that were listed before and are not listed now.

    A pod that is deleted with a grace period of 0 leaves the list at once, and its processes may run for its
    `terminationGracePeriodSeconds` (Kubernetes `calculateEffectiveGracePeriod` in
    `pkg/kubelet/pod_workers.go`). Its UID must still be known then: otherwise the next pod in the cgroup path
    would count as the owner, and the processes choose its name.
    Its names identify the owner of the memory.
    """

    def __init__(self, *, most: int = MOST_ENDED) -> None:
        """Set the maximum of pods; beyond it the oldest ones are forgotten."""
        self._most = most
        self._seen: dict[str, EndedPod] = {}

    def add(self, pods: Iterable[NodePod]) -> None:
        """Remember listed pods, even if they are gone before the next inventory."""
        for pod in pods:
            if pod.uid not in self._seen:
                workload = workload_of(pod)
                owner = f"{workload.kind}/{workload.name}" if workload.name else ""
                self._seen[pod.uid] = EndedPod(pod.uid, pod.namespace, pod.name, owner)

    def without(self, listed: Collection[str]) -> dict[str, EndedPod]:
        """Return the pods that have ended, by UID: the remembered ones without those listed now."""
        ended = {uid: pod for uid, pod in self._seen.items() if uid not in listed}
        for uid in list(ended)[: max(0, len(ended) - self._most)]:
            del self._seen[uid], ended[uid]
        return ended


_UNKNOWN_GPU: Final = "-1"


@dataclass(frozen=True, slots=True)
class AssembledInventory:
    """An inventory, and the objects that it could not include."""

    inventory: Inventory
    lines: tuple[str, ...] = ()
    """One line for each invalid object."""
    elsewhere: int = 0
    """Number of pods of other nodes."""


def build(
    items: Iterable[NodePod | KubernetesObject], *, node: str, reservation_namespace: str
) -> AssembledInventory:
    """Build the inventory of one node from its NodePods, decoded before, and from Kubernetes objects."""
    assembly = _Assembly(node=node, reservation_namespace=reservation_namespace)
    for item in items:
        try:
            assembly.add(item)
        except ObjectError as error:
            assembly.lines.append(f"{' '.join(str(error).split())}; skipped")
    return AssembledInventory(assembly.inventory(), tuple(assembly.lines), assembly.elsewhere)


def counts(inventory: Inventory) -> dict[str, int]:
    """Return the numbers of pods for the log."""
    tenants = sum(pod.is_tenants for pod in inventory.reservation_pods)
    return {
        "pods": len(inventory.pods),
        "reservation_pods": len(inventory.reservation_pods),
        "tenant_reservation_pods": tenants,
    }


def log_invalid(log: JsonLog, known: NewLines, lines: Iterable[str], **about: str) -> None:
    """Log the lines about invalid objects that are new."""
    new, more = known.update(lines)
    for line in new:
        log("skipping invalid object", WARNING, **about, error=line)
    if more:
        log("more invalid objects", WARNING, **about, more=more)


@dataclass(slots=True, kw_only=True)
class _Assembly:
    node: str
    reservation_namespace: str
    pods: dict[str, NodePod] = field(default_factory=dict)
    reservations: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """GPUs by host namespace and group; the namespace is empty for the cluster's own KAI."""
    possible_reservations: list[tuple[NodePod, str]] = field(default_factory=list)
    """Pods that may be reservation pods of KAI inside a vCluster, each with its group."""
    reservation_pods: list[ReservationPod] = field(default_factory=list)
    tenant_reservation_uids: set[str] = field(default_factory=set)
    undecided_groups: set[tuple[str, str]] = field(default_factory=set)
    reservation_uids: set[str] = field(default_factory=set)
    bind_requests: dict[tuple[str, str], BindRequest] = field(default_factory=dict)
    unreadable_bind_requests: set[tuple[str, str]] = field(default_factory=set)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)
    node_labels: Mapping[str, str] | None = None
    offered_gpus: int = 0
    lines: list[str] = field(default_factory=list)
    elsewhere: int = 0

    def add(self, item: NodePod | KubernetesObject) -> None:
        match item:
            case NodePod():
                self._add_pod(item)
            case objects.Pod():
                if item.spec.node_name == self.node:
                    self._add_pod(node_pod(item))
                else:
                    self.elsewhere += 1
            case objects.BindRequestObject():
                key = item.metadata.key
                self.unreadable_bind_requests.add(key)
                self.bind_requests[key] = bind_request(item)
                self.unreadable_bind_requests.remove(key)
            case objects.Namespace():
                self.namespaces[item.metadata.name or ""] = LABELS.kept(item.metadata.labels)
            case objects.Node():
                if item.metadata.name == self.node:
                    self._add_node(item)

    def _add_pod(self, pod: NodePod) -> None:
        if pod.uid in self.pods or pod.uid in self.reservation_uids:
            raise ObjectError(f"Pod {pod.namespace}/{pod.name}: uid {pod.uid} already belongs to another pod")
        if not pod.whole_gpus:  # a pod without a GPU cannot reserve one
            self.pods[pod.uid] = pod
            return
        group = pod.labels.get(keys.GPU_GROUP, "")
        is_reservation = group or pod.labels.get(keys.APP_LABEL) == keys.RESERVATION_APP
        if pod.namespace == self.reservation_namespace and is_reservation:
            self.reservation_uids.update({pod.uid, pod.config_hash} - {""})
            self._reserve(group, pod, is_tenants=False)
            return
        if group and pod.annotations.get(keys.VCLUSTER_OBJECT_NAMESPACE) == self.reservation_namespace:
            self.possible_reservations.append((pod, group))
        self.pods[pod.uid] = pod

    def _reserve_in_vclusters(self) -> None:
        """Add the reservation pods of KAI inside vClusters, once all namespaces are known."""
        for pod, group in self.possible_reservations:
            if tenant_of(pod, self.namespaces) is not None:
                self.tenant_reservation_uids.add(pod.uid)
                self._reserve(group, pod, is_tenants=True)
            elif pod.namespace not in self.namespaces:
                self.undecided_groups.add((pod.namespace, group))

    def _reserve(self, group: str, pod: NodePod, *, is_tenants: bool) -> None:
        if pod.is_finished:
            return
        gpu = bounded(pod.annotations.get(keys.RESERVED_GPU, "").strip())
        gpu = "" if gpu == _UNKNOWN_GPU else gpu
        self.reservation_pods.append(
            ReservationPod(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, gpu=gpu, is_tenants=is_tenants
            )
        )
        if not group:
            return
        gpus = self.reservations.setdefault((pod.namespace if is_tenants else "", group), set())
        if gpu and gpus and gpu not in gpus:
            where = f"Pod {pod.namespace}/{pod.name}"
            self.lines.append(
                f"{where}: another reservation pod of its group names another GPU; both are ignored"
            )
        gpus.update({gpu} - {""})

    def _add_node(self, node: objects.Node) -> None:
        labels = self.node_labels = LABELS.kept(node.metadata.labels)
        self.offered_gpus = gpus_offered(node)
        memory = labels.get(keys.NODE_GPU_MEMORY)
        if memory is not None:
            try:
                Card.from_label(memory)
            except ValueError as error:
                where = f"Node {self.node}: label {keys.NODE_GPU_MEMORY}"
                self.lines.append(f"{where}: {error}; the driver's total is used instead")

    def inventory(self) -> Inventory:
        self._reserve_in_vclusters()
        reservations = {
            key: next(iter(gpus)) if len(gpus) == 1 else "" for key, gpus in self.reservations.items()
        }
        return Inventory(
            pods=self.pods,
            reservations={group: gpu for (scope, group), gpu in reservations.items() if not scope},
            tenant_reservations={key: gpu for key, gpu in reservations.items() if key[0]},
            reservation_pods=tuple(self.reservation_pods),
            tenant_reservation_uids=frozenset(self.tenant_reservation_uids),
            undecided_groups=frozenset(self.undecided_groups),
            bind_requests=self.bind_requests,
            bind_requests_unknown=frozenset(self.unreadable_bind_requests),
            node_labels=self.node_labels,
            offered_gpus=self.offered_gpus,
            namespaces=self.namespaces,
            reservation_uids=frozenset(self.reservation_uids),
        )
