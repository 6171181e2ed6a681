"""Lists of workloads and pods as an API server sends them, for a simulated API server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.kinds import made, plural, resource_path, version_of
from tests.support.operator_jobs import OperatorJob
from tests.support.pods import gpu_container

Json = dict[str, Any]
BUILT_IN = ("Pod", "ReplicationController", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob")  # fmt: skip
OF_OPERATORS = {"PyTorchJob": "kubeflow.org/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}


def reference(kind: str, name: str, *, api_version: str = "apps/v1") -> Json:
    """Return an owner reference; the uid of an object is its kind and name."""
    about = {"apiVersion": api_version, "kind": kind, "name": name}
    return {**about, "uid": f"{kind}/{name}", "controller": True}


def template(**metadata: Any) -> Json:
    return {"metadata": metadata, "spec": {"containers": [gpu_container()]}}


def workload(kind: str, name: str, *owners: Json, namespace: str = "team-a", **spec: Any) -> Json:
    body = {"template": template(), **spec}
    if kind == "CronJob":
        body = {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": template()}}}
    metadata = {"ownerReferences": list(owners), "managedFields": [{"manager": "kubectl"}]}
    return made(kind, name, namespace, uid=f"{kind}/{name}", metadata=metadata, spec=body, status={})


def live_pod(
    name: str, *owners: Json, namespace: str = "team-a", phase: str = "Running", labels: Json | None = None,
    annotations: Json | None = None, created: str = "2026-01-01T00:00:00Z", **spec: Any,
) -> Json:  # fmt: skip
    metadata = {"uid": f"Pod/{name}", "creationTimestamp": created, "ownerReferences": list(owners)}
    of_user = {"labels": labels or {}, "annotations": annotations or {}}
    bound = {"containers": [gpu_container()], "nodeName": "node-1", "schedulerName": "default-scheduler"}
    status = {"phase": phase}
    return made("Pod", name, namespace, metadata=metadata, **of_user, spec={**bound, **spec}, status=status)


def of_operator(job: OperatorJob) -> list[Json]:
    manifest = job.manifest
    uid = f"{manifest['kind']}/{manifest['metadata']['name']}"
    workload = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
    pods = []
    for _, pod in job.pods:
        about = {"uid": f"Pod/{pod['metadata']['name']}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        owners = [{**owner, "uid": uid} for owner in pod["metadata"]["ownerReferences"]]
        metadata = {**pod["metadata"], **about, "ownerReferences": owners}
        pods.append({**pod, "metadata": metadata, "status": {"phase": "Running"}})
    return [workload, *pods]


@dataclass
class LiveObjects:
    """Objects of a cluster, as the answers of its API server by path."""

    items: Sequence[Json] = field(default_factory=list)

    @property
    def answers(self) -> dict[str, Json]:
        """Lists for all namespaces and for each namespace, and the discovery of operators' kinds."""
        kinds = {each["kind"] for each in self.items}
        served = {kind: version for kind, version in OF_OPERATORS.items() if kind in kinds}
        answers = {
            "/apis": {"kind": "APIGroupDiscoveryList", "items": [*map(_group, served, served.values())]}
        }
        for kind, version in {**{kind: version_of(kind) for kind in BUILT_IN}, **served}.items():
            items = [item for item in self.items if item["kind"] == kind]
            for namespace in ("", *{item["metadata"]["namespace"] for item in self.items}):
                own = [each for each in items if namespace in ("", each["metadata"]["namespace"])]
                answers[resource_path(version, plural(kind), namespace)] = listed(kind, own)
        return answers


def _group(kind: str, api_version: str) -> Json:
    """Return the aggregated discovery of a group with one kind."""
    group, _, version = api_version.partition("/")
    of = {"group": group, "version": version, "kind": kind}
    served = {"resource": plural(kind), "scope": "Namespaced", "responseKind": of}
    return {"metadata": {"name": group}, "versions": [{"version": version, "resources": [served]}]}


def listed(kind: str, items: Sequence[Json]) -> Json:
    """Return a list of built-in objects, whose items have no kind, or of custom resources, which have it."""
    if kind in BUILT_IN:
        items = [{key: item[key] for key in item if key not in ("kind", "apiVersion")} for item in items]
    return {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": list(items)}
