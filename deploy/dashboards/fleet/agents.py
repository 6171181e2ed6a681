"""The agents: versions, problems, nodes without one, samples, and their own cost."""

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import links
from deploy.dashboards.fleet.shared import TO_NODE
from deploy.dashboards.panels import (
    BYTES,
    COUNT,
    RATE,
    SECONDS,
    Column,
    Query,
    TableLayout,
    lines,
    red_below,
    rows,
)
from deploy.dashboards.queries import (
    AGENT_UP,
    CLUSTER,
    GPU_LABELS,
    join,
    once_reported_gpus,
    rate,
    reported_gpus,
)


def panels() -> list[model.Panel]:
    """Return the panels of this section."""
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
                links=(links.to_agent_page(), TO_NODE),
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
                links=(links.to_agent_page(), TO_NODE),
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
            TableLayout(labels=("cluster", "node"), links=(TO_NODE,)),
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
