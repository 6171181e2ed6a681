"""Finds the host namespaces of vClusters: by their label, and by the keys of vCluster's syncer on pods."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from console.doctor.api_reader import ApiReader, ListSpec
from console.doctor.check_results import CheckResult, problem, warning
from console.doctor.cluster_state import Cluster
from kai import keys
from kai.kaishare_keys import VCLUSTER
from kube.kinds import METADATA_ONLY, decode_partial_object
from service.text import listed

_CHECK: Final = "vClusters"
_SYNCED_PODS: Final = ListSpec(
    resource="pods",
    params={"labelSelector": keys.VCLUSTER_MANAGED_BY},
    accept=METADATA_ONLY,
    is_namespaced=True,
    without="host namespaces of vClusters were not looked for",
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
    labelled = (name for name, labels in cluster.labels.items() if labels.get(VCLUSTER) == "true")
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
