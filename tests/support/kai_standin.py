"""Simulates KAI's mutating webhook for pods with a share, after its sources and running releases.

`pkg/admission/webhook/v1alpha2/gpusharing` and `config_map.go` (all releases): an annotation that names a
ConfigMap, three variables and an envFrom in the container of the share, and a volume.
"""

import copy
from typing import Any

SUFFIX = "-klbxvfd-shared-gpu"


def mutated_by_kai(pod: dict[str, Any], *, container: int = 0, init: bool = False) -> dict[str, Any]:
    """Return the pod as KAI's webhook changes it."""
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
