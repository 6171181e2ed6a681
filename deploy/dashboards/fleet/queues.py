"""Queues beside the figures of KAI, and namespaces."""

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.capacity import saved_gpus
from deploy.dashboards.fleet.shared import SELECTED
from deploy.dashboards.panels import (
    BYTES,
    RATIO,
    Column,
    Query,
    TableLayout,
    largest,
    lines,
    red_from,
    rows,
)
from deploy.dashboards.queries import (
    CLUSTER,
    SHARE,
    UTILIZATION,
    join,
    pod,
    ratio,
    share,
    used,
)


def _pods(source: str) -> str:
    """Return the number of pods of each namespace whose shares have a source."""
    pods = f"{SHARE}{{{join(SELECTED, source)}}}"
    return f"count by (cluster, namespace) (count by (cluster, namespace, uid) ({pods}))"


def panels() -> list[model.Panel]:
    """Return the panels of this section."""

    def of_queue(figure: str) -> str:
        where = join(CLUSTER, 'vcluster=~"$origin", vcluster=~"$vcluster", queue=~"$queue"')
        figures = f"max by (cluster, vcluster, queue) (queue:{figure}{{{where}}})"
        # Grafana merges a row without the label into any row with the same queue.
        return f'label_replace({figures}, "vcluster", "(host)", "vcluster", "")'

    shared, whole = (_pods(f'source{operator}"whole-gpu"') for operator in ("!=", "="))
    return [
        rows(
            "Queues, beside KAI's figures",
            "Do queues use what KAI allocated to them? In GPUs. Deserved and allocated are KAI's, from its "
            "metrics; a queue without a quota has no deserved. Needs the recorded figures. A KAI on the "
            "host counts the pods of all vClusters in one row.",
            TableLayout(labels=("cluster", "vcluster", "queue"), sort_by="promised"),
            Column(title="deserved", expr=of_queue("kai_queue_deserved_gpus:max")),
            Column(title="allocated", expr=of_queue("kai_queue_allocated_gpus:max")),
            Column(title="promised", expr=of_queue("kaishare_gpus_promised:sum")),
            Column(title="used", expr=of_queue("kaishare_gpus_used:sum")),
            Column(
                title="used of allocated", expr=of_queue("kaishare_gpus_used_allocated:ratio"), unit=RATIO
            ),
            width=12,
        ),
        rows(
            "Namespaces",
            "Which namespaces hold how much? Use of shares counts pods of which used memory and share are "
            "known; red: above 105 %. Click a namespace for its dashboard.",
            TableLayout(
                labels=("cluster", "namespace"), sort_by="share", links=(links.to_namespace("agent_job"),)
            ),
            *largest(
                50,
                Column(title="share", expr=f"sum by (cluster, namespace) ({share(SELECTED)})", unit=BYTES),
                Column(title="used", expr=f"sum by (cluster, namespace) ({used(SELECTED)})", unit=BYTES),
                Column(
                    title="use of shares",
                    expr=ratio(used(SELECTED), share(SELECTED), "cluster, namespace"),
                    unit=RATIO,
                    limits=red_from(1.05),
                ),
                on="cluster, namespace",
            ),
            width=12,
        ),
        rows(
            "Shares and whole GPUs, by namespace",
            "Which namespaces share GPUs, and which still take whole ones? Pods, whether their authors or "
            "the webhook asked for the share: no metric tells the two apart by namespace. saved: GPUs that "
            "whole ones would take in addition. A whole GPU counts once its pod uses it. Click a namespace "
            "for its dashboard.",
            TableLayout(
                labels=("cluster", "namespace"),
                sort_by="pods with a share",
                links=(links.to_namespace("agent_job"),),
            ),
            *largest(
                50,
                Column(title="pods with a share", expr=shared),
                Column(title="pods with whole GPUs", expr=whole),
                Column(title="saved", expr=saved_gpus(SELECTED, "cluster, namespace")),
                on="cluster, namespace",
                rank=f"({shared} or 0 * {whole})",
            ),
        ),
        lines(
            "Used, by queue",
            "Which queues' pods hold memory?",
            Query(
                expr=f"sum by (cluster, vcluster, queue) ({used(SELECTED)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=BYTES,
            width=8,
        ),
        lines(
            "Promised, by queue",
            "To which queues' pods is memory promised?",
            Query(
                expr=f"sum by (cluster, vcluster, queue) ({share(SELECTED)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=BYTES,
            width=8,
        ),
        lines(
            "Utilisation, mean of a queue's pods",
            "Do queues compute with what they hold? Mean over the pods whose utilisation the driver "
            "reports; others are left out.",
            Query(
                expr=f"avg by (cluster, vcluster, queue) ({pod(UTILIZATION, SELECTED)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=RATIO,
            width=8,
        ),
    ]
