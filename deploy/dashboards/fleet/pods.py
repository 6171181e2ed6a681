"""The pods with the most memory, and their use of it."""

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.fleet.shared import POD_LABELS, SELECTED, TO_NODE
from deploy.dashboards.panels import (
    BYTES,
    RATIO,
    Query,
    TableLayout,
    largest,
    lines,
    rows,
)
from deploy.dashboards.pods import pod_columns, use_of_share
from deploy.dashboards.queries import (
    UTILIZATION,
    pod,
    used,
)


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    return [
        rows(
            "Pods by used memory of their share",
            "Which pods need more than they have, or much less? Use of share in red: above the share by "
            "more than 5 %. Flagged is empty while the pod is not evaluated. Utilisation is empty where the "
            "driver does not report it, used where it is unknown.",
            TableLayout(
                labels=POD_LABELS, sort_by="use of share", links=(links.to_namespace("agent_job"), TO_NODE)
            ),
            *largest(
                50,
                *pod_columns(SELECTED, has_time_over=False),
                rank=use_of_share(SELECTED),
            ),
            height=10,
        ),
        lines(
            "Used, by pod",
            "Which pods hold the most memory? The 20 largest of each cluster.",
            Query(
                expr=f"topk by (cluster) (20, sum by (cluster, namespace, pod) ({used(SELECTED)}))",
                legend="{{cluster}} {{namespace}}/{{pod}}",
            ),
            unit=BYTES,
        ),
        lines(
            "Utilisation, by pod",
            "Which pods compute? Share of the time in which the pod had a kernel on the GPU; the 20 busiest "
            "of each cluster. Not the occupancy of the GPU. No line: the driver does not report it for that "
            "pod.",
            Query(
                expr="topk by (cluster) "
                f"(20, max by (cluster, namespace, pod) ({pod(UTILIZATION, SELECTED)}))",
                legend="{{cluster}} {{namespace}}/{{pod}}",
            ),
            unit=RATIO,
        ),
    ]
