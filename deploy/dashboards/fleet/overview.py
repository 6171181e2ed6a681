"""The first panels of the fleet: its GPUs and memory, what is wrong, and what is free."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.capacity import (
    fragmentation,
    room,
    saved_gpus,
)
from deploy.dashboards.fleet import risk
from deploy.dashboards.fleet.pending import of_kai, waiting
from deploy.dashboards.fleet.shared import COUNTED_AS_FREE, SELECTED, TO_NODE
from deploy.dashboards.panels import (
    BYTES,
    RATIO,
    Column,
    Query,
    TableLayout,
    lines,
    number,
    orange_below,
    orange_from,
    red_below,
    red_from,
    rows,
)
from deploy.dashboards.queries import (
    AGENT_UP,
    CLUSTER,
    GPU_LABELS,
    WEBHOOK_UP,
    gpu,
    join,
    known_or_zero,
    promised_ratio,
    ratio,
    reported_gpus,
    used,
)

_SUSPENDING: Final = join(CLUSTER, 'reason!~"reservation-.+"')


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
    alerts = f'ALERTS{{{CLUSTER}, alertname=~"Kaishare.+"}}'
    raised = f'kaishare_agent_flag_transitions_total{{{CLUSTER}, change="raised"}}'
    labels = "cluster, alertname, alertstate, severity, namespace, pod, node, queue, name, instance"
    return [
        *risk.numbers(),
        number(
            "Flagged pods",
            "How many pods are flagged now? 0: all evaluated pods keep to their shares. unknown: no pod is "
            "evaluated. Red: the row Flags names the pods.",
            known_or_zero(
                f"count by (cluster) (count by (cluster, uid) (kaishare_pod_flagged{{{SELECTED}}} == 1))",
                f"kaishare_pod_flagged{{{SELECTED}}}",
            ),
            limits=red_from(1),
        ),
        number(
            "Flags raised in the last hour",
            "How often did agents flag a pod in the last hour, also pods that are no longer flagged? An "
            "agent that restarts flags its pods again. All pods count, whichever are selected. "
            "Orange: the row Flags shows when and why.",
            f"round(sum by (cluster) (increase({raised}[1h])))",
            limits=orange_from(1),
        ),
        *risk.tables(),
        number(
            "Nodes with GPUs",
            "How many nodes have GPUs that an agent watches? Compare with the number of GPU nodes in the "
            "cluster; the row Agents lists nodes that are not watched.",
            f"count by (cluster) (count by (cluster, node) ({reported_gpus()}))",
        ),
        number(
            "GPUs",
            "How many GPUs do agents watch? GPUs whose memory the driver does not report count here, and in "
            "no figure of memory.",
            f"count by (cluster) (group by ({GPU_LABELS}) ({reported_gpus()}))",
        ),
        number(
            "Memory promised",
            "How much of the GPUs' memory, as KAI counts it, is promised to pods? Only GPUs whose shares "
            "are known count. Red above 101 %: KAI placed more shares than a GPU has memory; see "
            "KaishareGPUOverpromised in docs/runbooks.md.",
            promised_ratio(),
            unit=RATIO,
            limits=red_from(1.01),
        ),
        number(
            "Memory used",
            "How much of the GPUs' memory is in use, by any process? Far below Memory promised: shares are "
            "larger than needed; see the row Waste.",
            ratio(gpu("used"), gpu("total")),
            unit=RATIO,
        ),
        number(
            "Room for ${share:text} of a GPU",
            "How many more pods with the selected share of one GPU fit? Per GPU, free share divided by the "
            "share, rounded down; a share never spans GPUs. An upper limit: quotas of queues, taints, "
            "cordoned nodes, CPU and memory of the nodes, and pending pods are not considered. "
            f"{COUNTED_AS_FREE} Orange at 0: nothing fits.",
            room("$share"),
            limits=orange_below(1),
        ),
        number(
            "Fragmentation for ${share:text}",
            "Which part of the free share lies on GPUs with too little left for one pod of the selected "
            "share? Orange from 30 %: much is free and few such pods fit. Smaller sizes can use the rest.",
            fragmentation("$share"),
            unit=RATIO,
            limits=orange_from(0.3),
            no_value="no free share, or unknown",
        ),
        number(
            "GPUs saved by sharing",
            "How many more GPUs would the selected pods take now, if each had whole ones? A whole GPU for "
            "each pod on each GPU, less what the pods are promised; the row GPU-hours has the history.",
            saved_gpus(SELECTED),
        ),
        number(
            "Pods waiting for KAI",
            "How many pods ask for KAI's scheduler and are on no node? Orange: the row Pending pods shows "
            "how long, in which namespaces and queues.",
            known_or_zero(f"count by (cluster) ({waiting()})", f"count by (cluster, uid) ({of_kai()})"),
            limits=orange_from(1),
            no_value="no kube-state-metrics",
        ),
        number(
            "Nodes with attribution problems",
            "On how many nodes are verdicts suspended, fully or for some pods? Red: the row Agents names "
            "the problems; docs/metrics.md explains each.",
            known_or_zero(
                "count by (cluster) (count by (cluster, instance) "
                f"(kaishare_agent_attribution_problem{{{_SUSPENDING}}} == 1))",
                f"kaishare_agent_attribution_ok{{{CLUSTER}}}",
            ),
            limits=red_from(1),
        ),
        number(
            "Agents that do not answer",
            "How many agents did Prometheus fail to scrape? unknown: Prometheus has no target whose job "
            "matches $agent_job. Red: see KaishareAgentDown in docs/runbooks.md.",
            known_or_zero(f"count by (cluster) ({AGENT_UP} == 0)", AGENT_UP),
            limits=red_from(1),
        ),
        number(
            "GPUs without a known free share",
            "On how many GPUs are the promised shares or the memory unknown? The agent there has not listed "
            "the pods yet, or the driver does not report the memory. Such GPUs are missing in all figures of "
            "capacity. Orange: see the row Agents.",
            known_or_zero(
                f"count by (cluster) (group by ({GPU_LABELS}) ({reported_gpus()}) "
                f"unless ({gpu('total')} and {gpu('promised')}))",
                reported_gpus(),
            ),
            limits=orange_from(1),
        ),
        number(
            "Webhook replicas that answer",
            "How many replicas of the webhook does Prometheus reach? Red at 0: new pods are probably "
            "admitted without a share. The dashboard Webhook has the details.",
            f"sum by (cluster) ({WEBHOOK_UP})",
            limits=red_below(1),
        ),
        lines(
            "Memory of all GPUs",
            "How do total, promised and used memory develop? Promised above total: KAI placed too much. "
            "Used far below promised: shares are larger than needed. GPUs whose figure is unknown are left "
            "out of its sum.",
            Query(expr=f"sum by (cluster) ({gpu('total')})", legend="total {{cluster}}"),
            Query(expr=f"sum by (cluster) ({gpu('promised')})", legend="promised {{cluster}}"),
            Query(expr=f"sum by (cluster) ({gpu('used')})", legend="used {{cluster}}"),
            unit=BYTES,
        ),
        lines(
            "Where the used memory is",
            "Where is the used memory: in pods, in processes of the hosts, or in no process? Sums of the "
            "known figures: pods and GPUs whose figure is unknown are left out.",
            Query(expr=f"sum by (cluster) ({used(CLUSTER)})", legend="pods {{cluster}}"),
            Query(expr=f"sum by (cluster) ({gpu('host')})", legend="hosts {{cluster}}"),
            Query(expr=f"sum by (cluster) ({gpu('unattributed')})", legend="no process {{cluster}}"),
            unit=BYTES,
            stacked=True,
        ),
        rows(
            "Alerts",
            "Which alerts of kaishare are pending or firing? Each has a section in docs/runbooks.md; the "
            "column runbook links to it if the variable runbooks is set.",
            TableLayout(
                labels=(*labels.split(", "), "runbook"),
                links=(links.to_runbook(), TO_NODE, links.to_namespace("agent_job")),
            ),
            Column(title="active", expr=links.with_runbook(f"sum by ({labels}) ({alerts})")),
            no_value="none",
            height=6,
        ),
    ]
