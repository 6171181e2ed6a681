"""The agent's metrics by name: type, labels, what each says, and when it is absent.

What `# HELP` prints and what docs/metrics.md lists is this.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

POD: Final = (
    "namespace",
    "pod",
    "uid",
    "gpu_uuid",
    "gpu",
    "node",
    "queue",
    "vcluster",
    "virtual_namespace",
    "virtual_pod",
)
"""`uid`, because a StatefulSet reuses names while old processes linger."""

GPU: Final = ("gpu_uuid", "gpu", "model", "node")

SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One metric family."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    absent: str
    """When there is no series: never because a figure is 0."""


class Family(Enum):
    """Every metric family of the agent."""

    POD_USED = Described(
        name="kaishare_pod_gpu_memory_used_bytes",
        kind="gauge",
        labels=POD,
        help="GPU memory that the pod's processes hold on this GPU or MIG device, by the driver.",
        absent="the memory or the owner of any process that may be the pod's cannot be told",
    )
    POD_SHARE = Described(
        name="kaishare_pod_gpu_memory_share_bytes",
        kind="gauge",
        labels=(*POD, "source"),
        help="GPU memory the pod may hold on this GPU, by the best source there is.",
        absent="the pod has no share, its GPU is unknown, or it has ended",
    )
    POD_LIMIT = Described(
        name="kaishare_pod_gpu_memory_limit_bytes",
        kind="gauge",
        labels=(*POD, "source"),
        help="GPU memory that an enforcer was told to hold the pod to on this GPU.",
        absent="no enforcer was told anything",
    )
    POD_FLAGGED = Described(
        name="kaishare_pod_flagged",
        kind="gauge",
        labels=(*POD, "reason"),
        help="1 while the pod is flagged for this reason, 0 while it is judged and clean.",
        absent="the pod is not judged: a figure is missing, or the reason cannot apply to it",
    )
    POD_OVER_SECONDS = Described(
        name="kaishare_pod_over_share_seconds_total",
        kind="counter",
        labels=POD,
        help="Time the pod held more than its share and the slack on this GPU, flagged or not.",
        absent="the pod is not held to a share on this GPU",
    )
    GPU_TOTAL = Described(
        name="kaishare_gpu_memory_total_bytes",
        kind="gauge",
        labels=GPU,
        help="Memory of the GPU.",
        absent="the driver does not answer for this GPU, or does not tell its memory",
    )
    GPU_USED = Described(
        name="kaishare_gpu_memory_used_bytes",
        kind="gauge",
        labels=GPU,
        help="Memory of the GPU in use: total less free less reserved.",
        absent="the driver does not answer for this GPU, or does not tell its memory",
    )
    GPU_RESERVED = Described(
        name="kaishare_gpu_memory_reserved_bytes",
        kind="gauge",
        labels=GPU,
        help="Memory of the GPU that the driver keeps for itself.",
        absent="the driver is too old to tell, or does not tell the memory of this GPU",
    )
    GPU_PROMISED = Described(
        name="kaishare_gpu_memory_promised_bytes",
        kind="gauge",
        labels=GPU,
        help="Sum of the shares that pods have of this GPU.",
        absent="the pods of this node, or the share of any of them on this GPU, are not known",
    )
    GPU_HOST = Described(
        name="kaishare_gpu_memory_host_bytes",
        kind="gauge",
        labels=GPU,
        help="GPU memory held by processes of no pod that the agent knows, or of a reservation pod.",
        absent="the memory of such a process, or the owner of any process, cannot be told",
    )
    GPU_UNATTRIBUTED = Described(
        name="kaishare_gpu_memory_unattributed_bytes",
        kind="gauge",
        labels=GPU,
        help="GPU memory in use that no process accounts for, mostly the driver's own.",
        absent="the memory of the GPU or of any process, or the list of processes, cannot be told",
    )
    ATTRIBUTION_OK = Described(
        name="kaishare_agent_attribution_ok",
        kind="gauge",
        labels=(),
        help="0 while no pod of this node is judged, because of a problem of the node or of every GPU.",
        absent="there was no sample yet",
    )
    ATTRIBUTION_PROBLEM = Described(
        name="kaishare_agent_attribution_problem",
        kind="gauge",
        labels=("reason", "gpu_uuid"),
        help="1 for each present cause; an empty gpu_uuid concerns the node."
        " All but reservation-conflict and reservation-unresolved suspend verdicts.",
        absent="there is no such problem",
    )
    LAST_SAMPLE = Described(
        name="kaishare_agent_last_sample_timestamp_seconds",
        kind="gauge",
        labels=(),
        help="Unix time of the last sample for which the driver answered.",
        absent="there was none yet",
    )
    SAMPLE_SECONDS = Described(
        name="kaishare_agent_sample_duration_seconds",
        kind="histogram",
        labels=(),
        help="Time to read every GPU and to look up every process.",
        absent="never",
    )
    NVML_ERRORS = Described(
        name="kaishare_agent_nvml_errors_total",
        kind="counter",
        labels=("call", "error"),
        help="Calls to the driver that failed, or whose answer cannot be true.",
        absent="there was no such error",
    )
    EVENTS = Described(
        name="kaishare_agent_events_total",
        kind="counter",
        labels=("reason", "result"),
        help="Events about pods, by what became of them: created, updated, dropped or failed.",
        absent="there was none, pods come from a file, or --events=false",
    )
    EVICTIONS = Described(
        name="kaishare_agent_evictions_total",
        kind="counter",
        labels=("result",),
        help="Decisions on pods that their namespaces want evicted, by what came of them.",
        absent="there was none, or --eviction=off",
    )
    WATCH_CONTACT = Described(
        name="kaishare_watch_last_contact_timestamp_seconds",
        kind="gauge",
        labels=("resource",),
        help="When the API server was last heard on this watch.",
        absent="it was never heard, or pods come from a file",
    )
    WATCH_RESTARTS = Described(
        name="kaishare_watch_restarts_total",
        kind="counter",
        labels=("resource", "cause"),
        help="How often the watch began anew; cause closed is the ordinary end of one.",
        absent="it did not begin anew for that cause",
    )
    LOG_LINES_LOST = Described(
        name="kaishare_log_lines_lost_total",
        kind="counter",
        labels=(),
        help="Log lines dropped because standard error was full, closed or not read.",
        absent="never",
    )
    BUILD = Described(
        name="kaishare_build_info",
        kind="gauge",
        labels=("version", "component", "driver", "simulated"),
        help="What is running; simulated is true where the figures are made up.",
        absent="never",
    )
    PROCESS_CPU = Described(
        name="process_cpu_seconds_total",
        kind="counter",
        labels=(),
        help="User and system CPU time of the agent.",
        absent="never",
    )
    PROCESS_RESIDENT = Described(
        name="process_resident_memory_bytes",
        kind="gauge",
        labels=(),
        help="Resident memory of the agent.",
        absent="/proc cannot be read",
    )
    PROCESS_STARTED = Described(
        name="process_start_time_seconds",
        kind="gauge",
        labels=(),
        help="Unix time at which the agent started.",
        absent="/proc cannot be read",
    )
    PROCESS_FILES = Described(
        name="process_open_fds",
        kind="gauge",
        labels=(),
        help="Files and sockets the agent has open.",
        absent="/proc cannot be read",
    )
    PROCESS_MAX_FILES = Described(
        name="process_max_fds",
        kind="gauge",
        labels=(),
        help="Files and sockets the agent may have open.",
        absent="never",
    )
