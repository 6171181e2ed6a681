"""GPU memory that is promised and was not used for seven days."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.fleet.shared import POD_LABELS, SELECTED, TO_NODE
from deploy.dashboards.panels import (
    BYTES,
    RATIO,
    SECONDS,
    Column,
    TableLayout,
    largest,
    number,
    orange_from,
    rows,
)
from deploy.dashboards.queries import (
    CLUSTER,
    POD_ON_GPU,
    USED,
    UTILIZATION,
    known_or_zero,
    share,
)
from deploy.dashboards.waste import judged, known_part, of_current_pods, peak, seen, seen_seconds, unused

_NAMESPACE_RATIO: Final = f"namespace:kaishare_pod_gpu_memory_used_share:ratio{{{CLUSTER}}}"


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    identity = f"0 * {share(SELECTED)} + on ({POD_ON_GPU}) group_left ()"
    utilization = peak(UTILIZATION, SELECTED)
    busiest = (
        f"(max by (cluster, uid) ({utilization}) "
        f"and on (cluster, uid) {judged(utilization, SELECTED, UTILIZATION)})"
    )
    return [
        number(
            "Unused for 7 days",
            "How much promised memory has no sample of the last 7 days shown in use? Only pods that are 7 "
            "days old, and whose use was known for 90 % of that time, so that no pod is blamed for a gap. "
            "unknown: no pod is that old. Orange: the table names the pods; smaller shares would free that "
            "memory.",
            f"sum by (cluster) {judged(unused(SELECTED), SELECTED)}",
            unit=BYTES,
            limits=orange_from(1 << 30),
            no_value="no pod is 7 days old, or unknown",
            width=6,
        ),
        number(
            "Unused since the pods started, of their shares",
            "Which part of the shares has no sample shown in use, for pods of every age? A pod that started "
            "a minute ago counts with all that it has not used yet: read it with Longest history.",
            f"sum by (cluster) ({unused(SELECTED)}) "
            f"/ sum by (cluster) ({share(SELECTED)} and on ({POD_ON_GPU}) {peak(USED, SELECTED)})",
            unit=RATIO,
            width=6,
        ),
        number(
            "Longest history",
            "How long at least does Prometheus know the oldest pod? In steps: 7 days, 3 days, 1 day, 6 "
            "hours, 1 hour, less. Below 7 days, nothing can be called unused for 7 days.",
            f"max by (cluster) ({seen(SELECTED)})",
            unit=SECONDS,
            width=6,
        ),
        number(
            "Idle pods",
            "How many pods that are 7 days old ran no kernel in that time? Only pods whose utilisation the "
            "driver reported for 90 % of it. Orange: their GPU share could go to others.",
            known_or_zero(f"count by (cluster) (count by (cluster, uid) ({busiest} == 0))", busiest),
            limits=orange_from(1),
            no_value="no pod is 7 days old, or unknown",
            width=6,
        ),
        rows(
            "Promised and never used",
            "Which pods could have a smaller share? Unused is the share minus the highest use in 7 days. "
            "Trust a row as far as it was seen: for at least that long, with the use known in that part of "
            "the samples. Hours without an agent have no samples. Empty utilisation: the driver does not "
            "report it.",
            TableLayout(
                labels=POD_LABELS, sort_by="unused", links=(links.to_namespace("agent_job"), TO_NODE)
            ),
            *largest(
                50,
                Column(title="unused", expr=unused(SELECTED), unit=BYTES),
                Column(title="share", expr=share(SELECTED), unit=BYTES),
                Column(
                    title="highest use",
                    expr=of_current_pods(peak(USED, SELECTED), SELECTED),
                    unit=BYTES,
                ),
                Column(title="seen for at least", expr=f"{identity} ({seen(SELECTED)})", unit=SECONDS),
                Column(
                    title="use known",
                    expr=of_current_pods(known_part(SELECTED), SELECTED),
                    unit=RATIO,
                ),
                Column(
                    title="highest utilisation",
                    expr=of_current_pods(peak(UTILIZATION, SELECTED), SELECTED),
                    unit=RATIO,
                ),
            ),
            height=10,
        ),
        rows(
            "Highest use of each namespace's shares in 7 days",
            "Which namespaces never need what they are promised, also where pods live shorter than 7 days? "
            "From the recorded ratio of used memory to shares, over pods of which both are known.",
            TableLayout(
                labels=("cluster", "namespace"),
                sort_by="seen for at least",
                links=(links.to_namespace("agent_job"),),
            ),
            Column(
                title="highest use of shares",
                expr=f"max by (cluster, namespace) (max_over_time({_NAMESPACE_RATIO}[7d])) "
                f"and on (cluster, namespace) {_NAMESPACE_RATIO}",
                unit=RATIO,
            ),
            Column(title="use now", expr=f"max by (cluster, namespace) ({_NAMESPACE_RATIO})", unit=RATIO),
            Column(
                title="seen for at least",
                expr=seen_seconds(_NAMESPACE_RATIO, "cluster, namespace"),
                unit=SECONDS,
            ),
        ),
    ]
