"""What to do first about flags, problems and GPUs in trouble, and the section of docs/runbooks.md. Pure.

The page and both `top` commands show these sentences. A reason that this version does not know has none.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gpuagent.api_types import ApiPod
from gpuagent.problems import Cause
from service.names import is_dns_label, is_dns_subdomain


class NextStep(Struct, frozen=True):
    """What to do first, in one sentence, and the section of docs/runbooks.md with the rest."""

    text: str
    section: str

    @property
    def line(self) -> str:
        """What to do and where to read on, in one line."""
        return f"{self.text} See {self.runbook}."

    @property
    def runbook(self) -> str:
        """The file and its section, for a person."""
        return f"docs/runbooks.md, {self.section}"


FOR_FLAG: Final[Mapping[str, NextStep]] = {
    "over-share": NextStep(
        "Lower the framework's memory option or raise the pod's share; delete the pod if neighbours fail.",
        "KaisharePodOverShare",
    ),
    "unassigned-gpu": NextStep(
        "Remove NVIDIA_VISIBLE_DEVICES, privileged mode and mounts of /dev/nvidia* from the pod's manifest,"
        " and recreate the pod.",
        "KaisharePodUnassignedGPU",
    ),
    "no-share": NextStep(
        "Give the pod a share or its namespace a default share, and recreate the pod with KAI's scheduler.",
        "KaisharePodWithoutShare",
    ),
    "share-changed": NextStep(
        "Restore the pod's annotations, or recreate the pod to change its share.", "KaisharePodShareChanged"
    ),
    "limit-bypassed": NextStep(
        "Check with the owner whether the pod escapes its enforcer: a static binary, a cleared LD_PRELOAD, or"
        " an opt-out.",
        "KaisharePodLimitBypassed",
    ),
    "no-reservation": NextStep(
        "Delete the pod, so that its owner recreates it and KAI reserves a GPU for it.",
        "KaisharePodWithoutReservation",
    ),
}
"""By the reason of a flag."""

FOR_PROBLEM: Final[Mapping[str, NextStep]] = {
    Cause.NVML: NextStep(
        "Look for Xid messages in the node's dmesg; drain the node before a reset of the GPU.",
        "KaishareAgentPartlyBlind",
    ),
    Cause.PROC_DENIED: NextStep(
        "Let the agent run as root on a /proc without hidepid.", "KaishareAgentBlind"
    ),
    Cause.PID_NAMESPACE: NextStep("Set hostPID: true in the agent's DaemonSet.", "KaishareAgentBlind"),
    Cause.TRUNCATED: NextStep(
        "End some processes on the GPU: the driver lists no more than 950.", "KaishareAgentPartlyBlind"
    ),
    Cause.GARBAGE: NextStep(
        "Install another driver if its version is 535.54 to 535.86, which have this defect.",
        "KaishareAgentBlind",
    ),
    Cause.MEMORY_UNKNOWN: NextStep(
        "Check whether the GPU is virtual: some virtual GPUs do not report the memory of processes.",
        "KaishareAgentPartlyBlind",
    ),
    Cause.NEGATIVE_UNATTRIBUTED: NextStep(
        "Compare the memory of the GPU and of its processes in nvidia-smi; if the difference lasts, try"
        " another driver.",
        "KaishareAgentBlind",
    ),
    Cause.PODS_STALE: NextStep(
        "Check the permissions of the agent's service account, and the network between the node and the API"
        " server.",
        "KaishareWatchStale",
    ),
    Cause.SAMPLE_STALE: NextStep(
        "Run nvidia-smi on the node; if it hangs, drain the node and restart it.", "KaishareAgentStale"
    ),
    Cause.RESERVATION_CONFLICT: NextStep(
        "Run nvidia-smi -L in both pods, and delete the reservation pod that does not have the GPU.",
        "KaishareReservationConflict",
    ),
    Cause.RESERVATION_UNRESOLVED: NextStep(
        "Read the log of the reservation pod: it saw no GPU, or several.", "KaishareReservationUnresolved"
    ),
}
"""By the reason of a problem."""

FOR_GPU_AT_RISK: Final = NextStep(
    "Have a pod above its share release memory, or delete it, before a pod at risk needs its share.",
    "KaishareGPUMemoryAtRisk",
)
FOR_OVERPROMISED_GPU: Final = NextStep(
    "Compare the node's label nvidia.com/gpu.memory with the GPU's memory, and move a pod to another GPU.",
    "KaishareGPUOverpromised",
)
FOR_LOST_GPU: Final = FOR_PROBLEM[Cause.NVML]


def why_command(pod: ApiPod) -> str:
    """Return the command that tells the story of a pod; empty for a name that Kubernetes does not allow.

    The name comes from an agent, and the command is for a shell.
    """
    if is_dns_label(pod.namespace) and is_dns_subdomain(pod.name):
        return f"kaishare why -n {pod.namespace} {pod.name}"
    return ""
