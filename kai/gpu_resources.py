"""Which extended resources name a GPU.

`nvidia.com/gpu` is a whole GPU. Every other resource here hands out a GPU in an amount that no share can be
compared with: MIG devices, time slices (`nvidia.com/gpu.shared`), renamed resources of the device plugin,
resources of other vendors and of sharing plugins, and extended resources of DRA.
"""

from typing import Final

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
