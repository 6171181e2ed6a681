"""Reads from ResourceClaims and ResourceSlices (resource.k8s.io/v1) what a claim gives on which GPU. Pure.

Nothing that a tenant can write counts. The scheduler writes the status of a claim, and the node's DRA driver
its slices. The role `edit` can remove a claim's finalizer and create another claim of that name while a pod
uses the first one (seen on Kubernetes 1.36.3), so the first allocation that is reserved for a pod stays its
own until the pod ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, field

from gpuagent.pods.bounds import bounded
from gpuagent.pods.inventory import ClaimedGpu, NodePod, PodClaims
from gpuagent.pods.objects import Metadata, ObjectError, Quantity
from kai.numbers import parse_quantity
from kai.share import MOST_BYTES

NVIDIA_DRIVER: Final = "gpu.nvidia.com"
"""Name of NVIDIA's DRA driver (its cmd/gpu-kubelet-plugin/driver.go, v0.5)."""
_MOST_RESULTS: Final = 256
"""Maximum of results of one claim; the API allows 32 (resource/v1 AllocationResultsMaxSize)."""
_FULL_GPU, _MIG_DEVICE = "GPU-", "MIG-"
_MEMORY: Final = "memory"
_UUID: Final = "uuid"


class _Result(Struct, frozen=True, rename="camel"):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, Quantity] | None = None


class _Devices(Struct, frozen=True):
    results: list[_Result] | None = None


class _Allocation(Struct, frozen=True):
    devices: _Devices | None = None


class _Consumer(Struct, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class ResourceClaim(Struct, frozen=True):
    """A ResourceClaim, without its spec."""

    metadata: Metadata
    status: _ClaimStatus | None = None


class _Attribute(Struct, frozen=True):
    text: str | None = field(default=None, name="string")


class _Device(Struct, frozen=True):
    name: str = ""
    attributes: dict[str, _Attribute] | None = None


class _Pool(Struct, frozen=True, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class _SliceSpec(Struct, frozen=True):
    driver: str = ""
    pool: _Pool = _Pool()
    devices: list[_Device] | None = None


class ResourceSlice(Struct, frozen=True):
    """A ResourceSlice: some devices of a pool."""

    metadata: Metadata
    spec: _SliceSpec = _SliceSpec()


@dataclass(frozen=True, slots=True)
class SliceDevices:
    """The devices of one ResourceSlice."""

    driver: str
    pool: str
    generation: int
    slices: int
    """Number of slices of the pool in this generation."""
    uuids: Mapping[str, str]
    """UUID of the GPU or MIG device by name of the device; empty for another device."""


def slice_devices(slice_: ResourceSlice) -> SliceDevices:
    """Return the devices of a slice."""
    spec = slice_.spec
    names = (_UUID, f"{spec.driver}/{_UUID}")  # an attribute without a domain belongs to the driver
    uuids = {}
    for device in spec.devices or ():
        attributes = device.attributes or {}
        texts = [attributes[name].text for name in names if name in attributes]
        uuid = bounded(next(iter(texts), ""))
        uuids[bounded(device.name)] = uuid if uuid.startswith((_FULL_GPU, _MIG_DEVICE)) else ""
    pool = spec.pool
    return SliceDevices(spec.driver, pool.name, pool.generation, pool.resource_slice_count, uuids)


class NodeDevices:
    """The devices of a node, by its ResourceSlices."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str, str], str] = {}
        self._gpu_drivers = {NVIDIA_DRIVER}
        """Drivers that publish GPUs, or have published some."""

    def update(self, slices: Iterable[SliceDevices]) -> None:
        """Set the slices. Of each pool the newest complete generation counts."""
        pools: dict[tuple[str, str], dict[int, list[SliceDevices]]] = {}
        for each in slices:
            pools.setdefault((each.driver, each.pool), {}).setdefault(each.generation, []).append(each)
        self._by_place = {}
        for (driver, pool), generations in pools.items():
            complete = [number for number, some in generations.items() if len(some) == some[0].slices]
            for each in generations[max(complete)] if complete else ():
                if any(each.uuids.values()):
                    self._gpu_drivers.add(driver)
                self._by_place |= {(driver, pool, name): uuid for name, uuid in each.uuids.items()}

    def is_gpu_driver(self, driver: str) -> bool:
        """Whether the driver's devices may be GPUs."""
        return driver in self._gpu_drivers

    def uuid_of(self, driver: str, pool: str, device: str) -> str | None:
        """Return the UUID of a GPU or MIG device, empty for another device; None while it is unknown."""
        return self._by_place.get((driver, pool, device))


@dataclass(slots=True)
class _Pin:
    """An allocation of a claim that is reserved for a pod, and the devices of its results, as first known."""

    claim_uid: str
    claim: str
    results: tuple[_Result, ...]
    uuids: list[str | None]


class ClaimPins:
    """The allocations of the pods' claims, from the first one that is reserved for the pod."""

    def __init__(self) -> None:
        self._pins: dict[str, dict[str, _Pin]] = {}
        """By the pod's UID and the claim's name."""

    def is_known(self, pod: NodePod, claim: str) -> bool:
        """Whether the allocation of a pod's claim is known."""
        return claim in self._pins.get(pod.uid, {})

    def keep(self, pods: Mapping[str, NodePod]) -> None:
        """Forget the claims of all pods but these."""
        self._pins = {uid: pins for uid, pins in self._pins.items() if uid in pods}

    def add(self, claim: ResourceClaim, pods: Iterable[NodePod]) -> None:
        """Remember a claim's allocation for those of its namespace's pods for which it is reserved.

        A PodGroup is reserved for as a whole, by its name (Kubernetes 1.36, DRAWorkloadResourceClaims).

        Raises:
            ObjectError: it has more results than the API allows.
        """
        name, status = claim.metadata.name or "", claim.status or _ClaimStatus()
        devices = status.allocation.devices if status.allocation else None
        results = tuple((devices.results if devices else None) or ())
        if len(results) > _MOST_RESULTS:
            raise ObjectError(
                f"ResourceClaim {'/'.join(claim.metadata.key)}: more than {_MOST_RESULTS} devices"
            )
        consumers = status.reserved_for or ()
        uids = {each.uid for each in consumers if each.resource == "pods"}
        groups = {each.name for each in consumers if each.resource == "podgroups"}
        for pod in pods:
            is_reserved = pod.uid in uids or (pod.scheduling_group and pod.scheduling_group in groups)
            if is_reserved and status.allocation is not None and not self.is_known(pod, name):
                pin = _Pin(claim.metadata.uid or "", name, results, [None] * len(results))
                self._pins.setdefault(pod.uid, {})[name] = pin

    def of(self, pod: NodePod, devices: NodeDevices) -> PodClaims:
        """Return what the claims of a pod give."""
        is_sized = not pod.has_unnamed_claims
        amounts: dict[tuple[str, str, str], int | None] = {}
        unsized: set[str | None] = set()
        for name in pod.claims:
            pin = self._pins.get(pod.uid, {}).get(name)
            if pin is None:
                is_sized = False
                continue
            for index, result in enumerate(pin.results):
                if pin.uuids[index] is None:
                    pin.uuids[index] = devices.uuid_of(result.driver, result.pool, result.device)
                uuid = pin.uuids[index]
                if not uuid and not devices.is_gpu_driver(result.driver):
                    continue  # such as a network card
                amount = _memory(result)
                if not uuid or uuid.startswith(_MIG_DEVICE) or amount == 0:
                    unsized.add(uuid)
                    continue
                key = (pin.claim_uid, name, uuid)
                before = amounts.get(key, 0)
                amounts[key] = None if amount is None or before is None else before + amount
        gpus = tuple(
            ClaimedGpu(claim_uid=claim_uid, claim=name, gpu_uuid=uuid, bytes=amount)
            for (claim_uid, name, uuid), amount in amounts.items()
            if uuid not in unsized
        )
        return PodClaims(gpus=gpus, is_sized=is_sized and not unsized)


def _memory(result: _Result) -> int | None:
    """Return the memory of a result in bytes: None for the whole GPU, 0 if it is not known.

    The scheduler writes the whole capacity for adminAccess, and counts it nowhere (seen on 1.36.3). A slot of
    a driver with `consumableShares: N` has memory 0.
    """
    if result.admin_access:
        return 0
    if result.consumed_capacity is None:
        return None
    capacity = result.consumed_capacity
    amount = capacity.get(_MEMORY, capacity.get(f"{result.driver}/{_MEMORY}", "0"))
    try:
        number = int(parse_quantity(amount))
    except ValueError:
        return 0
    return number if 0 < number <= MOST_BYTES else 0
