"""Finds the pod that an answer is about: by its name, or as the newest one of a workload."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from console.why.evidence import Absence
from console.why.objects import PodObject, WorkloadObject, decode_one_pod, decode_workload
from console.why.pod_groups import is_made_for
from console.why.reading.requests import Requests
from console.why.reading.target import POD, Target, find_kind, pod_label
from kube.discovery import ServedKind, discover_groups
from kube.errors import REQUEST_ERRORS
from kube.objects import ObjectOwner
from service.command import UsageError
from service.names import is_label_value
from service.text import MALFORMED, quoted
from webhook.registration.objects import LabelSelector

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_BUILT_IN_GROUPS: Final = frozenset({"", "apps", "batch"})
"""API groups of Kubernetes' own workloads; the core group has the empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pod of an answer, and the workload that was named."""

    kind: str
    """Kind of the named object, such as `Deployment`."""
    pod: PodObject | Absence
    workload: WorkloadObject | Absence = Absence.NOT_READ


class _Spec(Struct, frozen=True):
    selector: LabelSelector | None = None


class _Selecting(Struct, frozen=True):
    spec: _Spec = _Spec()


_selecting = msgspec.json.Decoder(_Selecting).decode


async def find_pod(requests: Requests, target: Target) -> Subject:
    """Find the pod of an answer.

    Raises:
        UsageError: the pod or the list of pods cannot be read, or the kind does not exist; the message is one
            line.
    """
    if target.is_pod:
        path = f"{POD.path_in(target.namespace)}/{target.name}"
        pod = await requests.get(path, decode_one_pod, f"Pod {target.name}")
        if isinstance(pod, Absence) and pod is not Absence.MISSING:
            raise UsageError(_unreadable(requests, pod, f"get pods in namespace {target.namespace}"))
        return Subject(kind=POD.kind, pod=pod)
    kind = target.known_kind or await _discover(requests, target)
    workload, selector = await _get(requests, kind, target)
    if workload is Absence.UNSERVED:  # the operator of this cluster serves another version
        kind = await _discover(requests, target)
        workload, selector = await _get(requests, kind, target)
    if workload is Absence.MISSING:
        return Subject(kind=kind.kind, pod=Absence.MISSING, workload=workload)
    pod = await _newest_pod(requests, kind, target, selector)
    return Subject(kind=kind.kind, pod=pod, workload=workload)


async def _discover(requests: Requests, target: Target) -> ServedKind:
    try:
        kinds = await discover_groups(requests.client)
    except REQUEST_ERRORS as error:
        raise UsageError(f"the kinds of the cluster are not known: {error}") from None
    kind = find_kind(target.kind, kinds)
    if kind is None:
        raise UsageError(f"the API server serves no kind {quoted(target.kind)} in namespaces")
    return kind


async def _get(requests: Requests, kind: ServedKind, target: Target) -> tuple[WorkloadObject | Absence, str]:
    """Return a workload and the label selector of its pods; the selector is empty if there is none."""
    path = f"{kind.path_in(target.namespace)}/{target.name}"
    answer = await requests.get(path, _decode_selecting, f"{kind.kind} {target.name}")
    return (answer, "") if isinstance(answer, Absence) else answer


def _decode_selecting(document: bytes) -> tuple[WorkloadObject, str]:
    workload = decode_workload(document)
    try:
        selector = _selecting(document).spec.selector
    except MALFORMED:  # a custom resource's selector may have another shape
        selector = None
    return workload, selector.query if selector else ""


async def _newest_pod(
    requests: Requests, kind: ServedKind, target: Target, selector: str
) -> PodObject | Absence:
    """Return a workload's newest pod that waits, else its newest pod; MISSING if it has none."""
    label = pod_label(kind)
    if not selector and label and is_label_value(target.name):
        selector = f"{label}={target.name}"
    best: PodObject | None = None

    def add(pod: PodObject, _document: bytes) -> bool:
        nonlocal best
        owners = pod.metadata.owner_references
        if (selector or _is_owned(owners, kind, target.name)) and (best is None or _rank(pod) > _rank(best)):
            best = pod
        return True

    params = {"labelSelector": selector} if selector else None
    path = POD.path_in(target.namespace)
    absence = await requests.stream(path, decode_one_pod, "pods", add, params=params)
    if absence is not None and not (absence is Absence.PARTIAL and best is not None):
        raise UsageError(_unreadable(requests, absence, f"list pods in namespace {target.namespace}"))
    return best or Absence.MISSING


def _rank(pod: PodObject) -> tuple[bool, datetime, str]:
    """Return a sort key: pods that wait first, then by their time of creation."""
    waits = pod.status.phase not in ("Running", "Succeeded", "Failed") and not pod.metadata.deletion_timestamp
    return waits, pod.metadata.creation_timestamp or _EARLIEST, pod.name


def _is_owned(owners: Sequence[ObjectOwner], kind: ServedKind, name: str) -> bool:
    """Whether a pod belongs to a workload, or to an object in between."""
    return any(
        owner.name == name if owner.kind == kind.kind else _is_between(owner.name, kind, name)
        for owner in owners
    )


def _is_between(owner: str, kind: ServedKind, name: str) -> bool:
    """Whether an owner of pods has a name that a controller gives to one that belongs to a workload.

    Controllers outside Kubernetes also give it the workload's own name: the StatefulSet of a Notebook
    (notebook-controller), the Job that submits a RayJob (KubeRay).
    """
    if owner == name:
        return kind.group not in _BUILT_IN_GROUPS
    return is_made_for(owner, name) and (kind.kind != "CronJob" or owner[len(name) + 1 :].isdigit())


def _unreadable(requests: Requests, absence: Absence, right: str) -> str:
    """Say why pods cannot be read."""
    match absence:
        case Absence.FORBIDDEN:
            return f"you may not {right}"
        case Absence.UNSERVED:
            return f"the server {requests.client.server} serves no pods; is it an API server?"
    return next(iter(requests.notes), f"not read: {right}")
