"""Pods that are, or may be, ranks of a distributed job, which keep a whole GPU each. Pure.

Prometheus has the kind and the name of a pod's controller, and not the variables and labels by which
`webhook.policy.distributed` recognises ranks. A Job owns the pods of a JobSet and of a TrainJob (Kubeflow
Trainer v2), and StatefulSets own those of a LeaderWorkerSet.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from console.advise.pod_use import PodUse

_JOB: Final = "Job"
_STATEFUL_SET: Final = "StatefulSet"
_INDEX: Final = re.compile(r"-[0-9]{1,6}\Z")
"""End of the name of a JobSet's Job: `train-workers-0`."""
_INDEXED_POD: Final = re.compile(r"-[0-9]{1,6}-[a-z0-9]{5}(?:-x-.*)?")
"""End of the name of an Indexed Job's pod, after that of the Job, and what a vCluster adds to it."""

RANKS: Final = "ranks of a distributed job"
LIKELY_RANKS: Final = (
    "pods of an Indexed Job, a JobSet or a LeaderWorkerSet that ran at the same time and may be ranks"
)
SEVERAL_GPUS: Final = "pods with several GPUs"


def parallel_pods(uses: Iterable[PodUse]) -> set[str]:
    """Return the UIDs of pods that ran beside another pod of the same Job or JobSet for some time."""
    return _beside_another(uses, _job_of)


def likely_ranks(uses: Iterable[PodUse]) -> set[str]:
    """Return the UIDs of pods that ran beside another one of their Indexed Job, JobSet or LeaderWorkerSet.

    The Jobs of a JobSet and of a TrainJob are Indexed. In a LeaderWorkerSet, the StatefulSet of the workers
    has the name of their leader, which is a pod of another StatefulSet. On the host, a vCluster's pods have
    other names than inside, so that its LeaderWorkerSets are not recognised.
    """
    uses = list(uses)
    of_sets = [use.names for use in uses if use.names.workload_kind == _STATEFUL_SET]
    leaders = {(*names.place, names.pod) for names in of_sets}
    leaders &= {(*names.place, names.workload) for names in of_sets}

    def group_of(use: PodUse) -> Hashable | None:
        names = use.names
        if names.workload_kind == _STATEFUL_SET:
            own = ((*names.place, name) for name in (names.pod, names.workload))
            return next((leader for leader in own if leader in leaders), None)
        is_indexed = _INDEXED_POD.fullmatch(names.pod.removeprefix(names.workload))
        return _job_of(use) if is_indexed else None

    return _beside_another(uses, group_of)


def _job_of(use: PodUse) -> Hashable | None:
    names = use.names
    return (*names.place, _INDEX.sub("", names.workload)) if names.workload_kind == _JOB else None


def _beside_another(uses: Iterable[PodUse], group_of: Callable[[PodUse], Hashable | None]) -> set[str]:
    """Return the UIDs of pods that ran beside another one of their group.

    The time must be longer than a part of the window, because the beginning and the end of a pod are known to
    that only.
    """
    groups: defaultdict[Hashable, dict[str, PodUse]] = defaultdict(dict)
    for use in uses:
        if (key := group_of(use)) is not None:
            groups[key][use.names.uid] = use
    uids: set[str] = set()
    for pods in groups.values():
        latest: PodUse | None = None
        for pod in sorted(pods.values(), key=lambda pod: pod.first):
            if latest is not None and min(latest.last, pod.last) - pod.first > pod.bucket:
                uids |= {latest.names.uid, pod.names.uid}
            if latest is None or pod.last > latest.last:
                latest = pod
    return uids
