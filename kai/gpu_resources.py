"""Which extended resources name a GPU.

`nvidia.com/gpu` is a whole GPU. Every other resource here hands out a GPU in an amount that no share can be
compared with: MIG devices, time slices (`nvidia.com/gpu.shared`), renamed resources of the device plugin,
resources of other vendors and of sharing plugins, and extended resources of DRA.
"""

import re
from typing import Final

from kai import keys

NVIDIA_PREFIX: Final = "nvidia.com/"
OTHER_DEVICES: Final = ("nvidia.com/hostdev", "nvidia.com/mlnx", "nvidia.com/rdma", "nvidia.com/sriov")
"""How NVIDIA's resources begin that are network devices (Network Operator, SR-IOV device plugin)."""

GPU_SUFFIXES: Final = ("/gpu", "/vgpu", "/gpu.shared", "/gpumem", "/gpumem-percentage", "/gpucores")
"""How GPU resources of other vendors and of sharing plugins end (AMD, Intel, HAMi)."""

DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Begins an extended resource that Kubernetes turns into a resource claim (KEP-5004, DRAExtendedResource)."""


_PREFIXES: Final = (NVIDIA_PREFIX, DEVICE_CLASS_PREFIX)


def names_gpu(resource: str) -> bool:
    """Whether a resource hands out a GPU; a device class counts as one, since its name tells no device."""
    if resource.endswith(GPU_SUFFIXES) or resource.startswith(_PREFIXES):
        return not resource.startswith(OTHER_DEVICES)
    return False


def names_device_class(resource: str) -> bool:
    """Whether the resource is a claim for a device (DRA) written as an extended resource."""
    return resource.startswith(DEVICE_CLASS_PREFIX)


_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_MOST: Final = 64
_SHOWN: Final = 40


def parse_gpu_uuids(text: str) -> tuple[str, ...]:
    """Read a comma list of GPU UUIDs, each once, with or without the prefix CDI names devices by.

    Raises:
        ValueError: it names anything else (`all`, indices), nothing, or more GPUs than a node has.
    """
    found = tuple(
        dict.fromkeys(part.strip().removeprefix(keys.CDI_DEVICE_PREFIX) for part in text.split(",", _MOST))
    )
    if len(found) > _MOST or not all(_UUID.fullmatch(uuid) for uuid in found):
        raise ValueError(f'"{text[:_SHOWN]}" is not a list of GPU UUIDs; allowed: GPU-…,GPU-…')
    return found
