"""The balance of time over and time within: every pattern that beats a stopwatch is flagged."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, cycle, islice

import pytest

from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.grounds import SMALL_BYTES
from gpuagent.verdicts.verdict import Change, Key, Verdicts
from tests.support.samples import (
    GIB,
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
    OVER,
    OVER_SHARE,
    SHARE,
    TRAIN,
    WITHIN,
    judge,
    node,
    run,
)

INTERVAL, GRACE = 5.0, 120.0
BLIND = None
STRANGER = pod_share("train")
LIMITED = with_limit(TRAIN, SHARE)
LOST = pod_share("train", SHARE, gpus=(), is_unresolved=True)


def usual() -> Judge:
    return Judge(grace=GRACE, interval=INTERVAL, longest_gap=3 * INTERVAL)


def seconds_until_flagged(pattern: Iterable[int | None], hours: float = 1.0) -> float | None:
    """Return the second in which a pod with these amounts in its samples is flagged; None if it is not flagged."""
    by = usual()
    for at, used_bytes in zip(
        count(0, int(INTERVAL)), islice(pattern, int(hours * 3600 / INTERVAL)), strict=False
    ):
        problems = [Problem(Cause.TRUNCATED, A)] if used_bytes is BLIND else []
        verdicts, _ = by.judge(node(WITHIN if used_bytes is BLIND else used_bytes, at=at, problems=problems))
        if any(verdict.is_flagged for verdict in verdicts.by_key.values()):
            return float(at)
    return None


def again_and_again(*parts: tuple[int, int | None]) -> Iterator[int | None]:
    """Repeat (number of samples, amount) parts without end."""
    return cycle([used_bytes for samples, used_bytes in parts for _ in range(samples)])


@pytest.mark.parametrize(
    ("pattern", "flagged_at"),
    [
        (again_and_again((1, OVER)), 120),
        (again_and_again((23, OVER), (1, WITHIN)), 130),
        (again_and_again((22, OVER), (2, WITHIN)), 135),
        (again_and_again((1, OVER), (1, WITHIN)), 470),
        (again_and_again((1, WITHIN), (1, OVER)), 465),
        (again_and_again((1, OVER), (1, BETWEEN)), 240),
        (again_and_again((23, OVER), (1, BLIND)), 125),
        (again_and_again((23, OVER), (4, BLIND)), 140),
        (again_and_again((1, OVER), (1, BLIND)), 240),
        (again_and_again((10, OVER), (1, BLIND), (4, WITHIN)), 190),
        (again_and_again((2, OVER), (3, WITHIN)), 1130),
    ],
    ids=[
        "always over", "one dip in each grace", "a dip of 10 s in each grace", "every second sample", "every other second sample",
        "over and in the slack", "blind every two minutes", "blind for 20 s every two minutes", "blind at every second sample",
        "blind and within", "over for 40 % of the time",
    ],
)  # fmt: skip
def test_no_rhythm_keeps_a_pod_from_its_flag(pattern: Iterator[int | None], flagged_at: float) -> None:
    assert seconds_until_flagged(pattern) == flagged_at


@pytest.mark.parametrize(
    "pattern",
    [
        again_and_again((1, OVER), (2, WITHIN)),
        again_and_again((12, OVER), (24, WITHIN)),
        again_and_again((1, OVER), (3, WITHIN), (1, BLIND)),
        again_and_again((1, BETWEEN)),
        again_and_again((1, BLIND)),
    ],
    ids=["over for a third of the time", "for a minute at a time", "a quarter, and blind", "in the slack", "blind"],
)  # fmt: skip
def test_a_pod_that_is_seldom_over_is_never_flagged(pattern: Iterator[int | None]) -> None:
    assert seconds_until_flagged(pattern, hours=4) is None


def remembered(by: Judge) -> int:
    """Return the number of balances, flags and times over."""
    return len(by._histories) + len(by._over)


def balance(verdicts: Verdicts, key: Key = OVER_SHARE) -> float:
    return verdicts.by_key[key].balance


@pytest.mark.parametrize(
    "unseen",
    [
        lambda at: snapshot_of(sample(at=at, problems=[Problem(Cause.NVML)]), TRAIN),
        lambda at: snapshot_of(sample(gpu(), gpu(uuid=B, index=1), at=at, problems=[Problem(Cause.PODS_STALE)])),
        lambda at: snapshot_of(sample(gpu(uuid=B), at=at, problems=[Problem(Cause.NVML, A)]), TRAIN),
        lambda at: node(None, at=at),
        lambda at: node(OVER, at=at, pod_share=LOST),
        lambda at: node(0, at=at, pod_share=LIMITED),
    ],
    ids=["no driver", "no list of pods", "GPU lost", "memory unknown", "share unknown", "a limit comes and goes"],
)  # fmt: skip
def test_nothing_that_blinds_the_agent_clears_a_balance(unseen: Callable[[float], Snapshot]) -> None:
    by = judge(interval=8.0)
    run(node(OVER, at=0), node(OVER, at=8), by=by)
    run(unseen(9), unseen(10), unseen(11), by=by)
    verdicts, _ = run(node(BETWEEN, at=12), by=by)
    assert balance(verdicts) == 8
    assert verdicts.over_seconds == {(uid_of("train"), A): 8}


def test_only_the_end_of_the_pod_clears_its_balance() -> None:
    by = judge(interval=8.0)
    run(node(OVER, at=0), node(OVER, at=8), by=by)
    run(node(OVER, at=9, pod_share=replace(TRAIN, pod=pod("train", phase="Failed"))), by=by)
    verdicts, transitions = run(node(OVER, at=10), by=by)
    assert (balance(verdicts), transitions) == (8, [])
    assert verdicts.over_seconds == {(uid_of("train"), A): 8}


FOREIGN = Key(uid_of("train"), B, FlagReason.UNASSIGNED_GPU)


def test_reasons_without_an_amount_have_a_balance_too() -> None:
    """Over is what holds more than a context, or has no reservation; all else is within."""
    small, large = SMALL_BYTES, SMALL_BYTES + 1
    by = judge(interval=4.0)
    steps = [(0, large, B), (4, large, B), (6, small, B), (8, 0, A), (10, large, B), (14, large, B), (16, large, B)]  # fmt: skip
    verdicts = [
        by.judge(node(used_bytes, at=at, uuid=uuid))[0].by_key.get(FOREIGN) for at, used_bytes, uuid in steps
    ]
    assert [None if each is None else (each.balance, each.is_flagged) for each in verdicts] == [
        (0, False), (4, False), (2, False), None, (4, False), (8, False), (10, True)
    ]  # fmt: skip

    by = judge(interval=6.0)
    missing = replace(TRAIN, lacks_reservation=True)
    steps = [(0, missing), (6, missing), (8, TRAIN), (12, missing), (13, missing)]
    key = Key(uid_of("train"), A, FlagReason.NO_RESERVATION)
    verdicts = [by.judge(node(WITHIN, at=at, pod_share=each))[0].by_key[key] for at, each in steps]
    assert [(each.balance, each.is_flagged) for each in verdicts] == [
        (0, False), (6, False), (3, False), (9, False), (10, True)
    ]  # fmt: skip


def test_a_pod_whose_own_gpu_is_lost_to_sight_does_not_count_as_within() -> None:
    by = judge(interval=8.0)
    run(node(GIB, at=0, uuid=B), node(GIB, at=8, uuid=B), by=by)
    verdicts, _ = run(*(node(GIB, at=at, uuid=B, pod_share=LOST) for at in (10, 15, 20)), by=by)
    assert FOREIGN not in verdicts.by_key
    verdicts, _ = run(node(GIB, at=22, uuid=B), by=by)
    assert (balance(verdicts, FOREIGN), verdicts.by_key[FOREIGN].is_flagged) == (10, True)


def around(at: float, uuids: list[str], used_bytes: int, made: PodShare) -> Snapshot:
    """The pod holds so much on the one of the GPUs whose turn it is."""
    turn = int(at / INTERVAL) % len(uuids)
    gpus = [
        gpu(*([(10, used_bytes)] if turn == index else []), uuid=each, index=index)
        for index, each in enumerate(uuids)
    ]
    return snapshot_of(sample(*gpus, origins={10: in_pod("train")}, at=at), made)


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
@pytest.mark.parametrize("has_share", [True, False], ids=["its own GPUs", "no share at all"])
def test_a_pod_that_moves_its_memory_from_gpu_to_gpu_is_flagged(gpus: int, has_share: bool) -> None:
    uuids = [f"GPU-{number:08d}" for number in range(gpus)]
    made = pod_share("train", SHARE, gpus=uuids) if has_share else STRANGER
    by = usual()
    for at in range(0, int((GRACE + INTERVAL) * gpus) + 1, int(INTERVAL)):
        verdicts, _ = by.judge(around(at, uuids, OVER, made))
    assert any(verdict.is_flagged for verdict in verdicts.by_key.values())


def test_a_grace_that_is_shortened_and_lengthened_again_takes_nothing_off_the_balance() -> None:
    """A tenant of a vCluster may ask for a shorter grace than the host's, and take the wish back."""
    by, own = Judge(grace=1000, interval=10, longest_gap=15), {uid_of("train"): 5.0}
    for at in range(0, 910, 10):
        by.judge(node(OVER, at=at))
    verdicts, transitions = by.judge(node(WITHIN, at=910), own)
    assert (balance(verdicts), transitions) == (895, ())
    verdicts, _ = by.judge(node(BETWEEN, at=911))
    assert balance(verdicts) == 895
    verdicts, transitions = by.judge(node(OVER, at=912), own)
    assert (balance(verdicts), [t.change for t in transitions]) == (5, [Change.FLAGGED])


@pytest.mark.parametrize("is_suspended", [False, True])
def test_pods_that_come_and_go_leave_nothing_behind(is_suspended: bool) -> None:
    by, most = judge(), 0
    for number in range(300):
        made = pod_share(f"pod-{number // 3}", SHARE)
        by.judge(node(OVER, at=4.0 * number, pod_share=made))
        most = max(most, remembered(by))
    assert most == 2, "a balance and a time over"
    problems = [Problem(Cause.PROC_DENIED, A)] if is_suspended else []
    by.judge(snapshot_of(sample(gpu(), gpu(uuid=B, index=1), at=1200, problems=problems)))
    assert remembered(by) == 0


def test_one_version_of_a_pod_is_remembered_however_many_balances_it_has() -> None:
    """A version is what the owner wrote on the pod: up to 72 KiB, at any time a new one."""
    by, uuids = judge(), [f"GPU-{number:08d}" for number in range(8)]

    for at in range(18):
        made = pod_share("train", pod=pod("train", annotations={"version": str(at)}))
        gpus = [gpu((10, GIB), uuid=each, index=index) for index, each in enumerate(uuids)]
        blind = [Problem(Cause.TRUNCATED, each) for each in uuids[: max(0, at - 10)]]
        taken = sample(*gpus, origins={10: in_pod("train")}, at=float(at), problems=blind)
        by.judge(snapshot_of(taken, made))
    del made, taken
    gc.collect()
    kept = [each.pod for each in gc.get_objects() if isinstance(each, PodShare)]
    versions = {each.annotations["version"] for each in kept if "version" in each.annotations}
    assert remembered(by) == 8
    assert len(versions) == 1
