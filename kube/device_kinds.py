"""The kinds of dynamic resource allocation (resource.k8s.io/v1) that tools read; see `kube.kinds`."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from kai.numbers import parse_quantity
from kai.pod import Quantity
from kube.kinds import Kind, PartialObject

MEMORY: Final = "memory"


def memory_in(amounts: Mapping[str, Quantity] | None, driver: str = "") -> int | None:
    """Return the amount of memory in bytes; None without a valid one. A name may have the driver's domain."""
    found = (amounts or {}).get(MEMORY, (amounts or {}).get(f"{driver}/{MEMORY}"))
    try:
        return None if found is None else int(parse_quantity(found))
    except ValueError:
        return None


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
    name: str = ""
    exactly: DeviceAsk | None = None
    first_available: list[DeviceAsk] | None = None


class _Requests(Struct, frozen=True):
    requests: list[_Request] | None = None


class _ClaimSpec(Struct, frozen=True):
    devices: _Requests = _Requests()


class DeviceResult(Struct, frozen=True, rename="camel"):
    """A device that the scheduler has given to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, Quantity] | None = None


class _Results(Struct, frozen=True):
    results: list[DeviceResult] | None = None


class _Allocation(Struct, frozen=True):
    devices: _Results = _Results()


class _ClaimStatus(Struct, frozen=True):
    allocation: _Allocation | None = None


class ResourceClaim(PartialObject, frozen=True):
    """A claim on devices, and which devices it has."""

    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()

    @property
    def asks(self) -> list[list[DeviceAsk]]:
        """The requests, each with its alternatives."""
        requests = self.spec.devices.requests or ()
        return [[each.exactly] if each.exactly else list(each.first_available or ()) for each in requests]

    @property
    def results(self) -> tuple[DeviceResult, ...] | None:
        """The devices that the claim has; None if it is not allocated."""
        allocation = self.status.allocation
        return None if allocation is None else tuple(allocation.devices.results or ())


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

    def is_gpu(self, driver: str) -> bool:
        """Whether the device is a whole GPU: NVIDIA's drivers publish its UUID."""
        attributes = self.attributes or {}
        found = attributes.get("uuid") or attributes.get(f"{driver}/uuid")
        return found is not None and found.text.startswith("GPU-")

    def memory(self, driver: str) -> int | None:
        """The device's memory in bytes; None if the driver publishes none."""
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


class ResourceSlice(PartialObject, frozen=True):
    """Some devices of a driver's pool."""

    spec: _SliceSpec = _SliceSpec()


def newest(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation of each pool, complete or not."""
    kept = list(slices)
    generations: dict[tuple[str, str], int] = {}
    for each in kept:
        pool = each.spec.driver, each.spec.pool.name
        generations[pool] = max(generations.get(pool, 0), each.spec.pool.generation)
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


class DeviceClass(PartialObject, frozen=True):
    """The devices that a claim may ask for by one name."""

    spec: _ClassSpec = _ClassSpec()

    @property
    def expressions(self) -> tuple[str, ...]:
        """The conditions in CEL that select the devices."""
        return tuple(each.cel.expression for each in self.spec.selectors or ())


_GROUP: Final = "resource.k8s.io"
RESOURCE_CLAIMS: Final = Kind(_GROUP, "v1", "resourceclaims", "ResourceClaim", ResourceClaim)
RESOURCE_SLICES: Final = Kind(_GROUP, "v1", "resourceslices", "ResourceSlice", ResourceSlice)
DEVICE_CLASSES: Final = Kind(_GROUP, "v1", "deviceclasses", "DeviceClass", DeviceClass)
