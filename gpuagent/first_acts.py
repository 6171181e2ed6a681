"""What to do first about flags, problems and GPUs in trouble, and the section of docs/runbooks.md. Pure.

This is the one table of first acts: the API has the act of each flag, problem and GPU, and so do Events.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gpuagent.problems import LOST, OF_WHOLE_DRIVER, Cause, RiskName


class FirstAct(Struct, frozen=True):
    """What to do first, in one sentence, and the section of docs/runbooks.md with the rest."""

    text: str
    section: str


_BLIND: Final = "KaishareAgentBlind"
_PARTLY_BLIND: Final = "KaishareAgentPartlyBlind"
_AT_RISK: Final = "KaishareGPUMemoryAtRisk"

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
    "limit-not-in-force": FirstAct(
        "Check the container toolkit (1.20.1 or newer), its hook in the pod's CDI devices, and both of its"
        " memory variables; then recreate the pod.",
        "KaisharePodLimitNotInForce",
    ),
    "limit-differs": FirstAct(
        "Remove the variables NVIDIA_GPU_MEMORY_* from the pod's manifest and image, and recreate the pod.",
        "KaisharePodLimitDiffers",
    ),
}
"""By the reason of a flag."""
FOR_IGNORED_ANNOTATION: Final = FirstAct(
    "Recreate the pod with KAI's schedulerName, by default kai-scheduler.", "KaisharePodWithoutShare"
)
"""For `no-share` of a pod that declares a share and was not placed by KAI."""

FOR_PROBLEM: Final[Mapping[str, FirstAct]] = {
    Cause.NVML: FirstAct("Run nvidia-smi on the node, and compare its answer with the error.", _PARTLY_BLIND),
    Cause.PROC_DENIED: FirstAct("Let the agent run as root on a /proc without hidepid.", _BLIND),
    Cause.PID_NAMESPACE: FirstAct("Set hostPID: true in the agent's DaemonSet.", _BLIND),
    Cause.TRUNCATED: FirstAct(
        "End some processes on the GPU: the driver lists no more than 950.", _PARTLY_BLIND
    ),
    Cause.GARBAGE: FirstAct(
        "Install another driver if its version is 535.54 to 535.86, which have this defect.", _BLIND
    ),
    Cause.MEMORY_UNKNOWN: FirstAct(
        "Check whether the GPU is virtual: some virtual GPUs do not report the memory of processes.",
        _PARTLY_BLIND,
    ),
    Cause.NEGATIVE_UNATTRIBUTED: FirstAct(
        "Compare the memory of the GPU and of its processes in nvidia-smi; if the difference lasts, try"
        " another driver.",
        _BLIND,
    ),
    Cause.PODS_STALE: FirstAct(
        "Check the permissions of the agent's service account, and the network between the node and the API"
        " server.",
        "KaishareWatchStale",
    ),
    Cause.SAMPLE_STALE: FirstAct(
        "Run nvidia-smi on the node; if it hangs, drain the node and restart it.", _BLIND
    ),
    Cause.RESERVATION_CONFLICT: FirstAct(
        "Run nvidia-smi -L in both pods, and delete the reservation pod that does not have the GPU.",
        "KaishareReservationConflict",
    ),
    Cause.RESERVATION_UNRESOLVED: FirstAct(
        "Read the log of the reservation pod: it saw no GPU, or several.", "KaishareReservationUnresolved"
    ),
    Cause.GPU_MISSING: FirstAct(
        "Run nvidia-smi -L on the node, and look for Xid messages in its dmesg.", _PARTLY_BLIND
    ),
}
"""By the reason of a problem. The details of a fault of the agent's own pod (OwnCause) have the remedy."""

_LOST: Final = FirstAct(
    "Look for Xid messages in the node's dmesg; drain the node before a reset of the GPU.", _PARTLY_BLIND
)
_DRIVER: Final = FirstAct(
    "Wait if the node's driver is being replaced; else load the driver, or read the log of the driver's pod.",
    _BLIND,
)
_DEVICE_FILES: Final = FirstAct(
    "Restart the agent's pod, whose container has probably lost the driver's device files.", _BLIND
)
_PERMISSION: Final = FirstAct(
    "Give the agent's container access to the driver's device files (the chart's agent.gpuAccess).", _BLIND
)
_NO_ANSWER: Final = FirstAct(
    "Look for Xid messages and hung tasks in the node's dmesg; drain the node before it restarts.",
    _PARTLY_BLIND,
)
FOR_ERROR: Final[Mapping[str, FirstAct]] = {
    **dict.fromkeys(LOST, _LOST),
    **dict.fromkeys(OF_WHOLE_DRIVER, _DRIVER),
    "Unknown": _DEVICE_FILES,
    "OperatingSystem": _DEVICE_FILES,
    "NoPermission": _PERMISSION,
    "NoAnswer": _NO_ANSWER,
}
"""By the driver's error of an `nvml` problem, or of a GPU that does not respond. Only a lost GPU is a reason
to drain the node: its pods are fine if the agent's container lost its device files."""

FOR_GPU_AT_RISK: Final = FirstAct(
    "Have a pod above its share release memory, or delete it, before a pod at risk needs its share.", _AT_RISK
)
FOR_OVERPROMISED_GPU: Final = FirstAct(
    "Compare the node's label nvidia.com/gpu.memory with the GPU's memory, and move a pod to another GPU.",
    "KaishareGPUOverpromised",
)

FOR_RISK: Final[Mapping[RiskName, FirstAct]] = {
    RiskName.PODS: FOR_GPU_AT_RISK,
    RiskName.PROMISES: FOR_OVERPROMISED_GPU,
    RiskName.HOST: FirstAct(
        "Run nvidia-smi on the node, and end or move the processes that belong to no pod.", _AT_RISK
    ),
    RiskName.ENDED: FirstAct(
        "End the processes of the ended pods on the node; crictl shows their containers.", _AT_RISK
    ),
    RiskName.UNATTRIBUTED: FirstAct(
        "Run nvidia-smi on the node; if no process holds the memory, drain the node and reset the GPU.",
        _AT_RISK,
    ),
}
"""By the largest cause of memory at risk."""


def for_problem(cause: str, error: str = "") -> FirstAct | None:
    """Return what to do about a problem, by the driver's error if it has one; None if its detail says it."""
    return FOR_ERROR.get(error, FOR_PROBLEM[Cause.NVML]) if cause == Cause.NVML else FOR_PROBLEM.get(cause)


def for_gpu(*, risk: RiskName | None, is_overpromised: bool) -> FirstAct | None:
    """Return what to do about a GPU that answers, by the largest cause of its risk; None for one in order."""
    if risk is not None:
        return FOR_RISK[risk]
    return FOR_OVERPROMISED_GPU if is_overpromised else None
