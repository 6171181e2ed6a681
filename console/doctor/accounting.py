"""The checks `accounting` and `distributed jobs`: the books of KAI, counted once more."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

from console.cluster.facts import FactReader, Listing, Why, items
from console.doctor.accounting_sums import (
    Evaluation,
    GpuRequest,
    Reading,
    evaluate,
    read_request,
)
from console.doctor.check_results import CheckResult, limited, named, ok, unknown, warning
from console.doctor.cluster_state import ClusterFacts, reread
from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from kube.kinds import PODS, Kind
from service.text import counted, listed, quoted
from webhook.policy.labels import Distributed

_LONG: Final = timedelta(minutes=5)
"""Age of a request to delete a pod from which the pod is reported; most pods end within 30 s."""
_PAUSE_SECONDS: Final = 4.0
"""Pause before the second reading. KAI writes its status about a second after a change."""
_CONTROLLERS: Final = frozenset({"podgroupcontroller", "queuecontroller"})
"""KAI's programs that write the status of PodGroups and queues."""
_WITHOUT: Final = "the requests of pods were not compared with KAI's figures"
_BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
_PODS: Final[Kind[Any]] = PODS


async def requests_add_up(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield findings about pods whose requests differ from KAI's figures.

    A difference in the first reading is reported only if a second reading has it, too.
    """
    if cluster.queues.why is Why.UNSERVED:
        return  # the check of the queues reports it
    first = await _read(reader, cluster)
    if first is None:
        yield unknown(f"not checked: {_WITHOUT}, because they could not be read")
        return
    evaluation = last = evaluate(first)
    if evaluation.differences:
        await asyncio.sleep(_PAUSE_SECONDS)
        again = await _read(reader, await reread(reader, cluster))
        if again is None:
            yield unknown(f"{_WITHOUT}, because the second reading failed")
            return
        last = evaluate(again)
    keeping = {name for name, policy in cluster.managed.items() if policy.distributed is Distributed.KEEP}
    ranks = named("distributed jobs", rank_findings(last.reading, keeping))
    for result in (*persistent_findings(evaluation, last), *ranks):
        yield result


async def _read(reader: FactReader, cluster: ClusterFacts) -> Reading | None:
    """Read the pods; None if queues, PodGroups or pods could not be read."""
    if cluster.queues.value is None or cluster.pod_groups.value is None:
        return None
    installed, version = cluster.installation, cluster.kai_version
    schedulers = cluster.matched_schedulers or {keys.SCHEDULER_NAME}
    schedulers |= {policy.scheduler for policy in cluster.managed.values()}
    read = partial(
        read_request,
        schedulers=schedulers - {keys.DEFAULT_SCHEDULER},
        reservation_namespace=installed.reservation_namespace if installed else RESERVATION_NAMESPACE,
        reads_container_memory=any(release.reads_container_memory for release in cluster.versions),
    )
    pods: Listing[GpuRequest] = await reader.list(_PODS, query=_BOUND, decode=read)
    if pods.value is None:
        return None
    return Reading(
        queues=cluster.queues,
        pod_groups=cluster.pod_groups,
        pods=pods,
        nodes=cluster.nodes,
        sums_by_label=version.sums_queues_by_label if version else None,
        has_controllers=installed is not None and installed.programs.keys() >= _CONTROLLERS,
        now=cluster.now,
    )


def persistent_findings(first: Evaluation, last: Evaluation) -> Iterator[CheckResult]:
    """Yield the findings that both readings have in common; they may be the same reading."""
    findings = [
        difference.finding
        for key, difference in last.differences.items()
        if difference.persists_since(first.differences.get(key))
    ]
    yield from limited(findings, "more difference")
    deleted = list(_deleted_pods(last.reading))
    yield from deleted
    for kind in ("queue", "node"):
        unclear = last.unknown[kind]
        if unclear:
            reasons = {reason for pods in unclear.values() for reason in pods}
            yield unknown(
                f"the sum of {counted(len(unclear), kind)} is unknown:"
                f" {listed([quoted(name) for name in unclear])}; pods: {listed(reasons)}",
            )
    if not last.reading.has_figures:
        yield unknown(
            "KAI has written no figures: the requests of pods were compared with limits and nodes only",
            "run KAI with its podgroupcontroller and queuecontroller",
        )
    changing = len(last.differences) - len(findings)
    if changing:
        yield unknown(
            f"{counted(changing, 'figure')} changed between two readings, and could not be compared",
            "run doctor again",
        )
    if last.reading.is_whole and last.reading.has_figures and not findings and not deleted:
        pods = counted(len(items(last.reading.pods)), "pod")
        queues, nodes = counted(last.compared["queue"], "queue"), counted(last.compared["node"], "node")
        yield ok(f"the requests of {pods} add up to KAI's figures in {queues} and fit on {nodes}")


def _age(age: timedelta) -> str:
    return "more than a day ago" if age > timedelta(days=1) else f"{age // timedelta(minutes=1)} min ago"


def _deleted_pods(reading: Reading) -> Iterator[CheckResult]:
    """Yield a warning about deleted pods that still hold GPUs minutes later.

    KAI's scheduler no longer counts them in their queue (`pod_status.go`: Releasing is not allocated), and
    counts them on their node.
    """
    deleted = [
        (pod, pod.deleted_at)
        for pod in items(reading.pods)
        if pod.deleted_at is not None and reading.queue_of(pod) is not None
    ]
    if deleted and reading.now is None:
        yield unknown("the API server's time is unknown: deleted pods that still run were not checked")
    if reading.now is None:
        return
    old = {f"{pod.name} ({_age(reading.now - at)})" for pod, at in deleted if reading.now - at > _LONG}
    if old:
        yield warning(
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
    ranks = [pod for pod in items(reading.pods) if pod.evidence and pod.namespace in namespaces]
    by_gpu: dict[tuple[str, str, str], list[GpuRequest]] = {}
    for pod in ranks:
        for gpu in pod.gpu_groups if pod.pod_group else ():
            by_gpu.setdefault((pod.namespace, pod.pod_group, gpu), []).append(pod)
    together = {
        f"{pod.name} ({pod.evidence})": None for pods in by_gpu.values() if len(pods) > 1 for pod in pods
    }
    if together:
        yield warning(
            f"{counted(len(together), 'rank')} on a GPU with another rank of the job: {listed(together)}",
            'give ranks whole GPUs: annotation kaishare.dev/whole-gpu: "true" in the template, and no share;'
            " or allow it with kaishare.dev/distributed=share on the namespace",
        )
    elif ranks:
        whole = sum(pod.share is None for pod in ranks)
        yield ok(f"no GPU has two ranks of a job; {counted(whole, 'rank')} with whole GPUs")
