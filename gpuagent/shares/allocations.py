"""KAI's own records of a pod: its BindRequest, and the ConfigMap of its containers. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuagent.pods.inventory import Inventory, NodePod
from kai import keys
from kai.gpu_resources import parse_gpu_uuids
from kai.share_bytes import hami_limit_bytes
from service.text import one_line, quoted

_PORTION = re.compile(r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?")
_NO_DEVICES: Final = ("void", "none")
_MOST_DEVICES: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequestShare:
    """The share in a pod's BindRequest."""

    portion: str = ""
    """Fraction of each device, with two decimals; empty if the pod has no share."""
    count: int = 0
    """Number of devices; 0 if the BindRequest has none."""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapShare:
    """The share in a pod's KAI ConfigMap."""

    portion: str = ""
    """`GPU_PORTION`; empty if missing or malformed."""
    gpus: tuple[str, ...] = ()
    """UUIDs of `NVIDIA_VISIBLE_DEVICES`."""
    limit_bytes: int | None = None
    """HAMi-core's limit per device (KAI v0.16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """KAI's records of one pod."""

    bound: BindRequestShare | None = None
    configured: ConfigMapShare | None = None
    has_bind_request: bool = False
    """Whether the pod has a BindRequest of its own, well-formed or not; KAI has then placed the pod."""
    notes: tuple[str, ...] = ()


def find_allocation(pod: NodePod, inventory: Inventory, where: str) -> Allocation:
    """Find KAI's records of a pod. Records of another pod with the same name are ignored.

    Args:
        pod: the pod.
        inventory: has the BindRequests and ConfigMaps that could be fetched.
        where: the pod's name, as the prefix of notes.
    """
    notes: list[str] = []
    bound = _bound(pod, inventory, where, notes)
    configured = _configured(pod, inventory, where, notes)
    request = inventory.bind_requests.get(pod.key)
    return Allocation(
        bound=bound,
        configured=configured,
        has_bind_request=request is not None and request.pod_uid == pod.uid,
        notes=tuple(map(one_line, notes)),
    )


def _bound(pod: NodePod, inventory: Inventory, where: str, notes: list[str]) -> BindRequestShare | None:
    request = inventory.bind_requests.get(pod.key)
    if request is None:
        return None
    if request.pod_uid != pod.uid:
        notes.append(f"{where}: the BindRequest of that name belongs to another pod and is ignored")
        return None
    is_portion = _PORTION.fullmatch(request.portion) is not None
    if request.portion and not is_portion:
        portion_text = quoted(request.portion)
        notes.append(
            f"{where}: BindRequest portion {portion_text}: expected a number from 0 to 1, such as 0.50"
        )
        return None
    if request.count > _MOST_DEVICES:
        notes.append(f"{where}: BindRequest: its GPU count is larger than any node's; ignored")
        return None
    # Pods without a share have BindRequests, too: `Regular` with 1.00 for whole GPUs, and 0.00 for none.
    is_share = request.resource_type == "Fraction" or (
        request.resource_type != "Regular" and (bool(request.groups) or 0 < float(request.portion or 0) < 1)
    )
    return BindRequestShare(
        portion=request.portion if is_share else "", count=max(request.count, 0), groups=request.groups
    )


def _configured(pod: NodePod, inventory: Inventory, where: str, notes: list[str]) -> ConfigMapShare | None:
    config_map = next(_config_maps(pod, inventory), None)
    if config_map is None:
        return None
    name, data = config_map
    where = f"{where}: ConfigMap {name}"
    portion = data.get(keys.GPU_PORTION_ENV, "")
    if portion and not _PORTION.fullmatch(portion):
        portion_text = quoted(portion)
        notes.append(f"{where}: GPU_PORTION {portion_text}: expected a number from 0 to 1, such as 0.50")
        portion = ""
    limit = None
    if keys.MEMORY_LIMIT_ENV in data:
        try:
            limit = hami_limit_bytes(data[keys.MEMORY_LIMIT_ENV])
        except ValueError as error:
            notes.append(f"{where}: {keys.MEMORY_LIMIT_ENV}: {error}")
    gpus: tuple[str, ...] = ()
    visible = data.get(keys.VISIBLE_DEVICES_ENV, "")
    if visible and visible not in _NO_DEVICES:
        try:
            gpus = parse_gpu_uuids(visible)
        except ValueError as error:
            notes.append(f"{where}: {keys.VISIBLE_DEVICES_ENV}: {error}")
    return ConfigMapShare(portion=portion, gpus=gpus, limit_bytes=limit)


def _config_maps(pod: NodePod, inventory: Inventory) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Find the ConfigMaps that can belong to the pod.

    Users can write and edit the annotation, and KAI reuses an existing name. A ConfigMap with another owner
    is therefore not this pod's.
    """
    if not inventory.config_maps:
        return
    for name in pod.config_map_names:
        key = (pod.namespace, name)
        data = inventory.config_maps.get(key)
        if data is not None and inventory.config_map_owners.get(key, pod.uid) == pod.uid:
            yield name, data
