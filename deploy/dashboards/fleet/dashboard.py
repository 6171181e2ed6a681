"""The dashboard of all nodes: what is promised, used, wrong, free and wasted."""

from deploy.dashboards import annotations, variables
from deploy.dashboards.board import Contents, Section
from deploy.dashboards.fleet import (
    agents,
    capacity,
    flags,
    gpu_hours,
    nodes,
    overview,
    pending,
    pods,
    queues,
    risk,
    waste,
)
from deploy.dashboards.queries import CLUSTER, PODS


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
            variables.kai_scheduler(),
            variables.runbooks(),
        ],
        annotations=[annotations.flags_raised(), annotations.evictions(), annotations.versions("agent")],
        overview=overview.panels(),
        sections=[
            Section(title="At risk: who is over, who is hit, and the fullest GPUs", panels=risk.panels()),
            Section(title="Capacity: how many pods still fit", panels=capacity.panels()),
            Section(
                title="Waste: promised and not used for 7 days (reads 7 days of samples)",
                panels=waste.panels(),
            ),
            Section(title="GPU-hours in the selected time, by team", panels=gpu_hours.panels()),
            Section(title="Flags", panels=flags.panels()),
            Section(title="Nodes and GPUs", panels=nodes.panels()),
            Section(title="Pods", panels=pods.panels()),
            Section(title="Queues and namespaces", panels=queues.panels()),
            Section(title="Pending pods and their wait", panels=pending.panels()),
            Section(title="Agents", panels=agents.panels()),
        ],
    )
