"""Resolves the shares of pods from Kubernetes objects, on a node with two A10."""

from collections.abc import Mapping
from typing import Any

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.shares.pod_share import PodShare
from gpuagent.shares.share_resolver import ShareResolver
from kai.installation import SharingMode
from kai.releases import Version
from tests.support.inventories import built
from tests.support.kube_objects import GPU_0, GPU_1
from tests.support.samples import MIB, gpu

Objects = tuple[dict[str, Any], ...]
A10 = 23028 * MIB
FIRST, SECOND = DEVICES = (gpu(uuid=GPU_0, total_bytes=A10), gpu(uuid=GPU_1, index=1, total_bytes=A10))


def share_after(
    *histories: Objects,
    version: str | None = None,
    mode: SharingMode | None = None,
    devices: tuple[Gpu, ...] = DEVICES,
) -> PodShare:
    """Return the share of the first pod after inventories with these objects, one after the other."""
    kai_version = Version.parse(version) if version else None
    resolver = ShareResolver(kai_version=kai_version, gpu_sharing_mode=mode)
    for documents in histories:
        pod_share, *_ = resolver.resolve(built(*documents).inventory, devices)
    return pod_share


def share_of(*documents: dict[str, Any], **options: Any) -> PodShare:
    """Return the share of the first pod, which was never seen before."""
    return share_after(documents, **options)


def observed(pod_share: PodShare, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is expected of a share by name.
    A name is an attribute, or `texts` of the candidates, or `first` or `second` for the bytes of a candidate."""
    candidates = pod_share.candidates
    special = {
        "texts": lambda: [candidate.text for candidate in candidates],
        "first": lambda: candidates[0].bytes_per_gpu,
        "second": lambda: candidates[1].bytes_per_gpu,
    }
    return {name: special[name]() if name in special else getattr(pod_share, name) for name in expected}
