"""Finds the pod or workload that `kaishare why` explains."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from console.cluster.facts import MISSING, NOT_READ, Fact, FactReader, ServedKind, Why, is_read
from console.why.events import is_made_for
from kube.kinds import PODS, Kind, ObjectOwner, Pod, PodOwner, decode_pod_with_document
from kube.metadata import LabelSelector
from service.command import UsageError
from service.names import is_dns_label, is_label_value
from service.text import quoted

_TRAINING: Final = "training.kubeflow.org/job-name"
_TABLE: Final = (
    # API version, kind, its short name in kubectl, and the label of its pods that has its name
    ("v1", "Pod", "po", ""),
    ("apps/v1", "Deployment", "deploy", ""),
    ("apps/v1", "ReplicaSet", "rs", ""),
    ("apps/v1", "StatefulSet", "sts", ""),
    ("apps/v1", "DaemonSet", "ds", ""),
    ("batch/v1", "Job", "", ""),
    ("batch/v1", "CronJob", "cj", ""),
    ("v1", "ReplicationController", "rc", ""),
    # The labels are those of `webhook.policy.operators`, and of KubeRay's common/label.go.
    ("kubeflow.org/v1", "PyTorchJob", "", _TRAINING),
    ("kubeflow.org/v1", "TFJob", "", _TRAINING),
    ("kubeflow.org/v1", "XGBoostJob", "", _TRAINING),
    ("kubeflow.org/v1", "JAXJob", "", _TRAINING),
    ("kubeflow.org/v1", "PaddleJob", "", _TRAINING),
    ("kubeflow.org/v1", "MPIJob", "", _TRAINING),
    ("kubeflow.org/v1", "Notebook", "", ""),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", "", "jobset.sigs.k8s.io/jobset-name"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "lws", "leaderworkerset.sigs.k8s.io/name"),
    ("ray.io/v1", "RayCluster", "", "ray.io/cluster"),
    ("ray.io/v1", "RayJob", "", ""),
    ("ray.io/v1", "RayService", "", ""),
)
"""The kinds that make pods and need no discovery; the first of several with a name counts."""


def _served(api_version: str, kind: str) -> ServedKind:
    group, _, version = api_version.rpartition("/")
    resource = f"{kind.lower()}s"
    return ServedKind(group=group, version=version, kind=kind, resource=resource, is_namespaced=True)


_KNOWN: Final = {(version.rpartition("/")[0], kind): _served(version, kind) for version, kind, _, _ in _TABLE}
_NAMES: Final = {(version.rpartition("/")[0], kind): more for version, kind, *more in _TABLE}
POD: Final = _KNOWN["", "Pod"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A pod or a workload in a namespace."""

    namespace: str
    kind: str = POD.kind  # the kind as it was typed: `deploy`, `Deployment`, `pytorchjobs.kubeflow.org`
    name: str

    @property
    def known_kind(self) -> ServedKind | None:
        """The kind; None if only the API server can tell."""
        return find_kind(self.kind, _KNOWN.values())


def _words(kind: ServedKind) -> Sequence[str]:
    """Return the short name of a kind, and the label of its pods with the object's name; empty for none."""
    return _NAMES.get((kind.group, kind.kind), ("", ""))


def find_kind(word: str, kinds: Iterable[ServedKind]) -> ServedKind | None:
    """Return the first kind that a word names, as in kubectl: `deploy`, `Deployment`, `jobs.v1.batch`."""
    name, _, rest = word.lower().partition(".")
    for kind in kinds:
        groups = {"", kind.group, f"{kind.version}.{kind.group}".rstrip(".")}
        names = {kind.kind.lower(), kind.resource, _words(kind)[0] or kind.resource}
        if name in names and rest in groups and kind.is_namespaced:
            return kind
    return None


def owner_kind(owner: ObjectOwner) -> Kind[PodOwner] | None:
    """Return the kind of an owner, in the reference's version; None for one that is not to be asked for.

    A tenant writes the reference, so that nothing of it goes into a path unchecked.
    """
    group, _, version = owner.api_version.rpartition("/")
    known = _KNOWN.get((group, owner.kind))
    if known in (None, POD) or not is_dns_label(version):
        return None
    return Kind(group, version, f"{owner.kind.lower()}s", owner.kind, PodOwner)


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_BUILT_IN_GROUPS: Final = frozenset({"", "apps", "batch"})
"""API groups of Kubernetes' own workloads; the core group has the empty name."""


async def find_pod(reader: FactReader, target: Target) -> tuple[str, Fact[Pod], Fact[PodOwner]]:
    """Find the pod of an answer; return the kind of the named object, the pod, and the workload if named.

    Raises UsageError if the pod or the list of pods cannot be read, or if the kind does not exist.
    """
    if target.known_kind == POD:
        pod = await reader.get(PODS, target.name, target.namespace, decode=decode_pod_with_document)
        if not pod.is_known:
            raise UsageError(_unreadable(reader, pod, f"get pods in namespace {target.namespace}"))
        return POD.kind, pod, NOT_READ
    kind = target.known_kind or await _discover(reader, target)
    workload = await _get(reader, kind, target)
    if workload.why is Why.UNSERVED:  # the operator of this cluster serves another version
        kind = await _discover(reader, target)
        workload = await _get(reader, kind, target)
    pod = MISSING if workload.is_missing else await _newest_pod(reader, kind, target, workload)
    return kind.kind, pod, workload


async def _discover(reader: FactReader, target: Target) -> ServedKind:
    served = await reader.served()
    if served.known is None:
        raise UsageError(served.line)
    kind = find_kind(target.kind, served.known)
    if kind is None:
        raise UsageError(f"the API server serves no kind {quoted(target.kind)} in namespaces")
    return kind


async def _get(reader: FactReader, kind: ServedKind, target: Target) -> Fact[PodOwner]:
    path = Kind(kind.group, kind.version, kind.resource, kind.kind, PodOwner)
    return await reader.get(path, target.name, target.namespace)


def _selector(kind: ServedKind, name: str, workload: PodOwner | None) -> str:
    """Return the label selector of a workload's pods; empty if they have to be found by their owners."""
    try:
        own = msgspec.convert(workload.spec.selector, LabelSelector).query if workload else ""
    except msgspec.ValidationError:  # a custom resource's selector may have another shape
        own = ""
    label = _words(kind)[1]
    return own or (f"{label}={name}" if label and is_label_value(name) else "")


async def _newest_pod(
    reader: FactReader, kind: ServedKind, target: Target, workload: Fact[PodOwner]
) -> Fact[Pod]:
    selector = _selector(kind, target.name, workload.known)
    best: list[Pod] = []

    def add(document: bytes) -> None:
        pod = decode_pod_with_document(document)
        owners = pod.metadata.owner_references
        if (selector or _is_owned(owners, kind, target.name)) and (not best or _rank(pod) > _rank(best[0])):
            best[:] = [pod]

    query = {"labelSelector": selector} if selector else None
    listing = await reader.list(PODS, target.namespace, query=query, decode=add, what="pods")
    if not listing.is_known and not (is_read(listing) and best):
        raise UsageError(_unreadable(reader, listing, f"list pods in namespace {target.namespace}"))
    return Fact(best[0]) if best else MISSING


def _rank(pod: Pod) -> tuple[bool, datetime, str]:  # pods that wait are the highest, then new ones
    waits = pod.status.phase not in ("Running", "Succeeded", "Failed") and not pod.metadata.deletion_timestamp
    return waits, pod.metadata.creation_timestamp or _EARLIEST, pod.name


def _is_owned(owners: Sequence[ObjectOwner], kind: ServedKind, name: str) -> bool:
    own = any(owner.name == name for owner in owners if owner.kind == kind.kind)
    return own or any(_is_between(owner.name, kind, name) for owner in owners if owner.kind != kind.kind)


def _is_between(owner: str, kind: ServedKind, name: str) -> bool:
    """Whether an owner of pods has a name that a controller gives to one that belongs to a workload.

    Controllers outside Kubernetes also give it the workload's own name: the StatefulSet of a Notebook
    (notebook-controller), the Job that submits a RayJob (KubeRay).
    """
    if owner == name:
        return kind.group not in _BUILT_IN_GROUPS
    return is_made_for(owner, name) and (kind.kind != "CronJob" or owner[len(name) + 1 :].isdigit())


def _unreadable(reader: FactReader, fact: Fact[Any], right: str) -> str:
    if fact.why is Why.FORBIDDEN:
        return f"you may not {right}"
    if fact.why is Why.UNSERVED:
        return f"the server {reader.client.server} serves no pods; is it an API server?"
    return next(iter(reader.notes), f"not read: {right}")
