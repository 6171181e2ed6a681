"""Remembers the pods that have ended, since their processes may go on."""

from collections.abc import Collection, Iterable
from typing import Final

MOST_ENDED: Final = 1 << 13
"""Maximum of remembered UIDs of ended pods: about 1.5 MB."""


class EndedPods:
    """UIDs of pods that were listed before and are not listed now.

    A pod that is deleted with a grace period of 0 leaves the list at once, and its processes may run for its
    `terminationGracePeriodSeconds` (Kubernetes `calculateEffectiveGracePeriod` in
    `pkg/kubelet/pod_workers.go`). Its UID must still be known then: otherwise the next pod in the cgroup path
    would count as the owner, and the processes choose its name.
    """

    def __init__(self, *, most: int = MOST_ENDED) -> None:
        """Set the maximum of UIDs; beyond it the oldest ones are forgotten."""
        self._most = most
        self._seen: dict[str, None] = {}

    def add(self, uids: Iterable[str]) -> None:
        """Remember listed pods, even if they are gone before the next inventory."""
        self._seen |= dict.fromkeys(uids)

    def without(self, listed: Collection[str]) -> frozenset[str]:
        """Return the UIDs of the pods that have ended: the remembered ones without those listed now."""
        ended = [uid for uid in self._seen if uid not in listed]
        for uid in ended[: max(0, len(ended) - self._most)]:
            del self._seen[uid]
        return frozenset(ended[-self._most :])
