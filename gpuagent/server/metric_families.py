"""Definitions of the agent's metrics: name, type, labels, help, and when a metric is absent.

The source of the `# HELP` lines and of the table in docs/metrics.md.
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
"""`uid` is needed because a StatefulSet reuses names while old processes still run."""

POD_INFO: Final = (
    *(label for label in POD if label not in ("gpu", "gpu_uuid")),
    "size",
    "workload_kind",
    "workload",
)

GPU: Final = ("gpu_uuid", "gpu", "model", "node")

SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Definition of one metric family."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    absent: str
    """Condition under which there is no series. A figure of 0 is always exported."""


class Family(Enum):
    """All metric families of the agent."""

    POD_USED = Described(
        name="kaishare_pod_gpu_memory_used_bytes",
        kind="gauge",
        labels=POD,
        help="GPU memory that the pod's processes use on this GPU or MIG device, as the driver reports it.",
        absent="the memory or the owner of a process that may belong to the pod is unknown",
    )
    POD_SHARE = Described(
        name="kaishare_pod_gpu_memory_share_bytes",
        kind="gauge",
        labels=(*POD, "source"),
        help="GPU memory that the pod may use on this GPU; `source` is the origin of the figure.",
        absent="the pod has no share, its GPU is unknown, or the pod is finished",
    )
    POD_LIMIT = Described(
        name="kaishare_pod_gpu_memory_limit_bytes",
        kind="gauge",
        labels=(*POD, "source"),
        help="GPU memory limit of the pod on this GPU, as configured for an enforcer.",
        absent="no limit is configured",
    )
    POD_UTILIZATION = Described(
        name="kaishare_pod_gpu_utilization_ratio",
        kind="gauge",
        labels=POD,
        help="Share of the last interval in which the pod's processes had a kernel running on this GPU,"
        " from 0 to 1.",
        absent="the driver does not report it (MIG, vGPU, no permission), the previous sample is missing or"
        " more than 12 s old, or the owner or utilisation of a process that may belong to the pod is unknown",
    )
    POD_INFO = Described(
        name="kaishare_pod_info",
        kind="gauge",
        labels=POD_INFO,
        help="1 for each pod; its owner can edit the metadata from which `size` and the workload come.",
        absent="the pod has no share and is on no GPU",
    )
    POD_FLAGGED = Described(
        name="kaishare_pod_flagged",
        kind="gauge",
        labels=(*POD, "reason"),
        help="1 while the pod is flagged for this reason, 0 while it is evaluated and not flagged.",
        absent="the pod is not evaluated: a figure is missing, or the reason cannot apply to it",
    )
    FLAG_TRANSITIONS = Described(
        name="kaishare_agent_flag_transitions_total",
        kind="counter",
        labels=("reason", "change"),
        help="Flags of this node's pods that were raised, cleared or dropped, by reason.",
        absent="never",
    )
    POD_OVER_SECONDS = Described(
        name="kaishare_pod_over_share_seconds_total",
        kind="counter",
        labels=POD,
        help="Time in which the pod used more than its share plus slack on this GPU, flagged or not.",
        absent="the pod is not compared with a share on this GPU",
    )
    GPU_TOTAL = Described(
        name="kaishare_gpu_memory_total_bytes",
        kind="gauge",
        labels=GPU,
        help="Total memory of the GPU.",
        absent="the driver does not respond for this GPU, or does not report its memory",
    )
    GPU_USED = Described(
        name="kaishare_gpu_memory_used_bytes",
        kind="gauge",
        labels=GPU,
        help="Used memory of the GPU: total minus free minus reserved.",
        absent="the driver does not respond for this GPU, or does not report its memory",
    )
    GPU_RESERVED = Described(
        name="kaishare_gpu_memory_reserved_bytes",
        kind="gauge",
        labels=GPU,
        help="Memory of the GPU that the driver reserves.",
        absent="the driver does not report reserved memory, or no memory of this GPU",
    )
    GPU_PROMISED = Described(
        name="kaishare_gpu_memory_promised_bytes",
        kind="gauge",
        labels=GPU,
        help="Sum of the pods' shares of this GPU.",
        absent="the pods of this node, or the share of one of them on this GPU, are unknown",
    )
    GPU_HOST = Described(
        name="kaishare_gpu_memory_host_bytes",
        kind="gauge",
        labels=GPU,
        help="GPU memory used by processes that belong to no pod, or to reservation pods.",
        absent="the memory of such a process, or the owner of any process, is unknown",
    )
    GPU_ENDED_PODS = Described(
        name="kaishare_gpu_memory_ended_pods_bytes",
        kind="gauge",
        labels=GPU,
        help="GPU memory used by processes of pods that the API server no longer has; the API names them.",
        absent="the memory of such a process, or the owner of any process, is unknown",
    )
    GPU_UNATTRIBUTED = Described(
        name="kaishare_gpu_memory_unattributed_bytes",
        kind="gauge",
        labels=GPU,
        help="Used GPU memory that no process accounts for, mostly the driver's own.",
        absent="the memory of the GPU or of a process, or the list of processes, is unknown",
    )
    GPU_AT_RISK = Described(
        name="kaishare_gpu_at_risk_bytes",
        kind="gauge",
        labels=GPU,
        help="Memory that the GPU's pods are still promised and that is neither free nor reserved by the"
        " driver, whatever has taken it; else 0.",
        absent="the memory or the shares of the GPU, or the memory of a pod on it, are unknown, or the GPU"
        " is in MIG mode",
    )
    ATTRIBUTION_OK = Described(
        name="kaishare_agent_attribution_ok",
        kind="gauge",
        labels=(),
        help="0 while a problem of the node or of every GPU suspends the evaluation of all pods.",
        absent="no sample has been taken yet",
    )
    ATTRIBUTION_PROBLEM = Described(
        name="kaishare_agent_attribution_problem",
        kind="gauge",
        labels=("reason", "gpu_uuid"),
        help="1 for each current problem; an empty gpu_uuid means the whole node."
        " All reasons but reservation-conflict, reservation-unresolved and gpu-missing suspend verdicts.",
        absent="there is no such problem",
    )
    LAST_SAMPLE = Described(
        name="kaishare_agent_last_sample_timestamp_seconds",
        kind="gauge",
        labels=(),
        help="Unix time of the last sample for which the driver responded.",
        absent="no such sample has been taken yet",
    )
    SAMPLE_SECONDS = Described(
        name="kaishare_agent_sample_duration_seconds",
        kind="histogram",
        labels=(),
        help="Time to read all GPUs and to look up all processes.",
        absent="never",
    )
    NVML_ERRORS = Described(
        name="kaishare_agent_nvml_errors_total",
        kind="counter",
        labels=("call", "error"),
        help="Driver calls that failed, or whose response was implausible.",
        absent="no such error has occurred",
    )
    EVENTS = Described(
        name="kaishare_agent_events_total",
        kind="counter",
        labels=("reason", "result"),
        help="Events about pods by result: created, updated, dropped or failed.",
        absent="no Event has been due, pods come from a file, or --events=false",
    )
    EVICTIONS = Described(
        name="kaishare_agent_evictions_total",
        kind="counter",
        labels=("result",),
        help="Decisions about pods whose namespace requests eviction, by result.",
        absent="no decision has been made, or --eviction=off",
    )
    WATCH_CONTACT = Described(
        name="kaishare_watch_last_contact_timestamp_seconds",
        kind="gauge",
        labels=("resource",),
        help="Unix time of the last contact with the API server on this watch.",
        absent="there has been no contact, the resource is not served, or pods come from a file",
    )
    WATCH_RESTARTS = Described(
        name="kaishare_watch_restarts_total",
        kind="counter",
        labels=("resource", "cause"),
        help="Watch restarts by cause; closed and silent are normal on a quiet cluster.",
        absent="the watch has not restarted for this cause",
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
        help="Version of the agent and driver; simulated is true for synthetic GPUs.",
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
        absent="/proc is not readable",
    )
    PROCESS_STARTED = Described(
        name="process_start_time_seconds",
        kind="gauge",
        labels=(),
        help="Unix time at which the agent started.",
        absent="/proc is not readable",
    )
    PROCESS_FILES = Described(
        name="process_open_fds",
        kind="gauge",
        labels=(),
        help="Open files and sockets of the agent.",
        absent="/proc is not readable",
    )
    PROCESS_MAX_FILES = Described(
        name="process_max_fds",
        kind="gauge",
        labels=(),
        help="Maximum of open files and sockets of the agent.",
        absent="never",
    )
