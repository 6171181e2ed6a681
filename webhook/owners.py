"""Owners that are not namespaced: through one, a pod gets into another team's queue.

KAI takes the queue of the topmost owner's label. A managed Namespace carries the same label, so a pod that is
owned by another team's Namespace is placed in that team's queue (seen on KAI v0.13.4).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kai.pod import Owner
from kube.scopes import CLUSTER_SCOPED, GroupKind
from service.text import quoted
from webhook.reasons import Finding, Reason

_OF_SCHEDULERS: Final = {
    "kai.scheduler": "Config SchedulingShard Topology",
    "kueue.x-k8s.io": "AdmissionCheck ClusterQueue Cohort MultiKueueCluster MultiKueueConfig"
    " ProvisioningRequestConfig ResourceFlavor Topology WorkloadPriorityClass",
    "scheduling.run.ai": "Queue",
}
CLUSTER_SCOPED_OWNERS: Final[frozenset[GroupKind]] = CLUSTER_SCOPED | frozenset(
    (group, kind) for group, kinds in _OF_SCHEDULERS.items() for kind in kinds.split()
)
"""Kinds that are known without asking a cluster: those of Kubernetes, KAI and Kueue."""


def is_cluster_scoped(owner: Owner, kinds: frozenset[GroupKind]) -> bool:
    """Whether the owner's kind is not namespaced; an unknown kind counts as namespaced."""
    return (owner.group, owner.kind or "") in kinds


def cluster_scoped_owners(owners: Iterable[Owner], kinds: frozenset[GroupKind]) -> Iterator[Finding]:
    """Name the owners whose kind is not namespaced."""
    for owner in owners:
        if is_cluster_scoped(owner, kinds):
            shown = f"{owner.kind} {quoted(owner.name or '')}"
            yield Finding(Reason.CLUSTER_SCOPED_OWNER, {"owner": shown})
