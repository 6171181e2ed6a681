"""PromQL that several dashboards share: selectors, one series for each GPU and pod, ratios and counters.

- An aggregation keeps `cluster`, and a join matches on it. The label is absent where a Prometheus serves one
  cluster: the matcher `cluster=~"$cluster"` selects such series too, because `$cluster` at All is `.*`.
- `max by` over a GPU or a pod removes the labels of the scraped agent, so that an agent that replaces another
  doubles nothing.
- An unknown figure has no series. `known_or_zero` adds 0 only beside a series that proves the figure known.
"""

from typing import Final

CLUSTER: Final = 'cluster=~"$cluster"'
PODS: Final = f'{CLUSTER}, vcluster=~"$origin", vcluster=~"$vcluster"'
"""Pods of the host and of vClusters: `$origin` is a regular expression for the presence of the label."""
AGENT_UP: Final = f'up{{{CLUSTER}, job=~"$agent_job"}}'
WEBHOOK_UP: Final = f'up{{{CLUSTER}, job=~"$webhook_job"}}'

GPU_LABELS: Final = "cluster, node, gpu, gpu_uuid, model"
POD_LABELS: Final = (
    "cluster, namespace, pod, uid, vcluster, virtual_namespace, virtual_pod, queue, node, gpu, gpu_uuid"
)
AGENT_JOB: Final = 'job=~"$agent_job"'
"""Recorded figures of the agents: every scraped target can export their names."""
POD_ON_GPU: Final = "cluster, uid, gpu_uuid"
"""Identity of a pod on a GPU."""

USED: Final = "kaishare_pod_gpu_memory_used_bytes"
SHARE: Final = "kaishare_pod_gpu_memory_share_bytes"
UTILIZATION: Final = "kaishare_pod_gpu_utilization_ratio"
_HUNDRED_MIB: Final = 104_857_600
_REPORTED: Final = ("total", "promised", "host")
"""Figures of a GPU, of which each GPU that an agent reports has one at least."""


def join(*selectors: str) -> str:
    """Join selectors, such as `CLUSTER` and `node="$node"`."""
    return ", ".join(selectors)


def gpu(figure: str, where: str = CLUSTER) -> str:
    """Return one series for each GPU; `figure` is the middle of `kaishare_gpu_memory_…_bytes`."""
    return f"max by ({GPU_LABELS}) (kaishare_gpu_memory_{figure}_bytes{{{where}}})"


def counted(where: str = CLUSTER) -> str:
    """Return the memory of each GPU that KAI counts: whole hundreds of MiB (kai/share_bytes.py)."""
    return f"(floor({gpu('total', where)} / {_HUNDRED_MIB}) * {_HUNDRED_MIB} > 0)"


def promised_part(where: str = CLUSTER) -> str:
    """Return the promised part of the memory of each GPU that KAI counts.

    A pod with a whole GPU has it alone: then the total is promised, which is 1. deploy/mixin/rules.libsonnet
    counts in the same way.
    """
    promised = gpu("promised", where)
    return f"({promised} / {counted(where)} <= 1 or {promised} / {gpu('total', where)})"


def promised_ratio(by: str = "cluster", where: str = CLUSTER) -> str:
    """Return the promised part of the memory that KAI counts, over the GPUs of which both are known."""
    return ratio(f"{promised_part(where)} * {counted(where)}", counted(where), by)


def reported_gpus(where: str = CLUSTER) -> str:
    """Return series of every GPU that an agent reports, also of GPUs whose memory the driver does not report.

    The total is absent for GPUs with unified memory, and for those in MIG mode without the right to read it.
    deploy/mixin/alerts.libsonnet selects them in the same way.
    """
    return f"({' or '.join(_reported(where))})"


def once_reported_gpus(window: str) -> str:
    """Return series of every GPU that an agent reported within a window, such as `6h`."""
    return " or ".join(f"count_over_time({series}[{window}])" for series in _reported(CLUSTER))


def _reported(where: str) -> list[str]:
    return [f"kaishare_gpu_memory_{figure}_bytes{{{where}}}" for figure in _REPORTED]


def gpu_names(where: str = CLUSTER) -> str:
    """Return a selector of the series of `reported_gpus`, for the values of a variable."""
    return f'{{__name__=~"kaishare_gpu_memory_({"|".join(_REPORTED)})_bytes", {where}}}'


def pod(metric: str, where: str = PODS) -> str:
    """Return one series for each pod and GPU."""
    return f"max by ({POD_LABELS}) ({metric}{{{where}}})"


def used(where: str = PODS) -> str:
    """Return the used memory of each pod on each GPU."""
    return pod(USED, where)


def share(where: str = PODS) -> str:
    """Return the share of each pod on each GPU."""
    return pod(SHARE, where)


def time_over_share(where: str = PODS) -> str:
    """Return the seconds over the share in Grafana's time range, of each pod on each GPU.

    An agent that replaces another counts from 0 under its own instance: the pod's time is the sum of both.
    """
    by_instance = f"increase(kaishare_pod_over_share_seconds_total{{{where}}}[$__range])"
    return f"sum by ({POD_LABELS}) (max by (instance, {POD_LABELS}) ({by_instance}))"


def flagged(where: str = PODS) -> str:
    """Return 1 or 0 for each pod, GPU and reason."""
    return f"max by ({POD_LABELS}, reason) (kaishare_pod_flagged{{{where}}})"


def known_or_zero(count: str, evidence: str, by: str = "cluster") -> str:
    """Return a count, or 0 where it has no series and the evidence has one.

    Args:
        count: aggregated by `by`.
        evidence: the series that exist if and only if the count is known.
        by: labels of the result.
    """
    return f"({count}) or 0 * count by ({by}) ({evidence})"


def ratio(part: str, whole: str, by: str = "cluster") -> str:
    """Return sum(part) / sum(whole) over the series of which both are known."""
    return f"sum by ({by}) (({part}) and ({whole})) / sum by ({by}) (({whole}) and ({part}))"


def rate(metric: str, where: str = CLUSTER) -> str:
    """Return the rate of a counter over Grafana's interval."""
    return f"rate({metric}{{{where}}}[$__rate_interval])"


def began_or_grew(metric: str, where: str, window: str, seconds: str) -> str:
    """Return the growth of a counter that has no series before its first count.

    `increase()` sees neither the first count nor a restart after which the counter reaches its old value. The
    first count is recent if the same target was scraped a window ago, or if the process is younger than the
    window. deploy/mixin/alerts.libsonnet counts in the same way.

    Args:
        metric: a counter with labels.
        where: its selector.
        window: such as `5m`.
        seconds: the window in seconds.
    """
    series = f"{metric}{{{where}}}"
    target = "and on (cluster, job, instance)"
    return (
        f"(increase({series}[{window}]) > 0 "
        f"or ({series} unless {series} offset {window} {target} up{{{CLUSTER}}} offset {window} == 1) "
        f"or ({series} {target} time() - process_start_time_seconds{{{CLUSTER}}} < {seconds}))"
    )
