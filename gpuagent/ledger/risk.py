"""Memory that a GPU's pods are still promised and that is not free: their next allocation fails. Pure."""

from collections.abc import Iterable

from gpuagent.gpus.reading import Gpu
from gpuagent.ledger.slack import Slack
from gpuagent.ledger.snapshot import Holding


def at_risk_bytes(
    gpu: Gpu, holdings: Iterable[Holding], *, promised_bytes: int | None, slack: Slack
) -> int | None:
    """Return by how much the unused shares of a GPU exceed its free memory, in bytes.

    Each pod with a share of the GPU may still allocate its share minus its use. Free is the total minus the
    used and the reserved memory; reserved memory counts as 0 where the driver does not report it. The shares
    of a fully promised GPU always exceed the free memory by a little, since the driver needs some of it. So
    the result is 0 unless one of these holds:

    - A pod holds more than its share plus slack on the GPU. The share is 0 for a pod without a share there,
      such as an MPS server or a pod of an excluded namespace. A pod whose GPU is unknown may use its share on
      any GPU; what a pod with GPUs of unknown size may use is unknown. The verdict does not matter, because
      a limit above the share allows a pod to use memory that other pods are promised.
    - The GPU is promised more than its total.

    Args:
        gpu: the GPU.
        holdings: of every pod that uses the GPU or has a share of it, each once.
        promised_bytes: sum of the shares; None if unknown.
        slack: tolerance above a share, as for verdicts.

    Returns:
        A lower bound if the use of a pod with a share is unknown; None if a figure is unknown and the GPU is
        not known to be at risk; None for a GPU in MIG mode.
    """
    if gpu.mig or gpu.total_bytes is None or gpu.used_bytes is None or promised_bytes is None:
        return None
    has_cause, is_unknown = promised_bytes > gpu.total_bytes, False
    unused_bytes = most_unused_bytes = 0
    for holding in holdings:
        pod_share = holding.pod_share
        amount = pod_share.share_on(gpu.uuid)
        share_bytes = amount.bytes if amount else 0
        if amount is None and (pod_share.is_unresolved or pod_share.pod.has_unsized_gpus):
            is_unknown |= holding.used_bytes != 0  # what it may use here is unknown
            continue
        if holding.known_bytes > share_bytes + slack.of(share_bytes):
            has_cause = True
            continue
        if gpu.uuid not in pod_share.shares:
            share_bytes = 0
        own_unused_bytes = max(share_bytes - holding.known_bytes, 0)
        most_unused_bytes += own_unused_bytes
        if holding.used_bytes is None:
            is_unknown = True
        else:
            unused_bytes += own_unused_bytes
    free_bytes = max(gpu.total_bytes - gpu.used_bytes - (gpu.reserved_bytes or 0), 0)
    if most_unused_bytes <= free_bytes:
        return 0
    if has_cause and unused_bytes > free_bytes:
        return unused_bytes - free_bytes
    return None if is_unknown else 0
