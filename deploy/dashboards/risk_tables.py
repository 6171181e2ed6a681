"""Tables of the pods on GPUs at risk and of the neighbours that restarted, for the fleet and one node."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.panels import BYTES, Column, Link, TableLayout, largest, orange_from, red_from, rows
from deploy.dashboards.queries import share, used
from deploy.dashboards.risk import (
    above_share,
    failed,
    hit_neighbours,
    last_ended,
    left_of_share,
    on_gpus_at_risk,
)

_MOST: Final = 50
"""Rows of each cluster."""


def pods_at_risk_table(where: str, labels: Sequence[str], *to: Link, width: int = 24) -> model.Panel:
    """Return the table of the pods on GPUs at risk."""
    above, left = (on_gpus_at_risk(figure(where), where) for figure in (above_share, left_of_share))
    return rows(
        "Pods on GPUs at risk",
        "Who holds more than promised, and who was promised memory that is not there? above share in red: "
        "ask the owner of this pod first. promised and not used: an allocation of up to this much may fail, "
        "although the pod is within its share. All pods of these GPUs are listed, whichever are selected.",
        TableLayout(labels=labels, sort_by="above share", links=(links.to_namespace("agent_job"), *to)),
        *largest(
            _MOST,
            Column(title="used", expr=used(where), unit=BYTES),
            Column(title="share", expr=share(where), unit=BYTES),
            Column(title="above share", expr=above, unit=BYTES, limits=red_from(1)),
            Column(title="promised and not used", expr=left, unit=BYTES),
            rank=f"({above} or {left})",
        ),
        no_value="no GPU is at risk, or unknown",
        width=width,
    )


def neighbours_table(where: str, labels: Sequence[str], *to: Link, width: int = 24) -> model.Panel:
    """Return the table of the pods that restarted or failed beside an offender."""
    hit = f"topk by (cluster) ({_MOST}, {hit_neighbours(where)})"

    def of_hit(figure: str) -> str:
        return f"0 * {hit} + on (cluster, uid) group_left () ({figure})"

    return rows(
        "Neighbours that restarted or failed in the last hour",
        "Who may have been hit? Pods within their shares on a GPU that was at risk in the last hour, or "
        "where another pod was flagged. Orange: restarts. ended with Error is the reason of a process that "
        "got no GPU memory, and of any other error; ended with OOMKilled is about the memory of the node. "
        "failed: the pod does not restart. A restart may have another cause. Needs kube-state-metrics.",
        TableLayout(labels=labels, sort_by="restarts", links=(links.to_namespace("agent_job"), *to)),
        Column(title="restarts", expr=hit, limits=orange_from(1)),
        Column(title="ended with Error", expr=of_hit(last_ended("Error"))),
        Column(title="ended with OOMKilled", expr=of_hit(last_ended("OOMKilled"))),
        Column(title="failed", expr=of_hit(failed())),
        no_value="none, or kube-state-metrics is not scraped",
        width=width,
    )
