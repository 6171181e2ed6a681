"""Kubernetes and KAI objects for tests, in the form observed on live clusters."""

from typing import Any

from tests.support.kinds import made

NODE = "gpu-node-0"
RESERVATIONS = "kai-resource-reservation"
GPU_0 = "GPU-45bc850b-5558-5f00-99bb-69dba0369fb9"
GPU_1 = "GPU-afc1cdcc-c317-5116-84ed-5439735aa78b"
GROUP_0 = "63ba70c6-6b9e-4365-8165-0956d8d5f9f1"
GROUP_1 = "c35396db-dbcb-42f4-9257-0d74bc7831af"


def uid(number: int) -> str:
    return f"{number:08d}-656d-4306-8148-bc4dc509f5ac"


def pod(
    name: str = "half",
    number: int = 1,
    *,
    namespace: str = "research",
    node: str | None = NODE,
    labels: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    containers: list[dict[str, Any]] | None = None,
    init: list[dict[str, Any]] | None = None,
    phase: str = "Running",
    gpus: int | str | None = None,
    **status: Any,
) -> dict[str, Any]:
    """Return a bound pod; `gpus` sets the whole GPUs of its container."""
    resources = (
        {} if gpus is None else {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}}
    )
    spec: dict[str, Any] = {"containers": containers or [{"name": "main", "resources": resources}]}
    if node is not None:
        spec["nodeName"] = node
    if init:
        spec["initContainers"] = init
    about = {"uid": uid(number), "labels": labels, "annotations": annotations}
    return made("Pod", name, namespace, metadata=about, spec=spec, status={"phase": phase, **status})


def fraction(
    name: str = "half", number: int = 1, share: str = "0.5", group: str | None = GROUP_0, **more: Any
) -> dict[str, Any]:
    labels = {
        "kai.scheduler/queue": "team-a",
        **({"runai-gpu-group": group} if group else {}),
        **more.pop("labels", {}),
    }
    annotations = {"gpu-fraction": share, "received-resource-type": "Fraction", **more.pop("annotations", {})}
    return pod(name, number, labels=labels, annotations=annotations, **more)


def reservation(
    group: str = GROUP_0, gpu: str | None = GPU_0, number: int = 900, **more: Any
) -> dict[str, Any]:
    return pod(
        f"gpu-reservation-{number}",
        number,
        **{
            "namespace": RESERVATIONS,
            "labels": {"app": RESERVATIONS, "runai-gpu-group": group},
            "annotations": {"run.ai/reserve_for_gpu_index": gpu} if gpu is not None else {},
            "gpus": "1",
            **more,
        },
    )


def bind_request(
    name: str = "half",
    number: int = 1,
    portion: str | None = "0.50",
    *,
    groups: tuple[str, ...] = (GROUP_0,),
    kind: str = "Fraction",
    namespace: str = "research",
) -> dict[str, Any]:
    """Return KAI's BindRequest of a pod, owned by the pod."""
    about = {"labels": {"selected-node": NODE}, "ownerReferences": [_owner(name, number)]}
    spec = {
        "podName": name, "receivedGPU": {"count": len(groups) or 1, "portion": portion}, "receivedResourceType": kind,
        "selectedGPUGroups": list(groups) or None, "selectedNode": NODE,
    }  # fmt: skip
    return made("BindRequest", name, namespace, metadata=about, spec=spec, status={"phase": "Succeeded"})


def of_tenant(
    document: dict[str, Any], host: str = "vcluster-red", namespace: str | None = None
) -> dict[str, Any]:
    """Return the copy of a tenant's object in its host namespace, with the names inside the vCluster.
    The namespace inside is that of reservation pods for one of them, else `ml`."""
    metadata = document["metadata"]
    is_reservation = metadata["name"].startswith("gpu-reservation")
    metadata["namespace"] = host
    metadata["labels"] = (metadata["labels"] or {}) | {
        "vcluster.loft.sh/managed-by": host.removeprefix("vcluster-")
    }
    metadata["annotations"] = (metadata["annotations"] or {}) | {
        "vcluster.loft.sh/object-name": metadata["name"],
        "vcluster.loft.sh/object-namespace": namespace or (RESERVATIONS if is_reservation else "ml"),
        "vcluster.loft.sh/object-host-name": metadata["name"],
        "vcluster.loft.sh/object-host-namespace": host,
    }
    return document


def config_map(name: str, *, namespace: str = "team-a", data: str = "x") -> dict[str, Any]:
    return made("ConfigMap", name, namespace, data={"data": data})


def node(memory: str | None = "23028", **labels: str) -> dict[str, Any]:
    own = {"nvidia.com/gpu.present": "true", **labels}
    if memory is not None:
        own["nvidia.com/gpu.memory"] = memory
    return made("Node", NODE, labels=own)


def namespace_object(name: str = "research", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return made("Namespace", name, labels=labels or {})


def listed(*items: dict[str, Any], kind: str = "List") -> dict[str, Any]:
    """Return a list as `kubectl get -o json` prints it."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": ""}, "items": list(items)}


def _owner(name: str, number: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid(number)}
