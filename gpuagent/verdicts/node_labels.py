"""Problems of a node's labels: GPUs that are missing, and cards of another size than KAI counts. Pure.

KAI takes the memory of every GPU of a node from one label, `nvidia.com/gpu.memory` (v0.17.0 node_info.go).
"""

from collections.abc import Iterator
from typing import Final

from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.inventory import Inventory
from gpuagent.problems import Cause, OwnCause, Problem
from gpuagent.shares.placement import is_time_sliced
from kai import keys
from kai.share_bytes import label_bytes
from service.text import counted, first_few, one_line
from service.units import size

_NOTICEABLE_PART: Final = 10
"""A difference between label and card is told from a tenth of the card on: drivers count the memory that they
reserve differently."""


def label_problems(inventory: Inventory, snapshot: Snapshot) -> Iterator[Problem]:
    """Yield the problems of the node's labels; none with MIG, since the labels may describe MIG devices."""
    if not snapshot.gpus or any(account.gpu.mig for account in snapshot.gpus):
        return
    if detail := _missing(inventory, snapshot):
        yield Problem(Cause.GPU_MISSING, "", detail)
    if detail := _other_size(inventory, snapshot):
        yield Problem(OwnCause.NODE_LABEL, "", detail)


def _missing(inventory: Inventory, snapshot: Snapshot) -> str:
    """Return how many GPUs the driver does not list, in one line; empty if it lists all.

    A GPU that is listed and does not respond has a problem of its own.
    """
    listed = len(snapshot.gpus) + sum(gpu.is_listed for gpu in snapshot.lost_gpus)
    if (labelled := inventory.labelled_gpus) is not None:
        expected, source = labelled, f"label {keys.NODE_GPU_COUNT}"
    else:
        expected, source = inventory.offered_gpus, f"capacity of {keys.GPU_RESOURCE}"
        # A plugin that gives each GPU to several pods offers a multiple of the GPUs, perhaps without a label.
        may_be_shared = expected > listed + 1 and expected % listed == 0
        if is_time_sliced(inventory) or may_be_shared:
            return ""
    if listed >= expected:
        return ""
    return f"the node's {source} says {expected}, and the driver lists {counted(listed, 'GPU')}"


def _other_size(inventory: Inventory, snapshot: Snapshot) -> str:
    """Return how the GPUs differ from the label, in one line; empty if they do not."""
    text = (inventory.node_labels or {}).get(keys.NODE_GPU_MEMORY)
    if text is None:
        return ""
    try:
        labelled = label_bytes(text)
    except ValueError:  # logged where the node was read
        return ""
    gpus = [account.gpu for account in snapshot.gpus]
    other = [
        f"GPU {gpu.index} ({one_line(gpu.model, 64)}) has {size(gpu.total_bytes)}"
        for gpu in gpus
        if gpu.total_bytes is not None
        and abs(gpu.total_bytes - labelled) * _NOTICEABLE_PART > gpu.total_bytes
    ]
    models = sorted({one_line(gpu.model, 64) for gpu in gpus if gpu.model})
    if not other and len(models) < 2:
        return ""
    parts = [f"KAI counts {size(labelled)} for each GPU of the node, by its label {keys.NODE_GPU_MEMORY}"]
    if other:
        parts.append(first_few(other))
    if len(models) > 1:
        parts.append(f"the node has {len(models)} models: {first_few(models)}")
    return "; ".join(parts)
