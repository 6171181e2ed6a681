"""Pods that wait for KAI, and how long pods waited.

KAI has no figure of a queue's pending pods or of their wait: its `kai_queue_…` series are about resources,
and `kai_task_scheduling_latency_milliseconds` has no label. That holds for v0.9.8, v0.13.4 and v0.17.0
(pkg/queuecontroller/metrics/metrics.go, pkg/scheduler/metrics/metrics.go). So the pods are counted by
kube-state-metrics, which has `kube_pod_scheduler` since v2.11. It knows the queue of a pod if its option
`--metric-labels-allowlist=pods=[kai.scheduler/queue]` allows the label.
"""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.panels import COUNT, SECONDS, Column, Query, TableLayout, lines, rows
from deploy.dashboards.queries import CLUSTER, join, rate

_POD: Final = "cluster, namespace, uid"
_TEAM: Final = "cluster, namespace, queue"
_SCHEDULED: Final = f"kube_pod_status_scheduled_time{{{CLUSTER}}}"
_CREATED: Final = f"max by (cluster, uid) (kube_pod_created{{{CLUSTER}}})"
_QUEUES: Final = (
    f"max by (cluster, uid, queue) (label_replace(kube_pod_labels{{{CLUSTER}}}, "
    '"queue", "$1", "label_kai_scheduler_queue", "(.+)"))'
)


def of_kai() -> str:
    """Return 1 for each pod that asks for KAI's scheduler."""
    where = join(CLUSTER, 'name=~"$kai_scheduler"')
    return f"max by ({_POD}) (kube_pod_scheduler{{{where}}})"


def waiting() -> str:
    """Return 1 for each pod of KAI's that is on no node; a pod that pulls its images is pending, too."""
    pending = f'kube_pod_status_phase{{{CLUSTER}, phase="Pending"}} == 1'
    return f"({of_kai()} and on (cluster, uid) ({pending}) unless on (cluster, uid) {_SCHEDULED})"


def _with_queue(pods: str) -> str:
    """Add the queue to a figure of pods, where kube-state-metrics knows the pod's labels."""
    labelled = f"({pods}) * on (cluster, uid) group_left (queue) (0 * {_QUEUES} + 1)"
    return f"({labelled} or ({pods}) unless on (cluster, uid) {_QUEUES})"


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    wait = _with_queue(f"(time() - {_CREATED}) * on (cluster, uid) group_right () {waiting()}")
    lately = f"max by (cluster, uid) ({_SCHEDULED} > time() - 3600)"
    waited = _with_queue(f"{of_kai()} * on (cluster, uid) group_left () ({lately} - {_CREATED})")
    latency = "kai_task_scheduling_latency_milliseconds"
    return [
        rows(
            "Pods waiting for KAI, by namespace and queue",
            "Who waits for a place, and for how long? From the creation of the pods on. The columns of the "
            "last hour are about pods that got a node in it and still exist. queue is empty unless "
            "kube-state-metrics runs with --metric-labels-allowlist=pods=[kai.scheduler/queue]. Needs "
            "kube-state-metrics 2.11 or later; kaishare why names the cause for one pod.",
            TableLayout(
                labels=tuple(_TEAM.split(", ")),
                sort_by="longest wait",
                links=(links.to_namespace("agent_job"),),
            ),
            Column(title="longest wait", expr=f"max by ({_TEAM}) ({wait})", unit=SECONDS),
            Column(title="waiting", expr=f"count by ({_TEAM}) ({wait})"),
            Column(title="placed in the last hour", expr=f"count by ({_TEAM}) ({waited})"),
            Column(title="their mean wait", expr=f"avg by ({_TEAM}) ({waited})", unit=SECONDS),
            Column(title="their longest wait", expr=f"max by ({_TEAM}) ({waited})", unit=SECONDS),
            no_value="none, or kube-state-metrics is not scraped",
        ),
        lines(
            "Pods waiting for KAI over time",
            "When did pods pile up? Needs kube-state-metrics.",
            Query(expr=f"count by (cluster) ({waiting()})", legend="{{cluster}}"),
            width=8,
        ),
        lines(
            "Mean wait of placed pods, by KAI",
            "How long did the pods wait that KAI placed at each time, from their creation to KAI's "
            "decision? Of all queues: KAI's figure has no label. Its largest bucket is 2.56 s, so there is "
            "no quantile.",
            Query(
                expr=f"sum by (cluster, vcluster) ({rate(latency + '_sum')}) / 1000 "
                f"/ (sum by (cluster, vcluster) ({rate(latency + '_count')}) > 0)",
                legend="{{cluster}} {{vcluster}}",
            ),
            unit=SECONDS,
            width=8,
        ),
        lines(
            "Pods placed by KAI, in a minute",
            "Does KAI place pods at all? By KAI's own count.",
            Query(
                expr=f"60 * sum by (cluster, vcluster) ({rate(latency + '_count')})",
                legend="{{cluster}} {{vcluster}}",
            ),
            unit=COUNT,
            width=8,
        ),
    ]
