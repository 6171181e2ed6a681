"""Finds the pods that started without a BindRequest, so that KAI did not place them. Pure."""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Final

from kai import keys
from tests.gpuagent.old_core.pods.inventory import BindRequest, Key, NodePod

_CERTAIN: Final[Callable[[str], bool]] = lambda _uid: True  # noqa: E731 - a default


class UnplacedPods:
    """Pods with the label of a GPU group that certainly started without a BindRequest.

    KAI creates the BindRequest before it binds the pod, and keeps it until the pod ends (observed on v0.9.8,
    v0.13.4 and v0.17.0). Any user may copy the label. A missing BindRequest is proof in two cases:

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

        Args:
            pods: the node's pods by UID.
            present: the BindRequests that exist, by namespace and name.
            known: the same, and the deleted ones of these pods.
            unknown: namespace and name of the pods whose BindRequest may exist.
            epoch: the same value while pods and BindRequests are followed without a gap; None while it is
                unknown which BindRequests exist.
            is_confirmed: whether the BindRequests have been read after a pod, by UID, was seen to run. The
                events of BindRequests may be late.
        """
        appeared_in = epoch if epoch == self._epoch else None
        self._epoch = epoch
        self._appeared = {uid: self._appeared.get(uid, appeared_in) for uid in pods}
        self._labelled = {uid for uid, pod in pods.items() if uid in self._labelled or _has_group(pod)}
        oldest = _oldest(pods, present)
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


def _oldest(pods: Mapping[str, NodePod], present: Mapping[Key, BindRequest]) -> str | None:
    """Return the creation time of the oldest BindRequest of a running pod; None if there is none."""
    created = (
        request.created
        for key, request in present.items()
        if (pod := pods.get(request.pod_uid)) is not None and pod.key == key and pod.is_running
    )
    return min(created, default=None)


def _must_have_one(pod: NodePod, oldest: str | None) -> bool:
    """Whether KAI would still have the BindRequest of a pod that it had placed.

    Only objects in a file that was written by hand lack a creation time.
    """
    if oldest is None:
        return False
    is_foreign = pod.scheduler_name == keys.DEFAULT_SCHEDULER
    if not oldest or not pod.created:
        return is_foreign
    return oldest <= pod.created and (is_foreign or not pod.has_bound_condition)
