"""The object that `kaishare why` explains: a pod, or a workload by its kind and name. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kube.discovery import ServedKind
from kube.objects import ObjectOwner
from service.names import is_dns_label, is_dns_subdomain

POD: Final = ServedKind(group="", version="v1", kind="Pod", resource="pods", is_namespaced=True)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind that makes pods."""

    served: ServedKind
    short: str = ""
    """The short name, as in kubectl."""
    pod_label: str = ""
    """The label of its pods whose value is its name; empty if the object has a selector, or for none."""


def _kind(api_version: str, kind: str, resource: str, *, short: str = "", pod_label: str = "") -> _Kind:
    group, _, version = api_version.rpartition("/")
    served = ServedKind(group=group, version=version, kind=kind, resource=resource, is_namespaced=True)
    return _Kind(served, short, pod_label)


_TRAINING: Final = "training.kubeflow.org/job-name"

_KINDS: Final = (
    _Kind(POD, "po"),
    _kind("apps/v1", "Deployment", "deployments", short="deploy"),
    _kind("apps/v1", "ReplicaSet", "replicasets", short="rs"),
    _kind("apps/v1", "StatefulSet", "statefulsets", short="sts"),
    _kind("apps/v1", "DaemonSet", "daemonsets", short="ds"),
    _kind("batch/v1", "Job", "jobs"),
    _kind("batch/v1", "CronJob", "cronjobs", short="cj"),
    _kind("v1", "ReplicationController", "replicationcontrollers", short="rc"),
    # The labels are those of `webhook.explain.manifests.controllers`, and of KubeRay's common/label.go.
    _kind("kubeflow.org/v1", "PyTorchJob", "pytorchjobs", pod_label=_TRAINING),
    _kind("kubeflow.org/v1", "TFJob", "tfjobs", pod_label=_TRAINING),
    _kind("kubeflow.org/v1", "XGBoostJob", "xgboostjobs", pod_label=_TRAINING),
    _kind("kubeflow.org/v1", "JAXJob", "jaxjobs", pod_label=_TRAINING),
    _kind("kubeflow.org/v1", "PaddleJob", "paddlejobs", pod_label=_TRAINING),
    _kind("kubeflow.org/v1", "MPIJob", "mpijobs", pod_label=_TRAINING),
    _kind("kubeflow.org/v1", "Notebook", "notebooks"),
    _kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", pod_label="jobset.sigs.k8s.io/jobset-name"),
    _kind(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "leaderworkersets",
        short="lws",
        pod_label="leaderworkerset.sigs.k8s.io/name",
    ),
    _kind("ray.io/v1", "RayCluster", "rayclusters", pod_label="ray.io/cluster"),
    _kind("ray.io/v1", "RayJob", "rayjobs"),
    _kind("ray.io/v1", "RayService", "rayservices"),
)
"""The kinds that need no discovery; the first of several with a name counts."""

_BY_GROUP_KIND: Final = {(kind.served.group, kind.served.kind): kind for kind in _KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A pod or a workload in a namespace."""

    namespace: str
    kind: str = POD.kind
    """The kind as it was typed: `deploy`, `Deployment`, `pytorchjobs.kubeflow.org`."""
    name: str

    @property
    def is_pod(self) -> bool:
        """Whether the target is a pod."""
        return self.known_kind == POD

    @property
    def known_kind(self) -> ServedKind | None:
        """The kind; None if only the API server can tell."""
        return find_kind(self.kind, (kind.served for kind in _KINDS))


def find_kind(word: str, kinds: Iterable[ServedKind]) -> ServedKind | None:
    """Return the first kind that a word names, as in kubectl: kind, resource or short name, with a group.

    Args:
        word: such as `deploy`, `Deployment`, `deployments.apps` or `jobs.v1.batch`.
        kinds: the kinds to choose from, the preferred ones first.
    """
    name, _, rest = word.lower().partition(".")
    for kind in kinds:
        groups = {"", kind.group, f"{kind.version}.{kind.group}".rstrip(".")}
        if name in _names(kind) and rest in groups and kind.is_namespaced:
            return kind
    return None


def _names(kind: ServedKind) -> Iterator[str]:
    yield kind.kind.lower()
    yield kind.resource
    known = _BY_GROUP_KIND.get((kind.group, kind.kind))
    if known is not None and known.short:
        yield known.short


def pod_label(kind: ServedKind) -> str:
    """Return the label of a kind's pods whose value is the object's name; empty if there is none."""
    known = _BY_GROUP_KIND.get((kind.group, kind.kind))
    return known.pod_label if known else ""


def owner_path(owner: ObjectOwner, namespace: str) -> str | None:
    """Return the path of an owner in a namespace; None for a kind or name that no path should contain.

    A tenant writes the reference, so that nothing of it goes into a path unchecked. The version is the
    reference's own.
    """
    group, _, version = owner.api_version.rpartition("/")
    known = _BY_GROUP_KIND.get((group, owner.kind))
    if known is None or known.served == POD or not is_dns_label(version) or not is_dns_subdomain(owner.name):
        return None
    served = ServedKind(
        group=group, version=version, kind=owner.kind, resource=known.served.resource, is_namespaced=True
    )
    return f"{served.path_in(namespace)}/{owner.name}"
