"""The pod to send to an API server, so that it answers as to the pod's own controller. Pure.

Sources: Kubernetes 1.36 pkg/controller/controller_utils.go (GetPodFromTemplate), pkg/controller/statefulset/
stateful_set_utils.go (newStatefulSetPod, updateStorage).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from webhook.explain.decision.api_server import SERVER_METADATA
from webhook.explain.decision.explainer import ExplainedPod
from webhook.explain.manifests.values import as_json, as_map

_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"


def pod_to_create(item: ExplainedPod) -> dict[str, Any]:
    """Return the pod with the names and owners of its controller, and without what an API server writes.

    The owners' uids and the hashes in names are stand-ins. `blockOwnerDeletion` is left out, since the plugin
    OwnerReferencesPermissionEnforcement asks for a right to the owner because of it (seen on 1.30 and 1.36).
    The manifest's `spec` stays as written, also `nodeName` and fields that an API server refuses.
    """
    pod: dict[str, Any] = msgspec.json.decode(as_json(item.created))
    pod["metadata"] = {key: value for key, value in pod["metadata"].items() if key not in SERVER_METADATA}
    if item.pod.path and item.pod.kind == "StatefulSet":
        _name_as_stateful_set(pod, item.pod.claim_templates)
    return pod


def renamed(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod under a name that the API server generates, for a name that is taken."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
    return {**pod, "metadata": {**metadata, "generateName": f"{pod['metadata']['name']}-"}}


def _name_as_stateful_set(pod: dict[str, Any], claim_templates: Sequence[str]) -> None:
    """Set the name, the host name, and the volumes of claims that do not exist yet."""
    name, spec = as_map(pod["metadata"].get("labels")).get(_POD_NAME), pod.get("spec")
    if not isinstance(name, str) or not isinstance(spec, dict):
        return
    pod["metadata"]["name"] = name
    volumes = spec.get("volumes") or []
    if not isinstance(volumes, list):
        return
    spec["hostname"] = name
    if claim_templates:
        claims = [
            {"name": template, "persistentVolumeClaim": {"claimName": f"{template}-{name}"}}
            for template in claim_templates
        ]
        others = [volume for volume in volumes if as_map(volume).get("name") not in claim_templates]
        spec["volumes"] = [*claims, *others]
