"""From Kubernetes objects to an Inventory, wherever the objects came from. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.inventory import BindRequest, Inventory, NodePod, PodContainer
from gpuagent.pods.objects import KubernetesObject, ObjectError
from gpuagent.tenants import tenant_of
from kai import keys
from kai.memory import Card
from kai.quantity import parse_quantity

_CONTAINER_ID = re.compile(r"[a-z0-9.+-]*://([0-9a-f]{64})")
_MOST_GPUS: Final = 1 << 16
_UNKNOWN_GPU: Final = "-1"
_CONFIG_MAP_KEYS: Final = (keys.GPU_PORTION_ENV, keys.VISIBLE_DEVICES_ENV, keys.MEMORY_LIMIT_ENV)
_NO_STRINGS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An inventory, and what had to be left out of it."""

    inventory: Inventory
    lines: tuple[str, ...] = ()
    """One line for each object that could not be used."""
    elsewhere: int = 0
    """How many pods are not this node's."""


def node_pod(pod: objects.Pod) -> NodePod:
    """Read what counts of a pod.

    Raises:
        ObjectError: it has no UID, or a count of GPUs that no API server takes.
    """
    metadata, spec, status = pod.metadata, pod.spec, pod.status or objects.PodStatus()
    where = f"Pod {metadata.namespace or 'default'}/{metadata.name}"
    if not metadata.uid:
        raise ObjectError(f"{where}: metadata.uid: expected a UID, got none")
    annotations = _strings(metadata.annotations)
    return NodePod(
        namespace=metadata.namespace or "default",
        name=metadata.name or "",
        uid=metadata.uid,
        phase=status.phase or "Unknown",
        labels=_strings(metadata.labels),
        annotations=annotations,
        containers=(
            *_containers(spec.containers, status.container_statuses, where),
            *_containers(spec.init_containers, status.init_container_statuses, where, is_init=True),
            *_containers(spec.ephemeral_containers, status.ephemeral_container_statuses, where),
        ),
        config_hash=annotations.get(keys.CONFIG_HASH, ""),
        is_bound=bool(spec.node_name),
        controller_uid=metadata.controller_uid,
        is_terminating=bool(metadata.deletion_timestamp),
    )


def build(found: Iterable[KubernetesObject], *, node: str, reservation_namespace: str) -> Built:
    """Put together what is known of one node's pods."""
    parts = _Parts(node=node, reservation_namespace=reservation_namespace)
    for each in found:
        try:
            parts.add(each)
        except ObjectError as error:
            parts.lines.append(f"{' '.join(str(error).split())}; it is left out")
    return Built(inventory=parts.inventory(), lines=tuple(parts.lines), elsewhere=parts.elsewhere)


@dataclass(slots=True, kw_only=True)
class _Parts:
    node: str
    reservation_namespace: str
    pods: dict[str, NodePod] = field(default_factory=dict)
    reservations: dict[tuple[str, str], str] = field(default_factory=dict)
    """By host namespace and group; the namespace is empty for those of the cluster's own KAI."""
    tenant_reservation_uids: set[str] = field(default_factory=set)
    reservation_uids: set[str] = field(default_factory=set)
    bind_requests: dict[tuple[str, str], BindRequest] = field(default_factory=dict)
    config_maps: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    config_map_owners: dict[tuple[str, str], str] = field(default_factory=dict)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)
    node_labels: Mapping[str, str] | None = None
    lines: list[str] = field(default_factory=list)
    elsewhere: int = 0

    def add(self, found: KubernetesObject) -> None:
        metadata = found.metadata
        key = (metadata.namespace or "default", metadata.name or "")
        match found:
            case objects.Pod():
                if found.spec.node_name == self.node:
                    self._add_pod(node_pod(found))
                else:
                    self.elsewhere += 1
            case objects.BindRequestObject():
                self.bind_requests[key] = _bind_request(found)
            case objects.ConfigMap():
                self._add_config_map(key, found)
            case objects.Namespace():
                self.namespaces[key[1]] = _strings(metadata.labels)
            case objects.Node():
                if metadata.name == self.node:
                    self._add_node(found)

    def _add_pod(self, pod: NodePod) -> None:
        if pod.uid in self.pods or pod.uid in self.reservation_uids:
            raise ObjectError(f"Pod {pod.namespace}/{pod.name}: uid {pod.uid} is another pod's already")
        group = pod.labels.get(keys.GPU_GROUP, "")
        is_reservation = group or pod.labels.get("app") == keys.RESERVATION_APP
        if pod.namespace == self.reservation_namespace and is_reservation:
            self.reservation_uids.update({pod.uid, pod.config_hash} - {""})
            if group and not pod.is_finished:
                self._reserve(("", group), pod)
            return
        tenant = tenant_of(pod)
        if tenant and tenant.namespace == self.reservation_namespace and group:
            self.tenant_reservation_uids.add(pod.uid)
            if not pod.is_finished:
                self._reserve((pod.namespace, group), pod)
        self.pods[pod.uid] = pod

    def _reserve(self, group: tuple[str, str], pod: NodePod) -> None:
        gpu = pod.annotations.get(keys.RESERVED_GPU, "").strip()
        gpu = "" if gpu == _UNKNOWN_GPU else gpu
        before = self.reservations.get(group, "")
        if gpu and before and gpu != before:
            where = f"Pod {pod.namespace}/{pod.name}"
            self.lines.append(
                f"{where}: another reservation pod of its group names another GPU; neither counts"
            )
            self.reservations[group] = ""
        else:
            self.reservations[group] = gpu or before

    def _add_config_map(self, key: tuple[str, str], found: objects.ConfigMap) -> None:
        data = _strings(found.data)
        if data.keys().isdisjoint(_CONFIG_MAP_KEYS) or keys.VCLUSTER_MANAGED_BY in (
            found.metadata.labels or ()
        ):
            return  # none of KAI's; a tenant's own, if vCluster's syncer made it
        self.config_maps[key] = {name: data[name] for name in _CONFIG_MAP_KEYS if name in data}
        owner = found.metadata.pod_owner_uid
        if owner is not None:
            self.config_map_owners[key] = owner

    def _add_node(self, found: objects.Node) -> None:
        labels = self.node_labels = _strings(found.metadata.labels)
        memory = labels.get(keys.NODE_GPU_MEMORY)
        if memory is not None:
            try:
                Card.from_label(memory)
            except ValueError as error:
                where = f"Node {self.node}: label {keys.NODE_GPU_MEMORY}"
                self.lines.append(f"{where}: {error}; the driver's own total counts instead")

    def inventory(self) -> Inventory:
        return Inventory(
            pods=self.pods,
            reservations={group: gpu for (scope, group), gpu in self.reservations.items() if not scope},
            tenant_reservations={key: gpu for key, gpu in self.reservations.items() if key[0]},
            tenant_reservation_uids=frozenset(self.tenant_reservation_uids),
            bind_requests=self.bind_requests,
            config_maps=self.config_maps,
            config_map_owners=self.config_map_owners,
            node_labels=self.node_labels,
            namespaces=self.namespaces,
            reservation_uids=frozenset(self.reservation_uids),
        )


def _bind_request(found: objects.BindRequestObject) -> BindRequest:
    spec, received = found.spec, found.spec.received_gpu or objects.ReceivedGpu()
    return BindRequest(
        pod_uid=found.metadata.pod_owner_uid or "",
        portion=received.portion or "",
        count=received.count or 0,
        groups=tuple(spec.selected_gpu_groups or ()),
        resource_type=spec.received_resource_type or "",
    )


def _containers(
    specs: list[objects.Container] | None,
    statuses: list[objects.ContainerStatus] | None,
    where: str,
    *,
    is_init: bool = False,
) -> Iterable[PodContainer]:
    ids = {status.name: _container_id(status.container_id) for status in statuses or ()}
    for spec in specs or ():
        asked = spec.resources.asks(keys.GPU_RESOURCE) if spec.resources else None
        try:
            whole_gpus = 0 if asked is None else _whole(asked)
        except ValueError as error:
            raise ObjectError(f"{where}: container {spec.name}: {keys.GPU_RESOURCE}: {error}") from None
        yield PodContainer(
            name=spec.name,
            container_id=ids.get(spec.name, ""),
            whole_gpus=whole_gpus,
            is_init=is_init,
            framework=spec.framework,
        )


def _whole(asked: object) -> int:
    amount = parse_quantity(asked)
    if amount.denominator != 1 or not 0 <= amount <= _MOST_GPUS:
        raise ValueError(f'"{asked}" is not a whole number from 0 to {_MOST_GPUS}')
    return int(amount)


def _container_id(text: str | None) -> str:
    found = _CONTAINER_ID.fullmatch(text) if text else None
    return found[1] if found else ""


def _strings(found: Mapping[str, str | None] | None) -> Mapping[str, str]:
    if not found:
        return _NO_STRINGS
    return {key: text or "" for key, text in found.items()}  # Go reads null in a map of strings as ""
