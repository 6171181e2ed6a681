"""PromQL that several dashboards share: selectors, one series for each GPU and pod, capacity, and waste.

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
POD_ON_GPU: Final = "cluster, uid, gpu_uuid"
"""Identity of a pod on a GPU."""

USED: Final = "kaishare_pod_gpu_memory_used_bytes"
SHARE: Final = "kaishare_pod_gpu_memory_share_bytes"
UTILIZATION: Final = "kaishare_pod_gpu_utilization_ratio"

WASTE_WINDOW: Final = "7d"
_AGES: Final = (("7d", 604_800), ("3d", 259_200), ("1d", 86_400), ("6h", 21_600), ("1h", 3_600))
_KNOWN_ENOUGH: Final = 0.9


def join(*selectors: str) -> str:
    """Join selectors, such as `CLUSTER` and `node="$node"`."""
    return ", ".join(selectors)


def gpu(figure: str, where: str = CLUSTER) -> str:
    """Return one series for each GPU; `figure` is the middle of `kaishare_gpu_memory_…_bytes`."""
    return f"max by ({GPU_LABELS}) (kaishare_gpu_memory_{figure}_bytes{{{where}}})"


def pod(metric: str, where: str = PODS) -> str:
    """Return one series for each pod and GPU."""
    return f"max by ({POD_LABELS}) ({metric}{{{where}}})"


def used(where: str = PODS) -> str:
    """Return the used memory of each pod on each GPU."""
    return pod(USED, where)


def share(where: str = PODS) -> str:
    """Return the share of each pod on each GPU."""
    return pod(SHARE, where)


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


# Capacity. KAI counts a fraction in hundredths of a GPU whose memory is rounded down to a multiple of 100 MiB
# (kai/memory.py), so this does too: 4 × 0.25 fills a GPU, although the bytes of the shares are less than its
# memory. 0.01 absorbs the bytes that `int(fraction × units)` cuts off.

_HUNDRED_MIB: Final = 104_857_600


def _kai_memory(where: str) -> str:
    return f"(floor({gpu('total', where)} / {_HUNDRED_MIB}) * {_HUNDRED_MIB})"


def free_hundredths(where: str = CLUSTER) -> str:
    """Return the unpromised hundredths of each GPU, without GPUs that have pods on MIG devices.

    A GPU whose promised memory is unknown has no series.
    """
    promised = f"ceil(100 * {gpu('promised', where)} / {_kai_memory(where)} - 0.01)"
    return (
        f"(clamp_min(100 - {promised}, 0) unless on (cluster, node, gpu) "
        f'kaishare_pod_gpu_memory_used_bytes{{{where}, gpu_uuid=~"MIG-.+"}})'
    )


def share_hundredths(where: str = PODS) -> str:
    """Return the hundredths of a GPU that each pod's share takes, with the GPU's model."""
    memory = _kai_memory(CLUSTER)
    of_pods = f"max by (cluster, uid, node, gpu_uuid) (kaishare_pod_gpu_memory_share_bytes{{{where}}})"
    return f"ceil(100 * {of_pods} / on (cluster, node, gpu_uuid) group_left (model) {memory} - 0.01)"


def room(hundredths: str, by: str = "cluster") -> str:
    """Return how many more shares of this many hundredths fit, summed over GPUs; no share spans two GPUs."""
    return f"sum by ({by}) (floor({free_hundredths()} / {hundredths}))"


def size_hundredths() -> str:
    """Return the largest share of the pods of `$size`, by model of the GPU."""
    pods = f'kaishare_pod_info{{{CLUSTER}, size!="", size=~"$size"}}'
    return f"max by (cluster, model) ({share_hundredths(CLUSTER)} and on (cluster, uid) {pods})"


def room_of_size() -> str:
    """Return how many more pods of `$size` fit on GPUs of each model on which such a pod runs."""
    free = free_hundredths()
    return f"sum by (cluster, model) (floor({free} / on (cluster, model) group_left () {size_hundredths()}))"


def free_in_small_pieces(hundredths: str) -> str:
    """Return the free hundredths on GPUs with less than this many."""
    free = free_hundredths()
    return f"sum by (cluster) ({free} < {hundredths}) or 0 * sum by (cluster) ({free})"


def fragmentation(hundredths: str) -> str:
    """Return the part of the free capacity that lies on GPUs with less than this many free hundredths."""
    return f"({free_in_small_pieces(hundredths)}) / (sum by (cluster) ({free_hundredths()}) > 0)"


# Waste. A pod is compared with the highest use of the last 7 days. The pod's age is known in steps, from the
# samples of its share at fixed times ago, because a subquery over 7 days would read a thousand times as much.


def peak(metric: str, where: str = PODS) -> str:
    """Return the highest value of a pod's metric in the last 7 days."""
    return f"max by ({POD_ON_GPU}) (max_over_time({metric}{{{where}}}[{WASTE_WINDOW}]))"


def of_current_pods(value: str, where: str = PODS) -> str:
    """Return a figure by pod and GPU with the labels of the pods that have a share now."""
    return f"0 * {share(where)} + on ({POD_ON_GPU}) group_left () ({value})"


def unused(where: str = PODS) -> str:
    """Return the part of each share that no sample of the last 7 days shows in use."""
    highest = peak(USED, where)
    return f"clamp_min({share(where)} - on ({POD_ON_GPU}) group_left () {highest}, 0)"


def known_part(where: str = PODS, metric: str = USED) -> str:
    """Return the part of the last 7 days' samples with a share that also have the metric."""

    def samples(name: str) -> str:
        return f"sum by ({POD_ON_GPU}) (count_over_time({name}{{{where}}}[{WASTE_WINDOW}]))"

    return f"clamp_max({samples(metric)} / {samples(SHARE)}, 1)"


def seen_seconds(series: str, by: str) -> str:
    """Return for how long at least a series exists: 7 d, 3 d, 1 d, 6 h, 1 h, or 0 for less than an hour."""
    steps = [f"{seconds} * group by ({by}) ({series} offset {offset})" for offset, seconds in _AGES]
    return " or ".join([*steps, f"0 * group by ({by}) ({series})"])


def seen(where: str = PODS) -> str:
    """Return for how long at least each pod has had a share on its GPU, in seconds."""
    return seen_seconds(f"{SHARE}{{{where}}}", POD_ON_GPU)


def judged(figure: str, where: str = PODS, metric: str = USED) -> str:
    """Return a figure of the current pods that are 7 days old, with the metric known for 90 % of it."""
    series = f"{SHARE}{{{where}}}"
    return (
        f"({figure} and on ({POD_ON_GPU}) {series} and on ({POD_ON_GPU}) {series} offset {WASTE_WINDOW} "
        f"and on ({POD_ON_GPU}) ({known_part(where, metric)} >= {_KNOWN_ENOUGH}))"
    )


# Counters.


def rate(metric: str, where: str = CLUSTER) -> str:
    """Return the rate of a counter over Grafana's interval."""
    return f"rate({metric}{{{where}}}[$__rate_interval])"


def began_or_grew(metric: str, where: str, window: str) -> str:
    """Return the growth of a counter that has no series before its first count.

    `increase()` does not see the first count. The counter is new if the same target was scraped a window ago.
    """
    series = f"{metric}{{{where}}}"
    return (
        f"(increase({series}[{window}]) > 0 or ({series} unless {series} offset {window} "
        f"and on (cluster, job, instance) up offset {window} == 1))"
    )
