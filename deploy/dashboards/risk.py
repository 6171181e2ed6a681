"""PromQL for memory at risk: pods above their shares, pods that lack memory, restarts, and the next full GPU.

All pods of a GPU count, whichever the dashboard's variables select, because any of them can be the cause.

kube-state-metrics labels a pod's series with `namespace`, `pod`, `container` and `uid`
(its page pod-metrics.md). Joins use `uid`: a scrape without honor_labels renames the first
two, and `uid` is that of the host's pod for pods of vClusters, too.
"""

from typing import Final

from deploy.dashboards.queries import (
    AGENT_JOB,
    CLUSTER,
    GPU_LABELS,
    POD_LABELS,
    POD_ON_GPU,
    SHARE,
    gpu,
    join,
    share,
    used,
)

_OFFENCES: Final = 'gpu_uuid!="", reason=~"over-share|limit-bypassed|unassigned-gpu|no-share"'
"""Reasons of flags for memory that other pods on the GPU may need."""
_WINDOW: Final = "1h"
_CONTAINER: Final = "cluster, uid, container"
_RESTARTS: Final = f"kube_pod_container_status_restarts_total{{{CLUSTER}}}"


def at_risk(where: str = CLUSTER) -> str:
    """Return the bytes of each GPU that its pods are still promised and that are not free."""
    return f"max by ({GPU_LABELS}) (kaishare_gpu_at_risk_bytes{{{where}}})"


def free(where: str = CLUSTER) -> str:
    """Return the free memory of each GPU; deploy/mixin/rules.libsonnet computes it in the same way."""
    rest = f"{gpu('total', where)} - {gpu('used', where)}"
    return f"({rest} - {gpu('reserved', where)} or {rest})"


def of_gpus(figure: str, where: str = CLUSTER) -> str:
    """Return a figure by `cluster, node, gpu_uuid` with all labels of the GPU."""
    return f"0 * {at_risk(where)} + on (cluster, node, gpu_uuid) group_left () ({figure})"


def above_share(where: str) -> str:
    """Return what each pod holds above its share of a GPU; a pod without a share there has a share of 0.

    The agent counts a risk in the same way (docs/metrics.md). On a GPU whose risk is unknown, the share of
    such a pod can be unknown, too.
    """
    without = f"{used(where)} > 0 unless on ({POD_ON_GPU}) {SHARE}{{{where}}}"
    return f"({used(where)} - {share(where)} > 0 or {without})"


def left_of_share(where: str) -> str:
    """Return what each pod is promised on a GPU and does not use."""
    return f"({share(where)} - {used(where)} > 0)"


def on_gpus_at_risk(figure: str, where: str = CLUSTER) -> str:
    """Return the series of a figure of pods whose GPU is at risk."""
    return f"({figure} and on (cluster, gpu_uuid) kaishare_gpu_at_risk_bytes{{{where}}} > 0)"


def neighbours(where: str = CLUSTER) -> str:
    """Return 0 for each pod that shared a GPU with an offender, or a GPU at risk, in the last hour.

    Pods above their shares, now or flagged in that hour, are left out. Pods that have ended are included.
    """
    flags = f"max_over_time(kaishare_pod_flagged{{{join(where, _OFFENCES)}}}[{_WINDOW}]) == 1"
    troubled = f"max_over_time(kaishare_gpu_at_risk_bytes{{{where}}}[{_WINDOW}]) > 0"
    return (
        f"(0 * max by ({POD_LABELS}) (last_over_time({SHARE}{{{where}}}[{_WINDOW}])) "
        f"and on (cluster, gpu_uuid) ({troubled} or {flags}) "
        f"unless on ({POD_ON_GPU}) ({flags} or {above_share(where)}))"
    )


def restarts() -> str:
    """Return the restarts of each pod's containers in the last hour, by `cluster, uid`.

    A difference needs two samples of each container, where increase() over all containers of a cluster reads
    an hour of them. The count is unknown for a pod older than an hour whose count an hour ago is unknown.
    """
    now = f"max by ({_CONTAINER}) ({_RESTARTS})"
    young = f"kube_pod_created{{{CLUSTER}}} > time() - 3600"
    return (
        f"sum by (cluster, uid) ({now} - max by ({_CONTAINER}) ({_RESTARTS} offset {_WINDOW}) "
        f"or {now} and on (cluster, uid) {young})"
    )


def last_ended(reason: str) -> str:
    """Return the number of each pod's containers whose last run ended for a reason, by `cluster, uid`."""
    ended = f'kube_pod_container_status_last_terminated_reason{{{CLUSTER}, reason="{reason}"}}'
    return f"count by (cluster, uid) (max by ({_CONTAINER}) ({ended}) == 1)"


def failed() -> str:
    """Return 1 for each pod of phase Failed, which does not restart, by `cluster, uid`."""
    return f'(max by (cluster, uid) (kube_pod_status_phase{{{CLUSTER}, phase="Failed"}}) == 1)'


def hit_neighbours(where: str = CLUSTER) -> str:
    """Return the restarts of the neighbours that restarted in the last hour, and 0 for those that failed."""
    return f"{neighbours(where)} + on (cluster, uid) group_left () ({restarts()} > 0 or 0 * {failed()})"


def forecast(figure: str) -> str:
    """Return `gpu:kaishare_gpu_memory_…` of each GPU, smallest of the agents that report it."""
    return f"min by ({GPU_LABELS}) (gpu:kaishare_gpu_memory_{figure}{{{join(CLUSTER, AGENT_JOB)}}})"
