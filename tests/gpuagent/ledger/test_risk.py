"""Memory at risk: promised, unused and not free, whatever has taken it."""

from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.gpu_reading import MigInstance
from gpuagent.ledger.attribution import PodIndex
from gpuagent.ledger.balance import at_risk_bytes
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.pods.inventory import EndedPod, Inventory
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_share import Amount, LimitSource, PodShare
from tests.support.samples import (
    DENIED,
    GIB,
    HOST,
    MIB,
    A,
    B,
    balance_of,
    gpu,
    in_pod,
    pod_share,
    sample,
    snapshot_of,
    uid_of,
)

FULL = pod_share("train", 12 * GIB), pod_share("serve", 12 * GIB)


def node(
    *shares: PodShare, problems: tuple[Problem, ...] = (), used: int | None = None, **by: int | None
) -> Snapshot:
    """A GPU of 24 GiB, of which the driver reserves 300 MiB and uses 100 MiB; each pod has one process."""
    pids = {name: 10 + number for number, name in enumerate(by)}
    device = gpu(*((pids[name], amount) for name, amount in by.items()), used=used)
    origins = {pids[name]: HOST if name == "host" else in_pod(name) for name in by}
    taken = sample(device, origins=origins, problems=problems)
    inventory = Inventory(
        pods={each.pod.uid: each.pod for each in shares},
        ended={uid_of("ended"): EndedPod(uid_of("ended"), "team-a", "ended", "Job/ended")},
    )
    return balance_of(taken, shares, PodIndex.from_inventory(inventory))


def at_risk(snapshot: Snapshot, uuid: str = A) -> int | None:
    return next(account.at_risk_bytes for account in snapshot.gpus if account.gpu.uuid == uuid)


TAKEN = 100 * MIB
"""What the driver uses beside its reserved memory."""


@pytest.mark.parametrize(
    ("snapshot", "expected", "causes"),
    [
        pytest.param(node(*FULL, used=0), 0, [], id="two halves of an idle GPU: what is reserved is at nobody's cost"),
        pytest.param(node(*FULL, train=15 * GIB, serve=2 * GIB), 3 * GIB + TAKEN, ["pods-above-share", "unattributed"], id="a pod above its share, fully promised"),
        pytest.param(node(*FULL, train=12 * GIB + MIB, serve=0), TAKEN + MIB, ["unattributed", "pods-above-share"], id="one MiB above the share"),
        pytest.param(node(*FULL, train=12 * GIB, serve=0, used=22 * GIB), 10 * GIB, ["unattributed"], id="memory that no process accounts for"),
        pytest.param(node(*FULL, train=GIB, serve=0, host=10 * GIB), 10 * GIB + TAKEN, ["host-processes", "unattributed"], id="a host process"),
        pytest.param(node(*FULL, train=GIB, serve=0, ended=10 * GIB), 10 * GIB + TAKEN, ["ended-pods", "unattributed"], id="a process of an ended pod"),
        pytest.param(node(pod_share("train", 2 * GIB), pod_share("serve", 4 * GIB), train=15 * GIB, serve=2 * GIB), 0, [], id="above its share, and enough is free"),
        pytest.param(node(*FULL, pod_share("guest"), train=0, serve=0, guest=257 * MIB), 257 * MIB + TAKEN, ["pods-above-share", "unattributed"], id="a pod without a share"),
        pytest.param(node(*FULL, pod_share("guest", is_unresolved=True), train=0, serve=0, guest=9 * GIB), 9 * GIB + TAKEN, ["unattributed"], id="what a pod of an unknown GPU may use is unknown, and not what is left"),
        pytest.param(node(pod_share("train", 16 * GIB), pod_share("serve", 12 * GIB), train=0, serve=0), 4 * GIB + TAKEN, ["promised-above-total", "unattributed"], id="overpromised alone"),
        pytest.param(node(pod_share("train", 16 * GIB), pod_share("serve", 12 * GIB), train=13 * GIB, serve=11 * GIB), 4 * GIB - 300 * MIB, ["promised-above-total", "unattributed"], id="overpromised and full"),
        pytest.param(node(pod_share("train", 12 * GIB, limits={A: Amount(20 * GIB, LimitSource.ANNOTATION)}), FULL[1], train=18 * GIB, serve=GIB), 6 * GIB + TAKEN, ["pods-above-share", "unattributed"], id="within a limit above its share (NvFractions)"),
        pytest.param(node(*FULL, train=15 * GIB, serve=2 * GIB, problems=(Problem(Cause.PODS_STALE), Problem(Cause.NEGATIVE_UNATTRIBUTED, A))), 3 * GIB + TAKEN, ["pods-above-share", "unattributed"], id="suspended verdicts hide nothing"),
        pytest.param(node(*FULL, train=15 * GIB, serve=None), None, [], id="the memory of the pod at risk is unknown"),
        pytest.param(node(*FULL, pod_share("other", 4 * GIB), train=20 * GIB, serve=0, other=None), 8 * GIB + TAKEN, ["pods-above-share", "promised-above-total"], id="the memory of one of two pods at risk is unknown: a lower bound"),
        pytest.param(node(pod_share("train", 2 * GIB), pod_share("guest"), train=0, guest=None), 0, [], id="enough is free"),
        pytest.param(node(*FULL, train=15 * GIB, serve=0, problems=(Problem(Cause.TRUNCATED, A),)), None, [], id="processes are hidden"),
        pytest.param(node(), 0, [], id="no pod"),
    ],
)  # fmt: skip
def test_memory_at_risk_and_what_took_it(snapshot: Snapshot, expected: int | None, causes: list[str]) -> None:
    assert at_risk(snapshot) == expected
    assert [cause.name for cause in snapshot.gpus[0].risk_causes] == causes


@pytest.mark.parametrize("missing", ["total_bytes", "used_bytes"])
def test_a_gpu_of_unknown_memory_is_not_known_to_be_at_risk(missing: str) -> None:
    origins = {10: in_pod("train"), 11: in_pod("serve")}
    processes = ((10, 15 * GIB), (11, 2 * GIB))
    known = gpu(*processes, reserved_bytes=None)
    assert at_risk(snapshot_of(sample(known, origins=origins), *FULL)) == 3 * GIB + 100 * MIB
    unknown = gpu(*processes, **{missing: None})
    assert at_risk(snapshot_of(sample(unknown, origins=origins), *FULL)) is None


def test_before_the_pods_are_listed_and_with_hidden_owners_it_is_unknown() -> None:
    device = gpu((10, 15 * GIB), (11, 2 * GIB))
    denied = sample(device, origins={10: in_pod("train"), 11: DENIED})
    assert at_risk(snapshot_of(denied, *FULL)) is None


def test_a_gpu_in_mig_mode_has_no_risk_and_the_other_gpus_of_the_node_have_their_own() -> None:
    instance = MigInstance(uuid="MIG-1", total_bytes=None, processes=())
    snapshot = snapshot_of(
        sample(
            gpu((10, 15 * GIB), (11, 2 * GIB), mig=True, instances=(instance,)),
            gpu((12, 13 * GIB), uuid=B, index=1),
            origins={10: in_pod("train"), 11: in_pod("serve"), 12: in_pod("other")},
        ),
        *FULL,
        pod_share("other", 12 * GIB, gpus=(B,)),
        pod_share("idle", 12 * GIB, gpus=(B,)),
    )
    assert (at_risk(snapshot, A), at_risk(snapshot, B)) == (None, GIB + 100 * MIB)


@dataclass(frozen=True)
class User:
    """A pod on the GPU: its share, what is known of its use, and whether that is all."""

    share: int | None
    used: int
    is_known: bool


AMOUNTS = st.integers(0, 12)
USERS = st.lists(st.builds(User, share=st.none() | AMOUNTS, used=AMOUNTS, is_known=st.booleans()), max_size=3)


def by_definition(
    shares: list[int | None], used: tuple[int, ...], *, total: int, device_used: int, reserved: int
) -> int:
    """The definition, for known figures in GiB."""
    unused = sum(max(0, (share or 0) - amount) for share, amount in zip(shares, used, strict=True))
    missing = max(0, unused - max(total - device_used - reserved, 0) - reserved)
    return missing * GIB


@given(users=USERS, total=st.integers(1, 24), device_used=st.integers(0, 24), reserved=st.integers(0, 2))
def test_a_result_holds_for_every_value_that_an_unknown_figure_may_have(
    users: list[User], total: int, device_used: int, reserved: int
) -> None:
    shares = [user.share for user in users]
    result = at_risk_bytes(
        gpu(total_bytes=total * GIB, used_bytes=device_used * GIB, reserved_bytes=reserved * GIB),
        [holding_of(number, user) for number, user in enumerate(users)],
    )
    possible = {
        by_definition(shares, used, total=total, device_used=device_used, reserved=reserved)
        for used in product(
            *([user.used] if user.is_known else range(user.used, user.used + 14) for user in users)
        )
    }
    if result is not None:
        assert min(possible) >= result
        assert result > 0 or possible == {0}
    if all(user.is_known for user in users):
        assert possible == {result}


def holding_of(number: int, user: User) -> Holding:
    """The pod's memory on the GPU, as the ledger has it."""
    name = f"pod-{number}"
    return Holding(
        pod_share=pod_share(name, None if user.share is None else user.share * GIB), gpu_uuid=A, gpu_index=0,
        used_bytes=user.used * GIB if user.is_known else None, processes=1, known_bytes=user.used * GIB,
    )  # fmt: skip
