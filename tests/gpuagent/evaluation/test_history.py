"""The past of pods: peaks by bucket, gaps for unknown figures, idle time, and bounds."""

import gc
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from gpuagent.api_types import ApiPodHistory
from gpuagent.evaluation.history import MAX_SERIES, WINDOW_SECONDS, History
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_share import PodShare
from tests.support.samples import GIB, MIB, A, B, gpu, in_pod, pod, pod_share, sample, snapshot_of, uid_of
from tests.support.verdict_steps import node

TRAIN_SHARE = pod_share("train", 10 * GIB)


def past(history: History, name: str = "train", uuid: str = A) -> ApiPodHistory | None:
    chosen = (pod for pod in history.pods() if (pod.uid, pod.gpu_uuid) == (uid_of(name), uuid))
    return next(chosen, None)


def peaks(history: History) -> tuple[int | None, ...]:
    """Return the peaks of the pod train in GiB, oldest first."""
    pod_history = past(history)
    assert pod_history is not None
    return tuple(None if peak is None else peak // 1024 for peak in pod_history.used_mebibytes)


def recorded(*snapshots: Snapshot, interval: float = 5.0) -> History:
    """Record samples in order."""
    history = History(interval=interval)
    for snapshot in snapshots:
        history.record(snapshot)
    return history


def test_a_bucket_has_the_peak_of_its_samples() -> None:
    history = recorded(node(GIB, at=0), node(3 * GIB, at=5), node(2 * GIB, at=10), node(GIB, at=15))
    assert history.bucket_seconds == 15
    assert len(peaks(history)) * 15 == WINDOW_SECONDS
    assert peaks(history)[-3:] == (None, 3, 1)
    moved = recorded(node(4 * GIB, at=0), *(node(GIB, at=at) for at in range(15, 930, 15)))
    assert set(peaks(moved)) == {1}
    unseen = recorded(node(GIB, at=0), node(GIB, at=60))
    assert peaks(unseen)[-5:] == (1, None, None, None, 1), "time without samples is a gap"
    old = recorded(node(GIB, at=0), node(2 * GIB, at=5000))
    assert [peak for peak in peaks(old) if peak is not None] == [2]
    slow = recorded(*(node(GIB, at=at) for at in range(0, 1050, 150)), interval=60)  # the longest gaps
    assert (slow.bucket_seconds, set(peaks(slow))) == (150, {1})


BLIND: dict[str, Callable[[int], Snapshot]] = {
    "memory unknown": lambda used: node(None, at=15),
    "suspended on the GPU": lambda used: node(used, at=15, problems=[Problem(Cause.NEGATIVE_UNATTRIBUTED, A)]),
    "suspended on the node": lambda used: node(used, at=15, problems=[Problem(Cause.PODS_STALE, "")]),
    "no GPU": lambda used: replace(node(used, at=15), gpus=(), holdings=()),
}  # fmt: skip


@pytest.mark.parametrize("blind", BLIND.values(), ids=BLIND)
def test_a_gap_is_a_gap_and_never_0(blind: Callable[[int], Snapshot]) -> None:
    history = recorded(node(2 * GIB, at=0), blind(GIB), node(GIB, at=30))
    assert peaks(history)[-3:] == (2, None, 1)


def test_a_byte_is_not_rounded_to_0() -> None:
    for used_bytes, mebibytes in ((0, 0), (1, 1)):
        (pod_history,) = recorded(node(used_bytes, at=0)).pods()
        assert pod_history.used_mebibytes[-1] == mebibytes


def test_a_series_ends_with_its_pod() -> None:
    history = recorded(node(GIB, at=0))
    history.record(snapshot_of(sample(gpu(), at=5)))
    assert past(history) is None
    assert len(history) == 0


def test_a_series_stays_while_the_pods_are_unknown_and_while_its_gpu_is_lost() -> None:
    stale = snapshot_of(sample(gpu(), at=5), problems=[Problem(Cause.PODS_STALE, "")])
    lost = snapshot_of(sample(gpu(uuid=B, index=1), at=10), pod_share("train", GIB))
    for snapshot in (stale, lost):
        history = recorded(node(GIB, at=0), snapshot)
        (pod_history,) = history.pods()
        assert (pod_history.used_mebibytes[-1], pod_history.share_mebibytes) == (1024, 10 * 1024)


def crowd(uids: Iterable[str], gpus: int, at: float) -> Snapshot:
    """Return pods with a gibibyte on each of so many GPUs."""
    shares = [pod_share(uid, GIB, pod=pod(uid, uid=uid)) for uid in uids]
    return replace(
        snapshot_of(sample(gpu(), at=at)),
        holdings=tuple(
            Holding(pod_share=share, gpu_uuid=f"GPU-{index}", gpu_index=index, used_bytes=GIB, processes=1)
            for share in shares
            for index in range(gpus)
        ),
        pod_uids=frozenset(share.pod.uid for share in shares),
    )


@pytest.mark.parametrize(
    ("pods", "gpus", "series"), [(64, 8, 512), (1000, 8, MAX_SERIES)], ids=["8 x 64", "at the limit"]
)
def test_the_history_takes_at_most_2_mib(pods: int, gpus: int, series: int) -> None:
    snapshots = [crowd([f"uid-{number}" for number in range(pods)], gpus, at) for at in range(0, 60, 15)]
    gc.collect()
    tracemalloc.start()
    try:
        history = History(interval=5)
        for snapshot in snapshots:
            history.record(snapshot)
        gc.collect()
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history) == series
    assert used_bytes <= 2 * MIB


def test_uids_recycled_in_each_sample_leave_nothing_behind() -> None:
    history = History(interval=5)
    for at in range(50):
        history.record(crowd([f"uid-{at}-{number}" for number in range(300)], 8, at))
        assert len(history) <= MAX_SERIES
    history.record(snapshot_of(sample(gpu(), at=60)))
    assert len(history) == 0


def test_at_the_limit_a_pod_with_usage_replaces_a_series_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuagent.evaluation.history.MAX_SERIES", 2)
    history = History(interval=5)
    history.record(crowd(["a", "b"], 1, 0))
    history.record(replace(crowd(["c"], 1, 5), pod_uids=frozenset("abc")))
    assert [pod.uid for pod in history.pods()] == ["c"]
    history.record(crowd(["c", "d", "e"], 1, 10))
    assert len(history) == 2
    assert next(history.pods()).uid == "c", "a series in use keeps its place"


def idle_seconds(history: History, at: float, name: str = "train") -> float | None:
    return history.idle_seconds(uid_of(name), A, at)


def using(percent: int | None, at: float, share: PodShare = TRAIN_SHARE) -> Snapshot:
    """Return a sample in which the pod holds memory with this utilisation; None if that is unknown."""
    utilization = None if percent is None else {10: percent}
    taken = sample(gpu((10, GIB), utilization=utilization), origins={10: in_pod("train")}, at=at)
    return snapshot_of(taken, share)


@pytest.mark.parametrize(
    "idle", [lambda at: node(0, at=at), lambda at: using(0, at)], ids=["no memory", "no kernel"]
)
def test_a_share_is_idle_since_the_first_idle_sample(idle: Callable[[float], Snapshot]) -> None:
    history = recorded(using(50, 0), idle(5))
    assert idle_seconds(history, 5) is None
    for at in (10, 20, 30):
        history.record(idle(at))
        assert idle_seconds(history, at) == at - 5
    history.record(using(1, 35))
    assert idle_seconds(history, 35) is None
    for at in (40, 45):
        history.record(idle(at))
    assert idle_seconds(history, 45) == 5, "the time before the use is over"


BUSY: dict[str, Callable[[int], Snapshot]] = {
    **BLIND,
    "utilisation unknown": lambda used: using(None, 15),
    "no share": lambda used: using(0, 15, pod_share("train")),
    "share of another GPU": lambda used: using(0, 15, pod_share("train", GIB, gpus=(B,))),
}


@pytest.mark.parametrize("blind", BUSY.values(), ids=BUSY)
def test_a_sample_that_does_not_show_idleness_ends_it(blind: Callable[[int], Snapshot]) -> None:
    history = recorded(node(0, at=0), node(0, at=10), blind(0))
    assert idle_seconds(history, 15) is None
    for at in (20, 25):
        history.record(node(0, at=at))
    assert idle_seconds(history, 25) == 5


def test_a_gap_longer_than_the_bound_ends_idleness() -> None:
    history = recorded(node(0, at=0), node(0, at=22))  # 2.5 intervals and 2 deadlines are 22.5 s
    assert idle_seconds(history, 22) == 22
    history.record(node(0, at=45))
    assert idle_seconds(history, 45) is None


def test_a_pod_in_mig_mode_is_not_idle() -> None:
    taken = sample(gpu(mig=True), at=0)
    shares = pod_share("train", GIB)
    history = recorded(*(replace(snapshot_of(taken, shares), taken_at=at) for at in (0, 5)))
    assert idle_seconds(history, 5) is None
