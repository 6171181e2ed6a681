"""Finds the host namespaces of vClusters, and a KAI on the host beside KAI inside them.

Hosts show by their label, and by the keys of vCluster's syncer on pods. Measured with KAI 0.13.4 and 0.17.0
beside vCluster 0.36.1: a KAI on the host selects pods by the label `runai-gpu-group` in the whole cluster,
and deletes the tenants' pods with a share and their reservation pods.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.api_reader import ApiReader, ListSpec
from console.doctor.check_results import CheckResult, problem, warning
from console.doctor.cluster_state import Cluster
from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from kai.kaishare_keys import VCLUSTER, VCLUSTER_HOST
from kube.kinds import FullMeta, PodStatus, decode_partial_object
from kube.metadata import METADATA_ONLY
from service.text import listed, one_line

_CHECK: Final = "vClusters"
_SYNCED_PODS: Final = ListSpec(
    resource="pods",
    params={"labelSelector": keys.VCLUSTER_MANAGED_BY},
    accept=METADATA_ONLY,
    is_namespaced=True,
    without="host namespaces of vClusters were not looked for",
)
_RESERVING: Final = ListSpec(
    resource="pods",
    params={"labelSelector": f"{keys.VCLUSTER_MANAGED_BY},{keys.APP_LABEL}={keys.RESERVATION_APP}"},
    is_namespaced=True,
    without="KAI inside vClusters was not looked for",
)
_MOST_IN_COMMAND: Final = 20
"""Namespaces in the command that labels them."""


@dataclass(frozen=True, slots=True)
class VclusterHosts:
    """The namespaces that are hosts of vClusters, or look like hosts."""

    labelled: frozenset[str]
    """Namespaces that the administrator labelled."""
    with_pods: frozenset[str]
    """Namespaces with pods that have the label of vCluster's syncer. A tenant can write it, too."""

    @property
    def names(self) -> list[str]:
        """All of them, sorted."""
        return sorted(self.labelled | self.with_pods)


async def read_hosts(reader: ApiReader, cluster: Cluster) -> VclusterHosts:
    """Find the hosts; pods that could not be listed are recorded in the reader."""
    pods = await reader.list(_SYNCED_PODS, lambda item: decode_partial_object(item).metadata.namespace)
    labelled = (name for name, labels in cluster.labels.items() if labels.get(VCLUSTER) == VCLUSTER_HOST)
    return VclusterHosts(frozenset(labelled), frozenset(pods.items))


def host_findings(cluster: Cluster, hosts: VclusterHosts) -> Iterator[CheckResult]:
    """Yield a finding about namespaces whose pods have vCluster's keys, and which lack the label."""
    unlabelled = sorted(hosts.with_pods - hosts.labelled)
    if not unlabelled:
        return
    enforced = [name for name in unlabelled if name in cluster.enforced]
    denied = f"; mode enforce denies such pods in {listed(enforced)}" if enforced else ""
    make = problem if enforced else warning
    yield make(
        _CHECK,
        f"pods of {listed(unlabelled)} have vCluster's keys, which count as a tenant's own words without the"
        f" label {VCLUSTER}{denied}",
        "if a vCluster runs there: kubectl label namespace"
        f" {' '.join(unlabelled[:_MOST_IN_COMMAND])} {VCLUSTER}=true",
    )


class _Spec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""


class _Pod(Struct, frozen=True):
    metadata: FullMeta
    spec: _Spec
    status: PodStatus = PodStatus()


_decode: Final = msgspec.json.Decoder(_Pod).decode


async def inner_kai_findings(reader: ApiReader, cluster: Cluster, hosts: VclusterHosts) -> list[CheckResult]:
    """Return a warning if KAI runs on the host, and seems to run inside vClusters, too.

    It is no problem: every user who may create pods in a host namespace can write such a pod.
    """
    if not (cluster.installation and cluster.installation.programs and hosts.labelled & hosts.with_pods):
        return []
    pods = await reader.list(_RESERVING, partial(_inner_reservation, hosts=hosts.labelled))
    if not pods.items:
        return []
    return [
        warning(
            _CHECK,
            f"KAI runs on this host, and seems to run inside vClusters, too ({listed(sorted(pods.items))}):"
            " a KAI on the host deletes the tenants' pods with a share and their reservation pods",
            "ask the owner of the pod first whether KAI runs inside the vCluster: every user who may create"
            " pods in the namespace can write such a pod. If so, see KAI inside vClusters in docs/install.md",
        )
    ]


def _inner_reservation(document: bytes, hosts: Collection[str]) -> str | None:
    """Return a running reservation pod of a KAI inside a vCluster, as words; None for another pod.

    KAI creates them with a node and the default scheduler (v0.9.8, v0.13.4 and v0.17.0).
    """
    pod = _decode(document)
    metadata, annotations = pod.metadata, pod.metadata.annotations
    if (
        metadata.namespace not in hosts
        or not pod.spec.node_name
        or pod.spec.scheduler_name != keys.DEFAULT_SCHEDULER
        or pod.status.phase != "Running"
        or annotations.get(keys.VCLUSTER_OBJECT_NAMESPACE) != RESERVATION_NAMESPACE
        or annotations.get(keys.VCLUSTER_HOST_NAME) != metadata.name
        or annotations.get(keys.VCLUSTER_HOST_NAMESPACE) != metadata.namespace
    ):
        return None
    vcluster = one_line(metadata.labels.get(keys.VCLUSTER_MANAGED_BY, ""))
    return f"pod {metadata.namespace}/{metadata.name} of {vcluster}"
