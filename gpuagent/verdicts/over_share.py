"""Over-share policies: eviction and grace as set by the pods' namespaces, within the node's bounds.

The labels of a cluster's namespaces belong to the policy owner. The labels of a vCluster's namespaces belong
to the tenant, and are mirrored onto the host pods. A tenant can write a label of the same form on a pod; it
lasts until vCluster's first sync (seen on v0.36.1). A mirrored label therefore counts only after it has been
stable for a while, and only makes the policy of the host namespace stricter: evict if either policy does, and
the shorter grace. The mode `off` of the host namespace ends evictions by either.

Pure, but remembers since when mirrored labels have been stable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.pods.tenants import Tenant, namespace_label_key
from gpuagent.shares.pod_share import PodShare
from kai.own_labels import (
    GRACE_FORM,
    MODE,
    MODE_OFF,
    OVER_SHARE,
    OVER_SHARE_GRACE,
    OverShare,
    read_grace,
    read_over_share,
)
from service.text import quoted
from service.units import duration

STANDS_AFTER: Final = 30.0
"""Seconds; vCluster's first sync of a pod takes 0.1 s."""
_MOST_NOTES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSharePolicy:
    """The over-share policy for one pod."""

    evict: bool = False
    """Whether to evict the pod while it is flagged as over its share."""
    grace: float | None = None
    """Seconds above its share before the pod is flagged; None: the agent's `--grace`."""
    is_tenants: bool = field(default=False, compare=False)
    """Whether the mirrored labels of the tenant's namespace are stable and request eviction by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceBounds:
    """Bounds of a grace that a namespace may set, in seconds."""

    shortest: float = 30.0
    longest: float = 86400.0

    def within(self, grace: float) -> float:
        """Return the nearest allowed grace."""
        return min(max(grace, self.shortest), self.longest)


_NOTHING: Final = OverSharePolicy()
_KEYS: Final = (OVER_SHARE, OVER_SHARE_GRACE, MODE)
_Labels = tuple[str | None, ...]
"""Values of the labels for over-share action, grace and mode."""


def requests_eviction(labels: Mapping[str, str]) -> bool:
    """Whether the labels of a namespace request the eviction of pods above their share."""
    return labels.get(OVER_SHARE) == OverShare.EVICT and labels.get(MODE) != MODE_OFF


def mirrored_labels_request_eviction(pod: NodePod, tenant: Tenant) -> bool:
    """Whether the labels of the tenant's namespace, as mirrored onto its host pod, request eviction."""
    action, _, mode = _mirrored_labels(pod, tenant)
    return action == OverShare.EVICT and mode != MODE_OFF


class OverSharePolicies:
    """Reads the over-share policies, and remembers since when mirrored labels have been stable."""

    def __init__(self, *, bounds: GraceBounds | None = None) -> None:
        self._bounds = bounds or GraceBounds()
        self._mirrored: dict[str, tuple[_Labels, float]] = {}
        """By pod UID: the latest mirrored labels, and since when they have been stable."""
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Labels of the last reading that are invalid or out of bounds, one line each."""
        return tuple(self._notes)[:_MOST_NOTES]

    def read(
        self, inventory: Inventory, pod_shares: Iterable[PodShare], now: float
    ) -> dict[str, OverSharePolicy]:
        """Return the policies by pod UID; a pod without a policy is absent.

        Args:
            inventory: has the labels of the namespaces that could be fetched.
            pod_shares: shares of the pods, with their tenants.
            now: seconds on the clock of the samples.
        """
        self._notes = {}
        own = {
            name: self._parse(tuple(map(labels.get, _KEYS)), f"Namespace {name}")
            for name, labels in inventory.namespaces.items()
        }
        policies: dict[str, OverSharePolicy] = {}
        mirrored: dict[str, tuple[_Labels, float]] = {}
        for pod_share in pod_shares:
            pod = pod_share.pod
            over_share_policy = own.get(pod.namespace, _NOTHING)
            if pod_share.tenant is not None:
                labels = _mirrored_labels(pod, pod_share.tenant)
                before = self._mirrored.get(pod.uid)
                since = now if before is None or before[0] != labels else before[1]
                mirrored[pod.uid] = labels, since
                if now - since >= STANDS_AFTER:
                    tenants = self._parse(labels, _where(pod, pod_share.tenant))
                    if inventory.namespaces.get(pod.namespace, {}).get(MODE) == MODE_OFF:
                        tenants = replace(tenants, evict=False)
                    over_share_policy = _stricter(over_share_policy, tenants)
            if over_share_policy != _NOTHING:
                policies[pod.uid] = over_share_policy
        self._mirrored = mirrored
        return policies

    def _parse(self, labels: _Labels, where: str) -> OverSharePolicy:
        action, grace, mode = labels
        over_share = None if action is None else read_over_share(action)
        seconds = None if grace is None else read_grace(grace)
        if action is not None and over_share is None:
            self._note(where, OVER_SHARE, action, "report, evict")
        if grace is not None and seconds is None:
            self._note(where, OVER_SHARE_GRACE, grace, GRACE_FORM)
        evict = over_share is OverShare.EVICT and mode != MODE_OFF
        if seconds is None:
            return OverSharePolicy(evict=evict)
        within = self._bounds.within(seconds)
        if within != seconds:
            line = f'{where}: label {OVER_SHARE_GRACE}: "{grace}" is outside of --grace-min and --grace-max'
            self._notes[f"{line}; {duration(within)} applies"] = None
        return OverSharePolicy(evict=evict, grace=within)

    def _note(self, where: str, label: str, value: str, allowed: str) -> None:
        self._notes[f"{where}: label {label}: {quoted(value)} is invalid and ignored; allowed: {allowed}"] = (
            None
        )


def _mirrored_labels(pod: NodePod, tenant: Tenant) -> _Labels:
    return tuple(pod.labels.get(namespace_label_key(tenant.vcluster, key)) for key in _KEYS)


def _where(pod: NodePod, tenant: Tenant) -> str:
    return f"Namespace {tenant.namespace} of vCluster {tenant.vcluster} in {pod.namespace}"


def _stricter(host: OverSharePolicy, tenant: OverSharePolicy) -> OverSharePolicy:
    graces = [each.grace for each in (host, tenant) if each.grace is not None]
    return OverSharePolicy(
        evict=host.evict or tenant.evict, grace=min(graces, default=None), is_tenants=tenant.evict
    )
