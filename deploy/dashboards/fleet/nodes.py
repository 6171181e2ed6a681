"""The nodes, and memory and utilisation of their GPUs."""

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.fleet.shared import TO_NODE
from deploy.dashboards.panels import (
    BYTES,
    RATIO,
    Column,
    Query,
    TableLayout,
    lines,
    red_from,
    rows,
)
from deploy.dashboards.queries import (
    CLUSTER,
    GPU_LABELS,
    gpu,
    known_or_zero,
    promised_ratio,
    ratio,
    reported_gpus,
)


def panels() -> list[model.Panel]:
    """Return the panels of this section."""

    def of_nodes(part: str, whole: str) -> str:
        return ratio(part, whole, "cluster, node")

    flags = f"kaishare_pod_flagged{{{CLUSTER}}}"
    flagged_pods = f"count by (cluster, node) (count by (cluster, node, uid) ({flags} == 1))"
    return [
        rows(
            "Nodes",
            "Which nodes are full, and which have flags? Promised in red: more than the GPUs' memory. An "
            "empty cell is unknown. Click a node for its dashboard.",
            TableLayout(labels=("cluster", "node"), sort_by="promised", links=(TO_NODE,)),
            Column(
                title="GPUs",
                expr=f"count by (cluster, node) (group by ({GPU_LABELS}) ({reported_gpus()}))",
            ),
            Column(title="total", expr=f"sum by (cluster, node) ({gpu('total')})", unit=BYTES),
            Column(
                title="promised",
                expr=promised_ratio("cluster, node"),
                unit=RATIO,
                limits=red_from(1.01),
            ),
            Column(title="used", expr=of_nodes(gpu("used"), gpu("total")), unit=RATIO),
            Column(title="hosts' processes", expr=f"sum by (cluster, node) ({gpu('host')})", unit=BYTES),
            Column(
                title="flagged pods",
                expr=known_or_zero(flagged_pods, flags, "cluster, node"),
                limits=red_from(1),
            ),
            height=10,
        ),
        lines(
            "Used, by node",
            "Which nodes' GPUs fill up? Used memory divided by total.",
            Query(expr=of_nodes(gpu("used"), gpu("total")), legend="{{cluster}} {{node}}"),
            unit=RATIO,
            width=8,
        ),
        lines(
            "Promised, by node",
            "Which nodes are booked out? Promised memory divided by the memory that KAI counts.",
            Query(expr=promised_ratio("cluster, node"), legend="{{cluster}} {{node}}"),
            unit=RATIO,
            limits=red_from(1.01),
            width=8,
        ),
        lines(
            "Utilisation of GPUs by dcgm-exporter, mean of a node",
            "Do the GPUs compute, whatever pods hold? Needs dcgm-exporter and the recorded figure "
            "gpu:dcgm_utilization:ratio.",
            Query(
                expr="avg by (cluster, node) (gpu:dcgm_utilization:ratio "
                "* on (cluster, gpu_uuid) group_left (node) "
                f"group by (cluster, gpu_uuid, node) ({reported_gpus()}))",
                legend="{{cluster}} {{node}}",
            ),
            unit=RATIO,
            width=8,
        ),
    ]
