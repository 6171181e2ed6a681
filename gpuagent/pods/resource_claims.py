"""What the ResourceClaims of a node's pods give on which GPU, by its ResourceSlices (resource.k8s.io/v1).

Nothing that a tenant can write counts. The scheduler writes the status of a claim, and the node's DRA driver
its slices. The role `edit` can remove a claim's finalizer and create another claim of that name while a pod
uses the first one (seen on Kubernetes 1.36.3), so the first allocation that is reserved for a pod stays its
own until the pod ends.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuagent.pods.bounds import bounded
from gpuagent.pods.inventory import Availability, ClaimedGpu, Key, NodePod, PodClaims, Unavailable
from gpuagent.pods.lookups import Fetcher, FetchTiming, LookupKind
from gpuagent.pods.node_pods import decoder
from kai.share import MOST_BYTES
from kube.client import KubeClient
from kube.device_kinds import MIG_DEVICE, DeviceResult, ResourceClaim, ResourceSlice, memory_in
from kube.watch import Resource, Watch, WatchTiming
from service.log import JsonLog

NVIDIA_DRIVER: Final = "gpu.nvidia.com"
"""Name of NVIDIA's DRA driver (its cmd/gpu-kubelet-plugin/driver.go, v0.5)."""
_MOST_RESULTS: Final = 256
"""Maximum of results of one claim; the API allows 32 (resource/v1 AllocationResultsMaxSize)."""


@dataclass(frozen=True, slots=True)
class SliceDevices:
    """The devices of one ResourceSlice, and how many slices its pool has in this generation."""

    driver: str
    pool: str
    generation: int
    slices: int
    uuids: Mapping[str, str]
    """UUID of the GPU or MIG device by name of the device; empty for another device."""


def slice_devices(slice_: ResourceSlice) -> SliceDevices:
    """Return the devices of a slice."""
    spec, pool = slice_.spec, slice_.spec.pool
    uuids = {bounded(each.name): bounded(each.uuid(spec.driver)) for each in spec.devices or ()}
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

    def uuid_of(self, result: DeviceResult) -> str | None:
        """Return the UUID of a GPU or MIG device, empty for another device; None while it is unknown."""
        return self._by_place.get((result.driver, result.pool, result.device))


@dataclass(slots=True)
class _Pin:
    """An allocation of a claim that is reserved for a pod, and the devices of its results, as first known."""

    claim_uid: str
    results: tuple[DeviceResult, ...]
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

        A PodGroup is reserved for as a whole, by its name (Kubernetes 1.36, DRAWorkloadResourceClaims). A
        claim with more results than the API allows does not count.
        """
        name, results = claim.metadata.name, claim.results
        if results is None or len(results) > _MOST_RESULTS:
            return
        uids = {each.uid for each in claim.consumers if each.resource == "pods"}
        groups = {each.name for each in claim.consumers if each.resource == "podgroups"}
        for pod in pods:
            is_reserved = pod.uid in uids or (pod.scheduling_group and pod.scheduling_group in groups)
            if is_reserved and not self.is_known(pod, name):
                pin = _Pin(claim.metadata.uid, results, [None] * len(results))
                self._pins.setdefault(pod.uid, {})[name] = pin

    def of(self, pod: NodePod, devices: NodeDevices) -> PodClaims:
        """Return what the claims of a pod give."""
        pins = self._pins.get(pod.uid, {})
        amounts: dict[tuple[str, str], int | None] = {}
        unsized: set[str | None] = set()
        for name in pod.claims:
            for index, result in enumerate(pins[name].results if name in pins else ()):
                uuids = pins[name].uuids
                uuid = uuids[index] = uuids[index] or devices.uuid_of(result)
                if not uuid and not devices.is_gpu_driver(result.driver):
                    continue  # such as a network card
                amount = _memory(result)
                if not uuid or uuid.startswith(MIG_DEVICE) or amount == 0:
                    unsized.add(uuid)
                    continue
                before = amounts.get((name, uuid), 0)
                amounts[name, uuid] = None if amount is None or before is None else before + amount
        gpus = tuple(
            ClaimedGpu(claim_uid=pins[name].claim_uid, claim=name, gpu_uuid=uuid, bytes=amount)
            for (name, uuid), amount in amounts.items()
            if uuid not in unsized
        )
        are_known = pins.keys() >= set(pod.claims) and not pod.has_unnamed_claims
        return PodClaims(gpus=gpus, is_sized=are_known and not unsized)


def _memory(result: DeviceResult) -> int | None:
    """Return the memory of a result in bytes: None for the whole GPU, 0 if it is not known.

    The scheduler writes the whole capacity for adminAccess, and counts it nowhere (seen on 1.36.3). A slot of
    a driver with `consumableShares: N` has memory 0.
    """
    if result.admin_access:
        return 0
    if result.consumed_capacity is None:
        return None
    amount = memory_in(result.consumed_capacity, result.driver) or 0
    return amount if 0 < amount <= MOST_BYTES else 0


_API: Final = "/apis/resource.k8s.io/v1"
_SLICES: Final = "resourceslices.resource.k8s.io"
_WITHOUT: Final = "pods with a resource claim have no share and are not judged"
"""Consequence of missing claims or slices."""
_CLAIMS: Final = LookupKind(
    resource="resourceclaims.resource.k8s.io",
    path=_API,
    decode=decoder("ResourceClaim", ResourceClaim),
    without=_WITHOUT,
    accept="application/json",
    soon_seconds=1.0,
    again_seconds=600.0,
    is_spread=True,
)
_read_slice = decoder("ResourceSlice", ResourceSlice)


class ResourceClaims:
    """Keeps what the ResourceClaims of a node's pods give.

    Claims have no selector by node, so each one is fetched until its allocation for its pods is known.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        on_change: Callable[[], None],
        log: JsonLog,
        on_unreadable: Callable[[str], None],
        timing: WatchTiming,
        fetch_timing: FetchTiming | None = None,
    ) -> None:
        """Set up the watch and the fetches; call `run` to start them."""
        self._on_change = on_change
        self._devices = NodeDevices()
        self._pins = ClaimPins()
        self._wanted: dict[str, dict[str, NodePod]] = {}
        """The pods that lack a claim, by namespace and name of the claim, and by their UIDs."""
        self._fetcher = Fetcher(client, _CLAIMS, on_change=self._claims_changed, log=log, timing=fetch_timing)
        self._slices = Availability(_SLICES, log)
        self.watch: Watch[SliceDevices] = Watch(
            client,
            Resource(
                name="resourceslices",
                path=f"{_API}/resourceslices",
                params={"fieldSelector": f"spec.nodeName={node}"},
            ),
            read=lambda data: slice_devices(_read_slice(data)),
            on_change=self._slices_changed,
            on_trouble=self._slices_in_trouble,
            on_unreadable=on_unreadable,
            timing=timing,
        )
        """The watch of the ResourceSlices."""

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        """Which of the resources cannot be read."""
        states = self._fetcher.availability, self._slices
        return tuple(state.problem for state in states if state.problem is not None)

    async def run(self) -> None:
        """Watch and fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self._fetcher.run())

    def request(self, pods: Iterable[NodePod]) -> None:
        """Fetch the claims of these pods that are not known, at once if one of their pods changed."""
        present = {pod.uid: pod for pod in pods if not pod.is_finished}
        self._pins.keep(present)
        before, self._wanted = self._wanted, {}
        for pod in present.values():
            for claim in pod.claims:
                if not self._pins.is_known(pod, claim):
                    self._wanted.setdefault(f"{pod.namespace}/{claim}", {})[pod.uid] = pod
        changed = [
            name
            for name, its_pods in self._wanted.items()
            if any(before.get(name, {}).get(uid) is not pod for uid, pod in its_pods.items())
        ]
        self._fetcher.request(self._wanted, renewed=changed)

    def of(self, pods: Iterable[NodePod]) -> Mapping[str, PodClaims]:
        """Return what the claims of these pods give, by UID, for each pod that has some."""
        return {
            pod.uid: self._pins.of(pod, self._devices)
            for pod in pods
            if (pod.claims or pod.has_unnamed_claims) and not pod.is_finished
        }

    def _claims_changed(self) -> None:
        for claim in self._fetcher.objects:
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            its_pods = self._wanted.get(name, {})
            self._pins.add(claim, its_pods.values())
            if all(self._pins.is_known(pod, claim.metadata.name) for pod in its_pods.values()):
                self._wanted.pop(name, None)
        self._fetcher.request(self._wanted)
        self._on_change()

    def _slices_changed(self, slices: Mapping[Key, SliceDevices]) -> None:
        self._devices.update(slices.values())
        self._on_change()

    def _slices_in_trouble(self, problem: str) -> None:
        self._slices.update_by_watch(self.watch.cause, problem, _WITHOUT, version=" of version v1")
