"""The objects of dynamic resource allocation (resource.k8s.io/v1) that the agent and tools read.

All fields are optional, and unknown fields are ignored, as in `kube.kinds`.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from kai.keys import GPU_RESOURCE
from kai.numbers import parse_quantity
from kai.pod import Quantity
from kube.metadata import ObjectMeta

FULL_GPU, MIG_DEVICE = "GPU-", "MIG-"
"""Beginnings of UUIDs of NVIDIA's devices."""


def memory_in(amounts: Mapping[str, Quantity] | None, driver: str = "") -> int | None:
    """Return the amount of memory in bytes; None without a valid one. A name may have the driver's domain."""
    found = (amounts or {}).get("memory", (amounts or {}).get(f"{driver}/memory"))
    try:
        return None if found is None else int(parse_quantity(found))
    except ValueError:
        return None


class _Meta(ObjectMeta, frozen=True):
    uid: str = ""


class _Capacity(Struct, frozen=True):
    requests: dict[str, Quantity] | None = None


class DeviceAsk(Struct, frozen=True, rename="camel"):
    """What one request of a claim asks for: `exactly`, or one of `firstAvailable`."""

    device_class_name: str = ""
    count: int | None = None
    admin_access: bool | None = None
    capacity: _Capacity | None = None

    @property
    def memory(self) -> int | None:
        """The memory of each device in bytes; None if the request names none."""
        return memory_in(self.capacity.requests if self.capacity else None)


class _Request(Struct, frozen=True, rename="camel"):
    exactly: DeviceAsk | None = None
    first_available: list[DeviceAsk] | None = None


class _Requests(Struct, frozen=True):
    requests: list[_Request] | None = None


class _ClaimSpec(Struct, frozen=True):
    devices: _Requests = _Requests()


class DeviceResult(Struct, frozen=True, rename="camel"):
    """A device that the scheduler has given to a claim; without `consumedCapacity` the whole one."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, Quantity] | None = None


class _Results(Struct, frozen=True):
    results: list[DeviceResult] | None = None


class _Allocation(Struct, frozen=True):
    devices: _Results = _Results()


class _Consumer(Struct, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class ResourceClaim(Struct, frozen=True):
    """A claim on devices, and which devices it has."""

    metadata: _Meta
    spec: _ClaimSpec = _ClaimSpec()
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


class _Attribute(Struct, frozen=True):
    text: str = field(default="", name="string")


class _Amount(Struct, frozen=True):
    value: Quantity = "0"


class Device(Struct, frozen=True, rename="camel"):
    """A device that a driver publishes."""

    name: str = ""
    allow_multiple_allocations: bool | None = None
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Amount] | None = None

    def uuid(self, driver: str) -> str:
        """Return the UUID of a GPU or a MIG device; empty for another device.

        An attribute without a domain belongs to the driver.
        """
        attributes = self.attributes or {}
        found = attributes.get("uuid") or attributes.get(f"{driver}/uuid")
        return found.text if found is not None and found.text.startswith((FULL_GPU, MIG_DEVICE)) else ""

    def memory(self, driver: str) -> int | None:
        """Return the device's memory in bytes; None if the driver publishes none."""
        return memory_in({name: amount.value for name, amount in (self.capacity or {}).items()}, driver)


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

    metadata: _Meta
    spec: _SliceSpec = _SliceSpec()


def newest(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation of each pool, complete or not."""
    kept = sorted(slices, key=lambda each: each.spec.pool.generation)
    generations = {(each.spec.driver, each.spec.pool.name): each.spec.pool.generation for each in kept}
    return [
        each
        for each in kept
        if each.spec.pool.generation == generations[each.spec.driver, each.spec.pool.name]
    ]


class _Cel(Struct, frozen=True):
    expression: str = ""


class _Selector(Struct, frozen=True):
    cel: _Cel = _Cel()


class _ClassSpec(Struct, frozen=True):
    selectors: list[_Selector] | None = None
    extended_resource_name: str | None = field(name="extendedResourceName", default=None)


class DeviceClass(Struct, frozen=True):
    """The devices that a claim may ask for by one name, selected in CEL."""

    metadata: _Meta
    spec: _ClassSpec = _ClassSpec()

    @property
    def expressions(self) -> tuple[str, ...]:
        """The conditions in CEL that select the devices."""
        return tuple(each.cel.expression for each in self.spec.selectors or ())

    @property
    def replaces_gpus(self) -> bool:
        """Whether DRA allocates its devices to pods that request whole GPUs (KEP-5004)."""
        return self.spec.extended_resource_name == GPU_RESOURCE
