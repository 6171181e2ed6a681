"""Fetches the ResourceClaims of a node's pods by name, and watches the node's ResourceSlices."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuagent.pods.inventory import Availability, Key, NodePod, PodClaims, Unavailable, UnavailableReason
from gpuagent.pods.lookups import FetchTiming
from gpuagent.pods.node_pods import decoder
from gpuagent.pods.objects import ObjectError
from gpuagent.pods.resource_claims import ClaimPins, NodeDevices, SliceDevices, slice_devices
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.device_kinds import ResourceClaim, ResourceSlice
from kube.watch import Resource, Watch, WatchTiming
from service.backoff import JITTER_AROUND, JITTER_UP, Backoff, jittered
from service.log import JsonLog

CLAIMS: Final = "resourceclaims.resource.k8s.io"
SLICES: Final = "resourceslices.resource.k8s.io"
_API: Final = "/apis/resource.k8s.io/v1"
_WITHOUT: Final = "pods with a resource claim have no share and are not judged"
"""Consequence of missing claims or slices."""
_FIRST_AGAIN, _LONGEST_AGAIN = 5.0, 600.0
"""Pauses before a claim without an allocation for its pod is fetched again; a change of the pod ends one."""
_LOST: Final = frozenset({"unreachable", "credentials"})
"""Causes that the watch of the pods reports, too."""

_read_claim = decoder("ResourceClaim", ResourceClaim)
_read_slice = decoder("ResourceSlice", ResourceSlice)


def _unavailable(resource: str, verbs: str, status: str, problem: str) -> Unavailable:
    """Describe why a resource cannot be read."""
    if status == "403":
        line = f"no right to {verbs} {resource}: {_WITHOUT}; grant the right to change that"
        return Unavailable(resource=resource, reason=UnavailableReason.DENIED, line=line)
    if status == "404":
        line = f"the API server has no {resource} of version v1: {_WITHOUT}"
        return Unavailable(resource=resource, reason=UnavailableReason.NOT_SERVED, line=line)
    return Unavailable(resource=resource, reason=UnavailableReason.ERROR, line=f"{problem}: {_WITHOUT}")


@dataclass(slots=True)
class _Entry:
    """A claim whose allocation is not known for one of its pods."""

    pods: dict[str, NodePod] = field(default_factory=dict)
    """By UID, as they were at the last fetch."""
    due: float = -math.inf
    again: Backoff = field(
        default_factory=lambda: Backoff(first=_FIRST_AGAIN, most=_LONGEST_AGAIN, jitter=JITTER_UP)
    )


class ResourceClaims:
    """Keeps what the ResourceClaims of a node's pods give.

    Claims have no selector by node, so each one is fetched once, and again while its allocation is not known.
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
        self._client = client
        self._on_change = on_change
        self._on_unreadable = on_unreadable
        self._clock = time.monotonic
        self._timing = fetch_timing or FetchTiming()
        self._devices = NodeDevices()
        self._pins = ClaimPins()
        self._entries: dict[Key, _Entry] = {}
        """By namespace and name of the claim."""
        self._wake = asyncio.Event()
        self._failure: tuple[UnavailableReason, Backoff] | None = None
        self._availability = Availability(CLAIMS, log), Availability(SLICES, log)
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
        return tuple(state.problem for state in self._availability if state.problem is not None)

    async def run(self) -> None:
        """Watch and fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self._fetch_when_due())

    def request(self, pods: Iterable[NodePod]) -> None:
        """Fetch the claims of these pods that are not known, at once if one of their pods changed."""
        present = {pod.uid: pod for pod in pods if not pod.is_finished}
        self._pins.keep(present)
        wanted: dict[Key, dict[str, NodePod]] = {}
        for pod in present.values():
            for claim in pod.claims:
                if not self._pins.is_known(pod, claim):
                    wanted.setdefault((pod.namespace, claim), {})[pod.uid] = pod
        entries: dict[Key, _Entry] = {}
        for key, its_pods in wanted.items():
            entry = entries[key] = self._entries.get(key) or _Entry()
            if any(entry.pods.get(uid) is not pod for uid, pod in its_pods.items()):
                entry.due = min(entry.due, self._clock())
            entry.pods = its_pods
        self._entries = entries
        self._wake.set()

    def of(self, pods: Iterable[NodePod]) -> Mapping[str, PodClaims]:
        """Return what the claims of these pods give, by UID, for each pod that has some."""
        return {
            pod.uid: self._pins.of(pod, self._devices)
            for pod in pods
            if (pod.claims or pod.has_unnamed_claims) and not pod.is_finished
        }

    async def _fetch_when_due(self) -> None:
        while True:
            self._wake.clear()
            key = min(self._entries, key=lambda key: self._entries[key].due, default=None)
            paused = self._failure[1].due_at if self._failure else -math.inf
            due = math.inf if key is None else max(self._entries[key].due, paused)
            if key is None or due > self._clock():
                try:
                    async with asyncio.timeout(None if math.isinf(due) else due - self._clock()):
                        await self._wake.wait()
                except TimeoutError:
                    continue
                continue
            await self._fetch(key)
            timing, count = self._timing, len(self._entries) or 1
            gap = min(timing.gap, timing.gap_for_each * count, timing.spread / count)
            await asyncio.sleep(jittered(gap, JITTER_AROUND))

    async def _fetch(self, key: Key) -> None:
        namespace, name = key
        entry = self._entries[key]
        entry.due = self._clock() + entry.again.step()
        try:
            # The API server answers from its memory, not from etcd; the claim may be a little old.
            path = f"{_API}/namespaces/{namespace}/resourceclaims/{name}"
            claim = _read_claim(await self._client.get(path, params={"resourceVersion": "0"}))
            self._pins.add(claim, entry.pods.values())
        except ApiError as error:
            if error.status != 404 or error.reason != "NotFound":
                problem = _unavailable(CLAIMS, "get", str(error.status), str(error))
                self._fail(problem, error.retry_after or 0.0)
                return
        except ObjectError as error:
            self._on_unreadable(str(error))
        except (Unreachable, AccessError):
            self._fail(None)  # the watch of the pods reports the error
            return
        self._failure = None
        self._availability[0].update(None)
        if all(self._pins.is_known(pod, name) for pod in entry.pods.values()):
            self._entries.pop(key, None)
            self._on_change()

    def _fail(self, problem: Unavailable | None, retry_after: float = 0.0) -> None:
        reason, timing = problem.reason if problem else UnavailableReason.ERROR, self._timing
        if self._failure is None or self._failure[0] is not reason:
            is_error = reason is UnavailableReason.ERROR
            first = timing.first_pause if is_error else timing.first_refused
            longest = timing.longest_pause if is_error else timing.longest_refused
            self._failure = reason, Backoff(first=first, most=longest, jitter=JITTER_AROUND)
        self._failure[1].back_off(self._clock(), retry_after)
        if problem is not None:
            self._availability[0].update(problem)

    def _slices_changed(self, slices: Mapping[Key, SliceDevices]) -> None:
        self._devices.update(slices.values())
        self._on_change()

    def _slices_in_trouble(self, problem: str) -> None:
        cause = self.watch.cause
        if not cause:
            self._availability[1].update(None)
        elif cause not in _LOST:
            found = _unavailable(SLICES, "list and watch", cause, problem)
            self._availability[1].update(found)
