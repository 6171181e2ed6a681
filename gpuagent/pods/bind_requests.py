"""KAI's BindRequests of a node: followed by a watch, and the last one that was seen of each pod.

KAI creates the BindRequest before it binds the pod, and keeps it until the pod ends (observed on v0.9.8,
v0.13.4 and v0.17.0).
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.bounds import LONGEST_NAME, bounded, creation_time
from gpuagent.pods.inventory import Availability, BindRequest, Key, NodePod, UnavailableReason
from gpuagent.pods.lookups import may_be_kais
from gpuagent.pods.node_pods import decoder
from gpuagent.pods.objects import ObjectError
from kai import keys
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import JsonLog

_MOST_GROUPS: Final = 1024


def bind_request(object_: objects.BindRequestObject) -> BindRequest:
    """Convert a BindRequest to one of limited size; raise ObjectError for too many groups."""
    metadata, spec = object_.metadata, object_.spec
    received, groups = spec.received_gpu or objects.ReceivedGpu(), tuple(spec.selected_gpu_groups or ())
    if len(groups) > _MOST_GROUPS:
        where = f"BindRequest {'/'.join(metadata.key)}"
        raise ObjectError(f"{where}: spec.selectedGPUGroups: {len(groups)} groups; at most {_MOST_GROUPS}")
    return BindRequest(
        pod_uid=bounded(metadata.pod_owner_uid),
        portion=(received.portion or "")[:LONGEST_NAME],  # a valid value is far shorter
        count=received.count or 0,
        groups=tuple(map(bounded, groups)),
        resource_type=bounded(spec.received_resource_type),
        created=creation_time(metadata),
    )


class LastBindRequests:
    """The last BindRequest that was seen of each pod. It counts until the pod ends, also if it is deleted."""

    def __init__(self) -> None:
        self._by_uid: dict[str, tuple[Key, BindRequest]] = {}

    def add(self, key: Key, request: BindRequest) -> None:
        """Remember a BindRequest, which replaces an earlier one of its pod."""
        if request.pod_uid:
            self._by_uid[request.pod_uid] = key, request

    def of(self, pods: Mapping[str, NodePod], current: Mapping[Key, BindRequest]) -> dict[Key, BindRequest]:
        """Return the current BindRequests and the last ones of these pods; forget those of other pods.

        A pod's own last one takes precedence over a current one of another pod with the same name.
        """
        known = dict(current)
        kept: dict[str, tuple[Key, BindRequest]] = {}
        for uid, (key, request) in self._by_uid.items():
            pod = pods.get(uid)
            if pod is None:
                if current.get(key) == request:
                    kept[uid] = key, request  # its pod may be listed later
            elif not pod.is_finished and pod.key == key:
                known[key] = request
                kept[uid] = key, request
        self._by_uid = kept
        return known


_CERTAIN: Final[Callable[[str], bool]] = lambda _uid: True  # noqa: E731 - a default


class UnplacedPods:
    """Pods with the label of a GPU group that certainly started without a BindRequest.

    Any user may copy the label. A missing BindRequest is proof in two cases:

    - The pod appeared while all BindRequests were followed without a gap. Its own would have been seen, even
      if KAI had deleted it since.
    - KAI still has the BindRequest of another running pod that is at least as old as this pod. BindRequests
      were thus in use when the pod was created, and have been kept since. The pod's own may have been deleted
      by hand all the same, so a pod with the condition PodBound, which KAI's binder writes, is not accused.
      KAI places no pod of the default scheduler.

    A BindRequest that appears later counts.
    """

    def __init__(self) -> None:
        self._epoch: Hashable = None
        self._appeared: dict[str, Hashable] = {}
        """By UID of the known pods: the epoch in which the pod appeared; None if it was there before."""
        self._labelled: set[str] = set()
        """UIDs of pods that had the label of a GPU group at any time; their owners may remove it."""
        self._unplaced: set[str] = set()

    def of(
        self,
        pods: Mapping[str, NodePod],
        present: Mapping[Key, BindRequest],
        known: Mapping[Key, BindRequest],
        unknown: Collection[Key],
        *,
        epoch: Hashable,
        is_confirmed: Callable[[str], bool] = _CERTAIN,
    ) -> frozenset[str]:
        """Return the UIDs of these pods.

        `present` are the BindRequests that exist, `known` the deleted ones, too, and a pod of `unknown` may
        have one. `epoch` is the same while pods and BindRequests are followed without a gap, and None while
        it is unknown which exist. `is_confirmed` tells whether the BindRequests, whose events may be late,
        have been read after a pod was seen to run.
        """
        appeared_in = epoch if epoch == self._epoch else None
        self._epoch = epoch
        self._appeared = {uid: self._appeared.get(uid, appeared_in) for uid in pods}
        self._labelled = {uid for uid, pod in pods.items() if uid in self._labelled or _has_group(pod)}
        created = [
            request.created
            for key, request in present.items()
            if (pod := pods.get(request.pod_uid)) is not None and pod.key == key and pod.is_running
        ]
        oldest = min(created, default=None)
        unplaced: set[str] = set()
        for uid in self._labelled:
            pod = pods[uid]
            if pod.key in known or pod.is_finished:
                continue
            is_absent = epoch is not None and pod.key not in unknown and pod.is_running
            if uid in self._unplaced or (
                is_absent
                and (self._appeared[uid] == epoch or _must_have_one(pod, oldest))
                and is_confirmed(uid)
            ):
                unplaced.add(uid)
        self._unplaced = unplaced
        return frozenset(unplaced)


def _has_group(pod: NodePod) -> bool:
    return any(key == keys.GPU_GROUP or key.startswith(keys.GPU_GROUP_PREFIX) for key in pod.labels)


def _must_have_one(pod: NodePod, oldest: str | None) -> bool:
    """Whether KAI would still have the BindRequest of a pod that it had placed.

    `oldest` is the creation time of the oldest BindRequest of a running pod; None if there is none. Only
    objects in a file that was written by hand lack a creation time.
    """
    if oldest is None:
        return False
    is_foreign = pod.scheduler_name == keys.DEFAULT_SCHEDULER
    if not oldest or not pod.created:
        return is_foreign
    return oldest <= pod.created and (is_foreign or not pod.has_bound_condition)


RESOURCE: Final = "bindrequests.scheduling.run.ai"
"""Name as in RBAC and kubectl."""
WITHOUT: Final = "shares come from the pods' own annotations, which their owners can edit"
"""Consequence of missing BindRequests."""
_PATH: Final = "/apis/scheduling.run.ai/v1alpha2/bindrequests"
_NODE_LABEL: Final = "selected-node"
"""Label with the node's name on every BindRequest (KAI since v0.5, pkg/scheduler/cache/cache.go)."""
_LIST_PAUSE: Final = 30.0
"""Shortest time between two lists beside the watch, in seconds."""
_read = decoder("BindRequest", objects.BindRequestObject)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A BindRequest whose content is unknown."""

    line: str


class BindRequestWatch:
    """Keeps the BindRequests of a node, which are known, not yet known, or not available."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        on_change: Callable[[], None],
        log: JsonLog,
        on_unreadable: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming,
    ) -> None:
        """Set up the watch; call `run` to start it.

        `on_change` is called when a BindRequest appears, changes or disappears, and when the state changes;
        `on_unreadable` with one line for each object that cannot be decoded at all.
        """
        self._client = client
        self._on_change = on_change
        self._clock = clock
        self._params = {"labelSelector": f"{_NODE_LABEL}={node}"}
        self._unplaced = UnplacedPods()
        self._seen_at: dict[str, float] = {}
        """By UID: when a pod without a BindRequest was first seen to run, until that is confirmed."""
        self._listed_at = -math.inf
        """Start of the last list that confirmed which BindRequests exist."""
        self._is_list_wanted = asyncio.Event()
        self._last = LastBindRequests()
        self._objects: dict[Key, BindRequest | _Unreadable] | None = None
        """All that the API server has; None before the first list."""
        self._current: dict[Key, BindRequest] = {}
        self._unreadable: dict[Key, str] = {}
        """Why a BindRequest is invalid, by its namespace and name."""
        self.availability = Availability(RESOURCE, log)
        self.watch: Watch[BindRequest | _Unreadable] = Watch(
            client,
            Resource(name="bindrequests", path=_PATH, params=self._params),
            read=self._take,
            on_change=self._changed,
            on_trouble=lambda _problem: self._update_state(),
            on_unreadable=on_unreadable,
            clock=clock,
            timing=timing,
        )

    @property
    def is_settled(self) -> bool:
        """Whether BindRequests are known, or known to be not available."""
        return self.watch.is_synced or self._is_refused

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each invalid BindRequest."""
        return tuple(f"{line}; skipped" for line in self._unreadable.values())

    async def run(self) -> None:
        """Watch until cancelled, and list the BindRequests when a pod seems to have none."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self._list_when_wanted())

    def known(self, pods: Mapping[str, NodePod]) -> dict[Key, BindRequest]:
        """Return the BindRequests that exist, and the last ones of these pods, by namespace and name."""
        return self._last.of(pods, self._current)

    def unknown(self, pods: Mapping[str, NodePod], known: Mapping[Key, BindRequest]) -> frozenset[Key]:
        """Return namespace and name of the pods whose possible BindRequest is not known yet."""
        unreadable = frozenset(self._unreadable.keys() - known.keys())
        if self._is_refused or self._is_followed:
            return unreadable
        own = {key for key, request in known.items() if (pod := pods.get(request.pod_uid)) and pod.key == key}
        return unreadable | {
            pod.key
            for pod in pods.values()
            if not pod.is_finished and pod.key not in own and may_be_kais(pod)
        }

    def unplaced(
        self, pods: Mapping[str, NodePod], known: Mapping[Key, BindRequest], *, pod_states_read: int
    ) -> frozenset[str]:
        """Return the UIDs of the pods that certainly started without a BindRequest.

        `pod_states_read` is how often the whole list of pods has been read.
        """
        self._seen_at = {uid: at for uid, at in self._seen_at.items() if uid in pods}
        is_known = self._is_followed and not self._is_refused
        return self._unplaced.of(
            pods,
            self._current,
            known,
            self.unknown(pods, known),
            epoch=(pod_states_read, self.watch.states_read) if is_known else None,
            is_confirmed=self._is_confirmed,
        )

    def _is_confirmed(self, uid: str) -> bool:
        if self._seen_at.setdefault(uid, self._clock()) < self._listed_at:
            return True
        self._is_list_wanted.set()
        return False

    async def _list_when_wanted(self) -> None:
        """List the BindRequests again for pods that seem to have none, at most twice a minute.

        The watch may be late, by the time of its silence if its connection is dead. The list is read from
        etcd, or from a cache that is as new.
        """
        while True:
            await self._is_list_wanted.wait()
            self._is_list_wanted.clear()
            began = self._clock()
            try:
                async with self._client.list_objects(_PATH, params=self._params) as items:
                    are_readable = [isinstance(self._take(item), BindRequest) async for item in items]
            except (ApiError, Unreachable, AccessError):
                are_readable = [False]
            if all(are_readable):
                self._listed_at = began
                self._on_change()
            else:
                self._is_list_wanted.set()
            await asyncio.sleep(_LIST_PAUSE)

    @property
    def _is_followed(self) -> bool:
        return self.watch.is_synced and not self.watch.problem

    @property
    def _is_refused(self) -> bool:
        problem = self.availability.problem
        return problem is not None and problem.reason is not UnavailableReason.ERROR

    def _take(self, data: bytes) -> BindRequest | _Unreadable:
        try:
            object_ = _read(data)
            request = bind_request(object_)
        except ObjectError as error:
            return _Unreadable(str(error))
        self._last.add((object_.metadata.namespace or "", object_.metadata.name or ""), request)
        return request

    def _changed(self, items: Mapping[Key, BindRequest | _Unreadable]) -> None:
        """Pass a change on, unless only the status of BindRequests changed."""
        if items != self._objects:
            self._objects = dict(items)
            self._current = {key: item for key, item in items.items() if isinstance(item, BindRequest)}
            self._unreadable = {
                key: item.line for key, item in items.items() if isinstance(item, _Unreadable)
            }
            self._on_change()

    def _update_state(self) -> None:
        self.availability.update_by_watch(self.watch.cause, self.watch.problem, WITHOUT)
        self._on_change()
