"""Checks for workloads in another queue than their namespace's.

KAI uses the queue label of a pod's topmost owner before the pod's own label.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kube.objects import ObjectMeta
from kube.watch import METADATA_ONLY
from service.check_results import CheckResult, ok, problem, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.doctor.cluster import Cluster, Namespace
from webhook.policy.labels import Mode

_OWNERS: Final = "owners"
_GROUPS: Final = "PodGroups"

WORKLOAD_KINDS: Final = (
    ("apps", "v1", "deployments"),
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "replicasets"),
    ("batch", "v1", "jobs"),
    ("batch", "v1", "cronjobs"),
    ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    ("kubeflow.org", "v1", "jaxjobs"),
    ("kubeflow.org", "v1", "notebooks"),
    ("kubeflow.org", "v1", "pytorchjobs"),
    ("kubeflow.org", "v1", "tfjobs"),
    ("kubeflow.org", "v1", "xgboostjobs"),
    ("kubeflow.org", "v2beta1", "mpijobs"),
    ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
    ("ray.io", "v1", "rayclusters"),
    ("ray.io", "v1", "rayjobs"),
    ("ray.io", "v1", "rayservices"),
    ("serving.knative.dev", "v1", "services"),
)
"""Common kinds for which KAI has a pod grouper: group, version, resource.

Kinds that are not served are skipped.
"""


class _Owner(Struct, frozen=True):
    controller: bool | None = None


class _Metadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Owning(Struct, frozen=True):
    metadata: _Metadata


Managed = Mapping[str, Namespace]
Misplaced = tuple[str, str]
"""A namespace, and the description of an object in another queue than the namespace's policy names."""

_owning = msgspec.json.Decoder(_Owning).decode


async def workload_findings(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """Yield findings about workloads and PodGroups in another queue than their namespace's."""
    managed = cluster.acting
    if not managed:
        return
    misplaced: list[Misplaced] = []
    is_known = True
    for group, version, resource in WORKLOAD_KINDS:
        spec = ListSpec(
            resource=resource,
            group=group,
            path=f"/apis/{group}/{version}/{resource}",
            params={"labelSelector": keys.QUEUE_LABEL},
            accept=METADATA_ONLY,
            is_namespaced=True,
            without="queue labels of workloads were not checked",
        )
        workloads = await reader.list(spec, partial(_misplaced_owner, managed=managed, kind=resource))
        is_known &= workloads.extent in (Completeness.WHOLE, Completeness.UNSERVED)
        misplaced += workloads.items
    for finding in _summary(
        _OWNERS, "workload", managed, misplaced, "labelled with another queue, which KAI uses"
    ):
        yield finding
    if is_known and not misplaced:
        yield ok(_OWNERS, "no workload of a checked kind is labelled with another queue than its namespace")
    groups = [
        place
        for group in cluster.pod_groups.items
        if (place := _misplaced(managed, group.metadata, "", group.spec.queue))
    ]
    for finding in _summary(_GROUPS, "PodGroup", managed, groups, "in another queue than the namespace's"):
        yield finding
    if cluster.pod_groups.extent is Completeness.WHOLE and not groups:
        yield ok(_GROUPS, "all PodGroups of managed namespaces are in their namespace's queue")


def _misplaced_owner(item: bytes, managed: Managed, kind: str) -> Misplaced | None:
    metadata = _owning(item).metadata
    if any(owner.controller for owner in metadata.owner_references or ()):
        return None  # KAI uses the topmost owner
    queue = (metadata.labels or {}).get(keys.QUEUE_LABEL, "")
    return _misplaced(managed, metadata, f"{kind.removesuffix('s')} ", queue)


def _misplaced(managed: Managed, metadata: ObjectMeta, kind: str, queue: str) -> Misplaced | None:
    """Describe an object whose queue differs from its namespace's policy; None for any other object."""
    namespace = managed.get(metadata.namespace)
    expected = namespace.policy.queue if namespace and namespace.policy else None
    if not expected or queue in ("", expected):
        return None
    return metadata.namespace, f"{kind}{metadata.namespace}/{metadata.name} in {queue}"


def _summary(
    check: str, kind: str, managed: Managed, misplaced: Iterable[Misplaced], problem_text: str
) -> Iterator[CheckResult]:
    """Yield one problem for objects in namespaces with mode enforce, and one warning for the others."""
    by_mode: defaultdict[bool, list[str]] = defaultdict(list)
    for namespace, name in misplaced:
        policy = managed[namespace].policy
        by_mode[policy is not None and policy.mode is Mode.ENFORCE].append(name)
    for is_enforced, names in sorted(by_mode.items(), reverse=True):
        make = problem if is_enforced else warning
        where = " in namespaces with mode enforce" if is_enforced else ""
        yield make(
            check,
            f"{counted(len(names), kind)}{where}, {problem_text}: {listed(names)}",
            f"correct the label {keys.QUEUE_LABEL} of the workload; running pods keep their queue",
        )
