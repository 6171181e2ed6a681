"""Finds bound pods that KAI no longer counts in their queue."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from kai import keys
from service.check_results import CheckResult, problem, unknown, warning
from service.text import counted, listed, quoted
from webhook.doctor.accounting.reading import CHECK, REMEDY, Difference, Reading

_LONG: Final = timedelta(minutes=5)
"""Age of a request to delete a pod from which the pod is reported; most pods end within 30 s."""


def unknown_subgroups(reading: Reading) -> list[Difference]:
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


def deleted_pods(reading: Reading) -> Iterator[CheckResult]:
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
