"""The kinds of Kubernetes' own API: where they hold pod templates, and which labels their controllers add.

Paths are those of the API reference of Kubernetes 1.36. The labels were verified with the controllers of
Kubernetes 1.36.3 (tests/cluster/test_controller_labels.py).
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from console.explain.pod_defaults import as_map
from service.text import LONGEST_VALUE, one_line, quoted

UID: Final = "00000000-0000-0000-0000-000000000000"
HASH: Final = "0"
_JOB_NUMBER: Final = "0"
"""Stand-ins for values that exist only in a cluster: a uid, a hash, and the number of a CronJob's Job."""
STATEFUL_SET_POD: Final = "statefulset.kubernetes.io/pod-name"


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A built-in kind that holds a pod or a pod template."""

    groups: frozenset[str]
    """The API groups of the kind, today's and former ones."""
    template: tuple[str, ...]
    """Path of the object with the pod's `metadata` and `spec`; empty for a Pod."""
    between: str = ""
    """Kind of the objects between the workload and its pods; empty if there are none."""

    @property
    def group(self) -> str:
        """Today's API group."""
        return min(self.groups)


def stateful_set_labels(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the StatefulSet controller adds to the first pod."""
    ordinals = spec.get("ordinals")
    first = ordinals.get("start") if isinstance(ordinals, Mapping) else None
    ordinal = str(first) if isinstance(first, int) else "0"
    return {
        "apps.kubernetes.io/pod-index": ordinal,
        "controller-revision-hash": f"{name}-{HASH}",
        STATEFUL_SET_POD: f"{name}-{ordinal}",
    }


def job_labels(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the Job controller adds to the first pod."""
    labels = {
        "batch.kubernetes.io/controller-uid": UID,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": UID,
        "job-name": name,
    }
    if spec.get("completionMode") == "Indexed":
        labels["batch.kubernetes.io/job-completion-index"] = "0"
    return labels


def added_labels(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the controller of a built-in kind adds to a pod.

    Args:
        kind: the kind.
        name: the workload's name.
        spec: the workload's `spec`.
    """
    match kind:
        case "Deployment":
            return {"pod-template-hash": HASH}
        case "DaemonSet":
            return {"controller-revision-hash": HASH, "pod-template-generation": "1"}
        case "StatefulSet":
            return stateful_set_labels(name, spec)
        case "Job":
            return job_labels(name, spec)
        case "CronJob":
            return job_labels(f"{name}-{_JOB_NUMBER}", as_map(as_map(spec.get("jobTemplate")).get("spec")))
    return {}


_CORE: Final = frozenset({""})
_APPS: Final = frozenset({"apps", "extensions"})
_BATCH: Final = frozenset({"batch"})
_TEMPLATE: Final = ("spec", "template")

WORKLOADS: Final[Mapping[str, WorkloadKind]] = {
    "Pod": WorkloadKind(_CORE, ()),
    "PodTemplate": WorkloadKind(_CORE, ("template",)),
    "ReplicationController": WorkloadKind(_CORE, _TEMPLATE),
    "Deployment": WorkloadKind(_APPS, _TEMPLATE, between="ReplicaSet"),
    "ReplicaSet": WorkloadKind(_APPS, _TEMPLATE),
    "StatefulSet": WorkloadKind(_APPS, _TEMPLATE),
    "DaemonSet": WorkloadKind(_APPS, _TEMPLATE),
    "Job": WorkloadKind(_BATCH, _TEMPLATE),
    "CronJob": WorkloadKind(_BATCH, ("spec", "jobTemplate", *_TEMPLATE), between="Job"),
}
"""The built-in kinds that make pods, by kind."""

_WITHOUT_PODS: Final = frozenset(
    {
        "APIService",
        "Binding",
        "ComponentStatus",
        "ConfigMap",
        "ControllerRevision",
        "Endpoints",
        "Event",
        "Eviction",
        "HorizontalPodAutoscaler",
        "Ingress",
        "LimitRange",
        "Namespace",
        "NetworkPolicy",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "PodSecurityPolicy",
        "ResourceQuota",
        "Scale",
        "Secret",
        "Service",
        "ServiceAccount",
    }
)
"""The kinds of the groups without a dot (core, apps, batch, autoscaling, policy, extensions) without pods."""

_GROUPS_WITHOUT_PODS: Final = frozenset(
    {
        "admission.k8s.io",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "app.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling.k8s.io",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "custom.metrics.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "external.metrics.k8s.io",
        "externaldns.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "gateway.networking.k8s.io",
        "groupsnapshot.storage.k8s.io",
        "imagepolicy.k8s.io",
        "internal.apiserver.k8s.io",
        "metrics.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy.networking.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "snapshot.storage.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)
"""Groups of Kubernetes and its SIGs without workloads. Others may make pods, such as sparkoperator.k8s.io."""

_KUSTOMIZE: Final = "kustomize.config.k8s.io"


def group_of(api_version: str) -> str:
    """Return the API group of an apiVersion; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def makes_no_pods(api_version: str, kind: str) -> bool:
    """Whether an object is of a kind of Kubernetes that has nothing to do with pods."""
    group = group_of(api_version)
    if group in _GROUPS_WITHOUT_PODS:
        return True
    return "." not in group and (kind in _WITHOUT_PODS or kind.endswith("List"))


def kind_problem(api_version: str, kind: str) -> str | None:
    """Say why the API server does not know a kind of one of its own groups without a dot; None if it does."""
    if not api_version or "." in group_of(api_version) or makes_no_pods(api_version, kind):
        return None
    problem = f"{quoted(api_version)} has no kind {one_line(kind, LONGEST_VALUE)}"
    workload = WORKLOADS.get(kind)
    if workload is not None:
        is_of_group = group_of(api_version) in workload.groups
        return None if is_of_group else f'{problem}; its API group is "{workload.group}"'
    near = difflib.get_close_matches(kind[:LONGEST_VALUE], [*WORKLOADS, *_WITHOUT_PODS], n=1)
    return f"{problem}; the nearest kind is {near[0]}" if near else problem


def is_kustomization(api_version: str, kind: str) -> bool:
    """Whether an object is a file of kustomize instead of an object of the API."""
    return kind in ("Kustomization", "Component") and group_of(api_version) in ("", _KUSTOMIZE)


def is_kustomize_file(file_name: str) -> bool:
    """Whether a file has a name that kustomize reads (api/konfig, RecognizedKustomizationFileNames).

    In such a file `kind` and `apiVersion` may be missing.
    """
    return file_name in ("kustomization.yaml", "kustomization.yml", "Kustomization")


def workload_kind(api_version: str, kind: str) -> WorkloadKind | None:
    """Return the built-in kind of an object; None for other kinds. A missing apiVersion matches."""
    workload = WORKLOADS.get(kind)
    if workload is None or (api_version and group_of(api_version) not in workload.groups):
        return None
    return workload
