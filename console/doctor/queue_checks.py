"""Checks of queues, of PriorityClasses, and of PodGroups in another queue than their namespace's. Pure.

A pod in a queue that KAI cannot use stays Pending. KAI up to v0.9 never reports the reason, and v0.13.4 does
not report it for a queue with children.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from console.doctor.api_reader import ListOutcome, ListResult
from console.doctor.check_results import CheckResult, limited, ok, problem, unknown, warning
from console.doctor.cluster_state import Cluster
from console.doctor.counted_pod_groups import PodGroup
from kai.installation import Installation
from kai.queue import Queue
from service.text import MOST_LINES, counted, listed, one_line, quoted
from webhook.policy.labels import Mode

_QUEUES: Final = "queues"
_PRIORITIES: Final = "priorities"


def queue_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about the queues and PriorityClasses that managed namespaces name."""
    if cluster.queues.outcome is ListOutcome.UNSERVED:
        served = ", ".join(sorted(cluster.other_queue_versions))
        yield unknown(
            _QUEUES,
            f"not checked: the API server serves queues of {served}, not of v2"
            if served
            else "not checked: the API server serves no queues",
            "" if served else "install KAI; inside a vCluster, run doctor on the host, which has the queues",
        )
        return
    if cluster.queues.is_known:
        yield from _queues(cluster)
    if cluster.priorities.is_known:
        yield from _priorities(cluster)


def _queues(cluster: Cluster) -> Iterator[CheckResult]:
    named: defaultdict[str, list[str]] = defaultdict(list)
    for name, policy in cluster.managed.items():
        if policy.queue:
            named[policy.queue].append(name)
    parents = {queue.name: queue.parent for queue in cluster.queues.items}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for queue, parent in parents.items():
        children[parent].append(queue)
    is_whole = cluster.queues.outcome is ListOutcome.WHOLE
    unseen = set() if is_whole else {queue for queue in named if not _is_seen(queue, parents, children)}
    problems = []
    for queue in sorted(named.keys() - unseen):
        title = f'"{one_line(queue)}" (for {listed(named[queue])})'
        if queue not in parents:
            what = f"queue {title} does not exist: its pods stay Pending"
            advice = "create the queue, or correct the label"
        elif children[queue]:
            what = f"{title} has child queues ({listed(children[queue])}): KAI schedules none of its pods"
            advice = "name one of the child queues"
        elif not parents[queue]:
            effect = _root_queue_effect(cluster.installation)
            what = f"{title} has no parent: {effect}" if effect else ""
            advice = "set its spec.parentQueue"
        elif parents[queue] not in parents:
            what = f'{title} has the parent "{one_line(parents[queue])}", which does not exist'
            advice = "create the parent queue, or correct spec.parentQueue"
        else:
            continue
        if what:
            problems.append(problem(_QUEUES, what, advice))
    yield from limited(problems, "more queue that KAI cannot use", "more queues that KAI cannot use")
    if unseen:
        count = counted(len(unseen), "queue")
        yield unknown(_QUEUES, f"not all queues could be read: {count} not checked ({listed(unseen)})")
    seen = named.keys() - unseen
    if seen and not problems:
        yield ok(_QUEUES, f"{counted(len(seen), 'queue')} that policies name: {listed(seen)}")


def _is_seen(queue: str, parents: Mapping[str, str], children: Collection[str]) -> bool:
    """Whether the part of the queues that could be read is enough to check a queue."""
    return queue in parents and (queue in children or not parents[queue] or parents[queue] in parents)


def usable_queue_findings(queues: ListResult[Queue]) -> Iterator[CheckResult]:
    """Yield a finding about the queues that namespaces can name: those with a parent and without children."""
    if queues.outcome is not ListOutcome.WHOLE:
        return
    parents = {queue.name: queue.parent for queue in queues.items}
    usable = sorted(
        parents.keys() - set(parents.values()) - {q for q, parent in parents.items() if parent not in parents}
    )
    if usable:
        yield ok(_QUEUES, f"{counted(len(usable), 'queue')} that namespaces can name: {listed(usable)}")
    else:
        yield warning(
            _QUEUES,
            "namespaces can name no queue: none has a parent and no children",
            "create queues, such as those of deploy/kai/queues.yaml",
        )


def _root_queue_effect(installed: Installation | None) -> str:
    """Describe how KAI fails for a queue without a parent; empty if it does not."""
    versions = installed.versions if installed else ()
    if versions and all(version.survives_root_queues for version in versions):
        return ""
    if versions and all(version.places_pods_of_root_queues for version in versions):
        return "before v0.16.5 KAI's scheduler crashes when it reclaims GPUs for or from this queue"
    return "KAI before v0.13.0 schedules none of its pods, and KAI before v0.16.5 crashes"


def _priorities(cluster: Cluster) -> Iterator[CheckResult]:
    if cluster.priorities.outcome is not ListOutcome.WHOLE:
        return
    existing = {priority_class.name for priority_class in cluster.priorities.items}
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for name, policy in cluster.managed.items():
        if policy.priority and policy.priority not in existing:
            missing[policy.priority].append(name)
    for priority, names in islice(sorted(missing.items()), MOST_LINES):
        yield warning(
            _PRIORITIES,
            f'PriorityClass "{one_line(priority)}" (for {listed(names)}) does not exist:'
            " KAI uses its default priority",
            "create the PriorityClass, or correct the label",
        )


_GROUPS: Final = "PodGroups"


def group_queue_findings(cluster: Cluster) -> Iterator[CheckResult]:
    """Yield findings about PodGroups in another queue than the policy of their namespace names.

    KAI never moves a PodGroup, and the guard lets it keep its queue. One from before mode enforce therefore
    stays a way to that queue, also for new pods.
    """
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
