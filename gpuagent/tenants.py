"""The names a pod has in its tenant's virtual cluster, for a host pod that vCluster synced. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod's names inside a vCluster."""

    vcluster: str
    namespace: str
    pod: str
