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


async def placed_by_kai(admin: Administrator, pod: dict[str, Any], *, group: str, gpu: str) -> None:
    """Create a pod and bind it to a GPU as KAI's binder does, in the order of its writes (v0.13.4, from the API server's audit log).

    The reservation pod's annotation is written by its own process, or by a fake device plugin.
    """
    metadata = copy.deepcopy(pod["metadata"])
    metadata["labels"].pop(keys.GPU_GROUP, None)
    del metadata["annotations"][keys.RECEIVED_RESOURCE_TYPE]
    namespace, name = metadata["namespace"], metadata["name"]
    stored = await admin.create({**pod, "metadata": metadata, "status": {}})
    portion = f"{float(metadata['annotations'][keys.GPU_FRACTION]):.2f}"
    request = bind_request(name, portion=portion, groups=(group,), namespace=namespace)
    request["metadata"]["ownerReferences"][0]["uid"] = stored["metadata"]["uid"]
    await admin.create(request)
    holder = reservation(group, None, 901)
    await admin.create(holder)
    path = f"/api/v1/namespaces/{RESERVATIONS}/pods/{holder['metadata']['name']}"
    await admin.merge(path, {"metadata": {"annotations": {keys.RESERVED_GPU: gpu}}})
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    await admin.merge(path, {"metadata": {"labels": {keys.GPU_GROUP: group}}})
    await admin.merge(path, {"metadata": {"annotations": {keys.RECEIVED_RESOURCE_TYPE: "Fraction"}}})
    await admin.bind(namespace, name)
