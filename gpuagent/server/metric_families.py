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


@dataclass(frozen=True, slots=True)
class Described:
    """Definition of one metric family."""

    name: str
    help: str
    absent: str = "never"
    """Condition under which there is no series. A figure of 0 is always exported."""
    labels: tuple[str, ...] = ()
    is_histogram: bool = False

    @property
    def kind(self) -> str:
        """The type of the metric; the name of a counter ends with `_total`."""
        return "histogram" if self.is_histogram else "counter" if self.name.endswith("_total") else "gauge"


class Family(Enum):
    """All metric families of the agent."""

    POD_USED = Described(
        "kaishare_pod_gpu_memory_used_bytes",
        "GPU memory that the pod's processes use on this GPU or MIG device, as the driver reports it.",
        "the memory or the owner of a process that may belong to the pod is unknown",
        labels=POD,
    )
    POD_SHARE = Described(
        "kaishare_pod_gpu_memory_share_bytes",
        "GPU memory that the pod may use on this GPU; `source` is the origin of the figure.",
        "the pod has no share, its GPU is unknown, the pod is finished, or another pod with the same"
        " ResourceClaim has the series",
        labels=(*POD, "source"),
    )
    POD_LIMIT = Described(
        "kaishare_pod_gpu_memory_limit_bytes",
        "GPU memory limit of the pod on this GPU: as configured for an enforcer (`source` is"
        " `annotation`), or the sum of what the driver holds its containers to (`driver`).",
        "no limit is configured; for `driver` also if a container with a process on this GPU has no"
        " limit, or it is unknown",
        labels=(*POD, "source"),
    )
    POD_UTILIZATION = Described(
        "kaishare_pod_gpu_utilization_ratio",
        "Share of the last interval in which the pod's processes had a kernel running on this GPU,"
        " from 0 to 1.",
        "the driver does not report it (MIG, vGPU, no permission), the previous sample is missing or"
        " more than 12 s old, or the owner or utilisation of a process that may belong to the pod is unknown",
        labels=POD,
    )
    POD_INFO = Described(
        "kaishare_pod_info",
        "1 for each pod; its owner can edit the metadata from which `size` and the workload come.",
        "the pod has no share and is on no GPU",
        labels=POD_INFO,
    )
    POD_FLAGGED = Described(
        "kaishare_pod_flagged",
        "1 while the pod is flagged for this reason, 0 while it is evaluated and not flagged.",
        "the pod is not evaluated: a figure is missing, or the reason cannot apply to it",
        labels=(*POD, "reason"),
    )
    FLAG_TRANSITIONS = Described(
        "kaishare_agent_flag_transitions_total",
        "Flags of this node's pods that were raised, cleared or dropped, by reason.",
        labels=("reason", "change"),
    )
    POD_OVER_SECONDS = Described(
        "kaishare_pod_over_share_seconds_total",
        "Time in which the pod used more than its share plus slack on this GPU, flagged or not.",
        "the pod is not compared with a share on this GPU",
        labels=POD,
    )
    GPU_TOTAL = Described(
        "kaishare_gpu_memory_total_bytes",
        "Total memory of the GPU.",
        "the driver does not respond for this GPU, or does not report its memory",
        labels=GPU,
    )
    GPU_USED = Described(
        "kaishare_gpu_memory_used_bytes",
        "Used memory of the GPU: total minus free minus reserved.",
        "the driver does not respond for this GPU, or does not report its memory",
        labels=GPU,
    )
    GPU_RESERVED = Described(
        "kaishare_gpu_memory_reserved_bytes",
        "Memory of the GPU that the driver reserves.",
        "the driver does not report reserved memory, or no memory of this GPU",
        labels=GPU,
    )
    GPU_PROMISED = Described(
        "kaishare_gpu_memory_promised_bytes",
        "Sum of the pods' shares of this GPU.",
        "the pods of this node, or the share of one of them on this GPU, are unknown",
        labels=GPU,
    )
    GPU_HOST = Described(
        "kaishare_gpu_memory_host_bytes",
        "GPU memory used by processes that belong to no pod, or to reservation pods.",
        "the memory of such a process, or the owner of any process, is unknown",
        labels=GPU,
    )
    GPU_ENDED_PODS = Described(
        "kaishare_gpu_memory_ended_pods_bytes",
        "GPU memory used by processes of pods that the API server no longer has; the API names them.",
        "the memory of such a process, or the owner of any process, is unknown",
        labels=GPU,
    )
    GPU_UNATTRIBUTED = Described(
        "kaishare_gpu_memory_unattributed_bytes",
        "Used GPU memory that no process accounts for, mostly the driver's own.",
        "the memory of the GPU or of a process, or the list of processes, is unknown",
        labels=GPU,
    )
    GPU_AT_RISK = Described(
        "kaishare_gpu_at_risk_bytes",
        "Memory that the GPU's pods are still promised and that is neither free nor reserved by the"
        " driver, whatever has taken it; else 0.",
        "the memory or the shares of the GPU, or the memory of a pod on it, are unknown, or the GPU"
        " is in MIG mode",
        labels=GPU,
    )
    ATTRIBUTION_OK = Described(
        "kaishare_agent_attribution_ok",
        "0 while a problem of the node or of every GPU suspends the evaluation of all pods.",
        "no sample has been taken yet",
    )
    ATTRIBUTION_PROBLEM = Described(
        "kaishare_agent_attribution_problem",
        "1 for each current problem; an empty gpu_uuid means the whole node."
        " All reasons but reservation-conflict, reservation-unresolved and gpu-missing suspend verdicts.",
        "there is no such problem",
        labels=("reason", "gpu_uuid"),
    )
    LAST_SAMPLE = Described(
        "kaishare_agent_last_sample_timestamp_seconds",
        "Unix time of the last sample for which the driver responded.",
        "no such sample has been taken yet",
    )
    SAMPLE_SECONDS = Described(
        "kaishare_agent_sample_duration_seconds",
        "Time to read all GPUs and to look up all processes.",
        is_histogram=True,
    )
    NVML_ERRORS = Described(
        "kaishare_agent_nvml_errors_total",
        "Driver calls that failed, or whose response was implausible.",
        "no such error has occurred",
        labels=("call", "error"),
    )
    EVENTS = Described(
        "kaishare_agent_events_total",
        "Events about pods by result: created, updated, dropped or failed.",
        "no Event has been due, pods come from a file, or --events=false",
        labels=("reason", "result"),
    )
    EVICTIONS = Described(
        "kaishare_agent_evictions_total",
        "Decisions about pods whose namespace requests eviction, by result.",
        "no decision has been made, or --eviction=off",
        labels=("result",),
    )
    WATCH_CONTACT = Described(
        "kaishare_watch_last_contact_timestamp_seconds",
        "Unix time of the last contact with the API server on this watch.",
        "there has been no contact, the resource is not served, or pods come from a file",
        labels=("resource",),
    )
    WATCH_RESTARTS = Described(
        "kaishare_watch_restarts_total",
        "Watch restarts by cause; closed and silent are normal on a quiet cluster.",
        "the watch has not restarted for this cause",
        labels=("resource", "cause"),
    )
    LOG_LINES_LOST = Described(
        "kaishare_log_lines_lost_total",
        "Log lines dropped because standard error was full, closed or not read.",
    )
    BUILD = Described(
        "kaishare_build_info",
        "Version of the agent and driver; simulated is true for synthetic GPUs.",
        labels=("version", "component", "driver", "simulated"),
    )
    PROCESS_CPU = Described("process_cpu_seconds_total", "User and system CPU time of the agent.")
    PROCESS_RESIDENT = Described(
        "process_resident_memory_bytes", "Resident memory of the agent.", "/proc is not readable"
    )
    PROCESS_STARTED = Described(
        "process_start_time_seconds", "Unix time at which the agent started.", "/proc is not readable"
    )
    PROCESS_FILES = Described(
        "process_open_fds", "Open files and sockets of the agent.", "/proc is not readable"
    )
    PROCESS_MAX_FILES = Described("process_max_fds", "Maximum of open files and sockets of the agent.")
