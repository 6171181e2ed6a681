"""Short forms for evaluations of samples: their status, their JSON, and evictions."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.actions.eviction_rules import EvictionRules
from gpuagent.evaluation.history import History
from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.attribution import PodIndex
from gpuagent.ledger.slack import DEFAULT_SLACK
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.inventory import Inventory
from gpuagent.sampling.sample import Origin
from gpuagent.server.api import shares_json
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.over_share import OverSharePolicy
from kai.installation import SharingMode
from tests.support.samples import GIB, balance_of, gpu, in_pod, pod_share, sample

RULES = EvictionRules(
    excluded_namespaces=frozenset({"kube-system"}),
    reservation_namespace="kai-resource-reservation",
    slack=DEFAULT_SLACK,
    gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED,
)
EVICT = OverSharePolicy(evict=True)
SHARE = 8 * GIB


class Node:
    """One GPU over time, and pods that use given amounts of its memory."""

    def __init__(self, *pod_shares: PodShare, grace: float = 10, interval: float = 10) -> None:
        self.pod_shares = pod_shares or (pod_share("train", SHARE),)
        self.judge = Judge(grace=grace, interval=interval, longest_gap=1000)

    def judged(
        self,
        at: float,
        used_bytes: Mapping[str, int],
        *,
        over_share_policies: Mapping[str, OverSharePolicy] | None = None,
        origins: Mapping[str, Origin] | None = None,
        reservations: Iterable[str] = (),
    ) -> Evaluation:
        """One sample, judged; every namespace asks for eviction unless told otherwise."""
        names = dict(enumerate(used_bytes, 10))
        taken = sample(
            gpu(*((number, used_bytes[name]) for number, name in names.items())),
            origins={number: (origins or {}).get(name) or in_pod(name) for number, name in names.items()},
            at=at,
        )
        pods = Inventory(pods={each.pod.uid: each.pod for each in self.pod_shares})
        snapshot = balance_of(taken, self.pod_shares, PodIndex.from_inventory(pods))
        verdicts, transitions = self.judge.judge(snapshot)
        everybody = {each.pod.uid: EVICT for each in self.pod_shares}
        return Evaluation(
            snapshot=snapshot,
            verdicts=verdicts,
            changes=transitions,
            over_share_policies=everybody if over_share_policies is None else over_share_policies,
            reservation_uids=frozenset(reservations),
        )

    def flagged(self, used_bytes: Mapping[str, int], **options: object) -> Evaluation:
        self.judged(0, used_bytes, **options)  # type: ignore[arg-type]
        return self.judged(10, used_bytes, **options)  # type: ignore[arg-type]


def of_pod(made: PodShare, **fields: object) -> PodShare:
    return replace(made, pod=replace(made.pod, **fields))  # type: ignore[arg-type]


def status_of(*snapshots: Snapshot, now: float | None = None) -> Evaluation:
    """Return the status after these samples, with a grace of 10 s and an interval of 5 s."""
    judge, history = Judge(grace=10, interval=5, longest_gap=15), History(interval=5)
    evaluation = Evaluation(history=history)
    for snapshot in snapshots:
        history.record(snapshot)
        good = snapshot.taken_at if snapshot.is_good else evaluation.good_at
        evaluation = Evaluation(
            snapshot=snapshot, verdicts=judge.judge(snapshot)[0], history=history, good_at=good,
            good_wall_time=None if good is None else 1.8e9 + good,
        )  # fmt: skip
    at = snapshots[-1].taken_at if snapshots else 0
    return evaluation.at(at if now is None else now, started_at=0, interval=5, pods_silent_for=0)


def api_of(status: Evaluation, *, node: str = "node-1", is_simulated: bool = False) -> Any:
    return json.loads(shares_json(status, node=node, is_simulated=is_simulated))


def api_pods(status: Evaluation) -> dict[str, Any]:
    return {each["name"]: each for each in api_of(status)["pods"]}
