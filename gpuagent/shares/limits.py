"""Limits of GPU memory in a pod's annotations: what they mean in each mode of KAI's GPU sharing. Pure."""

from enum import StrEnum

from service.text import quoted


class GpuSharingMode(StrEnum):
    """KAI's mode of GPU sharing: `global.gpuSharingMode` of its chart from v0.18 on."""

    NON_MEMORY_ENFORCED = "NonMemoryEnforced"
    HAMI_CORE = "HamiCore"
    NV_FRACTIONS = "NvFractions"
    DISABLED = "Disabled"

    @classmethod
    def parse(cls, text: str) -> "GpuSharingMode":
        """Parse the name of a mode.

        Raises:
            ValueError: no mode has the name; the message lists the modes.
        """
        if text not in tuple(cls):
            raise ValueError(f"{quoted(text)} is not a mode of GPU sharing; allowed: {', '.join(cls)}")
        return cls(text)


def effective_limit(
    limit_bytes: int, *, share_bytes: int | None, gpu_bytes: int | None, mode: GpuSharingMode | None
) -> int | None:
    """Return the limit that the pod is compared with instead of its share; None if the share counts.

    The pod's owner can write the annotation, so a limit above the share does not count. The exception is
    NvFractions, the mode in which the driver enforces the limit; even there it is at most the GPU's memory.

    Args:
        limit_bytes: the limit in the annotations.
        share_bytes: the pod's share of the GPU; None if unknown.
        gpu_bytes: total memory of the GPU; None if unknown.
        mode: KAI's mode; None if unknown.
    """
    if share_bytes is None or limit_bytes <= share_bytes:
        return limit_bytes
    if mode is GpuSharingMode.NV_FRACTIONS and gpu_bytes is not None:
        return min(limit_bytes, gpu_bytes)
    return None
