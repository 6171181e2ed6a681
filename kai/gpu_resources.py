"""Tells which extended resources request a GPU.

`nvidia.com/gpu` is a whole GPU. The amounts of all other resources here cannot be compared with a share: MIG
devices, time slices (`nvidia.com/gpu.shared`), resources that the device plugin renames, resources of other
vendors and of sharing plugins, and extended resources of DRA.
"""

import re
from collections.abc import Iterable
from typing import Final

from kai import keys
from kai.numbers import parse_quantity

NVIDIA_PREFIX: Final = "nvidia.com/"
OTHER_DEVICES: Final = ("nvidia.com/hostdev", "nvidia.com/mlnx", "nvidia.com/rdma", "nvidia.com/sriov")
"""Prefixes of NVIDIA's resources for network devices (Network Operator, SR-IOV device plugin)."""

GPU_SUFFIXES: Final = ("/gpu", "/vgpu", "/gpu.shared", "/gpumem", "/gpumem-percentage", "/gpucores")
"""Suffixes of GPU resources of other vendors and of sharing plugins (AMD, Intel, HAMi)."""

DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of extended resources that Kubernetes turns into resource claims (KEP-5004, DRAExtendedResource)."""

_PREFIXES: Final = (NVIDIA_PREFIX, DEVICE_CLASS_PREFIX)


def names_gpu(resource: str) -> bool:
    """Whether a resource requests a GPU; a device class counts, since its name does not tell the device."""
    if resource.endswith(GPU_SUFFIXES) or resource.startswith(_PREFIXES):
        return not resource.startswith(OTHER_DEVICES)
    return False


HARMLESS_PREFIXES: Final = (
    *OTHER_DEVICES, "rdma/", "mellanox.com/", "vpc.amazonaws.com/", "networking.gke.io",
    "devices.kubevirt.io/", "smarter-devices/",
)  # fmt: skip
HARMLESS_PARTS: Final = ("/hostdev", "/sriov")
HARMLESS_SUFFIXES: Final = ("/fuse", "/kvm")
"""Extended resources of network cards, volumes and virtual machines, which are no accelerators."""
KUBERNETES_DOMAIN: Final = "kubernetes.io"


def may_be_accelerator(resource: str) -> bool:
    """Whether a resource may be an accelerator: a GPU, or an extended resource of unknown purpose.

    A share must not be given beside it, or in its place. Names of extended resources have a domain that
    is not Kubernetes' (`pkg/apis/core/v1/helper/helpers.go`, IsExtendedResourceName).
    """
    domain, slash, _ = resource.partition("/")
    if not slash or domain == KUBERNETES_DOMAIN or domain.endswith(f".{KUBERNETES_DOMAIN}"):
        return names_device_class(resource)
    return not (
        resource.startswith(HARMLESS_PREFIXES)
        or resource.endswith(HARMLESS_SUFFIXES)
        or any(part in resource for part in HARMLESS_PARTS)
    )


def is_nothing(amount: object) -> bool:
    """Whether an amount of a resource requests nothing: zero in any form; not an unreadable amount."""
    if amount is None or amount in ("0", 0):
        return True
    if amount == "1":  # the usual case
        return False
    try:
        return parse_quantity(amount).numerator == 0
    except ValueError:
        return False


def names_device_class(resource: str) -> bool:
    """Whether an extended resource is a request for a DRA device class."""
    return resource.startswith(DEVICE_CLASS_PREFIX)


def gpus_at_once(init_containers: Iterable[tuple[int, bool]], containers: Iterable[int]) -> int:
    """Return how many whole GPUs a pod holds at once, as Kubernetes counts them.

    An init container returns its GPUs when it ends, unless it is a sidecar (KEP-753). It runs beside the
    sidecars that precede it (`PodRequests` in `component-helpers/resource/helpers.go`).

    Args:
        init_containers: number of GPUs of each init container in order, and whether it is a sidecar.
        containers: number of GPUs of each other container.
    """
    sidecars = most = 0
    for gpus, is_sidecar in init_containers:
        most = max(most, sidecars + gpus)
        sidecars += gpus * is_sidecar
    return max(most, sidecars + sum(containers))


_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_MOST: Final = 64
_SHOWN: Final = 40


def is_gpu_uuid(text: str) -> bool:
    """Whether a text has the form of a GPU's UUID, as NVML writes it."""
    return _UUID.fullmatch(text) is not None


def parse_gpu_uuids(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of GPU UUIDs, with or without the prefix of CDI device names.

    Returns:
        each UUID once, in their order.

    Raises:
        ValueError: the list is empty, has an item that is not a UUID (`all`, an index), or has more than 64
            items.
    """
    uuids = tuple(
        dict.fromkeys(part.strip().removeprefix(keys.CDI_DEVICE_PREFIX) for part in text.split(",", _MOST))
    )
    if len(uuids) > _MOST or not all(map(is_gpu_uuid, uuids)):
        raise ValueError(f'"{text[:_SHOWN]}" is not a list of GPU UUIDs; allowed: GPU-…,GPU-…')
    return uuids
