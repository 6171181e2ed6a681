"""The kinds of Kubernetes, KAI and operators: versions, paths, definitions, and one builder for an object of any kind."""

from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

_REGISTRATION: Final = (
    "MutatingWebhookConfiguration ValidatingWebhookConfiguration ValidatingAdmissionPolicy"
    " ValidatingAdmissionPolicyBinding MutatingAdmissionPolicy MutatingAdmissionPolicyBinding"
)
CLUSTER_SCOPED: Final = frozenset(
    f"Node Namespace PersistentVolume PriorityClass RuntimeClass StorageClass Queue SchedulingShard Topology ClusterRole"
    f" ClusterRoleBinding CustomResourceDefinition ResourceSlice DeviceClass {_REGISTRATION}".split()
)
_KINDS: Final = {
    "v1": "Pod Event Node Namespace ConfigMap Service PersistentVolumeClaim PersistentVolume ResourceQuota"
    " LimitRange ServiceAccount ReplicationController PodTemplate Secret Endpoints",
    "apps/v1": "Deployment ReplicaSet StatefulSet DaemonSet",
    "batch/v1": "Job CronJob",
    "discovery.k8s.io/v1": "EndpointSlice",
    "scheduling.k8s.io/v1": "PriorityClass",
    "node.k8s.io/v1": "RuntimeClass",
    "policy/v1": "PodDisruptionBudget",
    "admissionregistration.k8s.io/v1": _REGISTRATION,
    "kubeflow.org/v1": "PyTorchJob Notebook",
    "ray.io/v1": "RayCluster RayJob RayService",
    "scheduling.run.ai/v2alpha2": "PodGroup",
    "scheduling.run.ai/v1alpha2": "BindRequest",
    "scheduling.run.ai/v2": "Queue",
    "kai.scheduler/v1": "SchedulingShard Config",
    "kai.scheduler/v1alpha1": "Topology",
}
_NOT_SIMULATED: Final = {
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "coordination.k8s.io/v1": "Lease",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole ClusterRoleBinding",
    "resource.k8s.io/v1": "ResourceClaim ResourceClaimTemplate ResourceSlice DeviceClass",
}
"""Kinds that only a real API server serves."""


def plural(kind: str) -> str:
    name = kind.lower()
    if name.endswith("y"):
        return f"{name[:-1]}ies"
    return name if name == "endpoints" else f"{name}es" if name.endswith("s") else f"{name}s"


def _by_kind(table: Mapping[str, str]) -> dict[str, str]:
    return {kind: version for version, kinds in table.items() for kind in kinds.split()}


_VERSIONS: Final = _by_kind(_KINDS | _NOT_SIMULATED)
SIMULATED: Final = {(version, plural(kind)): kind for kind, version in _by_kind(_KINDS).items()}
"""The kinds that a simulated API server serves, by version and resource."""


def resource_path(version: str, resource: str, namespace: str = "") -> str:
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{resource}" if namespace else f"{root}/{resource}"


def list_path(kind: str, namespace: str = "") -> str:
    return resource_path(_VERSIONS[kind], plural(kind), namespace)


def object_path(item: Mapping[str, Any]) -> str:
    kind, metadata = item["kind"], item["metadata"]
    version = item.get("apiVersion") or _VERSIONS[kind]
    return f"{resource_path(version, plural(kind), metadata.get('namespace', ''))}/{metadata['name']}"


def version_of(kind: str) -> str:
    return _VERSIONS[kind]


def made(
    kind: str, name: str, namespace: str = "", *, metadata: Mapping[str, Any] | None = None, **rest: Any
) -> Json:
    """Return an object of a known kind; `labels`, `annotations` and `uid` belong to its metadata."""
    about: Json = {"name": name, **({"namespace": namespace} if namespace else {}), **(metadata or {})}
    about |= {key: rest.pop(key) for key in ("labels", "annotations", "uid") if key in rest}
    return {"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": about, **rest}


def definition(api_version: str, kind: str, *, is_namespaced: bool = True) -> Json:
    """Return a CustomResourceDefinition without a schema."""
    group, _, version = api_version.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {
        "group": group,
        "scope": "Namespaced" if is_namespaced else "Cluster",
        "names": {"kind": kind, "plural": plural(kind), "singular": kind.lower()},
        "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
    }  # fmt: skip
    return made("CustomResourceDefinition", f"{plural(kind)}.{group}", spec=spec)
