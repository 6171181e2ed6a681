"""ResourceClaims and ResourceSlices for tests, in the form that NVIDIA's DRA driver and kube-scheduler 1.36 write."""

from typing import Any, Final

from tests.support.kinds import made
from tests.support.kube_objects import GPU_0, GPU_1, NODE, pod

DRIVER: Final = "gpu.nvidia.com"
GIB: Final = 1 << 30


def gpu_slice(
    *uuids: str, name: str = "slice-0", generation: int = 1, count: int = 1, memory: str = "80Gi", **more: Any
) -> dict[str, Any]:
    """Return a slice with a device for each GPU, shared by memory as with `consumableShares: memory`."""
    policy = {"default": memory, "validRange": {"min": "1Mi", "max": memory, "step": "1Mi"}}
    devices = [
        {
            "name": f"gpu-{number}",
            "allowMultipleAllocations": True,
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
            "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
        }
        for number, uuid in enumerate(uuids or (GPU_0, GPU_1))
    ]
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices, **more}
    return made("ResourceSlice", name, spec=spec)


def result(device: str = "gpu-0", memory: str | None = "20Gi", **more: Any) -> dict[str, Any]:
    consumed = {} if memory is None else {"consumedCapacity": {"memory": memory}}
    return {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device, **consumed, **more}


def allocated(
    name: str, *results: dict[str, Any], to: tuple[str, ...] = (), uid: str = "", group: str = ""
) -> dict[str, Any]:
    """Return a claim with an allocation, reserved for pods by their UIDs or for a PodGroup."""
    consumers = [{"resource": "pods", "name": "p", "uid": each} for each in to]
    consumers += [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group}] if group else []
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": consumers}
    return made("ResourceClaim", name, "research", uid=uid or f"uid-of-{name}", status=status)


def claiming(name: str, number: int, *claims: str, **more: Any) -> dict[str, Any]:
    """Return a running pod whose spec names the claims."""
    document = pod(name, number, **more)
    named = [{"name": f"c{index}", "resourceClaimName": claim} for index, claim in enumerate(claims)]
    document["spec"]["resourceClaims"] = named
    return document
