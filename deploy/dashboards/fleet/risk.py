"""Memory at risk: the GPUs, who is over, who is promised what is not free, and which neighbours restarted."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.fleet.shared import POD_LABELS, TO_NODE
from deploy.dashboards.panels import (
    BYTES,
    COUNT,
    RATIO,
    SECONDS,
    Column,
    Limits,
    Query,
    TableLayout,
    largest,
    lines,
    number,
    orange_below,
    orange_from,
    red_from,
    rows,
)
from deploy.dashboards.queries import CLUSTER, GPU_LABELS, gpu, known_or_zero, promised_part, reported_gpus
from deploy.dashboards.risk import (
    above_share,
    at_risk,
    forecast,
    free,
    hit_neighbours,
    of_gpus,
)
from deploy.dashboards.risk_tables import neighbours_table, pods_at_risk_table

_GPU: Final = ("cluster", "node", "gpu", "model")
_FULL_SOON: Final = Limits(first="red", steps=((4 * 3600, "orange"), (24 * 3600, "green")))
_HOURS_LEFT: Final = Limits(first="red", steps=((4, "orange"), (24, "green")))


def numbers() -> list[model.Panel]:
    """Return the first four numbers of the dashboard."""
    return [
        number(
            "GPUs at risk now",
            "On how many GPUs is memory that pods were promised not free? Their next allocation may fail. "
            "Red: the table GPUs at risk names them; see KaishareGPUMemoryAtRisk in docs/runbooks.md.",
            known_or_zero(f"count by (cluster) ({at_risk()} > 0)", at_risk()),
            limits=red_from(1),
        ),
        number(
            "Memory at risk",
            "How much memory were pods promised, do not use yet, and is not free? Red from the first byte.",
            f"sum by (cluster) ({at_risk()})",
            unit=BYTES,
            limits=red_from(1),
        ),
        number(
            "Neighbours that restarted, last hour",
            "How many pods restarted or failed in the last hour, on a GPU that was at risk or where another "
            "pod was flagged in that hour? Orange: the row At risk names them. A restart may have another "
            "cause.",
            known_or_zero(
                f"count by (cluster) (count by (cluster, uid) ({hit_neighbours()}))",
                f"{reported_gpus()} and on (cluster) kube_pod_container_status_restarts_total{{{CLUSTER}}}",
            ),
            limits=orange_from(1),
            no_value="no kube-state-metrics",
        ),
        number(
            "First GPU full in",
            "When does a GPU run out of memory, if it fills as in the last day? Red below 4 hours, orange "
            "below a day: the table GPUs that run out next names it. Needs the recorded figures.",
            f"min by (cluster) ({forecast('full:seconds')})",
            unit=SECONDS,
            limits=_FULL_SOON,
            no_value="not within 7 days, or unknown",
        ),
    ]


def tables() -> list[model.Panel]:
    """Return the first tables of the dashboard: GPUs at risk, and GPUs that are full next."""
    return [
        rows(
            "GPUs at risk",
            "On which GPUs is memory that pods were promised not free, and how much? Red: at risk. above "
            "shares is what pods there hold above their shares; empty: the shares exceed the GPU. Click a "
            "node for its pods; see KaishareGPUMemoryAtRisk in docs/runbooks.md.",
            TableLayout(labels=_GPU, sort_by="at risk", links=(TO_NODE,)),
            *largest(
                50,
                Column(title="at risk", expr=f"{at_risk()} > 0", unit=BYTES, limits=red_from(1)),
                Column(title="free", expr=free(), unit=BYTES),
                Column(
                    title="above shares",
                    expr=of_gpus(f"sum by (cluster, node, gpu_uuid) ({above_share(CLUSTER)})"),
                    unit=BYTES,
                ),
                on="cluster, node, gpu_uuid",
            ),
            no_value="no GPU is at risk, or unknown",
            width=12,
            height=6,
        ),
        rows(
            "GPUs that run out next",
            "Which GPU is full first, if it fills as in the last day? A trend and no promise: a pod that "
            "starts is a step, and reads as a trend for up to three hours. Red below 4 hours left, orange "
            "below 24. Listed are GPUs that also filled in the last 3 hours, and are full within 7 days. A "
            "GPU with samples of 6 hours or less is not listed. Needs the recorded figures.",
            TableLayout(labels=_GPU, sort_by="hours left", has_smallest_first=True, links=(TO_NODE,)),
            *largest(
                20,
                Column(
                    title="hours left",
                    expr=f"round({forecast('full:seconds')} / 360) / 10",
                    unit=COUNT,
                    limits=_HOURS_LEFT,
                ),
                Column(title="free", expr=forecast("free_bytes:min"), unit=BYTES),
                Column(
                    title="fills by, an hour", expr=f"-3600 * {forecast('free_bytes:deriv1d')}", unit=BYTES
                ),
                on=GPU_LABELS,
                rank=f"-1 * {forecast('full:seconds')}",
            ),
            no_value="none within 7 days, or samples of 6 hours or less",
            width=12,
            height=6,
        ),
    ]


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    return [
        pods_at_risk_table(CLUSTER, POD_LABELS, TO_NODE),
        neighbours_table(CLUSTER, POD_LABELS, TO_NODE),
        rows(
            "GPUs with the least free memory",
            "Which GPUs have the least memory left, for any process? A full GPU is no fault by itself: pods "
            "may use all that they were promised. Orange: less than 1 GiB free.",
            TableLayout(labels=_GPU, sort_by="free", has_smallest_first=True, links=(TO_NODE,)),
            *largest(
                20,
                Column(title="free", expr=free(), unit=BYTES, limits=orange_below(1 << 30)),
                Column(title="used", expr=f"{gpu('used')} / {gpu('total')}", unit=RATIO),
                Column(title="promised", expr=promised_part(), unit=RATIO),
                Column(title="at risk", expr=at_risk(), unit=BYTES),
                on=GPU_LABELS,
                rank=f"-1 * {free()}",
            ),
            width=14,
        ),
        lines(
            "Memory at risk over time",
            "When was promised memory not free, and on which nodes? The 20 nodes with most of it.",
            Query(
                expr=f"topk by (cluster) (20, sum by (cluster, node) ({at_risk()}) > 0)",
                legend="{{cluster}} {{node}}",
            ),
            unit=BYTES,
            width=10,
        ),
    ]
