"""Simulates KAI's mutating webhook and its binder for pods with a share, after its sources and running releases.

Webhook: `pkg/admission/webhook/v1alpha2/gpusharing` and `config_map.go` (all releases): an annotation that names a
ConfigMap, three variables and an envFrom in the container of the share, and a volume.
"""

import copy
from typing import Any

from kai import keys
from tests.support.administrator import Administrator
from tests.support.kube_objects import RESERVATIONS, bind_request, reservation

SUFFIX = "-klbxvfd-shared-gpu"


def mutated_by_kai(pod: dict[str, Any], *, container: int = 0, init: bool = False) -> dict[str, Any]:
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    owners = metadata.get("ownerReferences")
    name = (owners[0]["name"] if owners else metadata["name"]) + SUFFIX
    name = metadata.setdefault("annotations", {}).setdefault("runai/shared-gpu-configmap", name)
    config = f"{name}-{'i' if init else ''}{container}"
    shared = spec["initContainers" if init else "containers"][container]
    written = ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")
    kept = [variable for variable in shared.get("env", []) if variable["name"] not in written]
    shared["env"] = kept + [
        {"name": key, "valueFrom": {"configMapKeyRef": {"name": config, "key": key}}} for key in written
    ]
    shared.setdefault("envFrom", []).append({"configMapRef": {"name": f"{config}-evar", "optional": False}})
    spec.setdefault("volumes", []).append({"name": f"{config}-vol", "configMap": {"name": config}})
    spec.setdefault("runtimeClassName", "nvidia")
    return pod


class Binder:
    """Places pods as KAI's binder does, in the order of its writes (v0.13.4, from the API server's audit log).

    The reservation pod's annotation is written by its own process, or by a fake device plugin.
    """

    def __init__(self, admin: Administrator, *, gpus: tuple[str, ...]) -> None:
        self._admin = admin
        self._gpus = gpus
        self._groups: dict[str, str] = {}

    async def place(self, pod: dict[str, Any], *, group: str, gpu: str) -> dict[str, Any]:
        """Create a pod and bind it to the node, on a GPU that the group shares; return the stored pod."""
        assert gpu in self._gpus
        metadata = copy.deepcopy(pod["metadata"])
        share = metadata["annotations"]["gpu-fraction"]
        metadata["labels"].pop("runai-gpu-group", None)
        del metadata["annotations"]["received-resource-type"]
        namespace, name = metadata["namespace"], metadata["name"]
        stored = await self._admin.create({**pod, "metadata": metadata, "status": {}})
        portion = f"{float(share):.2f}"
        request = bind_request(name, portion=portion, groups=(group,), namespace=namespace)
        request["metadata"]["ownerReferences"][0]["uid"] = stored["metadata"]["uid"]
        await self._admin.create(request)
        if group not in self._groups:
            self._groups[group] = gpu
            holder = reservation(group, None, 900 + len(self._groups))
            await self._admin.create(holder)
            path = f"/api/v1/namespaces/{RESERVATIONS}/pods/{holder['metadata']['name']}"
            await self._admin.merge(path, {"metadata": {"annotations": {keys.RESERVED_GPU: gpu}}})
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await self._admin.merge(path, {"metadata": {"labels": {keys.GPU_GROUP: group}}})
        await self._admin.merge(
            path, {"metadata": {"annotations": {keys.RECEIVED_RESOURCE_TYPE: "Fraction"}}}
        )
        await self._admin.bind(namespace, name)
        return stored

    async def start(self, name: str, namespace: str = "research") -> None:
        await self._admin.set_status(f"/api/v1/namespaces/{namespace}/pods/{name}", {"phase": "Running"})
