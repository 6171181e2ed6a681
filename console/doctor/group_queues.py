"""Checks for PodGroups in another queue than their namespace's. Pure.

KAI never moves a PodGroup to another queue, and the guard lets a PodGroup keep the queue that it has. One
from before mode enforce therefore stays a way to that queue, also for new pods.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from console.doctor.api_reader import ListOutcome
from console.doctor.check_results import CheckResult, ok, problem, warning
from console.doctor.cluster_state import Cluster
from console.doctor.counted_pod_groups import PodGroup
from service.text import counted, listed, quoted
from webhook.policy.labels import Mode

_GROUPS: Final = "PodGroups"


def group_queue_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about PodGroups in another queue than the policy of their namespace names."""
    if not cluster.acting:
        return
    misplaced: defaultdict[bool, list[str]] = defaultdict(list)
    for group in cluster.pod_groups.items:
        policy = cluster.acting.get(group.metadata.namespace)
        if policy is not None and policy.queue and group.spec.queue != policy.queue:
            misplaced[policy.mode is Mode.ENFORCE].append(_described(group))
    for is_enforced, groups in sorted(misplaced.items(), reverse=True):
        count = counted(len(groups), "PodGroup")
        if is_enforced:
            yield problem(
                _GROUPS,
                f"{count} in another queue than the namespace's, under mode enforce: {listed(groups)}",
                "delete the objects that own them, with their pods: a PodGroup keeps its queue, also for new"
                " pods",
            )
        else:
            yield warning(
                _GROUPS,
                f"{count} in another queue than the namespace's: {listed(groups)}",
                "delete these PodGroups, or their owners, before kaishare.dev/mode=enforce is set: a PodGroup"
                " keeps its queue, also for new pods",
            )
    if not misplaced and cluster.pod_groups.outcome is ListOutcome.WHOLE:
        yield ok(_GROUPS, "all PodGroups of managed namespaces are in their namespace's queue")


def _described(group: PodGroup) -> str:
    metadata = group.metadata
    owner = next(iter(metadata.owner_references), None)
    of = f" of {owner.kind} {owner.name}" if owner else ""
    return f"{metadata.namespace}/{metadata.name} in {quoted(group.spec.queue)}{of}"
