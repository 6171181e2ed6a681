"""Queues and priorities that policies name, against those that KAI has. Pure.

A pod of a queue that KAI cannot use stays Pending. Up to v0.9 nothing says why; of a queue that has children
nothing does in v0.13.4 either.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from kai.installation import Installation
from service.check_results import CheckResult, ok, problem, unknown, warning
from service.text import MOST_LINES, counted, listed, one_line
from webhook.doctor.api_reader import Completeness
from webhook.doctor.cluster import Cluster

_QUEUES: Final = "queues"
_PRIORITIES: Final = "priorities"


def queue_findings(cluster: Cluster, served: str) -> Iterator[CheckResult]:
    """Check what managed namespaces name.

    Args:
        cluster: as it was read.
        served: versions of KAI's API that the API server has instead, if it has no queues of v2.
    """
    if cluster.queues.extent is Completeness.UNSERVED:
        yield unknown(
            _QUEUES,
            f"not checked: the API server has queues of {served}, and not of v2"
            if served
            else "not checked: the API server knows no queues",
            "" if served else "is KAI installed? Inside a vCluster the queues are the host's: look there",
        )
        return
    if cluster.queues.is_known:
        yield from _queues(cluster)
    if cluster.priorities.is_known:
        yield from _priorities(cluster)


def _queues(cluster: Cluster) -> Iterator[CheckResult]:
    named: defaultdict[str, list[str]] = defaultdict(list)
    for name, one in cluster.managed.items():
        if one.policy and one.policy.queue:
            named[one.policy.queue].append(name)
    parents = {queue.metadata.name: queue.spec.parent for queue in cluster.queues.items}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for queue, parent in parents.items():
        children[parent].append(queue)
    is_whole = cluster.queues.extent is Completeness.WHOLE
    wrong = []
    for queue in sorted(named):
        by = f'"{one_line(queue)}" (for {listed(named[queue])})'
        if queue not in parents:
            if is_whole:
                wrong.append(
                    problem(
                        _QUEUES, f"there is no queue {by}: pods stay Pending", "make it, or correct the label"
                    )
                )
        elif children[queue]:
            wrong.append(
                problem(
                    _QUEUES,
                    f"{by} has queues below it ({listed(children[queue])}): KAI places no pod in it, and does"
                    " not say so",
                    "name one of those below it",
                )
            )
        elif not parents[queue]:
            what = _of_root(cluster.installation)
            if what:
                wrong.append(problem(_QUEUES, f"{by} has no parent: {what}", "give it a spec.parentQueue"))
        elif parents[queue] not in parents and is_whole:
            wrong.append(
                problem(
                    _QUEUES,
                    f'{by} is below "{one_line(parents[queue])}", which does not exist',
                    "make that queue, or correct spec.parentQueue",
                )
            )
    yield from islice(wrong, MOST_LINES)
    if len(wrong) > MOST_LINES:
        yield problem(_QUEUES, f"and {counted(len(wrong) - MOST_LINES, 'more queue')} that KAI cannot use")
    if named and not wrong:
        yield ok(_QUEUES, f"{counted(len(named), 'queue')} that policies name: {listed(named)}")


def _of_root(installed: Installation | None) -> str:
    """What is wrong with pods in a queue without a parent; empty if nothing is."""
    versions = installed.versions if installed else ()
    if versions and all(version.survives_root_queues for version in versions):
        return ""
    if versions and all(version.places_pods_of_root_queues for version in versions):
        return "before v0.16.5 KAI's scheduler crashes when it takes GPUs back for it or from it"
    return "KAI places no pod in it before v0.13.0, and crashes on it before v0.16.5"


def _priorities(cluster: Cluster) -> Iterator[CheckResult]:
    if cluster.priorities.extent is not Completeness.WHOLE:
        return
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for name, one in cluster.managed.items():
        priority = one.policy.priority if one.policy else None
        if priority and priority not in cluster.priorities.items:
            missing[priority].append(name)
    for priority, names in islice(sorted(missing.items()), MOST_LINES):
        yield warning(
            _PRIORITIES,
            f'there is no PriorityClass "{one_line(priority)}" (for {listed(names)}): KAI takes its default',
            "make it, or correct the label",
        )
