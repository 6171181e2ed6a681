"""Checks for workloads and pods whose owners lead to another queue than their namespace's.

KAI uses the queue label of a pod's topmost owner before the pod's own label, also of an owner that is not
namespaced.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kai import keys
from kube.discovery import ServedKind
from kube.objects import ObjectMeta, decode_partial_object
from kube.watch import METADATA_ONLY
from service.check_results import CheckResult, ok, problem, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListResult, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.policy.checks import CLUSTER_SCOPED_OWNERS
from webhook.policy.labels import Mode

_OWNERS: Final = "owners"
_GROUPS: Final = "PodGroups"
_CLUSTER_SCOPED: Final = "cluster-scoped owners"
_MIRROR_OWNER: Final = ("", "Node")
"""Group and kind of a mirror pod's owner: the kubelet sets its node as the owner."""

WORKLOAD_KINDS: Final = frozenset(
    {
        "deployments.apps",
        "statefulsets.apps",
        "replicasets.apps",
        "jobs.batch",
        "cronjobs.batch",
        "jobsets.jobset.x-k8s.io",
        "jaxjobs.kubeflow.org",
        "mpijobs.kubeflow.org",
        "notebooks.kubeflow.org",
        "pytorchjobs.kubeflow.org",
        "tfjobs.kubeflow.org",
        "xgboostjobs.kubeflow.org",
        "leaderworkersets.leaderworkerset.x-k8s.io",
        "rayclusters.ray.io",
        "rayjobs.ray.io",
        "rayservices.ray.io",
        "services.serving.knative.dev",
    }
)
"""Common kinds for which KAI has a pod grouper, by resource and group."""

_PODS: Final = ListSpec(
    resource="pods",
    accept=METADATA_ONLY,
    is_namespaced=True,
    without="queue labels and owners of workloads were not checked",
)

Misplaced = tuple[str, str]
"""A namespace, and the description of an object in another queue than the namespace's policy names."""


@dataclass(frozen=True, slots=True)
class _Suspects:
    """The objects that lead to another queue, among those that were read."""

    cluster: Cluster
    misplaced: list[Misplaced] = field(default_factory=list)
    owned: list[str] = field(default_factory=list)
    """The objects with an owner that is not namespaced."""

    def read(self, item: bytes, *, resource: str) -> None:
        """Examine an object of a managed namespace."""
        metadata = decode_partial_object(item).metadata
        if metadata.namespace not in self.cluster.managed:
            return
        is_pod, title = resource == _PODS.resource, f"{resource.removesuffix('s')} {_name(metadata)}"
        if not is_pod and not any(owner.controller for owner in metadata.owner_references):
            # KAI uses the topmost owner.
            queue = metadata.labels.get(keys.QUEUE_LABEL, "")
            if _is_misplaced(self.cluster, metadata, queue):
                self.misplaced.append((metadata.namespace, f"{title} in {queue}"))
        for owner in metadata.owner_references:
            is_mirror = is_pod and owner.group_kind == _MIRROR_OWNER
            if owner.group_kind in CLUSTER_SCOPED_OWNERS and not is_mirror:
                self.owned.append(f"{title} of {owner.kind} {owner.name}")
                break


async def workload_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Return findings about workloads, pods and PodGroups in another queue than their namespace's."""
    if not cluster.managed:
        return []
    suspects = _Suspects(cluster)
    specs = await _specs(reader)
    unknown_lists = []
    for spec in specs:
        objects: ListResult[None] = await reader.list(spec, partial(suspects.read, resource=spec.resource))
        if objects.outcome not in (ListOutcome.WHOLE, ListOutcome.UNSERVED):
            unknown_lists.append(spec)
    are_workloads_known = len(specs) > 1 and unknown_lists in ([], [_PODS])
    findings: list[CheckResult] = []
    if cluster.acting:
        problem_text = "labelled with another queue, which KAI uses"
        findings += _summary(cluster, _OWNERS, "workload", suspects.misplaced, problem_text)
        if are_workloads_known and not findings:
            what = "no workload of a checked kind is labelled with another queue than its namespace"
            findings.append(ok(_OWNERS, what))
        findings += _pod_group_findings(cluster)
    if suspects.owned:
        findings.append(
            warning(
                _CLUSTER_SCOPED,
                f"{counted(len(suspects.owned), 'object')} with an owner that is not namespaced; KAI uses"
                f" that owner's queue label: {listed(suspects.owned)}",
                "remove the owner reference; running pods keep their queue",
            )
        )
    elif are_workloads_known and not unknown_lists:
        what = "no pod and no workload of a checked kind in a managed namespace has one"
        findings.append(ok(_CLUSTER_SCOPED, what))
    return findings


async def _specs(reader: ApiReader) -> list[ListSpec]:
    """Return the lists of pods and of the kinds that are served."""
    preferred: dict[str, ServedKind] = {}
    for kind in await reader.served_kinds():
        if kind.name in WORKLOAD_KINDS:
            preferred.setdefault(kind.name, kind)
    workloads = [
        replace(_PODS, resource=kind.resource, group=kind.group, version=kind.version)
        for kind in preferred.values()
    ]
    return [_PODS, *workloads]


def _pod_group_findings(cluster: Cluster) -> Iterator[CheckResult]:
    misplaced = [
        (group.metadata.namespace, f"{_name(group.metadata)} in {group.spec.queue}")
        for group in cluster.pod_groups.items
        if _is_misplaced(cluster, group.metadata, group.spec.queue)
    ]
    yield from _summary(cluster, _GROUPS, "PodGroup", misplaced, "in another queue than the namespace's")
    if cluster.pod_groups.outcome is ListOutcome.WHOLE and not misplaced:
        yield ok(_GROUPS, "all PodGroups of managed namespaces are in their namespace's queue")


def _name(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def _is_misplaced(cluster: Cluster, metadata: ObjectMeta, queue: str) -> bool:
    """Whether an object has another queue than the policy that changes the pods of its namespace."""
    policy = cluster.acting.get(metadata.namespace)
    return policy is not None and bool(policy.queue) and queue not in ("", policy.queue)


def _summary(
    cluster: Cluster, check: str, kind: str, misplaced: Iterable[Misplaced], problem_text: str
) -> Iterator[CheckResult]:
    """Yield one problem for objects in namespaces with mode enforce, and one warning for the others."""
    by_mode: defaultdict[bool, list[str]] = defaultdict(list)
    for namespace, name in misplaced:
        by_mode[cluster.managed[namespace].mode is Mode.ENFORCE].append(name)
    for is_enforced, names in sorted(by_mode.items(), reverse=True):
        make = problem if is_enforced else warning
        where = " in namespaces with mode enforce" if is_enforced else ""
        yield make(
            check,
            f"{counted(len(names), kind)}{where}, {problem_text}: {listed(names)}",
            f"correct the label {keys.QUEUE_LABEL} of the workload; running pods keep their queue",
        )
