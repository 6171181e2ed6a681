"""Finds ranks of distributed jobs that share a GPU, among the pods that the accounting has read. Pure."""

from collections.abc import Collection, Iterator
from typing import Final

from service.check_results import CheckResult, ok, warning
from service.text import counted, listed
from webhook.doctor.accounting.reading import Reading
from webhook.doctor.accounting.requests import GpuRequest

_CHECK: Final = "distributed jobs"


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
            _CHECK,
            f"{counted(len(together), 'rank')} on a GPU with another rank of the job: {listed(together)}",
            'give ranks whole GPUs: annotation kaishare.dev/whole-gpu: "true" in the template, and no share;'
            " or allow it with kaishare.dev/distributed=share on the namespace",
        )
    elif ranks:
        whole = sum(pod.share is None for pod in ranks)
        yield ok(_CHECK, f"no GPU has two ranks of a job; {counted(whole, 'rank')} with whole GPUs")
