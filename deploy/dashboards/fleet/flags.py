"""Flagged pods, and what followed the flags."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.fleet.shared import POD_LABELS, SELECTED, TO_NODE
from deploy.dashboards.panels import (
    SECONDS,
    Column,
    Query,
    TableLayout,
    bars,
    largest,
    lines,
    red_from,
    rows,
)
from deploy.dashboards.queries import (
    CLUSTER,
    PODS,
    flagged,
    time_over_share,
)

_WORKLOAD: Final = ("namespace", "vcluster", "virtual_namespace", "workload_kind", "workload")
_BY_WORKLOAD: Final = ", ".join(("cluster", *_WORKLOAD))


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    transitions = f"kaishare_agent_flag_transitions_total{{{CLUSTER}, "
    return [
        bars(
            "Flagged now, by reason",
            "For which reasons are pods flagged? A pod with the flag on two GPUs counts twice. A reason "
            "without a bar is evaluated for no pod. Red: the table names the pods.",
            Query(expr=f"sum by (cluster, reason) ({flagged(SELECTED)})", legend="{{reason}} {{cluster}}"),
            limits=red_from(1),
            width=8,
        ),
        lines(
            "Raised in the hour before",
            "When did agents flag pods, and why? Counts flags that are already cleared, unlike the other "
            "panels, and flags that an agent raises again after a restart. Not by pod: the agents' logs name "
            "the pods.",
            Query(
                expr=f'round(sum by (cluster, reason) (increase({transitions}change="raised"}}[1h])))',
                legend="{{reason}} {{cluster}}",
            ),
            width=8,
        ),
        lines(
            "Flags over time, by reason",
            "Do flags pile up? The number of pods and GPUs that are flagged at each time.",
            Query(expr=f"sum by (cluster, reason) ({flagged(SELECTED)})", legend="{{reason}} {{cluster}}"),
            width=8,
        ),
        rows(
            "Flagged pods and their reasons",
            "Which pods are flagged now? docs/flags.md has the reasons, docs/runbooks.md what to do about "
            "each.",
            TableLayout(labels=(*POD_LABELS, "reason"), links=(links.to_namespace("agent_job"), TO_NODE)),
            Column(title="flagged", expr=f"{flagged(SELECTED)} == 1"),
        ),
        rows(
            "Time over the share in the selected time",
            "Which pods exceed their shares often, also too briefly for a flag? Pods that have ended since "
            "are listed, too.",
            TableLayout(
                labels=POD_LABELS, sort_by="time over share", links=(links.to_namespace("agent_job"), TO_NODE)
            ),
            *largest(
                20,
                Column(
                    title="time over share",
                    expr=f"{time_over_share(SELECTED)} > 0",
                    unit=SECONDS,
                ),
            ),
            width=12,
        ),
        rows(
            "Time over the share in the last hour, by workload",
            "Whose pods exceed their shares one after the other, each too briefly for a flag? Divide by pods "
            "at a time: more than 12 minutes raise the alert KaishareWorkloadOverShare. A row without a name "
            "has pods without a controller. Pods that have ended count, too. Needs the recorded figures.",
            TableLayout(
                labels=("cluster", *_WORKLOAD),
                sort_by="time over share",
                links=(links.to_namespace("agent_job"),),
            ),
            *largest(
                20,
                Column(
                    title="time over share",
                    expr=f"max by ({_BY_WORKLOAD}) "
                    f"(workload:kaishare_pod_over_share_seconds:increase1h{{{PODS}}})",
                    unit=SECONDS,
                ),
                Column(
                    title="pods at a time",
                    expr=f"max by ({_BY_WORKLOAD}) "
                    f"(avg_over_time(workload:kaishare_pods_judged:count{{{PODS}}}[1h]))",
                ),
                on=_BY_WORKLOAD,
            ),
            width=14,
        ),
        rows(
            "Time over the share in the last hour, by namespace",
            "In which namespaces do pods exceed their shares, whatever their workloads are called? The sum "
            "over all pods. Needs the recorded figures.",
            TableLayout(
                labels=("cluster", "namespace"),
                sort_by="time over share",
                links=(links.to_namespace("agent_job"),),
            ),
            *largest(
                20,
                Column(
                    title="time over share",
                    expr="max by (cluster, namespace) "
                    f"(namespace:kaishare_pod_over_share_seconds:increase1h{{{CLUSTER}}})",
                    unit=SECONDS,
                ),
                on="cluster, namespace",
            ),
            width=10,
        ),
        rows(
            "Evictions since the agents started",
            "What did the agents decide about pods whose namespaces ask for eviction? docs/flags.md "
            "explains each result. Empty: eviction is off, or no pod was due.",
            TableLayout(labels=("cluster", "result"), sort_by="decisions"),
            Column(
                title="decisions",
                expr=f"sum by (cluster, result) (kaishare_agent_evictions_total{{{CLUSTER}}})",
            ),
            no_value="none, or eviction is off",
            width=12,
        ),
    ]
