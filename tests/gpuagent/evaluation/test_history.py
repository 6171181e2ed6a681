"""The past of pods: peaks by bucket, gaps for unknown figures, states with their start, and bounds."""

import gc
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from gpuagent.evaluation.history import MAX_SERIES, WINDOW_SECONDS, History, PodHistory, PodState
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.verdict import Verdicts
from tests.support.samples import GIB, MIB, A, B, gpu, in_pod, pod, pod_share, sample, snapshot_of, uid_of
from tests.support.verdict_steps import OVER, WITHIN, judge, node

WALL = 1_800_000_000.0
TRAIN = uid_of("train")
TRAIN_SHARE = pod_share("train", 10 * GIB)


def past(history: History, name: str = "train", uuid: str = A) -> PodHistory:
    pod_history = history.of(uid_of(name), uuid)
    assert pod_history is not None
    return pod_history


def recorded(*snapshots: Snapshot, by: Judge | None = None, interval: float = 5.0) -> History:
    """Record samples in order."""
    history, by = History(interval=interval), by or judge()
    for snapshot in snapshots:
        history.record(snapshot, by.judge(snapshot)[0])
    return history


def test_a_bucket_has_the_peak_of_its_samples() -> None:
    history = recorded(node(GIB, at=0), node(3 * GIB, at=5), node(2 * GIB, at=10), node(GIB, at=15))
    assert past(history).bucket_seconds == 15
    assert len(past(history).peaks) * 15 == WINDOW_SECONDS
    assert past(history).peaks[-3:] == (None, 3 * GIB, GIB)
    assert past(history).peak_bytes == 3 * GIB
    assert past(history).first_seen == WALL


def test_the_window_moves_on_and_the_peak_since_first_seen_stays() -> None:
    history = recorded(node(4 * GIB, at=0), *(node(GIB, at=at) for at in range(15, 930, 15)))
    assert set(past(history).peaks) == {GIB}
    assert past(history).peak_bytes == 4 * GIB


@pytest.mark.parametrize(
    "blind",
    [
        node(None, at=15),
        node(GIB, at=15, problems=[Problem(Cause.NEGATIVE_UNATTRIBUTED, A)]),
        node(GIB, at=15, problems=[Problem(Cause.PODS_STALE, "")]),
        replace(node(GIB, at=15), gpus=(), holdings=()),
    ],
    ids=["memory unknown", "suspended on the GPU", "suspended on the node", "no GPU"],
)
def test_a_gap_is_a_gap_and_never_0(blind: Snapshot) -> None:
    history = recorded(node(2 * GIB, at=0), blind, node(GIB, at=30))
    assert past(history).peaks[-3:] == (2 * GIB, None, GIB)


def test_time_without_samples_is_a_gap() -> None:
    history = recorded(node(GIB, at=0), node(GIB, at=60))
    assert past(history).peaks[-5:] == (GIB, None, None, None, GIB)
    history = recorded(node(GIB, at=0), node(2 * GIB, at=5000))
    assert [peak for peak in past(history).peaks if peak is not None] == [2 * GIB]


def test_a_pod_without_a_process_uses_0_which_is_known() -> None:
    assert past(recorded(node(0, at=0))).peaks[-1] == 0


def test_a_byte_is_not_rounded_to_0() -> None:
    assert past(recorded(node(1, at=0))).peaks[-1] == MIB


def test_a_long_interval_leaves_no_gaps() -> None:
    history = recorded(*(node(GIB, at=at) for at in range(0, 1050, 150)), interval=60)  # the longest gaps
    assert past(history).bucket_seconds == 150
    assert set(past(history).peaks) == {GIB}


def test_a_flag_after_a_dropped_one_has_a_start_of_its_own() -> None:
    history, by = History(interval=5), judge(interval=5)

    def state_after(snapshot: Snapshot) -> tuple[PodState, float]:
        history.record(snapshot, *by.judge(snapshot))
        return past(history).state, past(history).since - WALL

    for at in (0, 5, 10):
        state = state_after(node(OVER, at=at))
    assert state == (PodState.FLAGGED, 10)
    taken = sample(gpu((10, OVER), mig=True), origins={10: in_pod("train")}, at=15)
    assert state_after(snapshot_of(taken, pod_share("train", 10 * GIB)))[0] is PodState.NOT_JUDGED
    for at in (900, 905, 910):
        state = state_after(node(OVER, at=at))
    assert state == (PodState.FLAGGED, 900), "its balance was left"


def test_states_have_their_start() -> None:
    history, by = History(interval=5), judge(interval=5)

    def state_after(used_bytes: int | None, at: float) -> tuple[PodState, float]:
        snapshot = node(used_bytes, at=at)
        history.record(snapshot, by.judge(snapshot)[0])
        return past(history).state, past(history).since - WALL

    assert state_after(WITHIN, 0) == (PodState.WITHIN, 0)
    assert state_after(WITHIN, 5) == (PodState.WITHIN, 0)
    assert state_after(OVER, 10) == (PodState.IN_GRACE, 5), (
        "the time before the sample counts, as in the verdict"
    )
    assert state_after(OVER, 15) == (PodState.FLAGGED, 15)
    assert state_after(OVER, 20) == (PodState.FLAGGED, 15)
    assert state_after(None, 25)[0] is PodState.NOT_JUDGED
    assert state_after(OVER, 30) == (PodState.FLAGGED, 15), "a flag lasts through a gap"
    assert state_after(WITHIN, 35) == (PodState.FLAGGED, 15)
    assert state_after(WITHIN, 40) == (PodState.WITHIN, 40)
    assert state_after(None, 45) == (PodState.NOT_JUDGED, 45)
    assert state_after(WITHIN, 50) == (PodState.WITHIN, 50), "nothing is known about the gap"


def test_a_series_ends_with_its_pod() -> None:
    history = recorded(node(GIB, at=0))
    history.record(snapshot_of(sample(gpu(), at=5)), Verdicts())
    assert history.of(TRAIN, A) is None
    assert len(history) == 0


def test_a_series_stays_while_the_pods_are_unknown_and_while_its_gpu_is_lost() -> None:
    stale = snapshot_of(sample(gpu(), at=5), problems=[Problem(Cause.PODS_STALE, "")])
    lost = snapshot_of(sample(gpu(uuid=B, index=1), at=10), pod_share("train", GIB))
    for snapshot in (stale, lost):
        history = recorded(node(GIB, at=0), snapshot)
        assert past(history).peaks[-1] == GIB
        assert past(history).share_bytes == 10 * GIB


def test_pods_of_a_gpu_whose_index_changes_have_slots_of_their_own() -> None:
    """Indices move up when a GPU is removed."""
    origins = {10: in_pod("old"), 11: in_pod("new")}
    shares = [pod_share(name, GIB, gpus=(B,)) for name in ("old", "new")]
    before = sample(gpu(), gpu((10, GIB), uuid=B, index=1), origins=origins)
    after = sample(gpu((10, GIB), (11, GIB), uuid=B, index=0), origins=origins, at=5)
    history = recorded(snapshot_of(before, shares[0]), snapshot_of(after, *shares))
    assert [past(history, name, B).slot for name in ("old", "new")] == [0, 1]


def test_pods_of_one_gpu_have_slots_of_their_own_that_stay_and_are_used_again() -> None:
    def of(*names: str, at: float) -> Snapshot:
        numbers = dict(enumerate(names, 1))
        processes = [(number, GIB) for number in numbers]
        origins = {number: in_pod(name) for number, name in numbers.items()}
        shares = [pod_share(name, GIB) for name in names]
        return snapshot_of(sample(gpu(*processes), origins=origins, at=at), *shares)

    history = recorded(of("a-1", "b-2", "c-3", at=0))
    slots = {name: past(history, name).slot for name in ("a-1", "b-2", "c-3")}
    assert sorted(slots.values()) == [0, 1, 2]
    history.record(of("c-3", "a-1", at=5), Verdicts())
    history.record(of("d-4", "c-3", "a-1", at=10), Verdicts())
    assert [past(history, name).slot for name in ("a-1", "c-3")] == [slots["a-1"], slots["c-3"]]
    assert past(history, "d-4").slot == slots["b-2"]


def test_a_lost_gpu_has_the_time_of_its_first_sample_without_it() -> None:
    lost, unnamed = LostGpu(5, B), LostGpu(6)
    history = recorded(
        node(0, at=0),
        replace(node(0, at=5), lost_gpus=(lost,)),
        replace(node(0, at=10), lost_gpus=(lost, unnamed)),
    )
    assert history.lost_since(B) == WALL + 5
    assert history.lost_since("index-6") == WALL + 10
    history.record(node(0, at=15), Verdicts())
    assert history.lost_since(B) is None


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
            history.record(snapshot, Verdicts())
        gc.collect()
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history) == series
    assert used_bytes <= 2 * MIB


def test_uids_recycled_in_each_sample_leave_nothing_behind() -> None:
    history = History(interval=5)
    for at in range(50):
        history.record(crowd([f"uid-{at}-{number}" for number in range(300)], 8, at), Verdicts())
        assert len(history) <= MAX_SERIES
    history.record(snapshot_of(sample(gpu(), at=60)), Verdicts())
    assert len(history) == 0
    assert history._slots == {}


def test_at_the_limit_a_pod_with_usage_takes_the_place_of_a_series_without() -> None:
    history = History(interval=5, max_series=2)
    history.record(crowd(["a", "b"], 1, 0), Verdicts())
    history.record(replace(crowd(["c"], 1, 5), pod_uids=frozenset("abc")), Verdicts())
    assert history.of("c", "GPU-0") is not None
    history.record(crowd(["c", "d", "e"], 1, 10), Verdicts())
    assert len(history) == 2
    assert history.of("c", "GPU-0") is not None, "a series in use keeps its place"


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
        history.record(idle(at), Verdicts())
        assert idle_seconds(history, at) == at - 5
    history.record(using(1, 35), Verdicts())
    assert idle_seconds(history, 35) is None
    for at in (40, 45):
        history.record(idle(at), Verdicts())
    assert idle_seconds(history, 45) == 5, "the time before the use is over"


@pytest.mark.parametrize(
    "blind",
    [
        using(None, 10),
        node(None, at=10),
        node(0, at=10, problems=[Problem(Cause.NEGATIVE_UNATTRIBUTED, A)]),
        node(0, at=10, problems=[Problem(Cause.PODS_STALE, "")]),
        replace(node(0, at=10), gpus=(), holdings=()),
        using(0, 10, pod_share("train")),
        using(0, 10, pod_share("train", GIB, gpus=(B,))),
    ],
    ids=[
        "utilisation unknown",
        "memory unknown",
        "suspended on the GPU",
        "suspended on the node",
        "no GPU",
        "no share",
        "share of another GPU",
    ],
)
def test_a_sample_that_does_not_show_idleness_ends_it(blind: Snapshot) -> None:
    history = recorded(node(0, at=0), node(0, at=5), blind)
    assert idle_seconds(history, 10) is None
    for at in (15, 20):
        history.record(node(0, at=at), Verdicts())
    assert idle_seconds(history, 20) == 5


def test_a_gap_longer_than_the_bound_ends_idleness() -> None:
    history = recorded(node(0, at=0), node(0, at=22))  # 2.5 intervals and 2 deadlines are 22.5 s
    assert idle_seconds(history, 22) == 22
    history.record(node(0, at=45), Verdicts())
    assert idle_seconds(history, 45) is None


def test_a_pod_in_mig_mode_is_not_idle() -> None:
    taken = sample(gpu(mig=True), at=0)
    shares = pod_share("train", GIB)
    history = recorded(*(replace_at(snapshot_of(taken, shares), at) for at in (0, 5)))
    assert idle_seconds(history, 5) is None


def replace_at(snapshot: Snapshot, at: float) -> Snapshot:
    return replace(snapshot, taken_at=at)
