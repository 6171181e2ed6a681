"""Whom the rules let go, and whom never."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.actions.eviction_rules import (
    Budget,
    EvictionMode,
    EvictionRefusal,
    candidates,
    is_settled,
    not_evicted,
    owner_key,
)
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.pod_owners import Tenant
from gpuagent.sampling.sample import LookupResult, Origin
from gpuagent.shares.pod_share import PodShare, ShareSource
from gpuagent.verdicts.flag_reasons import OF_DRIVER_LIMITS, FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.over_share import OverSharePolicy
from gpuagent.verdicts.verdict import Key, Verdict, Verdicts
from kai import keys
from tests.support.evaluations import EVICT, RULES, SHARE, Node, api_pods, of_pod
from tests.support.samples import GIB, A, B, gpu, in_pod, pod_share, sample, snapshot_of, uid_of, with_limit

TRAIN = pod_share("train", SHARE)
OVER = {"train": 12 * GIB}


def names(judged: Any) -> list[str]:
    return [verdict.pod_share.pod.name for verdict in candidates(judged)]


def refusal(made: PodShare = TRAIN, **options: Any) -> EvictionRefusal | None:
    judged = Node(made).flagged(options.pop("used_bytes", OVER), **options)
    (verdict,) = candidates(judged)
    return RULES.refusal(verdict, judged)


@pytest.mark.parametrize(
    ("samples", "is_candidate"),
    [
        ([(0, 12), (10, 12)], True),
        ([(0, 12)], False),
        ([(0, 12), (10, 12), (15, 8.1)], False),
        ([(0, 12), (10, 12), (15, 8.1), (20, 12)], True),
        ([(0, 12), (2, 8), (4, 12), (6, 8), (8, 12), (10, 8)], False),
        ([(-5, 12), (0, 12), (10, 12), (12, 8), (13, 8), (14, 8), (15, 12)], False),
        ([(-5, 12), (0, 12), (10, 12), (12, 8), (13, 8), (14, 8), (15, 12), (16, 12)], True),
    ],
    ids=["flagged", "within the grace", "flagged, and within the slack", "over again", "not over in the very sample",
         "not flagged again", "flagged again"],
)  # fmt: skip
def test_a_candidate_is_a_flagged_pod_that_is_over_in_the_very_sample(
    samples: list[tuple[int, float]], is_candidate: bool
) -> None:
    node = Node(interval=5 if samples[0][0] < 0 else 10)
    for at, gibibytes in samples:
        judged = node.judged(at, {"train": int(gibibytes * GIB)})
    assert names(judged) == ["train"] * is_candidate


@pytest.mark.parametrize(
    "over_share_policies",
    [
        {},
        {uid_of("train"): OverSharePolicy()},
        {uid_of("train"): OverSharePolicy(grace=30)},
        {uid_of("other"): EVICT},
    ],
)
def test_a_flagged_pod_of_a_namespace_without_eviction_is_no_candidate(
    over_share_policies: dict[str, OverSharePolicy],
) -> None:
    assert names(Node().flagged(OVER, over_share_policies=over_share_policies)) == []


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"phase": "Pending", "has_started": True}, None),
        ({"phase": "Unknown", "has_started": True}, None),
        ({"phase": "Pending"}, EvictionRefusal.NOT_RUNNING),
        ({"is_terminating": True}, EvictionRefusal.TERMINATING),
        ({"phase": "Pending", "has_started": True, "is_terminating": True}, EvictionRefusal.TERMINATING),
    ],
    ids=["an init container", "a node that was away", "not begun", "leaving", "leaving before it began"],
)
def test_a_pod_is_evicted_from_its_first_init_container_on_and_other_phases_have_a_refusal(
    fields: dict[str, Any], refused: EvictionRefusal | None
) -> None:
    assert refusal(of_pod(TRAIN, **fields)) is refused


def test_a_flag_is_settled_when_it_is_gone_and_not_when_it_cannot_be_judged() -> None:
    node = Node()
    (verdict,) = candidates(node.flagged(OVER))
    assert not is_settled(verdict.key, node.judged(11, {"train": SHARE}))
    blind = node.judged(12, {"train": SHARE})
    unjudged = replace(blind, verdicts=replace(blind.verdicts, by_key={}))
    assert not is_settled(verdict.key, unjudged)
    assert is_settled(verdict.key, node.judged(13, {"train": SHARE}))
    ended = replace(unjudged, snapshot=replace(blind.snapshot, pod_uids=frozenset()))
    assert is_settled(verdict.key, ended)


def test_the_worst_comes_first_and_each_pod_once() -> None:
    two = pod_share("two", 4 * GIB)
    small = pod_share("small", 2 * GIB)
    judged = Node(small, two, TRAIN).flagged({"small": 3 * GIB, "two": 10 * GIB, "train": 9 * GIB})
    assert names(judged) == ["two", "small", "train"]


@pytest.mark.parametrize(
    "reason", sorted(set(FlagReason) - {FlagReason.OVER_SHARE, FlagReason.LIMIT_BYPASSED})
)
def test_flags_other_than_over_share_and_limit_bypassed_make_no_candidate(reason: FlagReason) -> None:
    made = {
        FlagReason.UNASSIGNED_GPU: pod_share("train", SHARE, gpus=(B,)),
        FlagReason.NO_SHARE: pod_share("train"),
        FlagReason.SHARE_CHANGED: replace(TRAIN, changed="the pod declares 0.9"),
        FlagReason.NO_RESERVATION: replace(TRAIN, lacks_reservation=True),
    }.get(reason, TRAIN)
    within = {"train": SHARE} if made.shares and A in made.shares else OVER
    judged = Node(made).flagged(within)
    if reason in OF_DRIVER_LIMITS:
        key = Key(made.pod.uid, A, reason)
        verdict = Verdict(key=key, pod_share=made, gpu_index=0, is_flagged=True, since=0.0)
        judged = replace(judged, verdicts=Verdicts(by_key={key: verdict}))
    assert reason in {key.reason for key, verdict in judged.verdicts.by_key.items() if verdict.is_flagged}
    assert names(judged) == []


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (of_pod(TRAIN, namespace="kube-system"), EvictionRefusal.EXCLUDED_NAMESPACE),
        (of_pod(TRAIN, namespace="kai-resource-reservation"), EvictionRefusal.RESERVATION_POD),
        (of_pod(TRAIN, annotations={keys.MIRROR_POD: "0" * 32}), EvictionRefusal.STATIC_POD),
        (pod_share("train", SHARE, source=ShareSource.ANNOTATION), None),
        (with_limit(TRAIN, 9 * GIB), None),
    ],
    ids=["excluded", "reservation namespace", "static", "its own word", "its own limit"],
)
def test_protected_pods_are_never_evicted(made: PodShare, refused: EvictionRefusal | None) -> None:
    assert refusal(made) is refused
    assert refusal(reservations=[uid_of("train")]) is EvictionRefusal.RESERVATION_POD


@pytest.mark.parametrize(
    ("origin", "refused"),
    [
        (Origin(result=LookupResult.CONTAINER, pod_uids=(uid_of("train"),)), None),
        (Origin(result=LookupResult.CONTAINER, container_id="c" * 64), EvictionRefusal.WEAK_EVIDENCE),
        (Origin(result=LookupResult.CONTAINER, pod_uids=("0" * 32,)), EvictionRefusal.WEAK_EVIDENCE),
    ],
    ids=["the pod's UID", "only a container's ID", "a static pod's hash"],
)
def test_processes_count_only_by_the_pods_uid(origin: Origin, refused: EvictionRefusal | None) -> None:
    made = of_pod(TRAIN, container_ids=("c" * 64,), config_hash="0" * 32)
    assert refusal(made, origins={"train": origin}) is refused


def owner(**fields: Any) -> str:
    tenant = fields.pop("tenant", None)
    return owner_key(replace(of_pod(TRAIN, **fields), tenant=tenant))


def test_pods_of_one_controller_have_one_owner() -> None:
    assert owner(controller_uid="rs") == owner(name="other", controller_uid="rs")
    assert owner() != owner(name="other")
    vc, other = (Tenant(vcluster=name, namespace="ml", pod="train-0") for name in ("vc", "vc2"))
    owner_references = {keys.VCLUSTER_OWNER_REFERENCES: '[{"kind":"ReplicaSet","uid":"v"}]'}
    first = owner(tenant=vc, annotations=owner_references, controller_uid="the vCluster's Service")
    assert first == owner(
        tenant=vc, annotations=owner_references, name="other", controller_uid="the same Service"
    )
    assert first != owner(tenant=vc, annotations={}), "a bare pod of a vCluster is its own owner"
    assert first != owner(tenant=other, annotations=owner_references)
    elsewhere = replace(vc, namespace="another")
    assert first != owner(tenant=elsewhere, annotations=owner_references), "a copied UID delays none there"
    assert first != owner(tenant=vc, annotations=owner_references, namespace="other")
    assert first != owner(annotations=owner_references), "outside a vCluster anyone may write that annotation"


def test_an_owner_reference_to_another_namespace_delays_no_eviction_there() -> None:
    assert owner(controller_uid="rs") != owner(namespace="other", controller_uid="rs")
    assert owner() != owner(namespace="other", controller_uid=f"{TRAIN.pod.namespace}/{TRAIN.pod.name}")


def test_a_budget_is_a_count_in_a_period() -> None:
    assert Budget.parse("1/10m") == Budget(1, 600)
    assert Budget.parse("3/1h").per_second == pytest.approx(3 / 3600)
    for wrong in ("", "1", "10m", "0/1m", "1/0s", "1/10", "-1/1m", "1000/1m", "1/1m/1m"):
        with pytest.raises(ValueError, match="is not a budget"):
            Budget.parse(wrong)


@pytest.mark.parametrize("limit", [None, SHARE - 1, SHARE + 1])
def test_no_pod_is_evicted_before_the_mode_is_said(limit: int | None) -> None:
    made = TRAIN if limit is None else with_limit(TRAIN, limit)
    judged = Node(made).flagged(OVER)
    (verdict,) = candidates(judged)
    rules = replace(RULES, gpu_sharing_mode=None)
    assert rules.refusal(verdict, judged) is EvictionRefusal.MODE_UNKNOWN


SERVER, CLIENT, TENANT_SERVER, PLAIN = 1, 2, 3, 4
MPS = "nvidia-cuda-mps-server"
OURS, OF_OTHERS, OF_POD = {CLIENT: in_pod("train")}, {SERVER: in_pod("mps", MPS)}, in_pod("train", MPS)
MPS_CASES: dict[str, tuple[dict[int, Origin], frozenset[int] | None, bool]] = {
    "no MPS": (OURS, frozenset(), False),
    "a client of the host's server": (OURS | {SERVER: Origin(result=LookupResult.HOST, name=MPS)}, frozenset({CLIENT}), True),
    "a client of another pod's server": (OURS | OF_OTHERS, frozenset({CLIENT}), True),
    "a client of its own server": (OURS | {SERVER: OF_POD}, frozenset({CLIENT}), False),
    "a client of its own server or of another": (OURS | OF_OTHERS | {TENANT_SERVER: OF_POD}, frozenset({CLIENT}), True),
    "a client of a server that is not listed": (OURS, frozenset({CLIENT}), True),
    "beside the clients of others": (OF_OTHERS | {CLIENT: in_pod("other"), PLAIN: in_pod("train")}, frozenset({CLIENT}), False),
    "a driver that does not list clients, beside a server": (OURS | OF_OTHERS, None, True),
    "a driver that does not list clients, and no server": (OURS, None, False),
}  # fmt: skip


@pytest.mark.parametrize(("origins", "clients", "is_kept"), MPS_CASES.values(), ids=MPS_CASES)
def test_a_client_of_an_mps_server_of_others_is_never_evicted(
    origins: dict[int, Origin], clients: frozenset[int] | None, is_kept: bool
) -> None:
    pods = (TRAIN, pod_share("mps"), pod_share("other"))
    used = {pid: 9 * GIB if origin.pod_uids == (uid_of("train"),) else GIB for pid, origin in origins.items()}
    judge = Judge(grace=10, interval=10, longest_gap=1000)
    for at in (0, 10):
        taken = sample(gpu(*used.items(), mps_clients=clients), origins=origins, at=at)
        snapshot = snapshot_of(taken, *pods)
        judged = Evaluation(
            snapshot=snapshot,
            verdicts=judge.judge(snapshot)[0],
            over_share_policies={each.pod.uid: EVICT for each in pods},
        )
    (verdict,) = [each for each in candidates(judged) if each.key.uid == uid_of("train")]
    expected = EvictionRefusal.MPS_CLIENT if is_kept else None
    assert RULES.refusal(verdict, judged) is expected
    reasons = not_evicted(judged, RULES, EvictionMode.ON)
    assert reasons.get(uid_of("train")) == expected
    off = replace(judged, not_evicted=not_evicted(judged, RULES, EvictionMode.OFF))
    assert api_pods(off)["train"]["notEvicted"] == "eviction-off"
