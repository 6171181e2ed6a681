"""What pods ask of GPUs, as sums. Pure."""

from dataclasses import dataclass

from kai import keys
from kai.pod import MalformedPod, PodView, decode_pod
from webhook.policy.checks import readable, whole_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAmount:
    """An amount of GPUs that pods ask for."""

    gpus: float = 0.0
    """Whole GPUs and fractions, as KAI counts them: a share of 0.25 on two devices is 0.5."""
    memory_mib: int = 0
    """Shares in MiB, which are a part of a GPU that depends on its model."""
    uncounted: int = 0
    """Pods whose request cannot be counted: MIG devices, claims, or a value that KAI refuses."""

    def __add__(self, other: "GpuAmount") -> "GpuAmount":
        """Return the sum."""
        return GpuAmount(
            gpus=self.gpus + other.gpus,
            memory_mib=self.memory_mib + other.memory_mib,
            uncounted=self.uncounted + other.uncounted,
        )

    def times(self, count: int) -> "GpuAmount":
        """Return the amount of several equal pods."""
        return GpuAmount(
            gpus=self.gpus * count, memory_mib=self.memory_mib * count, uncounted=self.uncounted * count
        )

    def __str__(self) -> str:
        """Return the amount in words, such as `2.5 GPUs and 4000 MiB`."""
        parts = [f"{round(self.gpus, 2):g} GPU{'' if self.gpus == 1 else 's'}"]
        if self.memory_mib:
            parts.append(f"{self.memory_mib} MiB of GPU memory")
        if self.uncounted:
            parts.append(f"{self.uncounted} request{'' if self.uncounted == 1 else 's'} not counted")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class RunningPods:
    """The pods of a workload that have not ended."""

    count: int
    requested: GpuAmount
    """The sum of what they ask for now."""


def asked_by(pod: PodView) -> GpuAmount:
    """Return what a pod asks for; a share in a form that KAI refuses is not counted."""
    share = readable(lambda: pod.share_request)
    whole = readable(lambda: whole_gpus(pod))
    others = [name for name in pod.gpu_resources if name != keys.GPU_RESOURCE]
    is_unread = any(key in pod.annotations for key in (keys.GPU_FRACTION, keys.GPU_MEMORY)) and share is None
    is_uncounted = is_unread or whole is None or bool(others) or pod.uses_mig or pod.uses_claims
    return GpuAmount(
        gpus=(whole or 0) + ((share.counted_gpus or 0.0) if share else 0.0),
        memory_mib=(share.memory_mib or 0) * share.devices if share else 0,
        uncounted=int(is_uncounted),
    )


def asked_now(pod: bytes) -> GpuAmount:
    """Return what a pod in JSON asks for; one that cannot be read counts as a request that is not counted."""
    try:
        return asked_by(decode_pod(pod))
    except MalformedPod:
        return GpuAmount(uncounted=1)
