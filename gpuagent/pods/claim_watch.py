"""Fetches the ResourceClaims of a node's pods by name, and watches the node's ResourceSlices."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpuagent.pods.inventory import Availability, Key, NodePod, PodClaims, Unavailable, UnavailableReason
from gpuagent.pods.lookups import Fetcher, FetchTiming, LookupKind
from gpuagent.pods.node_pods import decoder
from gpuagent.pods.resource_claims import ClaimPins, NodeDevices, SliceDevices, slice_devices
from kube.client import KubeClient
from kube.device_kinds import ResourceClaim, ResourceSlice
from kube.watch import Resource, Watch, WatchTiming
from service.log import JsonLog

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
_REFUSALS: Final = {
    "403": (
        UnavailableReason.DENIED,
        f"no right to list and watch {_SLICES}: {_WITHOUT}; grant the right to change that",
    ),
    "404": (UnavailableReason.NOT_SERVED, f"the API server has no {_SLICES} of version v1: {_WITHOUT}"),
}
_LOST: Final = frozenset({"unreachable", "credentials"})
"""Causes that the watch of the pods reports, too."""

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
        cause = self.watch.cause
        if cause not in _LOST:
            reason, line = _REFUSALS.get(cause, (UnavailableReason.ERROR, f"{problem}: {_WITHOUT}"))
            state = Unavailable(resource=_SLICES, reason=reason, line=line) if cause else None
            self._slices.update(state)
