"""The share that a pod's annotations request, and what it is worth on the node's cards. Pure.

Any user who may edit the pod can change its annotations, even while it runs. They contain the request, not
what KAI allocated.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

from gpuagent.gpus.gpu_reading import Gpu
from kai import keys
from kai.gpu_resources import parse_gpu_uuids
from kai.installation import SharingMode
from kai.releases import Version
from kai.share import (
    MIB,
    MOST_BYTES,
    ContainerMemory,
    Share,
    container_memory,
    is_container_memory_key,
    portion_text,
)
from kai.share_bytes import MEGABYTE, Card, label_bytes
from service.text import LONGEST_VALUE, first_few, one_line, printable, quoted

_T = TypeVar("_T")

_DEVICES = re.compile(r"nvidia\.com/container\.(.+)\.gpus\.devices")
_MOST_GPUS: Final = 64
"""Maximum of GPUs of one pod; more than any node has."""
_LEGACY: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES)


class Cards:
    """Memory of the node's GPUs, from the node label that KAI uses, or else from the driver."""

    def __init__(
        self, *, node_labels: Mapping[str, str] | None, devices: Sequence[Gpu], version: Version | None
    ) -> None:
        label = (node_labels or {}).get(keys.NODE_GPU_MEMORY)
        self._labelled = None if label is None else _card_of_label(label, version)
        self._by_gpu = {gpu.uuid: _card_of(gpu, version) for gpu in devices}
        labelled_bytes = label_bytes(label) if label is not None and self._labelled else None
        totals = {gpu.uuid: gpu.total_bytes for gpu in devices}
        self._totals = {uuid: labelled_bytes if total is None else total for uuid, total in totals.items()}
        self.gpus = tuple(self._by_gpu)
        """UUIDs of the GPUs that responded."""
        self.unit_bytes = MEGABYTE if version is not None and version.counts_megabytes else MIB
        """Bytes of one unit of `gpu-memory`, which need no card."""

    def of(self, gpu: str) -> Card | None:
        """Return the card of one GPU; for an unknown GPU ("") only if all cards are equal."""
        return self._labelled or _one_of(self._by_gpu, gpu)

    def total_of(self, gpu: str) -> int | None:
        """Return the memory of one GPU in bytes, by the driver or else by the label.

        For an unknown GPU ("") the result is None unless all GPUs are equal.
        """
        return _one_of(self._totals, gpu)

    def all(self) -> frozenset[Card]:
        """Return all different cards of the node; empty if one is unknown."""
        if self._labelled is not None:
            return frozenset({self._labelled})
        known = frozenset(card for card in self._by_gpu.values() if card is not None)
        return frozenset() if None in self._by_gpu.values() else known


def _one_of(by_gpu: Mapping[str, _T], gpu: str) -> _T | None:
    if gpu:
        return by_gpu.get(gpu)
    alike = set(by_gpu.values())
    return alike.pop() if len(alike) == 1 else None


def _card_of_label(label: str, version: Version | None) -> Card | None:
    try:
        return Card.from_label(label, version)
    except ValueError:  # reported once, where the node was read
        return None


def _card_of(gpu: Gpu, version: Version | None) -> Card | None:
    if gpu.total_bytes is None:
        return None
    try:
        return Card.from_mib(gpu.total_bytes // MIB, version)
    except ValueError:  # too small for any share
        return None


class _PerGpu:
    """Amounts of containers, summed up by GPU once: a pod can name thousands of containers and GPUs."""

    def __init__(self, amounts: Mapping[str, int], devices: Mapping[str, tuple[str, ...]]) -> None:
        self._everywhere = 0
        """Sum of the containers without a GPU list; it counts on each GPU of the pod."""
        self._by_gpu: dict[str, int] = {}
        for container, amount in amounts.items():
            gpus = devices.get(container)
            if gpus is None:
                self._everywhere += amount
            for gpu in gpus or ():
                self._by_gpu[gpu] = self._by_gpu.get(gpu, 0) + amount

    def on(self, gpu: str) -> int:
        return self._everywhere + self._by_gpu.get(gpu, 0)


@dataclass(frozen=True, kw_only=True)
class ShareRequest:
    """The share that annotations request. Equal for equal meaning, in whatever form it is written."""

    share: Share | None = None
    """`gpu-fraction` or `gpu-memory`, per device; the container does not matter here."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Bytes by container: `nvidia.com/container.<name>.gpu-memory.request`, else `.limit` (KAI v0.18)."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Bytes by container, from `….gpu-memory.limit`."""
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """GPU UUIDs by container, from `….gpus.devices`, which KAI's binder writes (v0.18)."""
    text: str = field(default="", compare=False)
    """The share as written in the annotations."""

    @property
    def has_share(self) -> bool:
        """Whether the annotations request any share."""
        return self.share is not None or bool(self.requests)

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPUs of the containers with a request; empty unless each of these containers names GPUs."""
        names = self.requests or self.devices
        if not names.keys() <= self.devices.keys():
            return ()
        return tuple(dict.fromkeys(gpu for name in names for gpu in self.devices[name]))

    def bytes_on(self, cards: Cards, gpu: str) -> int | None:
        """Return the share on one of the pod's GPUs, in bytes; None if it depends on an unknown card.

        The UUID is empty for an unknown GPU. An amount of memory does not depend on the card.
        """
        if self.share is None:
            return self._requested.on(gpu)
        if self.share.memory_mib is not None:
            return self.share.memory_mib * cards.unit_bytes
        card = cards.of(gpu)
        return card.share_bytes(self.share) if card else None

    def limit_on(self, gpu: str) -> int | None:
        """Return the limit on one of the pod's GPUs; None if a container with a request there has none."""
        limit = self._limited.on(gpu)
        return limit if limit > 0 and self._unlimited_containers.on(gpu) == 0 else None

    def portions(self, cards: Collection[Card]) -> frozenset[str]:
        """Return the share as KAI's binder writes it: a fraction with two decimals for each card."""
        share = self.share
        if share is not None and share.portion is not None:
            return frozenset({share.portion})
        memory = share.memory_mib if share is not None else None
        if memory is None:
            memory = -(-max(self._requested.on(gpu) for gpu in self.gpus or ("",)) // MIB)
        return frozenset(portion_text(card.portion_of_memory(memory)) for card in cards)

    @cached_property
    def _requested(self) -> _PerGpu:
        return _PerGpu(self.requests, self.devices)

    @cached_property
    def _limited(self) -> _PerGpu:
        return _PerGpu(self.limits, self.devices)

    @cached_property
    def _unlimited_containers(self) -> _PerGpu:
        names = self.requests.keys() - self.limits.keys()
        return _PerGpu(dict.fromkeys(names, 1), self.devices)


def parse_share_request(annotations: Mapping[str, str], where: str) -> tuple[ShareRequest, tuple[str, ...]]:
    """Parse all annotations that request GPU memory; the pod's name (`where`) begins each note."""
    notes: list[str] = []
    request = _parse(annotations, where, notes)
    return request, tuple(map(one_line, notes))  # whatever the annotations contain


def _parse(annotations: Mapping[str, str], where: str, notes: list[str]) -> ShareRequest:
    share = _legacy(annotations, where, notes)
    memory: list[ContainerMemory] = []
    devices: dict[str, tuple[str, ...]] = {}
    for key in sorted(annotations):
        if not key.startswith(keys.CONTAINER_PREFIX):
            continue
        match = _DEVICES.fullmatch(key)
        try:
            if match:
                devices[match[1]] = parse_gpu_uuids(annotations[key])
            elif is_container_memory_key(key):
                memory += _memory(key, annotations[key])
        except ValueError as error:
            notes.append(f"{where}: {key}: {error}" if match else f"{where}: {error}")
    if len({gpu for gpus in devices.values() for gpu in gpus}) > _MOST_GPUS:
        notes.append(f"{where}: its containers name more than {_MOST_GPUS} GPUs; all are ignored")
        devices = {}
    if share is not None:
        notes += _ignored(share, memory, where)
        return ShareRequest(share=share, devices=devices, text=_text(annotations, share))
    limits = {entry.container: entry.memory_bytes for entry in memory if entry.kind == "limit"}
    requests = limits | {entry.container: entry.memory_bytes for entry in memory if entry.kind == "request"}
    if max(sum(requests.values()), sum(limits.values())) > MOST_BYTES:
        notes.append(
            f"{where}: its containers together request more memory than any GPU has; all are ignored"
        )
        return ShareRequest(devices=devices)
    text = first_few([f"gpu-memory.request {amount} of {name}" for name, amount in requests.items()])
    return ShareRequest(requests=requests, limits=limits, devices=devices, text=text)


def _legacy(annotations: Mapping[str, str], where: str, notes: list[str]) -> Share | None:
    try:
        share = Share.from_annotations(annotations)
    except ValueError as error:
        annotation_text = ", ".join(
            f"{key} {quoted(annotations[key])}" for key in _LEGACY if key in annotations
        )
        notes.append(f"{where}: {annotation_text}: {error}")
        return None
    if share is None:
        return None
    if share.fraction is not None and math.isnan(share.fraction):
        notes.append(f'{where}: {keys.GPU_FRACTION} "NaN": expected a number between 0 and 1')
        return None
    if not share.seen_by_scheduler:
        notes.append(f"{where}: {keys.GPU_MEMORY}: KAI's scheduler ignores values of 2^63 and more")
        return None
    if share.devices > _MOST_GPUS or (share.memory_mib or 0) * MIB * share.devices > MOST_BYTES:
        notes.append(f"{where}: {_text(annotations, share)} is more than any node has; ignored")
        return None
    return replace(share, container=None)


def _memory(key: str, value: str) -> list[ContainerMemory]:
    memory = container_memory({key: value})
    if any(entry.memory_bytes > MOST_BYTES for entry in memory):
        raise ValueError(f"{key}: {quoted(value)} is more than any GPU has")
    return memory


def _ignored(share: Share, memory: list[ContainerMemory], where: str) -> list[str]:
    """Return notes on requests that are ignored beside a legacy annotation.

    KAI v0.18 accepts only a request that repeats gpu-memory. A limit is ignored, too. Releases before v0.18
    do not know it, and a user could set a limit that is never reached in order to evade the share.
    """
    own_bytes = None if share.memory_mib is None else share.memory_mib * MIB
    prefix, beside = f"{where}: {keys.CONTAINER_PREFIX}", f"is ignored beside {_key(share)}"
    return [
        f"{prefix}{entry.container}.gpu-memory.{entry.kind} {beside}"
        for entry in memory
        if entry.kind == "limit" or entry.memory_bytes != own_bytes
    ]


def _key(share: Share) -> str:
    return keys.GPU_FRACTION if share.fraction is not None else keys.GPU_MEMORY


def _text(annotations: Mapping[str, str], share: Share) -> str:
    text = f"{_key(share)} {printable(annotations[_key(share)], LONGEST_VALUE)}"
    return f"{text} on {share.devices} GPUs" if share.devices > 1 else text


def effective_limit(
    limit_bytes: int, *, share_bytes: int | None, gpu_bytes: int | None, mode: SharingMode | None
) -> int | None:
    """Return the limit that the pod is compared with instead of its share; None if the share counts.

    The pod's owner can write the annotation, so a limit above the share does not count. The exception is
    NvFractions, the mode in which the driver enforces the limit; even there it is at most the GPU's memory.
    """
    if share_bytes is None or limit_bytes <= share_bytes:
        return limit_bytes
    if mode is SharingMode.NV_FRACTIONS and gpu_bytes is not None:
        return min(limit_bytes, gpu_bytes)
    return None
