"""Pods that are, or may be, ranks of a distributed job, which keep a whole GPU each. Pure.

Prometheus has the kind and the name of a pod's controller, and not the variables and labels by which
`webhook.policy.distributed` recognises ranks.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from console.advise.usage import PodUse

_JOB: Final = "Job"
_INDEX: Final = re.compile(r"-[0-9]{1,6}\Z")
"""End of the name of a JobSet's Job: `train-workers-0`."""


def parallel_pods(uses: Iterable[PodUse]) -> int:
    """Return the number of pods that ran beside another pod of the same Job or JobSet for some time.

    The time must be longer than a part of the window, because the beginning and the end of a pod are known to
    that only.
    """
    jobs: defaultdict[tuple[str, ...], dict[str, PodUse]] = defaultdict(dict)
    for use in uses:
        names = use.names
        if names.workload_kind == _JOB:
            job = _INDEX.sub("", names.workload)
            jobs[(names.namespace, names.vcluster, names.virtual_namespace, job)][names.uid] = use
    return sum(len(_overlapping(pods.values())) for pods in jobs.values())


def _overlapping(pods: Iterable[PodUse]) -> set[str]:
    """Return the UIDs of pods that ran beside another one."""
    uids: set[str] = set()
    latest: PodUse | None = None
    for pod in sorted(pods, key=lambda pod: pod.first):
        if latest is not None and min(latest.last, pod.last) - pod.first > pod.bucket:
            uids |= {latest.names.uid, pod.names.uid}
        if latest is None or pod.last > latest.last:
            latest = pod
    return uids
