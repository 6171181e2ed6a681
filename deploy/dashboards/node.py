"""The dashboard of one node: its GPUs, the pods on each, memory of no pod, and the agent's health."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import annotations, links, variables
from deploy.dashboards.board import Contents, Section
from deploy.dashboards.capacity import free_hundredths
from deploy.dashboards.panels import (
    BYTES,
    RATE,
    RATIO,
    SECONDS,
    Column,
    Query,
    TableLayout,
    lines,
    number,
    orange_from,
    red_below,
    red_from,
    rows,
)
from deploy.dashboards.pods import pod_columns
from deploy.dashboards.queries import (
    CLUSTER,
    GPU_LABELS,
    PODS,
    UTILIZATION,
    flagged,
    gpu,
    gpu_names,
    join,
    known_or_zero,
    pod,
    promised_part,
    promised_ratio,
    ratio,
    reported_gpus,
    share,
    used,
)
from deploy.dashboards.risk import at_risk
from deploy.dashboards.risk_tables import neighbours_table, pods_at_risk_table

_NODE: Final = join(CLUSTER, 'node="$node"')
_PODS: Final = join(PODS, 'node="$node"')
_POD: Final = ("cluster", "gpu", "namespace", "pod", "vcluster", "virtual_namespace", "virtual_pod", "queue")
_BY_GPU: Final = "{{cluster}} GPU {{gpu}}"
_BY_POD: Final = "{{cluster}} {{namespace}}/{{pod}} GPU {{gpu}}"
_TARGET: Final = "cluster, job, instance"

_JOB: Final = join(CLUSTER, 'job=~"$agent_job"')
_AGENT: Final = f"({reported_gpus(_NODE)} or up{{{join(_NODE, _JOB)}}})"
"""Series of the node's agent. Its figures of GPUs name the node; `up` does where scraping adds the label."""


def contents() -> Contents:
    """Return the node's dashboard."""
    return Contents(
        name="node",
        title="kaishare / Node",
        description="GPUs and pods of one node, memory that belongs to no pod, and the health of its agent.",
        variables=[
            variables.datasource(),
            variables.cluster(),
            variables.single(
                "node",
                "Node",
                "Node whose agent reports GPUs.",
                f"label_values({gpu_names()}, node)",
            ),
            variables.origin(),
            variables.vcluster(_NODE),
            variables.agent_scheme(),
            variables.agent_job(),
        ],
        annotations=[
            annotations.flags_raised(f" and on ({_TARGET}) {_AGENT}"),
            annotations.versions("agent"),
        ],
        overview=_overview(),
        sections=[
            Section(title="Pods over time", panels=_pods_over_time()),
            Section(title="GPUs over time", panels=_gpus_over_time()),
            Section(title="Agent", panels=_agent()),
        ],
    )


def of_agent(metric: str, where: str = CLUSTER) -> str:
    """Return the series of a metric of the node's agent."""
    return f"({metric}{{{where}}} and on ({_TARGET}) {_AGENT})"


def _overview() -> list[model.Panel]:
    return [
        number(
            "GPUs",
            "How many GPUs of this node does its agent watch? Fewer than the node has: a GPU does not "
            "answer; see the row Agent.",
            f"count by (cluster) (group by ({GPU_LABELS}) ({reported_gpus(_NODE)}))",
            width=3,
        ),
        number(
            "Promised",
            "How much of the node's GPU memory is promised? Red above 101 %: KAI placed too much; see "
            "KaishareGPUOverpromised in docs/runbooks.md.",
            promised_ratio(where=_NODE),
            unit=RATIO,
            limits=red_from(1.01),
            width=3,
        ),
        number(
            "Used",
            "How much of the node's GPU memory is in use, by any process? Near 100 %: an allocation of any "
            "pod here may fail.",
            ratio(gpu("used", _NODE), gpu("total", _NODE)),
            unit=RATIO,
            width=3,
        ),
        number(
            "Flagged pods",
            "How many pods of this node are flagged? unknown: no pod is evaluated. Red: the table Pods "
            "names them.",
            known_or_zero(
                f"count by (cluster) (count by (cluster, uid) (kaishare_pod_flagged{{{_PODS}}} == 1))",
                f"kaishare_pod_flagged{{{_PODS}}}",
            ),
            limits=red_from(1),
            width=3,
        ),
        number(
            "Held by no pod",
            "How much GPU memory do processes of the host hold? KAI does not count it. Orange from 2 GiB: "
            "see KaishareGPUMemoryOutsidePods in docs/runbooks.md.",
            f"sum by (cluster) ({gpu('host', _NODE)})",
            unit=BYTES,
            limits=orange_from(2 << 30),
            width=3,
        ),
        number(
            "Held by no process",
            "How much used GPU memory does no process account for? Some hundred MiB for each GPU are "
            "normal: page tables and the driver. CUDA's managed memory is here too.",
            f"sum by (cluster) ({gpu('unattributed', _NODE)})",
            unit=BYTES,
            width=3,
        ),
        number(
            "Attribution",
            "Can the agent tell which pod holds memory? 1: yes. Red at 0: verdicts about all pods of the "
            "node are suspended; the row Agent names the problem.",
            f"min by (cluster) {of_agent('kaishare_agent_attribution_ok')}",
            limits=red_below(1),
            width=3,
        ),
        number(
            "Age of the last sample",
            "How old is the last sample for which the driver answered? Red from a minute: see "
            "KaishareAgentStale in docs/runbooks.md. The clocks of the node and of Prometheus may differ.",
            f"max by (cluster) (time() - {of_agent('kaishare_agent_last_sample_timestamp_seconds')})",
            unit=SECONDS,
            limits=red_from(60),
            width=3,
        ),
        rows(
            "GPUs of the node",
            "What is promised, used and free on each GPU? promised in red: more than the GPU has. at "
            "risk in red: memory that pods were promised and that is not free. free "
            "share is what KAI can still place there, whatever is in use; GPUs in MIG mode without pods, "
            "time-sliced GPUs, and whole GPUs whose pod has not used them yet count as free. An empty cell "
            "is unknown.",
            TableLayout(labels=("cluster", "gpu", "model", "gpu_uuid")),
            Column(title="total", expr=gpu("total", _NODE), unit=BYTES),
            Column(
                title="promised",
                expr=promised_part(_NODE),
                unit=RATIO,
                limits=red_from(1.01),
            ),
            Column(title="at risk", expr=at_risk(_NODE), unit=BYTES, limits=red_from(1)),
            Column(title="free share", expr=f"{free_hundredths(_NODE)} / 100", unit=RATIO),
            Column(title="used", expr=f"{gpu('used', _NODE)} / {gpu('total', _NODE)}", unit=RATIO),
            Column(title="held by the host", expr=gpu("host", _NODE), unit=BYTES),
            Column(title="held by no process", expr=gpu("unattributed", _NODE), unit=BYTES),
            Column(title="reserved by the driver", expr=gpu("reserved", _NODE), unit=BYTES),
            Column(
                title="utilisation (dcgm-exporter)",
                expr=f"0 * {gpu('total', _NODE)} + on (cluster, gpu_uuid) group_left () "
                "gpu:dcgm_utilization:ratio",
                unit=RATIO,
            ),
        ),
        pods_at_risk_table(_NODE, _POD, width=12),
        neighbours_table(_NODE, _POD, width=12),
        rows(
            "Pods",
            "Which pods are on which GPU, and do they keep to their shares? use of share in red: above by "
            "more than 5 %. flagged is empty while the pod is not evaluated; the reason is in the table "
            "Flags. utilisation is empty where the driver does not report it.",
            TableLayout(labels=_POD, sort_by="use of share", links=(links.to_namespace("agent_job"),)),
            *pod_columns(_PODS),
            height=10,
        ),
        rows(
            "Flags",
            "Why are pods of this node flagged? docs/flags.md has the reasons, docs/runbooks.md what to do.",
            TableLayout(labels=(*_POD, "reason"), links=(links.to_namespace("agent_job"),)),
            Column(title="flagged", expr=f"{flagged(_PODS)} == 1"),
            width=12,
            height=6,
        ),
        rows(
            "Page of the agent",
            "Where is the agent's own page, with every process? The link works if the browser reaches the "
            "pod network and the network policy admits it; else use kubectl port-forward. The variable "
            "Agent page sets http or https.",
            TableLayout(labels=("cluster", "instance", "version", "driver"), links=(links.to_agent_page(),)),
            Column(
                title="agents",
                expr="max by (cluster, instance, version, driver) "
                + of_agent("kaishare_build_info", join(CLUSTER, 'component="agent"')),
            ),
            width=12,
            height=6,
        ),
    ]


def _pods_over_time() -> list[model.Panel]:
    return [
        lines(
            "Used, by pod",
            "Which pod grew, and when?",
            Query(expr=used(_PODS), legend=_BY_POD),
            unit=BYTES,
            stacked=True,
        ),
        lines(
            "Use of share, by pod",
            "Which pods are above their shares? Above 100 % plus the slack the agent counts time towards a "
            "flag.",
            Query(expr=f"{used(_PODS)} / {share(_PODS)}", legend=_BY_POD),
            unit=RATIO,
            limits=red_from(1),
        ),
        lines(
            "Utilisation, by pod",
            "Which pods had a kernel on a GPU, for which part of the time? Not the occupancy of the GPU. No "
            "line: the driver does not report it.",
            Query(expr=pod(UTILIZATION, _PODS), legend=_BY_POD),
            unit=RATIO,
        ),
        lines(
            "Flagged, by reason",
            "When were how many pods flagged?",
            Query(expr=f"sum by (cluster, reason) ({flagged(_PODS)})", legend="{{cluster}} {{reason}}"),
        ),
    ]


def _gpus_over_time() -> list[model.Panel]:
    return [
        lines(
            "Used, by GPU",
            "Which GPU fills up? Used memory divided by total.",
            Query(expr=f"{gpu('used', _NODE)} / {gpu('total', _NODE)}", legend=_BY_GPU),
            unit=RATIO,
        ),
        lines(
            "Promised, by GPU",
            "Which GPU is booked out? Above 101 %: KAI placed too much.",
            Query(expr=promised_part(_NODE), legend=_BY_GPU),
            unit=RATIO,
            limits=red_from(1.01),
        ),
        lines(
            "Held by processes of the host, by GPU",
            "Does software of the host take memory that pods were promised?",
            Query(expr=gpu("host", _NODE), legend=_BY_GPU),
            unit=BYTES,
            width=8,
        ),
        lines(
            "Held by no process, by GPU",
            "Does memory leak? Growth that stays after pods end is memory that the driver has not released; "
            "see KaishareGPUUnattributedGrown in docs/runbooks.md.",
            Query(expr=gpu("unattributed", _NODE), legend=_BY_GPU),
            unit=BYTES,
            width=8,
        ),
        lines(
            "Utilisation of GPUs by dcgm-exporter",
            "Does the GPU compute, for any process? Needs dcgm-exporter and the recorded figure "
            "gpu:dcgm_utilization:ratio.",
            Query(
                expr="gpu:dcgm_utilization:ratio * on (cluster, gpu_uuid) group_left (node, gpu) "
                f"group by ({GPU_LABELS}) ({reported_gpus(_NODE)})",
                legend=_BY_GPU,
            ),
            unit=RATIO,
            width=8,
        ),
    ]


def _agent() -> list[model.Panel]:
    def agent_rate(metric: str) -> str:
        return f"(rate({metric}{{{CLUSTER}}}[$__rate_interval]) and on ({_TARGET}) {_AGENT})"

    return [
        number(
            "Answers Prometheus",
            "Does the agent answer? 1: yes. Red at 0: see KaishareAgentDown in docs/runbooks.md. unknown: "
            "Prometheus has no target of this node.",
            f"max by (cluster) {of_agent('up', _JOB)}",
            limits=red_below(1),
            width=6,
        ),
        number(
            "Lost log lines",
            "How many lines of its log did the agent drop since it started, because standard error was full "
            "or closed? Orange: the log has gaps.",
            f"sum by (cluster) {of_agent('kaishare_log_lines_lost_total')}",
            limits=orange_from(1),
            width=6,
        ),
        number(
            "Failed driver calls since the start",
            "How many calls of the driver failed? No value: none. Orange: the panel Failed driver calls "
            "shows which, and docs/runbooks.md what to do.",
            f"sum by (cluster) {of_agent('kaishare_agent_nvml_errors_total')}",
            limits=orange_from(1),
            no_value="none, or unknown",
            width=6,
        ),
        number(
            "Oldest contact with the API server",
            "How long has a watch of the agent been silent? A healthy watch is renewed after 150 s. Red "
            "from 5 minutes: see KaishareWatchStale in docs/runbooks.md. unknown: pods come from a file.",
            f"max by (cluster) (time() - {of_agent('kaishare_watch_last_contact_timestamp_seconds')})",
            unit=SECONDS,
            limits=red_from(300),
            width=6,
        ),
        rows(
            "Problems",
            "Why are verdicts suspended? docs/metrics.md explains each reason. Without a GPU the problem is "
            "one of the whole node.",
            TableLayout(labels=("cluster", "reason", "gpu_uuid")),
            Column(
                title="problem",
                expr="max by (cluster, reason, gpu_uuid) " + of_agent("kaishare_agent_attribution_problem"),
            ),
            width=8,
        ),
        lines(
            "Time to take a sample",
            "How long do samples take? Seconds: the driver or /proc is slow.",
            Query(
                expr="histogram_quantile(0.99, sum by (cluster, le) "
                f"{agent_rate('kaishare_agent_sample_duration_seconds_bucket')})",
                legend="99 % {{cluster}}",
            ),
            Query(
                expr="histogram_quantile(0.5, sum by (cluster, le) "
                f"{agent_rate('kaishare_agent_sample_duration_seconds_bucket')})",
                legend="half {{cluster}}",
            ),
            unit=SECONDS,
            width=8,
        ),
        lines(
            "Failed driver calls",
            "Which calls of the driver fail, and with which error? No line: none has failed since the agent "
            "started.",
            Query(
                expr=f"sum by (cluster, call, error) {agent_rate('kaishare_agent_nvml_errors_total')}",
                legend="{{cluster}} {{call}} {{error}}",
            ),
            unit=RATE,
            width=8,
        ),
        lines(
            "Flags raised, cleared and dropped",
            "Do flags come and go on this node? Flags in the hour before, by reason and change.",
            Query(
                expr="round(sum by (cluster, reason, change) (increase(kaishare_agent_flag_transitions_total"
                f"{{{CLUSTER}}}[1h]) and on ({_TARGET}) {_AGENT})) > 0",
                legend="{{cluster}} {{reason}} {{change}}",
            ),
            width=8,
        ),
        rows(
            "Evictions since the agent started",
            "What did the agent decide about pods whose namespaces ask for eviction? docs/flags.md "
            "explains each result.",
            TableLayout(labels=("cluster", "result"), sort_by="decisions"),
            Column(
                title="decisions",
                expr="sum by (cluster, result) " + of_agent("kaishare_agent_evictions_total"),
            ),
            no_value="none, or eviction is off",
            width=8,
        ),
        rows(
            "Events since the agent started",
            "Did owners of pods get the Events about flags? dropped and failed: see KaishareEventsLost in "
            "docs/runbooks.md.",
            TableLayout(labels=("cluster", "reason", "result"), sort_by="Events"),
            Column(
                title="Events",
                expr="sum by (cluster, reason, result) " + of_agent("kaishare_agent_events_total"),
            ),
            no_value="none, or Events are off",
            width=8,
        ),
        lines(
            "Memory of the agent",
            "Does the agent grow? Resident memory.",
            Query(expr=f"max by (cluster) {of_agent('process_resident_memory_bytes')}", legend="{{cluster}}"),
            unit=BYTES,
            width=12,
        ),
        lines(
            "CPU of the agent",
            "How much CPU does the agent take? 1 is one core.",
            Query(expr=f"max by (cluster) {agent_rate('process_cpu_seconds_total')}", legend="{{cluster}}"),
            width=12,
        ),
    ]
