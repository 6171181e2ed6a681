"""GPUs of a node without a driver: their number and memory by the node's labels, their UUIDs by KAI. Pure."""

import uuid
from collections.abc import Sequence
from typing import Final

from gpuagent.pods.inventory import Inventory
from gpuagent.simulation.scenario import SimulatedGpu
from gpuagent.simulation.values import Bytes
from kai import keys
from kai.gpu_resources import is_gpu_uuid
from kai.memory import label_bytes
from kai.share import MIB

MOST_GPUS: Final = 64
"""Maximum of GPUs of a simulated node; more than any node has."""
DEFAULT_BYTES: Final = 16384 * MIB
"""Memory of a GPU without a valid node label `nvidia.com/gpu.memory`."""
_NAMES: Final = uuid.UUID(int=0)
"""Namespace of made-up UUIDs. With it and `<node>-<index>` they equal those of run.ai's fake-gpu-operator
(`generateGpuDetails`), whose reservation pods nevertheless name a random UUID each."""
_LONGEST_PRODUCT: Final = 63


class NodeGpus:
    """The GPUs of one node over time.

    The label `nvidia.com/gpu.count` has their number, and each reservation pod names the UUID of its GPU.
    A GPU that no reservation pod has named yet gets a made-up UUID, and the first new name replaces it. A
    named GPU stays when its reservation pod ends, since a GPU outlives its pods.
    """

    def __init__(self, node: str) -> None:
        """Set the name of the node, from which UUIDs are made up."""
        self._node = node
        self._uuids: list[str] = []
        self._made_up: set[str] = set()

    def update(self, inventory: Inventory) -> tuple[SimulatedGpu, ...]:
        """Return the GPUs by an inventory; a GPU's index is its place, which it keeps."""
        labels = inventory.node_labels or {}
        self._place(named_gpus(inventory), inventory.labelled_gpus)
        memory = _memory(labels.get(keys.NODE_GPU_MEMORY))
        product = labels.get(keys.NODE_GPU_PRODUCT, "")[:_LONGEST_PRODUCT]
        model = f"Simulated {product or 'GPU'}"
        return tuple(SimulatedGpu(uuid=gpu, memory=memory, model=model) for gpu in self._uuids)

    def _place(self, named: Sequence[str], count: int | None) -> None:
        """Give each named GPU a place, and fill the others up to the labelled number."""
        labelled = min(count or 0, MOST_GPUS)
        most = MOST_GPUS if count is None else max(labelled, len(named))
        wanted = frozenset(named)
        spare = [gpu for gpu in self._uuids if gpu not in wanted]
        spare.sort(key=lambda gpu: gpu not in self._made_up)  # made-up GPUs go first
        for gpu in named:
            if gpu in self._uuids:
                continue
            if spare and (spare[0] in self._made_up or len(self._uuids) >= most):
                self._replace(spare.pop(0), gpu)
            else:
                self._uuids.append(gpu)
        for gpu in spare[: max(0, len(self._uuids) - most)]:
            self._uuids.remove(gpu)
        for number in range(MOST_GPUS):
            if len(self._uuids) >= labelled:
                break
            gpu = f"GPU-{uuid.uuid5(_NAMES, f'{self._node}-{number}')}"
            if gpu not in self._uuids:
                self._made_up.add(gpu)
                self._uuids.append(gpu)

    def _replace(self, old: str, new: str) -> None:
        self._uuids[self._uuids.index(old)] = new


def named_gpus(inventory: Inventory) -> tuple[str, ...]:
    """Return the GPUs that reservation pods name, those of the cluster's own KAI first.

    A tenant whose KAI runs inside a vCluster can write any UUID, so a tenant's name adds no GPU beyond the
    labelled number.
    """
    pods = [pod for pod in inventory.reservation_pods if is_gpu_uuid(pod.gpu)]
    own = {pod.gpu for pod in pods if not pod.is_tenants}
    names = (*sorted(own), *sorted({pod.gpu for pod in pods} - own))
    count = MOST_GPUS if inventory.labelled_gpus is None else inventory.labelled_gpus
    return names[: min(max(count, len(own)), MOST_GPUS)]


def _memory(label: str | None) -> Bytes:
    try:
        return Bytes(label_bytes(label)) if label is not None else Bytes(DEFAULT_BYTES)
    except ValueError:  # logged where the node was read
        return Bytes(DEFAULT_BYTES)
