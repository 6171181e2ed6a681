"""The objects of dynamic resource allocation (resource.k8s.io/v1) that the agent and tools read.

All fields are optional, and unknown fields are ignored, as in `kube.kinds`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from kai.keys import GPU_RESOURCE
from kai.numbers import parse_quantity
from kai.pod import Quantity
from kube.metadata import VersionedMeta

FULL_GPU, MIG_DEVICE = "GPU-", "MIG-"  # beginnings of UUIDs of NVIDIA's devices


def memory_in(amounts: Mapping[str, Any] | None, driver: str = "") -> int | None:
    """Return the amount of memory in bytes; None without a valid one. A name may have the driver's domain."""
    found = (amounts or {}).get("memory", (amounts or {}).get(f"{driver}/memory"))
    try:
        return None if found is None else int(parse_quantity(found))
    except ValueError:
        return None


class DeviceAsk(Struct, frozen=True, rename="camel"):
    """What one request of a claim asks for: `exactly`, or one of `firstAvailable`."""

    device_class_name: str = ""
    count: int | None = None
    admin_access: bool | None = None
    capacity: dict[str, dict[str, Quantity]] | None = None

    @property
    def memory(self) -> int | None:
        """The memory of each device in bytes; None if the request names none."""
        return memory_in((self.capacity or {}).get("requests"))


class _Request(Struct, frozen=True, rename="camel"):
    exactly: DeviceAsk | None = None
    first_available: list[DeviceAsk] | None = None


class DeviceResult(Struct, frozen=True, rename="camel"):
    """A device that the scheduler has given to a claim; without `consumedCapacity` the whole one."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, Quantity] | None = None


class _Devices(Struct, frozen=True):
    requests: list[_Request] | None = None
    results: list[DeviceResult] | None = None


class _ClaimPart(Struct, frozen=True):
    """`spec` with requests, or `status.allocation` with results."""

    devices: _Devices = _Devices()


class _Consumer(Struct, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(Struct, frozen=True, rename="camel"):
    allocation: _ClaimPart | None = None
    reserved_for: list[_Consumer] | None = None


class ResourceClaim(Struct, frozen=True):
    """A claim on devices, and which devices it has."""

    metadata: VersionedMeta
    spec: _ClaimPart = _ClaimPart()
    status: _ClaimStatus | None = None

    @property
    def asks(self) -> list[list[DeviceAsk]]:
        """The requests, each with its alternatives."""
        requests = self.spec.devices.requests or ()
        return [[each.exactly] if each.exactly else list(each.first_available or ()) for each in requests]

    @property
    def results(self) -> tuple[DeviceResult, ...] | None:
        """The devices that the claim has; None if it is not allocated."""
        allocation = self.status.allocation if self.status else None
        return None if allocation is None else tuple(allocation.devices.results or ())

    @property
    def consumers(self) -> tuple[_Consumer, ...]:
        """The pods and PodGroups for which the claim is reserved."""
        return tuple((self.status.reserved_for if self.status else None) or ())


class Device(Struct, frozen=True, rename="camel"):
    """A device that a driver publishes."""

    name: str = ""
    allow_multiple_allocations: bool | None = None
    attributes: dict[str, dict[str, Any]] | None = None
    capacity: dict[str, dict[str, Any]] | None = None

    def uuid(self, driver: str) -> str:
        """Return the UUID of a GPU or a MIG device; empty for another device.

        An attribute without a domain belongs to the driver.
        """
        attributes = self.attributes or {}
        uuid = (attributes.get("uuid") or attributes.get(f"{driver}/uuid") or {}).get("string")
        return uuid if isinstance(uuid, str) and uuid.startswith((FULL_GPU, MIG_DEVICE)) else ""

    def memory(self, driver: str) -> int | None:
        """Return the device's memory in bytes; None if the driver publishes none."""
        return memory_in({name: each.get("value") for name, each in (self.capacity or {}).items()}, driver)


class _Pool(Struct, frozen=True, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class _SliceSpec(Struct, frozen=True, rename="camel"):
    driver: str = ""
    node_name: str = ""
    pool: _Pool = _Pool()
    devices: list[Device] | None = None


class ResourceSlice(Struct, frozen=True):
    """Some devices of a driver's pool."""

    metadata: VersionedMeta
    spec: _SliceSpec = _SliceSpec()


def newest(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation of each pool, complete or not."""
    kept = sorted(slices, key=lambda each: each.spec.pool.generation)
    latest = {(each.driver, each.pool.name): each.pool.generation for each in (one.spec for one in kept)}
    return [
        each for each in kept if each.spec.pool.generation == latest[each.spec.driver, each.spec.pool.name]
    ]


class _ClassSpec(Struct, frozen=True, rename="camel"):
    selectors: list[dict[str, dict[str, str]]] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Struct, frozen=True):
    """The devices that a claim may ask for by one name, selected in CEL."""

    metadata: VersionedMeta
    spec: _ClassSpec = _ClassSpec()

    @property
    def expressions(self) -> list[str]:
        """The conditions in CEL that select the devices."""
        return [each.get("cel", {}).get("expression", "") for each in self.spec.selectors or ()]

    @property
    def replaces_gpus(self) -> bool:
        """Whether DRA allocates its devices to pods that request whole GPUs (KEP-5004)."""
        return self.spec.extended_resource_name == GPU_RESOURCE
