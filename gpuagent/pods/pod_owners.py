"""The owners of a pod: its workload, and its tenant if vCluster synced it. Pure.

A tenant can write owner references and `vcluster.loft.sh/owner-references`. The result is for display only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from gpuagent.pods.inventory import NodePod
from kai import keys
from kai.kaishare_keys import VCLUSTER, VCLUSTER_HOST
from service.names import is_dns_subdomain, is_kind
from service.text import MALFORMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod's names inside a vCluster."""

    vcluster: str
    namespace: str
    pod: str


def is_vcluster_host(namespace_labels: Mapping[str, str | None]) -> bool:
    """Whether an administrator has labelled a host namespace as that of a vCluster."""
    return namespace_labels.get(VCLUSTER) == VCLUSTER_HOST


def tenant_of(pod: NodePod, namespaces: Mapping[str, Mapping[str, str]]) -> Tenant | None:
    """Read the names that vCluster's syncer has written on a pod; None for a pod of no vCluster.

    Every user who may create pods can write the same keys. They count only in labelled host namespaces, where
    only the syncer creates pods; it overwrites a tenant's values of these keys (v0.36.1 `translator.go`). As
    in vCluster's own `IsManaged`, the annotations must name the pod itself. Tenants can choose the short
    `vcluster.loft.sh/name` and `namespace`, so these are not read. `namespaces` are the labels of the host
    namespaces that could be fetched.
    """
    if not is_vcluster_host(namespaces.get(pod.namespace, {})):
        return None
    about = pod.annotations
    if (about.get(keys.VCLUSTER_HOST_NAMESPACE), about.get(keys.VCLUSTER_HOST_NAME)) != pod.key:
        return None
    names = (
        pod.labels.get(keys.VCLUSTER_MANAGED_BY, ""),
        about.get(keys.VCLUSTER_OBJECT_NAMESPACE, ""),
        about.get(keys.VCLUSTER_OBJECT_NAME, ""),
    )
    if not all(map(is_dns_subdomain, names)):
        return None
    vcluster, namespace, name = names
    return Tenant(vcluster=vcluster, namespace=namespace, pod=name)


_OF_CRON_JOB = re.compile(r"(.+)-[0-9]{8,}")
"""Name of a CronJob's Job: the name of the CronJob and the minute, in minutes or seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Kind and name of a pod's workload; both are empty if there is none."""

    kind: str = ""
    name: str = ""


NO_WORKLOAD: Final = Workload()


def workload_of(pod: NodePod) -> Workload:
    """Return the workload of a pod by its controller."""
    return _workload(pod, Workload(pod.controller_kind, pod.controller_name))


def virtual_workload_of(pod: NodePod) -> Workload:
    """Return the workload of a pod that vCluster synced.

    Its controller is inside the vCluster and only named in an annotation. Its owner on the host is the
    vCluster itself (observed on v0.36.1).
    """
    return _workload(pod, _virtual_controller(pod.annotations.get(keys.VCLUSTER_OWNER_REFERENCES, "")))


def _workload(pod: NodePod, controller: Workload) -> Workload:
    if not (is_kind(controller.kind) and is_dns_subdomain(controller.name)):
        return NO_WORKLOAD
    if controller.kind == "ReplicaSet":
        name = controller.name.removesuffix(f"-{pod.labels.get(keys.TEMPLATE_HASH, '')}")
        return Workload("Deployment", name) if name and name != controller.name else controller
    if controller.kind == "Job":
        match = _OF_CRON_JOB.fullmatch(controller.name)
        return Workload("CronJob", match[1]) if match else controller
    return controller


class _Reference(Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


_references = msgspec.json.Decoder(list[_Reference])


def _virtual_controller(text: str) -> Workload:
    try:
        references = _references.decode(text) if text else []
    except MALFORMED:
        return NO_WORKLOAD
    controller = next((reference for reference in references if reference.controller), None)
    return Workload(controller.kind, controller.name) if controller else NO_WORKLOAD
