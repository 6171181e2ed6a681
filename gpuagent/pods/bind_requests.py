"""KAI's BindRequests: their conversion, and the last one that was seen of each pod. Pure."""

from collections.abc import Mapping
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.bounds import LONGEST_NAME, bounded, creation_time
from gpuagent.pods.inventory import BindRequest, NodePod
from gpuagent.pods.objects import ObjectError

Key = tuple[str, str]
"""Namespace and name of a BindRequest and of its pod."""

_MOST_GROUPS: Final = 1024


def bind_request(object_: objects.BindRequestObject) -> BindRequest:
    """Convert a BindRequest to one of limited size.

    Raises:
        ObjectError: it has more GPU groups than any node has GPUs.
    """
    spec, received = object_.spec, object_.spec.received_gpu or objects.ReceivedGpu()
    groups = tuple(spec.selected_gpu_groups or ())
    if len(groups) > _MOST_GROUPS:
        where = f"BindRequest {object_.metadata.namespace or 'default'}/{object_.metadata.name}"
        raise ObjectError(f"{where}: spec.selectedGPUGroups: {len(groups)} groups; at most {_MOST_GROUPS}")
    return BindRequest(
        pod_uid=bounded(object_.metadata.pod_owner_uid),
        portion=(received.portion or "")[:LONGEST_NAME],  # a valid value is far shorter
        count=received.count or 0,
        groups=tuple(map(bounded, groups)),
        resource_type=bounded(spec.received_resource_type),
        created=creation_time(object_.metadata),
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

        Args:
            pods: the node's pods by UID.
            current: the BindRequests that exist. A pod's own last one takes precedence over one of another
                pod with the same name.
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
