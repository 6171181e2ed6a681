"""Workloads in another queue than their namespace's: KAI takes a top owner's label before the pod's own."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
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
    ("kubeflow.org", "v1", "pytorchjobs"),
    ("kubeflow.org", "v2beta1", "mpijobs"),
    ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
    ("ray.io", "v1", "rayclusters"),
    ("ray.io", "v1", "rayjobs"),
    ("ray.io", "v1", "rayservices"),
    ("serving.knative.dev", "v1", "services"),
)
"""What KAI has a pod grouper for and clusters commonly have; a kind that is not served is left out."""

_POD_GROUPS: Final = ListSpec(
    resource="podgroups",
    group="scheduling.run.ai",
    path="/apis/scheduling.run.ai/v2alpha2/podgroups",
    without="which queues pods really are in was not checked",
)


class _Owner(Struct, frozen=True):
    controller: bool | None = None


class _Metadata(Struct, frozen=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    owners: list[_Owner] | None = msgspec.field(name="ownerReferences", default=None)


class _Owning(Struct, frozen=True):
    metadata: _Metadata


class _GroupSpec(Struct, frozen=True):
    queue: str = ""


class _Group(Struct, frozen=True):
    metadata: _Metadata
    spec: _GroupSpec = _GroupSpec()


Managed = Mapping[str, Namespace]
Astray = tuple[str, str]
"""Namespace, and what is in another queue than its policy names."""

_owning = msgspec.json.Decoder(_Owning).decode
_group = msgspec.json.Decoder(_Group).decode


async def workload_findings(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """List what belongs to a queue, and keep what is in another than its namespace says."""
    managed = cluster.acting
    if not managed:
        return
    astray: list[Astray] = []
    is_known = True
    for group, version, resource in WORKLOAD_KINDS:
        asked = ListSpec(
            resource=resource,
            group=group,
            path=f"/apis/{group}/{version}/{resource}",
            params={"labelSelector": keys.QUEUE_LABEL},
            accept=METADATA_ONLY,
            without="whether workloads are labelled with another queue was not checked",
        )
        found = await reader.list(asked, partial(_owner_astray, managed=managed, kind=resource))
        is_known &= found.extent in (Completeness.WHOLE, Completeness.UNSERVED)
        astray += found.items
    for finding in _told(
        _OWNERS, "workload", managed, astray, "labelled with another queue, and KAI goes by that"
    ):
        yield finding
    if is_known and not astray:
        yield ok(_OWNERS, "no label of a workload names another queue than its namespace")
    groups = await reader.list(_POD_GROUPS, partial(_group_astray, managed=managed))
    for finding in _told(_GROUPS, "PodGroup", managed, groups.items, "in another queue than the namespace's"):
        yield finding
    if groups.extent is Completeness.WHOLE and not groups.items:
        yield ok(_GROUPS, "all of managed namespaces are in their namespace's queue")


def _owner_astray(item: bytes, managed: Managed, kind: str) -> Astray | None:
    found = _owning(item).metadata
    if any(owner.controller for owner in found.owners or ()):
        return None  # KAI looks further up
    return _astray(
        managed, found, f"{kind.removesuffix('s')} ", (found.labels or {}).get(keys.QUEUE_LABEL, "")
    )


def _group_astray(item: bytes, managed: Managed) -> Astray | None:
    found = _group(item)
    return _astray(managed, found.metadata, "", found.spec.queue)


def _astray(managed: Managed, found: _Metadata, kind: str, queue: str) -> Astray | None:
    here = managed.get(found.namespace)
    if here is None or here.policy is None or not here.policy.queue or queue in ("", here.policy.queue):
        return None
    return found.namespace, f"{kind}{found.namespace}/{found.name} in {queue}"


def _told(
    check: str, one: str, managed: Managed, astray: Iterable[Astray], what: str
) -> Iterator[CheckResult]:
    """One line for those that enforce forbids, and one for those that default allows."""
    by_mode: defaultdict[bool, list[str]] = defaultdict(list)
    for namespace, name in astray:
        policy = managed[namespace].policy
        by_mode[policy is not None and policy.mode is Mode.ENFORCE].append(name)
    for is_enforced, names in sorted(by_mode.items(), reverse=True):
        make = problem if is_enforced else warning
        where = " of namespaces that enforce" if is_enforced else ""
        yield make(
            check,
            f"{counted(len(names), one)}{where}, {what}: {listed(names)}",
            f"correct the label {keys.QUEUE_LABEL} of the workload; pods that run keep their queue",
        )
