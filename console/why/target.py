"""Finds the pod or workload that `kaishare why` explains."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from console.cluster.facts import MISSING, NOT_READ, Fact, FactReader, Why, is_read
from console.why.events import is_made_for
from kube.kinds import PODS, Kind, ObjectOwner, Pod, PodOwner, decode_pod_with_document
from kube.metadata import LabelSelector
from service.command import UsageError
from service.names import is_dns_label, is_dns_subdomain, is_label_value
from service.text import quoted

_TRAINING: Final = "training.kubeflow.org/job-name"


class WorkloadKind(NamedTuple):
    """A kind that makes pods."""

    group: str
    version: str
    name: str
    short: str = ""  # its short name in kubectl
    label: str = ""  # the label of its pods that has its name

    @property
    def kind(self) -> Kind[PodOwner]:
        """The kind, for paths."""
        return Kind(self.group, self.version, f"{self.name.lower()}s", self.name, PodOwner)

    def is_named(self, word: str) -> bool:
        """Whether a word names the kind, as in kubectl: `deploy`, `Deployment`, `jobs.v1.batch`."""
        name, _, rest = word.lower().partition(".")
        names = {self.name.lower(), self.kind.resource, self.short or self.kind.resource}
        return name in names and rest in {"", self.group, f"{self.version}.{self.group}".rstrip(".")}


POD: Final = WorkloadKind("", "v1", "Pod", "po")
_WORKLOADS: Final = (
    WorkloadKind("apps", "v1", "Deployment", "deploy"),
    WorkloadKind("apps", "v1", "ReplicaSet", "rs"),
    WorkloadKind("apps", "v1", "StatefulSet", "sts"),
    WorkloadKind("apps", "v1", "DaemonSet", "ds"),
    WorkloadKind("batch", "v1", "Job"),
    WorkloadKind("batch", "v1", "CronJob", "cj"),
    WorkloadKind("", "v1", "ReplicationController", "rc"),
    # The labels are those of `webhook.policy.operators`, and of KubeRay's common/label.go.
    *(
        WorkloadKind("kubeflow.org", "v1", f"{name}Job", label=_TRAINING)
        for name in ("PyTorch", "TF", "XGBoost", "JAX", "Paddle", "MPI")
    ),
    WorkloadKind("kubeflow.org", "v2beta1", "MPIJob", label=_TRAINING),
    WorkloadKind("kubeflow.org", "v1", "Notebook"),
    WorkloadKind("jobset.x-k8s.io", "v1alpha2", "JobSet", label="jobset.sigs.k8s.io/jobset-name"),
    WorkloadKind(
        "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "lws", "leaderworkerset.sigs.k8s.io/name"
    ),
    WorkloadKind("ray.io", "v1", "RayCluster", label="ray.io/cluster"),
    WorkloadKind("ray.io", "v1", "RayJob"),
    WorkloadKind("ray.io", "v1", "RayService"),
)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def parse_target(text: str) -> tuple[Sequence[WorkloadKind], str]:
    """Read `POD` or `KIND/NAME`; return the kinds of that name, and the object's name. Raises ValueError."""
    word, slash, name = text.rpartition("/")
    kinds = [each for each in (POD, *_WORKLOADS) if each.is_named(word or "pod")]
    if not kinds or (slash and not word):
        raise ValueError(
            f"{quoted(word)} is not the name of a known kind; give the pod, or such as deploy/web"
        )
    if not is_dns_subdomain(name):
        raise ValueError(f"{quoted(name)} is not the name of an object; give POD or KIND/NAME")
    return kinds, name


def owner_kind(owner: ObjectOwner) -> Kind[PodOwner] | None:
    """Return the kind of an owner, in the reference's version; None for one that is not to be asked for.

    A tenant writes the reference, so that nothing of it goes into a path unchecked.
    """
    group, _, version = owner.api_version.rpartition("/")
    is_known = any((each.group, each.name) == (group, owner.kind) for each in _WORKLOADS)
    return WorkloadKind(group, version, owner.kind).kind if is_known and is_dns_label(version) else None


async def find_pod(
    reader: FactReader, namespace: str, kinds: Sequence[WorkloadKind], name: str
) -> tuple[Fact[Pod], Fact[PodOwner]]:
    """Find the pod of an answer; return it, and the workload if that is named by one of several versions.

    Raises UsageError if the pod or the list of pods cannot be read, or if the kind is not served.
    """
    if kinds[0] == POD:
        pod = await reader.get(PODS, name, namespace, decode=decode_pod_with_document)
        if not pod.is_known:
            raise UsageError(_unreadable(reader, pod, f"get pods in namespace {namespace}"))
        return pod, NOT_READ
    for each in kinds:
        workload = await reader.get(each.kind, name, namespace)
        if workload.why is not Why.UNSERVED:
            break
    else:
        raise UsageError(f"the API server does not serve the kind {kinds[0].name}")
    pod = MISSING if workload.is_missing else await _newest_pod(reader, namespace, each, name, workload.known)
    return pod, workload


def _selector(kind: WorkloadKind, name: str, workload: PodOwner | None) -> str:
    """Return the label selector of a workload's pods; empty if they have to be found by their owners."""
    try:
        own = msgspec.convert(workload.spec.selector, LabelSelector).query if workload else ""
    except msgspec.ValidationError:  # a custom resource's selector may have another shape
        own = ""
    return own or (f"{kind.label}={name}" if kind.label and is_label_value(name) else "")


async def _newest_pod(
    reader: FactReader, namespace: str, kind: WorkloadKind, name: str, workload: PodOwner | None
) -> Fact[Pod]:
    selector = _selector(kind, name, workload)
    best: list[Pod] = []

    def add(document: bytes) -> None:
        pod = decode_pod_with_document(document)
        is_own = selector or any(_is_owned(owner, kind, name) for owner in pod.metadata.owner_references)
        best[:] = [max([*best, pod], key=_rank)] if is_own else best

    query = {"labelSelector": selector} if selector else None
    listing = await reader.list(PODS, namespace, query=query, decode=add, what="pods")
    if not listing.is_known and not (is_read(listing) and best):
        raise UsageError(_unreadable(reader, listing, f"list pods in namespace {namespace}"))
    return Fact(best[0]) if best else MISSING


def _rank(pod: Pod) -> tuple[bool, datetime, str]:  # pods that wait are the highest, then new ones
    waits = pod.status.phase not in ("Running", "Succeeded", "Failed") and not pod.metadata.deletion_timestamp
    return waits, pod.metadata.creation_timestamp or _EARLIEST, pod.name


def _is_owned(owner: ObjectOwner, kind: WorkloadKind, name: str) -> bool:
    """Whether an owner of a pod is the workload, or has a name that a controller gives to one between them.

    Controllers outside Kubernetes also give it the workload's own name: the StatefulSet of a Notebook
    (notebook-controller), the Job that submits a RayJob (KubeRay).
    """
    if owner.name == name:
        return owner.kind == kind.name or kind.group not in ("", "apps", "batch")
    is_run = kind.name != "CronJob" or owner.name[len(name) + 1 :].isdigit()
    return owner.kind != kind.name and is_made_for(owner.name, name) and is_run


def _unreadable(reader: FactReader, fact: Fact[Any], right: str) -> str:
    if fact.why is Why.FORBIDDEN:
        return f"you may not {right}"
    if fact.why is Why.UNSERVED:
        return f"the server {reader.client.server} serves no pods; is it an API server?"
    return next(iter(reader.notes), f"not read: {right}")
