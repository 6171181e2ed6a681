"""The dashboard of all nodes: what is promised, used, wrong, free and wasted."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import annotations, links, variables
from deploy.dashboards.board import Contents, Section
from deploy.dashboards.capacity import (
    fragmentation,
    free_hundredths,
    free_in_small_pieces,
    room,
    room_of_size,
    share_hundredths,
)
from deploy.dashboards.panels import (
    BYTES,
    COUNT,
    RATE,
    RATIO,
    SECONDS,
    Column,
    Query,
    TableLayout,
    bars,
    for_each,
    largest,
    lines,
    number,
    orange_below,
    orange_from,
    red_below,
    red_from,
    rows,
)
from deploy.dashboards.pods import pod_columns, use_of_share
from deploy.dashboards.queries import (
    AGENT_UP,
    CLUSTER,
    GPU_LABELS,
    POD_ON_GPU,
    PODS,
    USED,
    UTILIZATION,
    WEBHOOK_UP,
    flagged,
    gpu,
    join,
    known_or_zero,
    once_reported_gpus,
    pod,
    rate,
    ratio,
    reported_gpus,
    share,
    time_over_share,
    used,
)
from deploy.dashboards.waste import judged, known_part, of_current_pods, peak, seen, seen_seconds, unused

_PODS: Final = join(PODS, 'queue=~"$queue"')
_SHARES_OF_A_GPU: Final = (10, 20, 25, 50, 100)
_POD: Final = (
    "cluster",
    "namespace",
    "pod",
    "vcluster",
    "virtual_namespace",
    "virtual_pod",
    "queue",
    "node",
    "gpu",
)
_WORKLOAD: Final = ("namespace", "vcluster", "virtual_namespace", "workload_kind", "workload")
_BY_WORKLOAD: Final = ", ".join(("cluster", *_WORKLOAD))
_TO_NODE: Final = links.to_node("agent_scheme", "agent_job")
_COUNTED_AS_FREE: Final = (
    "GPUs in MIG mode without pods, time-sliced GPUs, and whole GPUs whose pod has not used them yet count "
    "as free: no metric tells them apart."
)
_SUSPENDING: Final = join(CLUSTER, 'reason!~"reservation-.+"')
_NAMESPACE_RATIO: Final = f"namespace:kaishare_pod_gpu_memory_used_share:ratio{{{CLUSTER}}}"


def contents() -> Contents:
    """Return the fleet's dashboard."""
    return Contents(
        name="fleet",
        title="kaishare / Fleet",
        description="GPU memory of all nodes: promised, used, flagged, free for more pods, and never used.",
        variables=[
            variables.datasource(),
            variables.cluster(),
            variables.origin(),
            variables.vcluster(),
            variables.several(
                "queue",
                "Queue",
                "Queue of the pods, as the agent first saw it.",
                f"label_values(kaishare_pod_info{{{PODS}}}, queue)",
            ),
            variables.choice(
                "share",
                "Share of a GPU",
                "Size of the pods for which free capacity and fragmentation are shown.",
                [
                    (f"{hundredths / 100:.2f}", str(hundredths))
                    for hundredths in (5, 10, 20, 25, 30, 50, 75, 100)
                ],
                selected=3,
            ),
            variables.some(
                "size",
                "Size",
                "Named sizes (kaishare.dev/size) for which the row Capacity shows the room.",
                f'label_values(kaishare_pod_info{{{CLUSTER}, size!=""}}, size)',
            ),
            variables.agent_scheme(),
            variables.agent_job(),
            variables.webhook_job(),
            variables.runbooks(),
        ],
        annotations=[annotations.flags_raised(), annotations.evictions(), annotations.versions("agent")],
        overview=_overview(),
        sections=[
            Section(title="Capacity: how many pods still fit", panels=_capacity()),
            Section(
                title="Waste: promised and not used for 7 days (reads 7 days of samples)", panels=_waste()
            ),
            Section(title="Flags", panels=_flags()),
            Section(title="Nodes and GPUs", panels=_nodes()),
            Section(title="Pods", panels=_pods()),
            Section(title="Queues and namespaces", panels=_queues()),
            Section(title="Agents", panels=_agents()),
        ],
    )


def _overview() -> list[model.Panel]:
    alerts = f'ALERTS{{{CLUSTER}, alertname=~"Kaishare.+"}}'
    raised = f'kaishare_agent_flag_transitions_total{{{CLUSTER}, change="raised"}}'
    labels = "cluster, alertname, alertstate, severity, namespace, pod, node, queue, name, instance"
    return [
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
            "How much of the GPUs' memory is promised to pods? Only GPUs whose shares are known count. Red "
            "above 101 %: KAI placed more shares than a GPU has memory; see KaishareGPUOverpromised in "
            "docs/runbooks.md.",
            ratio(gpu("promised"), gpu("total")),
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
            f"{_COUNTED_AS_FREE} Orange at 0: nothing fits.",
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
            "Flagged pods",
            "How many pods are flagged now? 0: all evaluated pods keep to their shares. unknown: no pod is "
            "evaluated. Red: the row Flags names the pods.",
            known_or_zero(
                f"count by (cluster) (count by (cluster, uid) (kaishare_pod_flagged{{{_PODS}}} == 1))",
                f"kaishare_pod_flagged{{{_PODS}}}",
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
                links=(links.to_runbook(), _TO_NODE, links.to_namespace()),
            ),
            Column(title="active", expr=links.with_runbook(f"sum by ({labels}) ({alerts})")),
            no_value="none",
            height=6,
        ),
    ]


def _capacity() -> list[model.Panel]:
    pods_of_sizes = f'topk by (cluster, uid) (1, kaishare_pod_info{{{CLUSTER}, size!=""}})'
    of_size = f"{share_hundredths(CLUSTER)} * on (cluster, uid) group_left (size) {pods_of_sizes}"
    return [
        bars(
            "More pods that fit, by share of one GPU",
            "How many more pods of each share fit, if all new pods have that share? Not a sum: the bars "
            "share the same free capacity. Quotas, taints, other resources and pending pods are not "
            f"considered. {_COUNTED_AS_FREE}",
            *(
                Query(expr=room(str(hundredths)), legend=f"{hundredths / 100:g} of a GPU {{{{cluster}}}}")
                for hundredths in _SHARES_OF_A_GPU
            ),
            width=8,
        ),
        rows(
            "GPUs by free share",
            "Where is free share? Total minus promised, in hundredths of the memory that KAI counts. Memory "
            f"in use plays no part. GPUs with pods on MIG devices are left out. {_COUNTED_AS_FREE}",
            TableLayout(
                labels=("cluster", "node", "gpu", "model"),
                sort_by="free share",
                links=(_TO_NODE,),
            ),
            *largest(
                100,
                Column(title="free share", expr=f"{free_hundredths()} / 100", unit=RATIO),
            ),
            width=8,
        ),
        rows(
            "Sizes in use",
            "Which named sizes do running pods have, and which share is that on each model of GPU? Two "
            "different shares: namespaces define the size differently, or as memory.",
            TableLayout(labels=("cluster", "size", "model"), sort_by="shares"),
            *largest(
                50,
                Column(title="shares", expr=f"count by (cluster, size, model) ({of_size})"),
                Column(
                    title="smallest share",
                    expr=f"min by (cluster, size, model) ({of_size}) / 100",
                    unit=RATIO,
                ),
                Column(
                    title="largest share",
                    expr=f"max by (cluster, size, model) ({of_size}) / 100",
                    unit=RATIO,
                ),
                on="cluster, size, model",
            ),
            no_value="no pod has a named size, or unknown",
            width=8,
        ),
        for_each(
            "size",
            number(
                "More pods of size $size",
                "How many more pods of this size fit, by model of GPU? Counted with the largest share of "
                "the size, and only on models on which such a pod runs now: its share of other models is "
                "unknown. A pod on several GPUs takes one for each. Orange at 0: nothing fits.",
                room_of_size(),
                limits=orange_below(1),
                no_value="no pod of this size runs, or unknown",
            ),
            legend="{{cluster}} {{model}}",
        ),
        lines(
            "Free share over time, in GPUs",
            "Does the fleet run full? The sum of the free shares, in GPUs, and the part of it on GPUs with "
            "less than the selected share.",
            Query(expr=f"sum by (cluster) ({free_hundredths()}) / 100", legend="free {{cluster}}"),
            Query(
                expr=f"({free_in_small_pieces('$share')}) / 100",
                legend="in pieces below ${share:text} {{cluster}}",
            ),
            width=24,
        ),
    ]


def _waste() -> list[model.Panel]:
    identity = f"0 * {share(_PODS)} + on ({POD_ON_GPU}) group_left ()"
    utilization = peak(UTILIZATION, _PODS)
    busiest = (
        f"(max by (cluster, uid) ({utilization}) "
        f"and on (cluster, uid) {judged(utilization, _PODS, UTILIZATION)})"
    )
    return [
        number(
            "Unused for 7 days",
            "How much promised memory has no sample of the last 7 days shown in use? Only pods that are 7 "
            "days old, and whose use was known for 90 % of that time, so that no pod is blamed for a gap. "
            "unknown: no pod is that old. Orange: the table names the pods; smaller shares would free that "
            "memory.",
            f"sum by (cluster) {judged(unused(_PODS), _PODS)}",
            unit=BYTES,
            limits=orange_from(1 << 30),
            no_value="no pod is 7 days old, or unknown",
            width=6,
        ),
        number(
            "Unused since the pods started, of their shares",
            "Which part of the shares has no sample shown in use, for pods of every age? A pod that started "
            "a minute ago counts with all that it has not used yet: read it with Longest history.",
            f"sum by (cluster) ({unused(_PODS)}) / sum by (cluster) ({share(_PODS)} and on ({POD_ON_GPU}) "
            f"{peak(USED, _PODS)})",
            unit=RATIO,
            width=6,
        ),
        number(
            "Longest history",
            "How long at least does Prometheus know the oldest pod? In steps: 7 days, 3 days, 1 day, 6 "
            "hours, 1 hour, less. Below 7 days, nothing can be called unused for 7 days.",
            f"max by (cluster) ({seen(_PODS)})",
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
            TableLayout(labels=_POD, sort_by="unused", links=(links.to_namespace(), _TO_NODE)),
            *largest(
                50,
                Column(title="unused", expr=unused(_PODS), unit=BYTES),
                Column(title="share", expr=share(_PODS), unit=BYTES),
                Column(
                    title="highest use",
                    expr=of_current_pods(peak(USED, _PODS), _PODS),
                    unit=BYTES,
                ),
                Column(title="seen for at least", expr=f"{identity} ({seen(_PODS)})", unit=SECONDS),
                Column(title="use known", expr=of_current_pods(known_part(_PODS), _PODS), unit=RATIO),
                Column(
                    title="highest utilisation",
                    expr=of_current_pods(peak(UTILIZATION, _PODS), _PODS),
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
                labels=("cluster", "namespace"), sort_by="seen for at least", links=(links.to_namespace(),)
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


def _flags() -> list[model.Panel]:
    transitions = f"kaishare_agent_flag_transitions_total{{{CLUSTER}, "
    return [
        bars(
            "Flagged now, by reason",
            "For which reasons are pods flagged? A pod with the flag on two GPUs counts twice. A reason "
            "without a bar is evaluated for no pod. Red: the table names the pods.",
            Query(expr=f"sum by (cluster, reason) ({flagged(_PODS)})", legend="{{reason}} {{cluster}}"),
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
            Query(expr=f"sum by (cluster, reason) ({flagged(_PODS)})", legend="{{reason}} {{cluster}}"),
            width=8,
        ),
        rows(
            "Flagged pods and their reasons",
            "Which pods are flagged now? docs/metrics.md has the reasons, docs/runbooks.md what to do about "
            "each.",
            TableLayout(labels=(*_POD, "reason"), links=(links.to_namespace(), _TO_NODE)),
            Column(title="flagged", expr=f"{flagged(_PODS)} == 1"),
        ),
        rows(
            "Time over the share in the selected time",
            "Which pods exceed their shares often, also too briefly for a flag? Pods that have ended since "
            "are listed, too.",
            TableLayout(labels=_POD, sort_by="time over share", links=(links.to_namespace(), _TO_NODE)),
            *largest(
                20,
                Column(
                    title="time over share",
                    expr=f"{time_over_share(_PODS)} > 0",
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
                labels=("cluster", *_WORKLOAD), sort_by="time over share", links=(links.to_namespace(),)
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
                labels=("cluster", "namespace"), sort_by="time over share", links=(links.to_namespace(),)
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
            "What did the agents decide about pods whose namespaces ask for eviction? docs/metrics.md "
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


def _nodes() -> list[model.Panel]:
    def of_nodes(part: str, whole: str) -> str:
        return ratio(part, whole, "cluster, node")

    flags = f"kaishare_pod_flagged{{{CLUSTER}}}"
    flagged_pods = f"count by (cluster, node) (count by (cluster, node, uid) ({flags} == 1))"
    return [
        rows(
            "Nodes",
            "Which nodes are full, and which have flags? Promised in red: more than the GPUs' memory. An "
            "empty cell is unknown. Click a node for its dashboard.",
            TableLayout(labels=("cluster", "node"), sort_by="promised", links=(_TO_NODE,)),
            Column(
                title="GPUs",
                expr=f"count by (cluster, node) (group by ({GPU_LABELS}) ({reported_gpus()}))",
            ),
            Column(title="total", expr=f"sum by (cluster, node) ({gpu('total')})", unit=BYTES),
            Column(
                title="promised",
                expr=of_nodes(gpu("promised"), gpu("total")),
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
            "Which nodes are booked out? Promised memory divided by total.",
            Query(expr=of_nodes(gpu("promised"), gpu("total")), legend="{{cluster}} {{node}}"),
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


def _pods() -> list[model.Panel]:
    return [
        rows(
            "Pods by used memory of their share",
            "Which pods need more than they have, or much less? Use of share in red: above the share by "
            "more than 5 %. Flagged is empty while the pod is not evaluated. Utilisation is empty where the "
            "driver does not report it, used where it is unknown.",
            TableLayout(labels=_POD, sort_by="use of share", links=(links.to_namespace(), _TO_NODE)),
            *largest(
                50,
                *pod_columns(_PODS, has_time_over=False),
                rank=use_of_share(_PODS),
            ),
            height=10,
        ),
        lines(
            "Used, by pod",
            "Which pods hold the most memory? The 20 largest of each cluster.",
            Query(
                expr=f"topk by (cluster) (20, sum by (cluster, namespace, pod) ({used(_PODS)}))",
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
                expr=f"topk by (cluster) (20, max by (cluster, namespace, pod) ({pod(UTILIZATION, _PODS)}))",
                legend="{{cluster}} {{namespace}}/{{pod}}",
            ),
            unit=RATIO,
        ),
    ]


def _queues() -> list[model.Panel]:
    def of_queue(figure: str) -> str:
        where = join(CLUSTER, 'vcluster=~"$origin", vcluster=~"$vcluster", queue=~"$queue"')
        figures = f"max by (cluster, vcluster, queue) (queue:{figure}{{{where}}})"
        # Grafana merges a row without the label into any row with the same queue.
        return f'label_replace({figures}, "vcluster", "(host)", "vcluster", "")'

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
            TableLayout(labels=("cluster", "namespace"), sort_by="share", links=(links.to_namespace(),)),
            *largest(
                50,
                Column(title="share", expr=f"sum by (cluster, namespace) ({share(_PODS)})", unit=BYTES),
                Column(title="used", expr=f"sum by (cluster, namespace) ({used(_PODS)})", unit=BYTES),
                Column(
                    title="use of shares",
                    expr=ratio(used(_PODS), share(_PODS), "cluster, namespace"),
                    unit=RATIO,
                    limits=red_from(1.05),
                ),
                on="cluster, namespace",
            ),
            width=12,
        ),
        lines(
            "Used, by queue",
            "Which queues' pods hold memory?",
            Query(
                expr=f"sum by (cluster, vcluster, queue) ({used(_PODS)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=BYTES,
            width=8,
        ),
        lines(
            "Promised, by queue",
            "To which queues' pods is memory promised?",
            Query(
                expr=f"sum by (cluster, vcluster, queue) ({share(_PODS)})",
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
                expr=f"avg by (cluster, vcluster, queue) ({pod(UTILIZATION, _PODS)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=RATIO,
            width=8,
        ),
    ]


def _agents() -> list[model.Panel]:
    watched = reported_gpus()
    # The resources of the alert KaishareNodeWithoutAgent: whole GPUs, time slices and MIG devices.
    resources = 'resource=~"nvidia_com_(gpu|gpu_shared|mig_.+)"'
    allocatable = f"kube_node_status_allocatable{{{CLUSTER}, {resources}}}"
    agent = 'component="agent"'
    info = f"kaishare_build_info{{{join(CLUSTER, agent)}}}"
    return [
        rows(
            "Agents",
            "Which agents run, in which version, and which do not answer? answers in red at 0: see "
            "KaishareAgentDown in docs/runbooks.md. The link opens the agent's page, if the browser reaches "
            "the pod network and the network policy admits it; else use kubectl port-forward.",
            TableLayout(
                labels=("cluster", "instance", "namespace", "pod", "node"),
                sort_by="answers",
                has_smallest_first=True,
                links=(links.to_agent_page(), _TO_NODE),
            ),
            Column(
                title="answers",
                expr=f"max by (cluster, instance, namespace, pod, node) ({AGENT_UP})",
                limits=red_below(1),
            ),
            width=12,
        ),
        rows(
            "Attribution problems",
            "Why are verdicts suspended, and where? docs/metrics.md explains each reason. Without a GPU the "
            "problem is one of the whole node. The two reasons that begin with reservation suspend nothing.",
            TableLayout(
                labels=("cluster", "instance", "node", "reason", "gpu_uuid"),
                links=(links.to_agent_page(), _TO_NODE),
            ),
            Column(
                title="problem",
                expr="max by (cluster, instance, node, reason, gpu_uuid) "
                f"(kaishare_agent_attribution_problem{{{CLUSTER}}})",
            ),
            width=12,
        ),
        rows(
            "Nodes that no agent watches any more",
            "Which nodes had GPUs in the last 6 hours and have none now? Their agent is gone, does not "
            "answer, or lost its driver; see KaishareNodeUnwatched in docs/runbooks.md. A node that left "
            "the cluster is listed too.",
            TableLayout(labels=("cluster", "node"), links=(_TO_NODE,)),
            Column(
                title="GPUs it had",
                expr=f"count by (cluster, node) (group by ({GPU_LABELS}) ({once_reported_gpus('6h')}) "
                f"unless on (cluster, node) {watched})",
            ),
            width=8,
        ),
        rows(
            "Nodes with GPUs and without an agent",
            "Which nodes offer GPUs, time slices or MIG devices and have no agent that reports GPUs? Needs "
            "kube-state-metrics; without it the table is empty.",
            TableLayout(labels=("cluster", "node"), sort_by="devices"),
            Column(
                title="devices",
                expr=f"sum by (cluster, node) (max by (cluster, node, resource) ({allocatable}) > 0) "
                f"unless on (cluster, node) {watched}",
            ),
            no_value="none, or kube-state-metrics is missing",
            width=8,
        ),
        rows(
            "Versions",
            "Do all agents and webhooks run the same version, and which drivers are there? simulated is "
            "true for synthetic figures.",
            TableLayout(labels=("cluster", "component", "version", "driver", "simulated")),
            Column(
                title="instances",
                expr="count by (cluster, component, version, driver, simulated) "
                f"(kaishare_build_info{{{CLUSTER}}})",
            ),
            width=8,
        ),
        lines(
            "Age of the last good sample",
            "Do the agents get figures from the driver? An age that grows: the driver does not answer; see "
            "KaishareAgentStale in docs/runbooks.md.",
            Query(
                expr="max by (cluster, instance) (time() - "
                f"kaishare_agent_last_sample_timestamp_seconds{{{CLUSTER}}})",
                legend="{{cluster}} {{instance}}",
            ),
            unit=SECONDS,
            width=8,
        ),
        lines(
            "Time to take a sample, 99 %",
            "How long do 99 % of the samples take at most? Seconds: the driver or /proc is slow.",
            Query(
                expr="histogram_quantile(0.99, sum by (cluster, instance, le) "
                f"({rate('kaishare_agent_sample_duration_seconds_bucket')}))",
                legend="{{cluster}} {{instance}}",
            ),
            unit=SECONDS,
            width=8,
        ),
        lines(
            "Failed driver calls",
            "Which calls of the driver fail, and with which error? docs/runbooks.md has the errors under "
            "KaishareAgentStale and KaishareAgentPartlyBlind. No line: none has failed since the agent "
            "started.",
            Query(
                expr=f"sum by (cluster, instance, call, error) ({rate('kaishare_agent_nvml_errors_total')})",
                legend="{{cluster}} {{instance}} {{call}} {{error}}",
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Events about pods",
            "Do owners of pods get the Events about flags? dropped and failed: see KaishareEventsLost in "
            "docs/runbooks.md. No line: no Event has been due.",
            Query(
                expr=f"sum by (cluster, result) ({rate('kaishare_agent_events_total')})",
                legend="{{result}} {{cluster}}",
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Memory of the agents",
            "Does an agent grow? Resident memory.",
            Query(
                expr=f"max by (cluster, instance) (process_resident_memory_bytes{{{CLUSTER}}} "
                f"and on (cluster, job, instance) {info})",
                legend="{{cluster}} {{instance}}",
            ),
            unit=BYTES,
            width=8,
        ),
        lines(
            "CPU of the agents",
            "How much CPU do the agents take? 1 is one core.",
            Query(
                expr=f"max by (cluster, instance) ({rate('process_cpu_seconds_total')} "
                f"and on (cluster, job, instance) {info})",
                legend="{{cluster}} {{instance}}",
            ),
            unit=COUNT,
            width=8,
        ),
    ]
