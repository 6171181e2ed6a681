"""Flags over time: raised, cleared, dropped, and suspended."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.ledger.slack import Slack
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_share import Amount, PodShare, ShareSource
from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS
from gpuagent.verdicts.grounds import SMALL_BYTES
from gpuagent.verdicts.messages import message
from gpuagent.verdicts.verdict import Change
from tests.support.samples import (
    GIB,
    GONE,
    MIB,
    A,
    B,
    gpu,
    in_pod,
    pod,
    pod_share,
    sample,
    snapshot_of,
    uid_of,
    with_limit,
)
from tests.support.verdict_steps import (
    BETWEEN,
    GRACE,
    OVER,
    OVER_SHARE,
    SHARE,
    TRAIN,
    WITHIN,
    flags,
    judge,
    node,
    run,
)


def with_ended(used_bytes: int, *ended_bytes: int | None, at: float, uuid: str = A) -> Snapshot:
    """The pod `train`, and processes that ended between the driver's list and the look-up."""
    ended = dict(enumerate(ended_bytes, 100))
    device = gpu((10, used_bytes), *ended.items(), uuid=uuid, index=int(uuid == B))
    other = gpu(uuid=A if uuid == B else B, index=int(uuid == A))
    return snapshot_of(
        sample(device, other, origins={10: in_pod("train")} | dict.fromkeys(ended, GONE), at=at), TRAIN
    )


CLEAN = {"over-share@a": False, "share-changed@a": False, "no-reservation@a": False}


@pytest.mark.parametrize(
    ("share", "slack", "still_fine"),
    [
        (SHARE, "256Mi,5%", SHARE + SHARE // 20), (GIB, "256Mi,5%", GIB + 256 * MIB), (GIB, "0,0%", GIB),
        (GIB + 7, "0,10%", GIB + 7 + (GIB + 7) // 10), (0, "256Mi,5%", 256 * MIB),
    ],
)  # fmt: skip
def test_over_means_more_than_the_share_and_the_larger_slack(share: int, slack: str, still_fine: int) -> None:
    small = pod_share("train", 1, shares={A: Amount(share, ShareSource.ANNOTATION)})
    for used_bytes, expected in ((still_fine, False), (still_fine + 1, True)):
        by = judge(slack=Slack.parse(slack))
        verdicts, _ = run(*(node(used_bytes, at=at, pod_share=small) for at in (0, 10)), by=by)
        assert flags(verdicts)["over-share@a"] is expected


STRANGER = pod_share("train")
LIMITED = with_limit(TRAIN, SHARE)
UNRESOLVED = pod_share("train", SHARE, gpus=(), is_unresolved=True)
POSSIBLE = pod_share("train", SHARE, possible={B: Amount(SHARE, ShareSource.BIND_REQUEST)})
UNSIZED = pod_share("train", SHARE, shares={})
WHOLE = pod_share("train", SHARE, pod=pod("train", whole_gpus=1), source=ShareSource.WHOLE_GPU)
SYSTEM = pod("train", namespace="kube-system")


@pytest.mark.parametrize(
    ("pod_share", "uuid", "used_bytes", "expected"),
    [
        pytest.param(TRAIN, A, WITHIN, CLEAN, id="within its share"),
        pytest.param(TRAIN, B, SMALL_BYTES + 1, {**CLEAN, "unassigned-gpu@b": True}, id="on a GPU that is not its own"),
        pytest.param(TRAIN, B, SMALL_BYTES, {**CLEAN, "unassigned-gpu@b": False}, id="a context there is no matter"),
        pytest.param(STRANGER, A, SMALL_BYTES + 1, {"no-share@a": True}, id="no share at all"),
        pytest.param(STRANGER, A, SMALL_BYTES, {"no-share@a": False}, id="no share, and a context"),
        pytest.param(UNRESOLVED, A, GIB, {"share-changed@": False, "no-reservation@": False}, id="a share whose GPU is unknown is neither"),
        pytest.param(pod_share("train", SHARE, is_unresolved=True), B, GIB, CLEAN, id="one of two groups unknown: nothing is unassigned"),
        pytest.param(pod_share("train", SHARE, possible={B: None}), B, GIB, CLEAN, id="a GPU that was its own is not unassigned"),
        pytest.param(POSSIBLE, B, OVER, {**CLEAN, "over-share@b": True}, id="its share is the bound on a GPU that may be its own"),
        pytest.param(POSSIBLE, B, WITHIN, {**CLEAN, "over-share@b": False}, id="the same, within"),
        pytest.param(LIMITED, A, OVER, {"limit-bypassed@a": True, "share-changed@a": False, "no-reservation@a": False}, id="a limit replaces the share"),
        pytest.param(replace(TRAIN, lacks_reservation=True), A, MIB, {**CLEAN, "no-reservation@a": True}, id="no reservation, GPU known"),
        pytest.param(replace(UNRESOLVED, lacks_reservation=True), A, 0, {"no-reservation@": True, "share-changed@": False}, id="no reservation, GPU unknown: judged without used"),
        pytest.param(replace(TRAIN, changed="0.5, not 0.25"), A, MIB, {**CLEAN, "share-changed@a": True}, id="share changed"),
        pytest.param(replace(UNRESOLVED, changed="0.5, not 0.25"), A, 0, {"no-reservation@": False, "share-changed@": True}, id="share changed, GPU unknown"),
        pytest.param(WHOLE, A, OVER, {}, id="a whole GPU is never over"),
        pytest.param(WHOLE, B, OVER, {}, id="nor unassigned"),
        pytest.param(pod_share("train", SHARE, gpus=(), is_unresolved=True, source=ShareSource.WHOLE_GPU), A, OVER, {}, id="a whole GPU, unknown which"),
        pytest.param(pod_share("train", SHARE, pod=pod("train", whole_gpus=1)), A, OVER, {**CLEAN, "over-share@a": True}, id="a whole GPU beside a share excuses nothing"),
        pytest.param(pod_share("train", pod=SYSTEM), A, GIB, {}, id="the system's pods without a share"),
        pytest.param(pod_share("train", SHARE, pod=SYSTEM), A, OVER, {**CLEAN, "over-share@a": True}, id="a pod with a share is always judged"),
        pytest.param(pod_share("train", SHARE, pod=pod("train", phase="Failed")), A, OVER, {}, id="a finished pod"),
        pytest.param(UNSIZED, A, OVER, {"share-changed@a": False, "no-reservation@a": False}, id="a share of unknown size"),
    ],
)  # fmt: skip
def test_flags_after_the_grace(
    pod_share: PodShare, uuid: str, used_bytes: int, expected: dict[str, bool]
) -> None:
    steps = [node(used_bytes, at=at, pod_share=pod_share, uuid=uuid) for at in (0, 5, 10)]
    verdicts, transitions = run(*steps)
    assert flags(verdicts) == expected
    assert [t.change for t in transitions] == [Change.FLAGGED] * sum(expected.values())


@pytest.mark.parametrize("comm", ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "python"])
@pytest.mark.parametrize(
    ("pod_share", "is_flagged"),
    [(pod_share("train", pod=SYSTEM), None), (STRANGER, True), (TRAIN, True)],
    ids=["system pod without a share", "pod without a share", "pod with a share"],
)
def test_a_process_name_prevents_no_flag(comm: str, pod_share: PodShare, is_flagged: bool | None) -> None:
    verdicts, _ = run(*(node(OVER, at=at, pod_share=pod_share, comm=comm) for at in (0, 10)))
    reason = "over-share@a" if pod_share is TRAIN else "no-share@a"
    assert flags(verdicts).get(reason) is is_flagged


def test_share_changed_is_flagged_and_cleared_at_once() -> None:
    changed = replace(TRAIN, changed="gpu-fraction 0.9 is not portion 0.25")
    by = judge()
    seen = [
        flags(by.judge(node(MIB, at=at, pod_share=each))[0])["share-changed@a"]
        for at, each in [(0, TRAIN), (1, changed), (2, changed), (3, TRAIN)]
    ]
    assert seen == [False, True, True, False]
    run(node(MIB, at=4, pod_share=changed), by=by)
    _, transitions = run(snapshot_of(sample(gpu(), gpu(uuid=B, index=1), at=5)), by=by)
    assert [t.change for t in transitions] == [Change.DROPPED], "the pod is gone"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"changed": "0.5, not 0.25"}, "share-changed"), ({"lacks_reservation": True}, "no-reservation")],
)
def test_a_flag_about_records_is_raised_once_with_a_gpu_or_not(fields: dict[str, Any], reason: str) -> None:
    by = judge()
    on_b = replace(pod_share("train", SHARE, gpus=(B,)), **fields)
    known, unknown = replace(TRAIN, **fields), replace(UNRESOLVED, **fields)
    for at, (made, place) in enumerate([(unknown, ""), (known, "a"), (on_b, "b"), (unknown, "")] * 2, 1):
        verdicts, transitions = run(
            node(0, at=10 * at, pod_share=made), node(0, at=10 * at + 5, pod_share=made), by=by
        )
        raised = {key: is_flagged for key, is_flagged in flags(verdicts).items() if key.startswith(reason)}
        assert raised == {f"{reason}@{place}": True}
        assert [t.change for t in transitions] == ([Change.FLAGGED] if at == 1 else [])
    _, transitions = run(*(node(0, at=at) for at in (90, 95)), by=by)
    assert [t.change for t in transitions] == [Change.CLEARED]


def test_a_pod_that_left_the_foreign_gpu_is_cleared_by_two_samples() -> None:
    verdicts, transitions = run(node(GIB, at=0, uuid=B), node(0, at=5))
    assert (flags(verdicts), transitions) == (CLEAN, []), "in the grace it is judged there no more"
    by = judge()
    run(node(GIB, at=0, uuid=B), node(GIB, at=10, uuid=B), by=by)
    first, transitions = run(node(0, at=11), by=by)
    assert (flags(first)["unassigned-gpu@b"], transitions) == (True, [])
    second, transitions = run(node(0, at=12), by=by)
    assert flags(second) == CLEAN
    assert [t.change for t in transitions] == [Change.CLEARED]
    by = judge()
    run(node(GIB, at=0, uuid=B), node(GIB, at=10, uuid=B), by=by)
    ended = [with_ended(0, GIB, at=at, uuid=B) for at in range(11, 20)]
    verdicts, transitions = run(*ended, by=by)
    assert (flags(verdicts)["unassigned-gpu@b"], transitions) == (True, []), "ended processes clear no flag"


def test_a_flag_on_a_foreign_gpu_is_cleared_when_kai_records_the_gpu_as_the_pods() -> None:
    by, own = judge(), pod_share("train", SHARE, gpus=(B,))
    run(node(GIB, at=0, uuid=B), node(GIB, at=10, uuid=B), by=by)
    _, transitions = run(*(node(GIB, at=at, uuid=B, pod_share=own) for at in (11, 12)), by=by)
    assert [t.change for t in transitions] == [Change.CLEARED]


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (snapshot_of(sample(gpu(), gpu(uuid=B, index=1), at=11)), Change.DROPPED),
        (node(OVER, at=11, pod_share=replace(TRAIN, pod=pod("train", phase="Failed"))), Change.DROPPED),
        (snapshot_of(sample(gpu(uuid=B), at=11), TRAIN), Change.DROPPED),
        (snapshot_of(sample(gpu(uuid=B), at=11, problems=[Problem(Cause.NVML, A)])), Change.DROPPED),
        (node(OVER, at=11, problems=[Problem(Cause.NVML, A)]), None),
    ],
    ids=["pod gone", "pod finished", "GPU gone without a word", "pod gone while the GPU is lost", "GPU in trouble"],
)  # fmt: skip
def test_a_flag_that_no_longer_applies_is_dropped_not_cleared(after: Snapshot, change: Change | None) -> None:
    by = judge(interval=GRACE / 2)
    run(node(OVER, at=0), node(OVER, at=5), node(OVER, at=10), by=by)
    verdicts, transitions = run(after, by=by)
    assert "over-share@a" not in flags(verdicts)
    assert [t.change for t in transitions] == ([change] if change else [])


@pytest.mark.parametrize(
    ("pod_share", "used_bytes", "is_flagged"),
    [
        (LIMITED, OVER, True), (LIMITED, BETWEEN, True), (LIMITED, WITHIN, False), (UNRESOLVED, OVER, True),
        (UNRESOLVED, WITHIN, False), (UNSIZED, OVER, True),
        (pod_share("train", SHARE, shares={}, gpus=(B,)), OVER, True),
        (pod_share("train", SHARE, shares={}, gpus=(B,)), 0, False),
    ],
    ids=["a limit came", "a limit came, between", "a limit came, within", "GPU unknown", "GPU unknown, within", "size unknown",
         "another GPU", "another GPU, and left"],
)  # fmt: skip
def test_a_flag_stands_until_the_pod_is_within_the_share_that_it_was_flagged_for(
    pod_share: PodShare, used_bytes: int, is_flagged: bool
) -> None:
    by = judge()
    run(node(OVER, at=0), node(OVER, at=10), by=by)
    later = [node(used_bytes, at=at, pod_share=pod_share) for at in range(11, 31)]
    verdicts, transitions = run(*later, by=by)
    assert flags(verdicts).get("over-share@a", False) is is_flagged
    changes = [t.change for t in transitions if t.verdict.key == OVER_SHARE]
    assert changes == ([] if is_flagged else [Change.CLEARED])


@pytest.mark.parametrize(
    ("problem", "left"),
    [
        (Problem(Cause.TRUNCATED, A), {"other"}), (Problem(Cause.PROC_DENIED, A), {"other"}),
        (Problem(Cause.GARBAGE, A), {"other"}), (Problem(Cause.NEGATIVE_UNATTRIBUTED, A), {"other"}),
        (Problem(Cause.NVML, A), {"other"}), (Problem(Cause.MEMORY_UNKNOWN, A), {"train", "other"}),
        (Problem(Cause.PID_NAMESPACE), set()), (Problem(Cause.PODS_STALE), set()),
        (Problem(Cause.SAMPLE_STALE), set()), (Problem(Cause.NVML), set()),
    ],
    ids=lambda value: (f"{value.cause} of {value.gpu_uuid[:5] or 'node'}" if isinstance(value, Problem) else None),
)  # fmt: skip
def test_a_problem_suspends_its_scope(problem: Problem, left: set[str]) -> None:
    others = (pod_share("other", GIB, gpus=(B,)), pod_share("lost", GIB, gpus=(), is_unresolved=True))
    verdicts, _ = run(node(WITHIN, *others, problems=[problem]))
    judged: dict[bool, set[str]] = {True: set(), False: set()}
    for key, verdict in verdicts.by_key.items():
        judged[key.reason in FROM_KAI_RECORDS].add(verdict.pod_share.pod.name)
    assert judged[False] == left
    assert judged[True] == (set() if problem.cause is Cause.PODS_STALE else {"train", "other", "lost"})


@pytest.mark.parametrize("made", [TRAIN, STRANGER, replace(TRAIN, changed="x")])
def test_what_cannot_be_judged(made: PodShare) -> None:
    mig = sample(gpu((10, OVER), mig=True, used=OVER), origins={10: in_pod("train")})
    assert run(snapshot_of(mig, made))[0].by_key == {}
    no_list = sample(gpu(processes=None, used=GIB), gpu(uuid=B, index=1))
    of_records = {"share-changed@a": bool(made.changed), "no-reservation@a": False}
    assert flags(run(snapshot_of(no_list, made))[0]) == (of_records if made.has_share else {})


def two_gpus(
    on_a: list[int | None], on_b: list[int | None], made: PodShare, at: float, *problems: Problem
) -> Snapshot:
    """Return two GPUs on which the pod has processes with these amounts."""
    first, second = list(enumerate(on_a, 10)), list(enumerate(on_b, 30))
    origins = dict.fromkeys((pid for pid, _ in (*first, *second)), in_pod("train"))
    taken = sample(gpu(*first), gpu(*second, uuid=B, index=1), origins=origins, at=at, problems=problems)
    return snapshot_of(taken, made)


BOTH = pod_share("train", SHARE, gpus=(A, B))


@pytest.mark.parametrize(
    ("on_a", "on_b", "problems", "expected"),
    [
        pytest.param([OVER], [None], (), {"over-share@a": True}, id="a process without a figure on another GPU"),
        pytest.param([WITHIN], [None], (), {"over-share@a": False}, id="the same, within"),
        pytest.param([OVER, None], [], (), {"over-share@a": True, "over-share@b": False}, id="a process without a figure on this GPU"),
        pytest.param([BETWEEN, None], [], (), {"over-share@b": False}, id="a lower bound in the slack"),
        pytest.param([WITHIN, None], [], (), {"over-share@b": False}, id="a lower bound within"),
        pytest.param([OVER], [], (Problem(Cause.TRUNCATED, A),), {"over-share@a": True, "over-share@b": False}, id="truncated, and over"),
        pytest.param([OVER], [], (Problem(Cause.TRUNCATED, A), Problem(Cause.NVML, B)), {"over-share@a": True}, id="truncated, and the other GPU in trouble"),
        pytest.param([OVER], [OVER], (Problem(Cause.TRUNCATED, A), Problem(Cause.PROC_DENIED, B)), {"over-share@a": True, "over-share@b": True}, id="no list is complete"),
        pytest.param([OVER], [], (Problem(Cause.PROC_DENIED),), {"over-share@a": True}, id="denied on the node"),
        pytest.param([OVER], [], (Problem(Cause.TRUNCATED, A), Problem(Cause.NEGATIVE_UNATTRIBUTED, A)), {"over-share@b": False}, id="an implausible sum is no bound"),
        pytest.param([OVER], [], (Problem(Cause.TRUNCATED, A), Problem(Cause.PODS_STALE)), {}, id="the pods are stale"),
    ],
)  # fmt: skip
def test_a_lower_bound_accuses_and_never_acquits(
    on_a: list[int | None], on_b: list[int | None], problems: tuple[Problem, ...], expected: dict[str, bool]
) -> None:
    verdicts, _ = run(*(two_gpus(on_a, on_b, BOTH, at, *problems) for at in (0, 5, 10)))
    assert {key: value for key, value in flags(verdicts).items() if key.startswith("over-share")} == expected


@pytest.mark.parametrize("made", [STRANGER, TRAIN], ids=["no-share", "unassigned-gpu"])
def test_a_lower_bound_on_a_foreign_gpu_accuses(made: PodShare) -> None:
    steps = [two_gpus([], [SMALL_BYTES + 1, None], made, at) for at in (0, 5, 10)]
    (key,) = [key for key, verdict in run(*steps)[0].by_key.items() if verdict.is_flagged]
    assert (key.gpu_uuid, key.reason) == (B, "no-share" if made is STRANGER else "unassigned-gpu")
    assert not any(each.is_flagged for each in run(two_gpus([], [MIB, None], made, 0))[0].by_key.values())


def test_a_lower_bound_clears_no_flag_and_takes_nothing_off_a_balance() -> None:
    by = judge()
    run(two_gpus([OVER], [], BOTH, 0), two_gpus([OVER], [], BOTH, 10), by=by)
    _, transitions = run(*(two_gpus([MIB, None], [], BOTH, at) for at in range(11, 20)), by=by)
    assert transitions == []
    verdicts, transitions = run(two_gpus([OVER], [], BOTH, 20), by=by)
    assert (verdicts.by_key[OVER_SHARE].is_flagged, transitions) == (True, [])
    by = judge(interval=8)
    run(two_gpus([OVER], [], BOTH, 0), two_gpus([OVER], [], BOTH, 8), by=by)
    run(*(two_gpus([WITHIN], [None], BOTH, at) for at in range(9, 20)), by=by)
    verdicts, _ = run(two_gpus([BETWEEN], [], BOTH, 20), by=by)
    assert verdicts.by_key[OVER_SHARE].balance == 8, "the rest of its memory may be on the other GPU"


@pytest.mark.parametrize(
    ("ended", "is_clean"),
    [((), True), ((SHARE // 2,), True), ((SHARE // 2, SHARE // 2), False), ((2 * SHARE,), False), ((None,), False)],
    ids=["none", "within the share in any case", "two of them", "more than the share", "of unknown size"],
)  # fmt: skip
def test_processes_that_ended_before_their_look_up_accuse_and_acquit_no_pod(
    ended: tuple[int | None, ...], is_clean: bool
) -> None:
    """A pod could otherwise hold its memory by short processes while another GPU answers slowly."""
    by = judge(interval=GRACE)
    run(node(OVER, at=0), node(OVER, at=10), by=by)
    verdicts, transitions = run(*(with_ended(SHARE // 2, *ended, at=at) for at in (11, 12)), by=by)
    assert verdicts.by_key[OVER_SHARE].is_flagged == (not is_clean)
    assert [t.change for t in transitions] == [Change.CLEARED] * is_clean
    by = judge(interval=8)
    run(node(OVER, at=0), node(OVER, at=8), by=by)
    verdicts, transitions = run(with_ended(SHARE // 2, *ended, at=9), by=by)
    assert (verdicts.by_key[OVER_SHARE].balance, transitions) == (4 if is_clean else 8, [])
    verdicts, transitions = run(*(with_ended(SHARE // 2, *ended, at=at) for at in range(100)))
    assert not any(flags(verdicts).values())
    assert transitions == []


def test_a_verdict_by_a_lower_bound_is_marked_as_such() -> None:
    verdicts, transitions = run(*(two_gpus([OVER, None], [], BOTH, at) for at in (0, 10)))
    verdict = verdicts.by_key[OVER_SHARE]
    assert (verdict.used_bytes, verdict.is_lower_bound) == (OVER, True)
    assert verdict.used_text == "at least 10.5 GiB"
    assert "uses at least 10.5 GiB" in message(transitions[0], None)
    exact = run(*(two_gpus([OVER], [], BOTH, at) for at in (0, 10)))[0].by_key[OVER_SHARE]
    assert (exact.is_lower_bound, exact.used_text) == (False, "10.5 GiB")


def test_time_over_counts_flagged_or_not_and_only_where_it_was_seen() -> None:
    by = judge(interval=4.0)
    assert run(node(MIB))[0].over_seconds == {(uid_of("train"), A): 0.0}
    assert run(node(OVER, pod_share=LIMITED))[0].over_seconds == {}
    steps = [
        (0, OVER, 0.0, 0.0), (4, OVER, 4.0, 4.0), (8, BETWEEN, 4.0, 4.0), (12, OVER, 8.0, 8.0),
        (14, WITHIN, 8.0, 6.0), (25, OVER, 12.0, 10.0), (29, None, 12.0, None), (33, OVER, 16.0, 10.0),
        (34, OVER, 20.0, 10.0), (50, OVER, 20.0, 10.0), (51, OVER, 24.0, 10.0), (53, WITHIN, 24.0, 8.0),
    ]  # fmt: skip
    for at, used_bytes, expected, balance in steps:
        verdicts, _ = by.judge(node(used_bytes, at=at))
        assert verdicts.over_seconds == {(uid_of("train"), A): expected}, at
        verdict = verdicts.by_key.get(OVER_SHARE)
        assert (None if verdict is None else verdict.balance) == balance, at
    assert run(snapshot_of(sample(gpu(), at=52)), by=by)[0].over_seconds == {}


def test_a_pod_that_is_new_counts_from_its_first_sample_on() -> None:
    """A sample stands for one interval of every pod; else pods that live for one interval would be free."""
    by = judge(interval=4.0)
    run(snapshot_of(sample(gpu(), gpu(uuid=B, index=1), at=0)), by=by)
    verdicts, _ = run(node(OVER, at=5), by=by)
    assert verdicts.over_seconds == {(uid_of("train"), A): 4.0}
    verdict = verdicts.by_key[OVER_SHARE]
    assert (verdict.balance, verdict.since) == (4.0, 5)


@pytest.mark.parametrize("text", ["", "256Mi", "5%", "256Mi,5", "256Mi,101%", "-1,5%", "256Mi,-5%", "0.5,5%", "x,5%", "256Mi,5%,", "256Mi, 5%"])  # fmt: skip
def test_an_invalid_slack_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.* is not a slack; allowed: .* such as 256Mi,5%$") as error:
        Slack.parse(text)
    assert "\n" not in str(error.value)


EXTRA = {"over": OVER, "between": BETWEEN, "clean": WITHIN}


@pytest.mark.parametrize("says", EXTRA)
def test_extra_samples_count_no_time(says: str) -> None:
    """Those before an eviction: more samples for one pod would fill the balances of all pods sooner."""
    by = judge(interval=4.0)
    run(node(OVER, at=0), node(OVER, at=5), by=by)
    for number in range(50):
        verdicts, transitions = by.judge(node(EXTRA[says], at=5 + number / 100), is_extra=True)
        assert verdicts.by_key[OVER_SHARE].balance == 4.0
        assert verdicts.over_seconds == {(uid_of("train"), A): 4.0}
        assert transitions == ()
    verdicts, _ = by.judge(node(OVER, at=20))
    assert verdicts.by_key[OVER_SHARE].balance == 8.0, "the gap counts between regular samples"
    by.judge(node(OVER, at=34), is_extra=True)
    verdicts, _ = by.judge(node(OVER, at=36))
    assert verdicts.by_key[OVER_SHARE].balance == 8.0, "an extra sample closes no gap"


def test_extra_samples_clear_no_flag_and_show_that_a_pod_recovered() -> None:
    by = judge()
    run(node(OVER, at=0), node(OVER, at=5), by=by)
    for at in (6, 6.1, 6.2):
        verdicts, transitions = by.judge(node(WITHIN, at=at), is_extra=True)
        verdict = verdicts.by_key[OVER_SHARE]
        assert (verdict.is_flagged, verdict.is_over, transitions) == (True, False, ())
    assert by.judge(node(WITHIN, at=10))[0].by_key[OVER_SHARE].is_flagged
    by.judge(node(OVER, at=11), is_extra=True)
    assert by.judge(node(WITHIN, at=12))[0].by_key[OVER_SHARE].is_flagged, "over in between"
    _, transitions = by.judge(node(WITHIN, at=14))
    assert [t.change for t in transitions] == [Change.CLEARED]


@dataclass(frozen=True)
class Step:
    """One sample: how long after the one before, and what it says."""

    after: float
    says: str


SAYS: dict[str, Callable[[float], Snapshot]] = {
    "over": lambda at: node(OVER, at=at),
    "between": lambda at: node(BETWEEN, at=at),
    "clean": lambda at: node(WITHIN, at=at),
    "unknown": lambda at: node(None, at=at),
    "truncated": lambda at: node(WITHIN, at=at, problems=[Problem(Cause.TRUNCATED, A)]),
    "truncated, and over": lambda at: node(OVER, at=at, problems=[Problem(Cause.TRUNCATED, A)]),
    "denied, and over": lambda at: node(OVER, at=at, problems=[Problem(Cause.PROC_DENIED, A)]),
    "pods-stale": lambda at: node(OVER, at=at, problems=[Problem(Cause.PODS_STALE)]),
    "lost": lambda at: snapshot_of(sample(gpu(uuid=B), at=at, problems=[Problem(Cause.NVML, A)]), TRAIN),
}
UNJUDGED = {"unknown", "truncated", "pods-stale", "lost"}
IS_OVER = {"over", "truncated, and over", "denied, and over"}
steps = st.lists(
    st.builds(
        Step,
        after=st.sampled_from([0.0, 1.0, 2.5, 5.0, 10.0, 15.0, 15.5, 100.0]),
        says=st.one_of(st.just("over"), st.sampled_from(sorted(SAYS))),
    ),
    max_size=25,
)


STEP = 2.5
"""Seconds that a sample counts below."""


def expected(history: list[tuple[float, str]]) -> tuple[bool, Fraction]:
    """The contract again, from the whole history at once: the flag, and the balance in seconds."""
    flagged, balance, clean = False, Fraction(0), 0
    for (before, _), (at, says) in zip([(-100.0, ""), *history], history, strict=False):
        seen, clean = (Fraction(STEP), clean) if at - before <= 15 else (Fraction(0), 0)
        if says in UNJUDGED:
            clean = 0
            continue
        clean = clean + 1 if says == "clean" else 0
        if says in IS_OVER:
            balance = min(balance + seen, Fraction(GRACE))
            flagged = flagged or balance == GRACE
        elif says == "clean":
            balance = max(balance - seen / 2, Fraction(0))
        flagged = flagged and clean < 2
    return flagged, balance


@given(steps)
def test_flags_and_balances_follow_from_the_history(samples: list[Step]) -> None:
    by, at, history, raised = judge(interval=STEP), 0.0, [], False
    for step in samples:
        at += step.after
        history.append((at, step.says))
        verdicts, transitions = by.judge(SAYS[step.says](at))
        verdict = verdicts.by_key.get(OVER_SHARE)
        if step.says in UNJUDGED:
            assert verdict is None
            assert transitions == ()
        else:
            assert verdict is not None
            assert (verdict.is_flagged, verdict.balance) == expected(history)
            assert [t.change for t in transitions] == (
                []
                if verdict.is_flagged is raised
                else [Change.FLAGGED if verdict.is_flagged else Change.CLEARED]
            )
            raised = verdict.is_flagged


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(0, 1000))
def test_slack_is_exact(figure: int, amount: int, thousandths: int) -> None:
    slack = Slack(amount, Fraction(thousandths, 1000))
    exact = max(Fraction(amount), figure * Fraction(thousandths, 1000))
    assert slack.of(figure) <= exact < slack.of(figure) + 1
