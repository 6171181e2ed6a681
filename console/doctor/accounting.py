"""The check `accounting`: reads what it compares, again if there is a difference, and reports what lasts.

Among the same pods are the ranks of distributed jobs. Pure.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from console.doctor.accounting_reading import (
    CHECK,
    REMEDY,
    Difference,
    GpuRequest,
    Key,
    Reading,
    SumComparison,
    read_request,
)
from console.doctor.accounting_sums import compare_limits, compare_nodes, compare_status
from console.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from console.doctor.check_results import CheckResult, limited, ok, problem, unknown, warning
from console.doctor.cluster_state import Cluster, reread
from console.doctor.kai_checks import matched_schedulers
from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from service.text import counted, listed, quoted
from webhook.policy.labels import Distributed

_RANKS: Final = "distributed jobs"
_LONG: Final = timedelta(minutes=5)
"""Age of a request to delete a pod from which the pod is reported; most pods end within 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedReading:
    """What one reading shows."""

    reading: Reading
    status: SumComparison = field(default_factory=SumComparison)
    nodes: SumComparison = field(default_factory=SumComparison)
    differences: Mapping[Key, Difference]


def evaluate(reading: Reading) -> EvaluatedReading:
    """Compare all figures of a reading. Pure.

    Without a part of the objects or without figures of KAI, `Queue.status` is not compared. A sum that is
    too large in spite of a missing object is a difference all the same.
    """
    status = compare_status(reading) if reading.is_whole and reading.has_figures else SumComparison()
    nodes = compare_nodes(reading)
    differences = (
        *status.differences,
        *compare_limits(reading),
        *nodes.differences,
        *_unknown_subgroups(reading),
    )
    by_key = {difference.key: difference for difference in differences}
    return EvaluatedReading(reading=reading, status=status, nodes=nodes, differences=by_key)


def persistent_findings(first: EvaluatedReading, last: EvaluatedReading) -> Iterator[CheckResult]:
    """Yield the findings that both readings have in common.

    Args:
        first: the first reading.
        last: a reading some seconds later, or the first one again if it has no difference.
    """
    findings = [
        difference.finding
        for key, difference in last.differences.items()
        if difference.persists_since(first.differences.get(key))
    ]
    yield from limited(findings, "more difference")
    deleted = list(_deleted_pods(last.reading))
    yield from deleted
    yield from _unknown(last)
    if not last.reading.has_figures:
        yield unknown(
            CHECK,
            "KAI has written no figures: the requests of pods were compared with limits and nodes only",
            "run KAI with its podgroupcontroller and queuecontroller",
        )
    changing = len(last.differences) - len(findings)
    if changing:
        yield unknown(
            CHECK,
            f"{counted(changing, 'figure')} changed between two readings, and could not be compared",
            "run doctor again",
        )
    if last.reading.is_whole and last.reading.has_figures and not findings and not deleted:
        yield _agreement(last)


def _agreement(evaluation: EvaluatedReading) -> CheckResult:
    queues, nodes = evaluation.status.compared, evaluation.nodes.compared
    pods = len(evaluation.reading.pods.items)
    return ok(
        CHECK,
        f"the requests of {counted(pods, 'pod')} add up to KAI's figures in"
        f" {counted(len(queues), 'queue')} and fit on {counted(len(nodes), 'node')}",
    )


def _unknown(evaluation: EvaluatedReading) -> Iterator[CheckResult]:
    for kind, comparison in (("queue", evaluation.status), ("node", evaluation.nodes)):
        if comparison.unknown:
            names = [quoted(name) for name in comparison.unknown]
            reasons = {reason for pods in comparison.unknown.values() for reason in pods}
            yield unknown(
                CHECK,
                f"the sum of {counted(len(names), kind)} is unknown: {listed(names)}; pods:"
                f" {listed(reasons)}",
            )


def _unknown_subgroups(reading: Reading) -> list[Difference]:
    """Return the pods whose PodGroup lacks their subgroup.

    KAI's scheduler does not count such a pod in its queue and cannot evict it (`job_info.go`, AddTaskInfo,
    v0.9.8 to v0.17.0). A change of the owner, such as fewer groups of workers, has the same effect.
    """
    pods = {}
    for pod in reading.pods.items:
        group = reading.group_of(pod)
        if group is not None and pod.deleted_at is None and pod.subgroup not in group.pod_subgroups:
            pods[pod.name] = f"{pod.name} (subgroup {quoted(pod.subgroup)})"
    if not pods:
        return []
    finding = problem(
        CHECK,
        f"{counted(len(pods), 'pod')} with GPUs in a subgroup that the PodGroup lacks, which KAI counts in no"
        f" queue: {listed(pods.values())}",
        f"compare the label {keys.SUBGROUP_NAME} with spec.subGroups of the PodGroup; {REMEDY}",
    )
    return [Difference(key=("subgroups",), evidence=pods.keys(), finding=finding)]


def _age(age: timedelta) -> str:
    return "more than a day ago" if age > timedelta(days=1) else f"{age // timedelta(minutes=1)} min ago"


def _deleted_pods(reading: Reading) -> Iterator[CheckResult]:
    """Yield a warning about deleted pods that still hold GPUs minutes later.

    KAI's scheduler no longer counts them in their queue (`pod_status.go`: Releasing is not allocated), and
    counts them on their node.
    """
    deleted = [
        (pod, pod.deleted_at)
        for pod in reading.pods.items
        if pod.deleted_at is not None and reading.queue_of(pod) is not None
    ]
    if deleted and reading.now is None:
        yield unknown(CHECK, "the API server's time is unknown: deleted pods that still run were not checked")
    if reading.now is None:
        return
    old = {f"{pod.name} ({_age(reading.now - at)})" for pod, at in deleted if reading.now - at > _LONG}
    if old:
        yield warning(
            CHECK,
            f"{counted(len(old), 'deleted pod')} with GPUs, which KAI no longer counts in a queue:"
            f" {listed(old)}",
            "compare terminationGracePeriodSeconds and finalizers of these pods, and look at their nodes; the"
            " pods of a lost node end when the Node is deleted",
        )


def rank_findings(reading: Reading, namespaces: Collection[str]) -> Iterator[CheckResult]:
    """Yield a warning about ranks of one job on one GPU, else the number of ranks; nothing without ranks.

    Pods with the same PodGroup belong to one job.

    Args:
        reading: the pods.
        namespaces: namespaces whose ranks are to keep their whole GPUs.
    """
    ranks = [pod for pod in reading.pods.items if pod.evidence and pod.namespace in namespaces]
    by_gpu: dict[tuple[str, str, str], list[GpuRequest]] = {}
    for pod in ranks:
        for gpu in pod.gpu_groups if pod.pod_group else ():
            by_gpu.setdefault((pod.namespace, pod.pod_group, gpu), []).append(pod)
    together = {
        f"{pod.name} ({pod.evidence})": None for pods in by_gpu.values() if len(pods) > 1 for pod in pods
    }
    if together:
        yield warning(
            _RANKS,
            f"{counted(len(together), 'rank')} on a GPU with another rank of the job: {listed(together)}",
            'give ranks whole GPUs: annotation kaishare.dev/whole-gpu: "true" in the template, and no share;'
            " or allow it with kaishare.dev/distributed=share on the namespace",
        )
    elif ranks:
        whole = sum(pod.share is None for pod in ranks)
        yield ok(_RANKS, f"no GPU has two ranks of a job; {counted(whole, 'rank')} with whole GPUs")


_PAUSE_SECONDS: Final = 4.0
"""Pause before the second reading. KAI writes its status about a second after a change."""

_CONTROLLERS: Final = frozenset({"podgroupcontroller", "queuecontroller"})
"""KAI's programs that write the status of PodGroups and queues."""

_WITHOUT: Final = "the requests of pods were not compared with KAI's figures"
_PODS: Final = ListSpec(
    resource="pods",
    params={"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
    without=_WITHOUT,
)


async def accounting_findings(
    reader: ApiReader, cluster: Cluster, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> list[CheckResult]:
    """Return findings about pods whose requests differ from KAI's figures.

    A difference in the first reading is reported only if a second reading has it, too.

    Args:
        reader: for the API server.
        cluster: the state of the cluster, with the queues, PodGroups and nodes of the first reading.
        sleep: waits for a number of seconds.
    """
    if cluster.queues.outcome is ListOutcome.UNSERVED:
        return []  # the check of the queues reports it
    first = await _read(reader, cluster)
    if first is None:
        return [unknown(CHECK, f"not checked: {_WITHOUT}, because they could not be read")]
    evaluation = last = evaluate(first)
    if evaluation.differences:
        await sleep(_PAUSE_SECONDS)
        again = await _read(reader, await reread(reader, cluster))
        if again is None:
            return [unknown(CHECK, f"{_WITHOUT}, because the second reading failed")]
        last = evaluate(again)
    keeping = {name for name, policy in cluster.managed.items() if policy.distributed is Distributed.KEEP}
    ranks = rank_findings(last.reading, keeping)
    return [*persistent_findings(evaluation, last), *ranks]


async def _read(reader: ApiReader, cluster: Cluster) -> Reading | None:
    """Read the pods; None if queues, PodGroups or pods could not be read."""
    if not cluster.queues.is_known or not cluster.pod_groups.is_known:
        return None
    installation, version = cluster.installation, cluster.kai_version
    versions = installation.versions if installation else ()
    read_pod = partial(
        read_request,
        schedulers=_schedulers(cluster),
        reservation_namespace=installation.reservation_namespace if installation else RESERVATION_NAMESPACE,
        reads_container_memory=any(release.reads_container_memory for release in versions),
    )
    pods = await reader.list(_PODS, read_pod)
    if not pods.is_known:
        return None
    return Reading(
        queues=cluster.queues,
        pod_groups=cluster.pod_groups,
        pods=pods,
        nodes=cluster.nodes,
        sums_by_label=version.sums_queues_by_label if version else None,
        has_controllers=installation is not None and installation.programs.keys() >= _CONTROLLERS,
        now=reader.client.server_time(),
    )


def _schedulers(cluster: Cluster) -> frozenset[str]:
    """Return the names of KAI's schedulers, by its webhook and by the policies."""
    matched = matched_schedulers(cluster) or {keys.SCHEDULER_NAME}
    policies = {policy.scheduler for policy in cluster.managed.values()}
    return frozenset((matched | policies) - {keys.DEFAULT_SCHEDULER})
