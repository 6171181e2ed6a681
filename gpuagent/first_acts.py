"""What to do first about flags, problems and GPUs in trouble, and the section of docs/runbooks.md. Pure.

This is the one table of first acts: the API has the act of each flag, problem and GPU, and so do Events.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gpuagent.problems import Cause


class FirstAct(Struct, frozen=True):
    """What to do first, in one sentence, and the section of docs/runbooks.md with the rest."""

    text: str
    section: str


FOR_FLAG: Final[Mapping[str, FirstAct]] = {
    "over-share": FirstAct(
        "Lower the framework's memory option or raise the pod's share; delete the pod if neighbours fail.",
        "KaisharePodOverShare",
    ),
    "unassigned-gpu": FirstAct(
        "Remove NVIDIA_VISIBLE_DEVICES, privileged mode and mounts of /dev/nvidia* from the pod's manifest,"
        " and recreate the pod.",
        "KaisharePodUnassignedGPU",
    ),
    "no-share": FirstAct(
        "Give the pod a share or its namespace a default share, and recreate the pod with KAI's scheduler.",
        "KaisharePodWithoutShare",
    ),
    "share-changed": FirstAct(
        "Restore the pod's annotations, or recreate the pod to change its share.", "KaisharePodShareChanged"
    ),
    "limit-bypassed": FirstAct(
        "Check with the owner whether the pod escapes its enforcer: a static binary, a cleared LD_PRELOAD, or"
        " an opt-out.",
        "KaisharePodLimitBypassed",
    ),
    "no-reservation": FirstAct(
        "Delete the pod, so that its owner recreates it and KAI reserves a GPU for it.",
        "KaisharePodWithoutReservation",
    ),
}
"""By the reason of a flag."""
FOR_IGNORED_ANNOTATION: Final = FirstAct(
    "Recreate the pod with KAI's schedulerName, by default kai-scheduler.", "KaisharePodWithoutShare"
)
"""For `no-share` of a pod that declares a share and was not placed by KAI."""

FOR_PROBLEM: Final[Mapping[str, FirstAct]] = {
    Cause.NVML: FirstAct(
        "Look for Xid messages in the node's dmesg; drain the node before a reset of the GPU.",
        "KaishareAgentPartlyBlind",
    ),
    Cause.PROC_DENIED: FirstAct(
        "Let the agent run as root on a /proc without hidepid.", "KaishareAgentBlind"
    ),
    Cause.PID_NAMESPACE: FirstAct("Set hostPID: true in the agent's DaemonSet.", "KaishareAgentBlind"),
    Cause.TRUNCATED: FirstAct(
        "End some processes on the GPU: the driver lists no more than 950.", "KaishareAgentPartlyBlind"
    ),
    Cause.GARBAGE: FirstAct(
        "Install another driver if its version is 535.54 to 535.86, which have this defect.",
        "KaishareAgentBlind",
    ),
    Cause.MEMORY_UNKNOWN: FirstAct(
        "Check whether the GPU is virtual: some virtual GPUs do not report the memory of processes.",
        "KaishareAgentPartlyBlind",
    ),
    Cause.NEGATIVE_UNATTRIBUTED: FirstAct(
        "Compare the memory of the GPU and of its processes in nvidia-smi; if the difference lasts, try"
        " another driver.",
        "KaishareAgentBlind",
    ),
    Cause.PODS_STALE: FirstAct(
        "Check the permissions of the agent's service account, and the network between the node and the API"
        " server.",
        "KaishareWatchStale",
    ),
    Cause.SAMPLE_STALE: FirstAct(
        "Run nvidia-smi on the node; if it hangs, drain the node and restart it.", "KaishareAgentStale"
    ),
    Cause.RESERVATION_CONFLICT: FirstAct(
        "Run nvidia-smi -L in both pods, and delete the reservation pod that does not have the GPU.",
        "KaishareReservationConflict",
    ),
    Cause.RESERVATION_UNRESOLVED: FirstAct(
        "Read the log of the reservation pod: it saw no GPU, or several.", "KaishareReservationUnresolved"
    ),
}
"""By the reason of a problem. The details of a fault of the agent's own pod (OwnCause) have the remedy."""

FOR_GPU_AT_RISK: Final = FirstAct(
    "Have a pod above its share release memory, or delete it, before a pod at risk needs its share.",
    "KaishareGPUMemoryAtRisk",
)
FOR_OVERPROMISED_GPU: Final = FirstAct(
    "Compare the node's label nvidia.com/gpu.memory with the GPU's memory, and move a pod to another GPU.",
    "KaishareGPUOverpromised",
)
FOR_LOST_GPU: Final = FOR_PROBLEM[Cause.NVML]
FOR_MISSING_GPU: Final = FirstAct(
    "Run nvidia-smi -L on the node, and look for Xid messages in its dmesg.", "KaishareAgentPartlyBlind"
)


def for_gpu(*, is_at_risk: bool, is_overpromised: bool, has_pod_above_share: bool) -> FirstAct | None:
    """Return what to do about a GPU that answers; None for one in order.

    Memory is at risk by a pod above its share, or by promises alone; then no pod has to release memory.
    """
    if is_at_risk and (has_pod_above_share or not is_overpromised):
        return FOR_GPU_AT_RISK
    return FOR_OVERPROMISED_GPU if is_overpromised else None
