"""Memory by owner: exact where it is known, None where an unknown amount could change it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.gpu_reading import GpuProcess, MigInstance
from gpuagent.ledger.balance import build_snapshot
from gpuagent.ledger.snapshot import GpuAccount, Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.sample import Origin, Sample
from tests.support.samples import (
    DENIED,
    GIB,
    GONE,
    HOST,
    MIB,
    A,
    B,
    gpu,
    holding,
    in_pod,
    pod,
    pod_share,
    sample,
    snapshot_of,
    uid_of,
    used,
)

TRAIN, SERVE = pod_share("train", 12 * GIB), pod_share("serve", 6 * GIB)


def account(snapshot: Snapshot, uuid: str = A) -> GpuAccount:
    return next(account for account in snapshot.gpus if account.gpu.uuid == uuid)


def figures(snapshot: Snapshot, uuid: str = A) -> tuple[int | None, int | None]:
    """(host, unattributed)"""
    gpu_account = account(snapshot, uuid)
    return gpu_account.host_bytes, gpu_account.unattributed_bytes


def causes(snapshot: Snapshot) -> set[tuple[str, str]]:
    return {(problem.cause, problem.gpu_uuid) for problem in snapshot.problems}


def test_a_pod_without_a_process_on_its_gpu_uses_nothing_there_and_that_is_known() -> None:
    snapshot = snapshot_of(sample(gpu(), gpu(uuid=B, index=1)), pod_share("train", GIB, gpus=(B,)))
    assert used(snapshot, "train", B) == 0
    assert used(snapshot, "train", A) == "absent"


@pytest.mark.parametrize(
    ("process", "host", "unattributed", "train"),
    [
        pytest.param((HOST, None), None, None, GIB, id="a host process of unknown memory"),
        pytest.param((in_pod("train"), None), 0, None, None, id="one unknown process makes its pod unknown"),
        pytest.param((DENIED, 5 * MIB), None, 95 * MIB, None, id="denied: any pod may be the owner"),
    ],
)  # fmt: skip
def test_figures_with_one_more_process(
    process: tuple[Origin, int | None], host: int | None, unattributed: int | None, train: int | None
) -> None:
    origin, used_bytes = process
    snapshot = snapshot_of(
        sample(
            gpu((10, GIB), (11, used_bytes), used=GIB + 100 * MIB), origins={10: in_pod("train"), 11: origin}
        ),
        TRAIN,
        SERVE,
        reservations=[uid_of("reserve")],
    )
    assert used(snapshot, "train") == train
    assert figures(snapshot) == (host, unattributed)
    assert used(snapshot, "reserve") == "absent"
    assert (causes(snapshot) == {("memory-unknown", A)}) is (used_bytes is None)


@pytest.mark.parametrize(
    ("problem", "train", "host", "unattributed"),
    [
        (Problem(Cause.TRUNCATED, A), None, None, None),
        (Problem(Cause.PROC_DENIED, A), None, None, 100 * MIB),
        (Problem(Cause.PROC_DENIED), None, None, 100 * MIB),
        (Problem(Cause.PID_NAMESPACE), None, None, None),
        (Problem(Cause.PODS_STALE), GIB, 0, 100 * MIB),
        (Problem(Cause.TRUNCATED, B), GIB, 0, 100 * MIB),
        (Problem(Cause.NVML, B), GIB, 0, 100 * MIB),
    ],
    ids=lambda value: f"{value.cause} of {value.gpu_uuid[:5]}" if isinstance(value, Problem) else None,
)
def test_figures_that_a_problem_removes(
    problem: Problem, train: int | None, host: int | None, unattributed: int | None
) -> None:
    taken = sample(gpu((10, GIB)), origins={10: in_pod("train")}, problems=[problem])
    snapshot = snapshot_of(taken, TRAIN)
    assert used(snapshot, "train") == train
    assert figures(snapshot) == (host, unattributed)
    assert snapshot.problems == (problem,)
    assert account(snapshot).promised_bytes == 12 * GIB


@pytest.mark.parametrize(
    "problems",
    [[Problem(Cause.GARBAGE, A)], [Problem(Cause.NVML, A)], []],
    ids=["garbage", "the driver gives no list", "no list, and no word why"],
)
def test_an_assigned_pod_is_unknown_and_not_0_without_a_list(problems: list[Problem]) -> None:
    snapshot = snapshot_of(sample(gpu(processes=None, used=GIB), problems=problems), TRAIN)
    assert used(snapshot, "train") is None
    assert figures(snapshot) == (None, None)
    hidden = snapshot_of(sample(gpu(used=9 * GIB), problems=[Problem(Cause.PID_NAMESPACE)]), TRAIN)
    assert used(hidden, "train") is None


@pytest.mark.parametrize(
    ("in_use", "listed_bytes", "is_problem"),
    [
        (GIB, GIB + 256 * MIB, False), (GIB, GIB + 256 * MIB + 1, True), (20 * GIB, 21 * GIB, False),
        (20 * GIB, 21 * GIB + 1, True), (0, 256 * MIB, False),
    ],
)  # fmt: skip
def test_negative_unattributed_is_a_problem_below_the_slack_of_the_gpu(
    in_use: int, listed_bytes: int, is_problem: bool
) -> None:
    snapshot = snapshot_of(sample(gpu((10, listed_bytes), used=in_use), origins={10: in_pod("train")}), TRAIN)
    assert causes(snapshot) == ({("negative-unattributed", A)} if is_problem else set())
    assert account(snapshot).unattributed_bytes == in_use - listed_bytes
    assert used(snapshot, "train") == listed_bytes


def test_a_lost_gpu_takes_its_pods_shares_along_and_leaves_the_others() -> None:
    both = pod_share("both", GIB, gpus=(A, B))
    snapshot = snapshot_of(
        sample(gpu((10, MIB)), origins={10: in_pod("both")}, problems=[Problem(Cause.NVML, B)]), both, TRAIN
    )
    (kept,) = [c for c in snapshot.pod_shares if c.pod.name == "both"]
    assert list(kept.shares) == [A]
    assert kept.gpu_uuids == (A, B)
    assert used(snapshot, "both", A) == MIB
    assert used(snapshot, "both", B) == "absent"
    assert [gpu_account.gpu.uuid for gpu_account in snapshot.gpus] == [A]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_promises_nothing_and_is_seen_only_while_a_process_lives(phase: str) -> None:
    done = pod_share("done", pod=pod("done", phase=phase))
    alive = snapshot_of(sample(gpu((10, MIB)), origins={10: in_pod("done")}), done)
    assert account(alive).promised_bytes == 0
    assert used(alive, "done") == MIB
    assert [(c.shares, c.gpu_uuids) for c in alive.pod_shares] == [({}, ())]
    assert alive.pod_uids == frozenset()
    gone = snapshot_of(sample(gpu()), done)
    assert used(gone, "done") == "absent"
    assert gone.pod_shares == ()


def test_a_mig_device_has_figures_of_its_own() -> None:
    instances = (
        MigInstance(uuid="MIG-1", total_bytes=GIB, processes=(GpuProcess(10, 5 * MIB),)),
        MigInstance(uuid="MIG-2", total_bytes=GIB, processes=None),
    )
    device = gpu(used=GIB, mig=True, instances=instances, utilization={10: 5})
    snapshot = snapshot_of(sample(device, origins={10: in_pod("train")}), pod_share("train"))
    assert ratio(snapshot, "train", "MIG-1") is None
    assert used(snapshot, "train", "MIG-1") == 5 * MIB
    assert [h.is_mig for h in snapshot.holdings] == [True]
    assert figures(snapshot) == (None, None)
    known = (instances[0], replace(instances[1], processes=()))
    taken = sample(gpu(used=GIB, mig=True, instances=known), origins={10: in_pod("train")})
    assert figures(snapshot_of(taken, pod_share("train"))) == (0, GIB - 5 * MIB)


def ratio(snapshot: Snapshot, name: str, uuid: str = A) -> float | str | None:
    pod_holding = holding(snapshot, name, uuid)
    return "absent" if pod_holding is None else pod_holding.utilization_ratio


IN_USE = {10: in_pod("train"), 11: in_pod("train"), 12: in_pod("serve"), 13: HOST}


@pytest.mark.parametrize(
    ("utilization", "train", "serve"),
    [
        ({10: 30, 11: 25, 12: 7, 13: 90}, 0.55, 0.07), ({10: 80, 11: 80}, 1.0, 0.0), ({}, 0.0, 0.0),
        ({4711: 50, 0: 20}, 0.0, 0.0), ({10: 30, 11: None, 12: 7}, None, 0.07), (None, None, None),
    ],
    ids=["several", "more than a GPU", "idle", "other processes", "one is unknown", "unknown"],
)  # fmt: skip
def test_the_utilisation_of_a_pod_is_that_of_its_processes(
    utilization: dict[int, int | None] | None, train: float | None, serve: float | None
) -> None:
    processes = ((10, GIB), (11, None), (12, GIB), (13, GIB))
    snapshot = snapshot_of(sample(gpu(*processes, utilization=utilization), origins=IN_USE), TRAIN, SERVE)
    assert (ratio(snapshot, "train"), ratio(snapshot, "serve")) == (train, serve)
    assigned = snapshot_of(sample(gpu(utilization=utilization)), TRAIN)
    assert ratio(assigned, "train") == (None if utilization is None else 0.0), "without a process"


@pytest.mark.parametrize(
    ("fields", "origins", "problem"),
    [
        ({}, {10: DENIED}, None),
        ({}, {10: in_pod("train")}, Problem(Cause.PROC_DENIED, A)),
        ({}, {10: in_pod("train")}, Problem(Cause.TRUNCATED, A)),
        ({}, {10: in_pod("train")}, Problem(Cause.PID_NAMESPACE)),
        ({"processes": None}, {}, Problem(Cause.GARBAGE, A)),
        ({"mig": True}, {10: in_pod("train")}, None),
    ],
    ids=["denied", "proc-denied", "truncated", "pid-namespace", "no list", "MIG"],
)
def test_the_utilisation_is_unknown_where_owners_are_hidden(
    fields: dict[str, Any], origins: dict[int, Origin], problem: Problem | None
) -> None:
    taken = sample(
        gpu((10, GIB), used=GIB, utilization={10: 30}, **fields),
        gpu((12, GIB), uuid=B, index=1, utilization={12: 40}),
        origins={**origins, 12: in_pod("serve")},
        problems=[problem] if problem else [],
    )
    snapshot = snapshot_of(taken, TRAIN, pod_share("serve", GIB, gpus=(B,)))
    assert ratio(snapshot, "train") is None
    on_other = None if problem and problem.gpu_uuid == "" else 0.4
    assert ratio(snapshot, "serve", B) == on_other


def test_without_a_list_of_pods_no_memory_is_attributed() -> None:
    taken = sample(gpu((10, GIB)), origins={10: HOST})
    snapshot = build_snapshot(taken, attribution=None, pod_shares=())
    assert snapshot.holdings == ()
    assert figures(snapshot) == (None, 100 * MIB)
    assert account(snapshot).promised_bytes is None


def test_only_claims_that_concern_a_gpu_are_kept_and_every_pod_is_known() -> None:
    web, odd = pod_share("web"), replace(pod_share("odd"), notes=("unreadable",))
    snapshot = snapshot_of(sample(gpu()), TRAIN, web, odd)
    assert {c.pod.name for c in snapshot.pod_shares} == {"train", "odd"}
    assert snapshot.pod_uids == {uid_of(name) for name in ("train", "web", "odd")}


@pytest.mark.parametrize(
    ("taken", "is_good"),
    [
        (sample(gpu()), True),
        (sample(gpu(), problems=[Problem(Cause.NVML, B)]), True),
        (sample(), True),
        (sample(problems=[Problem(Cause.NVML)]), False),
        (sample(problems=[Problem(Cause.NVML, A), Problem(Cause.NVML, B)]), False),
    ],
    ids=["answered", "one of two answered", "no GPU in the node", "no driver", "all lost"],
)
def test_a_sample_is_good_when_the_driver_answered(taken: Sample, is_good: bool) -> None:
    assert snapshot_of(taken).is_good is is_good


names = st.sampled_from(["train", "serve", "other"])
origins = st.one_of(names.map(in_pod), st.sampled_from([HOST, GONE, in_pod("reserve"), in_pod("deleted")]))
processes = st.dictionaries(
    st.integers(1, 30), st.tuples(origins, st.one_of(st.none(), st.integers(0, GIB))), max_size=12
)


@given(processes)
def test_sums_balance_and_an_unknown_amount_affects_only_its_own_sums(
    processes: dict[int, tuple[Origin, int | None]],
) -> None:
    listed = tuple((pid, used_bytes) for pid, (_, used_bytes) in processes.items())
    taken = sample(gpu(*listed, used=20 * GIB), origins={pid: each for pid, (each, _) in processes.items()})
    snapshot = snapshot_of(taken, TRAIN, SERVE, pod_share("other"), reservations=[uid_of("reserve")])
    for name in ("train", "serve", "other"):
        own = [used_bytes for origin, used_bytes in processes.values() if origin == in_pod(name)]
        expected = None if None in own else sum(used_bytes or 0 for used_bytes in own)
        is_listed = bool(own) or name != "other"
        assert used(snapshot, name) == (expected if is_listed else "absent")
    hosts = [
        used_bytes
        for origin, used_bytes in processes.values()
        if origin in (HOST, in_pod("deleted"), in_pod("reserve"))
    ]
    everything = [used_bytes for _, used_bytes in processes.values()]
    assert figures(snapshot) == (
        None if None in hosts else sum(used_bytes or 0 for used_bytes in hosts),
        None if None in everything else 20 * GIB - sum(used_bytes or 0 for used_bytes in everything),
    )
