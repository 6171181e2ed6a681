"""Amounts of GPUs: what a pod requests, in numbers and words. Pure."""

from dataclasses import dataclass
from math import isnan
from typing import Final

from console.why.evidence_objects import PodObject
from kai import keys
from kai.gpu_resources import gpus_at_once
from kai.numbers import parse_quantity
from kai.pod import Container
from kai.share_bytes import Card

_MOST_GPUS: Final = 65536
"""More GPUs than any node has; a larger number is no number of GPUs."""


@dataclass(frozen=True, slots=True)
class Request:
    """The GPUs that a pod requests. All fields are None or 0 for a pod without GPUs."""

    fraction: float | None = None
    """Part of each of `devices` GPUs."""
    memory_mib: int | None = None
    """Memory of each of `devices` GPUs, in MiB."""
    devices: int = 1
    whole: int = 0
    """Number of whole GPUs."""

    @property
    def is_share(self) -> bool:
        """Whether the pod requests a part of a GPU."""
        return self.fraction is not None or self.memory_mib is not None

    @property
    def is_any(self) -> bool:
        """Whether the pod requests any GPU."""
        return self.is_share or self.whole > 0

    @property
    def text(self) -> str:
        """The request in words."""
        many = f"each of {self.devices} GPUs" if self.devices > 1 else "a GPU"
        if self.memory_mib is not None:
            return f"{self.memory_mib} MiB of {many}"
        if self.fraction is not None:
            return f"{number(self.fraction)} of {many}"
        return gpus(self.whole) if self.whole else "no GPU"

    def portion(self, card: Card | None) -> float | None:
        """Return the part of one GPU that is needed in one piece, as KAI counts it; 1 for a whole GPU.

        Args:
            card: a GPU of the node; None if its memory is unknown.
        """
        if self.fraction is not None:
            return round(self.fraction, 2)
        if self.memory_mib is not None:
            return None if card is None else card.portion_of_memory(self.memory_mib)
        return 1.0 if self.whole else None


def request_of(pod: PodObject) -> Request:
    """Return what a pod requests; an unreadable share counts as none."""
    view = pod.view
    if view is None:
        return Request()
    try:
        share = view.share_request
    except ValueError:
        share = None
    if share is not None and not (share.fraction is not None and isnan(share.fraction)):
        return Request(share.fraction, share.memory_mib, share.devices)
    whole = gpus_at_once(
        ((_whole(container), container.is_sidecar) for container in view.init_containers),
        (_whole(container) for container in view.containers),
    )
    return Request(whole=whole)


def _whole(container: Container) -> int:
    try:
        amount = parse_quantity(container.asks(keys.GPU_RESOURCE) or 0)
    except ValueError:
        return 0
    return int(amount) if 0 <= amount <= _MOST_GPUS else 0


def number(value: float) -> str:
    """Format an amount with at most two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def gpus(value: float) -> str:
    """Format a number of GPUs: `0 GPUs`, `0.5 GPU`, `1 GPU`, `2 GPUs`."""
    return f"{number(value)} GPU{'' if 0 < value <= 1 else 's'}"
