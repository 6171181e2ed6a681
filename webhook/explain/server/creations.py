"""The pod to send to an API server, so that it answers as to the pod's own controller. Pure.

Sources: Kubernetes 1.36 pkg/controller/controller_utils.go (GetPodFromTemplate), pkg/controller/statefulset/
stateful_set_utils.go (newStatefulSetPod, updateStorage).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from webhook.explain.decision.api_server import SERVER_METADATA
from webhook.explain.decision.explainer import ExplainedPod
from webhook.explain.manifests.kinds import HASH, UID, WORKLOADS
from webhook.explain.manifests.values import as_json

_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"


def pod_to_create(item: ExplainedPod) -> dict[str, Any]:
    """Return the pod with the names and owners of its controller, and without what an API server writes.

    The owners' uids and the hashes in names are stand-ins. `blockOwnerDeletion` is left out, since the plugin
    OwnerReferencesPermissionEnforcement asks for a right to the owner because of it (seen on 1.30 and 1.36).
    The manifest's `spec` stays as written, also `nodeName` and fields that an API server refuses.
    """
    pod: dict[str, Any] = msgspec.json.decode(as_json(item.created))
    metadata = pod["metadata"] = {
        key: value for key, value in pod["metadata"].items() if key not in SERVER_METADATA
    }
    if item.pod.path:
        _own(item, metadata)
        if item.pod.kind == "StatefulSet":
            _name_as_stateful_set(pod, item.pod.claim_templates)
    return pod


def renamed(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod under a name that the API server generates, for a name that is taken."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
    return {**pod, "metadata": {**metadata, "generateName": f"{pod['metadata']['name']}-"}}


def _own(item: ExplainedPod, metadata: dict[str, Any]) -> None:
    """Set name and owner as the workload's controller does."""
    name = item.pod.name or "pod"
    owners = [dict(owner) for owner in metadata["ownerReferences"]]
    workload = WORKLOADS.get(item.pod.kind)
    if workload is not None and workload.between:
        name = f"{name}-{HASH}"
        owners[0] |= {"apiVersion": f"{workload.group}/v1", "kind": workload.between, "name": name}
    metadata["ownerReferences"] = [{"uid": UID, **owner} for owner in owners]
    metadata["generateName"] = f"{name}-"
    if isinstance(metadata.get("name"), str | None):
        metadata.pop("name", None)  # of the template, which no controller reads


def _name_as_stateful_set(pod: dict[str, Any], claim_templates: Sequence[str]) -> None:
    """Set the name, the host name, and the volumes of claims that do not exist yet."""
    labels, spec = pod["metadata"].get("labels"), pod.get("spec")
    name = labels.get(_POD_NAME) if isinstance(labels, dict) else None
    if not isinstance(name, str) or not isinstance(spec, dict):
        return
    pod["metadata"]["name"] = name
    volumes = spec.get("volumes") or []
    if not isinstance(volumes, list):
        return
    claims = [
        {"name": template, "persistentVolumeClaim": {"claimName": f"{template}-{name}"}}
        for template in claim_templates
    ]
    others = [
        volume
        for volume in volumes
        if not isinstance(volume, dict) or volume.get("name") not in claim_templates
    ]
    spec = pod["spec"] = {**spec, "hostname": name}
    if claims:
        spec["volumes"] = [*claims, *others]
