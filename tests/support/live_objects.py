"""Lists of workloads and pods as an API server sends them, for a simulated API server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.kinds import made
from tests.support.operator_jobs import OperatorJob
from tests.support.pods import gpu_container

Json = dict[str, Any]
RESOURCES = {
    "Pod": ("", "pods"), "ReplicationController": ("", "replicationcontrollers"),
    "Deployment": ("apps", "deployments"), "ReplicaSet": ("apps", "replicasets"),
    "StatefulSet": ("apps", "statefulsets"), "DaemonSet": ("apps", "daemonsets"), "Job": ("batch", "jobs"),
    "CronJob": ("batch", "cronjobs"),
}  # fmt: skip
OPERATOR_KINDS = {
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs"),
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
}


def reference(kind: str, name: str, *, controller: bool = True, api_version: str = "apps/v1") -> Json:
    """Return an owner reference; the uid of an object is its kind and name."""
    return {
        "apiVersion": api_version, "kind": kind, "name": name, "uid": f"{kind}/{name}",
        "controller": controller,
    }  # fmt: skip


def template(**metadata: Any) -> Json:
    return {"metadata": metadata, "spec": {"containers": [gpu_container()]}}


def workload(kind: str, name: str, *owners: Json, namespace: str = "team-a", **spec: Any) -> Json:
    group = RESOURCES[kind][0]
    body = {"template": template(), **spec}
    if kind == "CronJob":
        body = {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": template()}}}
    return {
        "apiVersion": f"{group}/v1" if group else "v1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "uid": f"{kind}/{name}",
            "ownerReferences": list(owners), "managedFields": [{"manager": "kubectl"}]},
        "spec": body, "status": {},
    }  # fmt: skip


def live_pod(
    name: str, *owners: Json, namespace: str = "team-a", phase: str = "Running", labels: Json | None = None,
    annotations: Json | None = None, created: str = "2026-01-01T00:00:00Z", **spec: Any,
) -> Json:  # fmt: skip
    return made(
        "Pod", name, namespace,
        metadata={"uid": f"Pod/{name}", "creationTimestamp": created, "ownerReferences": list(owners)},
        labels=labels or {}, annotations=annotations or {},
        spec={"containers": [gpu_container()], "nodeName": "node-1", "schedulerName": "default-scheduler",
            **spec},
        status={"phase": phase},
    )  # fmt: skip


def of_operator(job: OperatorJob) -> list[Json]:
    manifest = job.manifest
    uid = f"{manifest['kind']}/{manifest['metadata']['name']}"
    workload = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
    pods = []
    for _, pod in job.pods:
        owners = [{**owner, "uid": uid} for owner in pod["metadata"]["ownerReferences"]]
        metadata = {
            **pod["metadata"],
            "uid": f"Pod/{pod['metadata']['name']}",
            "ownerReferences": owners,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        pods.append({**pod, "metadata": metadata, "status": {"phase": "Running"}})
    return [workload, *pods]


@dataclass
class LiveObjects:
    """Objects of a cluster, as the answers of its API server by path."""

    items: Sequence[Json] = field(default_factory=list)

    @property
    def answers(self) -> dict[str, Json]:
        """Lists for all namespaces and for each namespace, and the discovery of operators' kinds."""
        answers = {"/apis": self._discovery()}
        namespaces = {item["metadata"]["namespace"] for item in self.items}
        for kind, (group, resource) in RESOURCES.items():
            self._add(answers, kind, f"/apis/{group}/v1" if group else "/api/v1", resource, namespaces)
        for kind, (group, version, resource) in OPERATOR_KINDS.items():
            if any(item["kind"] == kind for item in self.items):
                self._add(answers, kind, f"/apis/{group}/{version}", resource, namespaces)
        return answers

    def _add(
        self, answers: dict[str, Json], kind: str, root: str, resource: str, namespaces: set[str]
    ) -> None:
        items = [item for item in self.items if item["kind"] == kind]
        answers[f"{root}/{resource}"] = listed(kind, items)
        for namespace in namespaces:
            own = [item for item in items if item["metadata"]["namespace"] == namespace]
            answers[f"{root}/namespaces/{namespace}/{resource}"] = listed(kind, own)

    def _discovery(self) -> Json:
        kinds = {item["kind"] for item in self.items}
        groups = [
            {
                "metadata": {"name": group},
                "versions": [
                    {
                        "version": version,
                        "resources": [
                            {
                                "resource": resource,
                                "scope": "Namespaced",
                                "responseKind": {"group": group, "version": version, "kind": kind},
                            }
                        ],
                    }
                ],
            }
            for kind, (group, version, resource) in OPERATOR_KINDS.items()
            if kind in kinds
        ]
        return {"kind": "APIGroupDiscoveryList", "items": groups}


def listed(kind: str, items: Sequence[Json]) -> Json:
    """Return a list of built-in objects, whose items have no kind, or of custom resources, which have it."""
    if kind in RESOURCES:
        items = [
            {key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items
        ]
    return {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": list(items)}
