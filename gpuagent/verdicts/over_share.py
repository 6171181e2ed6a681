"""Over-share policies: eviction and grace as set by the pods' namespaces, within the node's bounds.

The labels of a cluster's namespaces belong to the policy owner. A tenant of a vCluster owns the labels of its
virtual namespaces, which vCluster copies to the host pods; they are no policy. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuagent.pods.inventory import Inventory
from kai.kaishare_keys import (
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

_MOST_NOTES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSharePolicy:
    """The over-share policy for one pod."""

    evict: bool = False
    """Whether to evict the pod while it is flagged as over its share."""
    grace: float | None = None
    """Seconds above its share before the pod is flagged; None: the agent's `--grace`."""


_NOTHING: Final = OverSharePolicy()


def requests_eviction(labels: Mapping[str, str]) -> bool:
    """Whether the labels of a namespace request the eviction of pods above their share."""
    return labels.get(OVER_SHARE) == OverShare.EVICT and labels.get(MODE) != MODE_OFF


class OverSharePolicies:
    """Reads the over-share policies of namespaces."""

    def __init__(self, *, shortest_grace: float = 30.0, longest_grace: float = 86400.0) -> None:
        """Set the bounds of a grace that a namespace may set, in seconds."""
        self._shortest, self._longest = shortest_grace, longest_grace
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Labels of the last reading that are invalid or out of bounds, one line each."""
        return tuple(self._notes)[:_MOST_NOTES]

    def read(self, inventory: Inventory) -> dict[str, OverSharePolicy]:
        """Return the policies by pod UID; a pod without a policy is absent."""
        self._notes = {}
        policies = {
            name: self._parse(labels, f"Namespace {name}") for name, labels in inventory.namespaces.items()
        }
        set_policies = {name: policy for name, policy in policies.items() if policy != _NOTHING}
        return {
            uid: set_policies[pod.namespace]
            for uid, pod in inventory.pods.items()
            if pod.namespace in set_policies
        }

    def _parse(self, labels: Mapping[str, str], where: str) -> OverSharePolicy:
        action, grace = labels.get(OVER_SHARE), labels.get(OVER_SHARE_GRACE)
        over_share = None if action is None else read_over_share(action)
        seconds = None if grace is None else read_grace(grace)
        if action is not None and over_share is None:
            self._note(where, OVER_SHARE, action, "report, evict")
        if grace is not None and seconds is None:
            self._note(where, OVER_SHARE_GRACE, grace, GRACE_FORM)
        evict = requests_eviction(labels)
        if seconds is None:
            return OverSharePolicy(evict=evict)
        within = min(max(seconds, self._shortest), self._longest)
        if within != seconds:
            line = f'{where}: label {OVER_SHARE_GRACE}: "{grace}" is outside of --grace-min and --grace-max'
            self._notes[f"{line}; {duration(within)} applies"] = None
        return OverSharePolicy(evict=evict, grace=within)

    def _note(self, where: str, label: str, value: str, allowed: str) -> None:
        self._notes[f"{where}: label {label}: {quoted(value)} is invalid and ignored; allowed: {allowed}"] = (
            None
        )
