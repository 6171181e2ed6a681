"""Memory at risk: promised, unused and not free, while a pod is above its share or the GPU is overpromised."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.gpu_reading import MigInstance
from gpuagent.ledger.balance import at_risk_bytes
from gpuagent.ledger.slack import DEFAULT_SLACK, Slack
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_share import Amount, LimitSource, PodShare, ShareSource
from tests.support.samples import DENIED, GIB, MIB, A, B, gpu, in_pod, pod, pod_share, sample, snapshot_of

FULL = pod_share("train", 12 * GIB), pod_share("serve", 12 * GIB)


def node(*shares: PodShare, problems: tuple[Problem, ...] = (), **used: int | None) -> Snapshot:
    """A GPU of 24 GiB, of which the driver reserves 300 MiB and uses 100 MiB; each pod has one process."""
    pids = {name: 10 + number for number, name in enumerate(used)}
    device = gpu(*((pids[name], amount) for name, amount in used.items()))
    taken = sample(device, origins={pids[name]: in_pod(name) for name in used}, problems=problems)
    return snapshot_of(taken, *shares)


def at_risk(snapshot: Snapshot, uuid: str = A) -> int | None:
    return next(account.at_risk_bytes for account in snapshot.gpus if account.gpu.uuid == uuid)


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        pytest.param(node(*FULL, train=15 * GIB, serve=2 * GIB), 10 * GIB - (7 * GIB - 400 * MIB), id="a pod above its share, fully promised"),
        pytest.param(node(*FULL, train=5 * GIB, serve=2 * GIB), 0, id="no pod above its share: only the driver's reserve is missing"),
        pytest.param(node(*FULL, train=12 * GIB + DEFAULT_SLACK.of(12 * GIB), serve=0), 0, id="within the slack"),
        pytest.param(node(*FULL, train=12 * GIB + DEFAULT_SLACK.of(12 * GIB) + 1, serve=0), DEFAULT_SLACK.of(12 * GIB) + 400 * MIB + 1, id="one byte above the slack"),
        pytest.param(node(pod_share("train", 2 * GIB), pod_share("serve", 4 * GIB), train=15 * GIB, serve=2 * GIB), 0, id="above its share, and enough is free"),
        pytest.param(node(*FULL, pod_share("guest"), train=0, serve=0, guest=257 * MIB), 657 * MIB, id="a pod without a share"),
        pytest.param(node(*FULL, pod_share("guest"), train=0, serve=0, guest=256 * MIB), 0, id="a small context of a pod without a share"),
        pytest.param(node(*FULL, pod_share("guest", is_unresolved=True), train=0, serve=0, guest=9 * GIB), None, id="what a pod of an unknown GPU may use is unknown"),
        pytest.param(node(*FULL, pod_share("guest", has_share=True, is_unresolved=True, possible={A: Amount(4 * GIB, ShareSource.BIND_REQUEST)}), train=0, serve=0, guest=9 * GIB), 9 * GIB + 400 * MIB, id="above the share that it may use on any GPU"),
        pytest.param(node(*FULL, pod_share("mps", pod=pod("mps", namespace="nvidia-device-plugin")), train=0, serve=0, mps=2 * GIB), 2 * GIB + 400 * MIB, id="an excluded namespace takes promised memory, too"),
        pytest.param(node(pod_share("train", 16 * GIB), pod_share("serve", 12 * GIB), train=0, serve=0), 4 * GIB + 400 * MIB, id="overpromised alone"),
        pytest.param(node(pod_share("train", 16 * GIB), pod_share("serve", 12 * GIB), train=13 * GIB, serve=12 * GIB - 500 * MIB), 3 * GIB + 500 * MIB, id="overpromised and full: nothing is free"),
        pytest.param(node(pod_share("train", 12 * GIB, limits={A: Amount(20 * GIB, LimitSource.ANNOTATION)}), FULL[1], train=18 * GIB, serve=GIB), 11 * GIB - (5 * GIB - 400 * MIB), id="within a limit above its share (NvFractions)"),
        pytest.param(node(*FULL, train=15 * GIB, serve=2 * GIB, problems=(Problem(Cause.PODS_STALE), Problem(Cause.NEGATIVE_UNATTRIBUTED, A))), 3 * GIB + 400 * MIB, id="suspended verdicts hide nothing"),
        pytest.param(node(*FULL, train=15 * GIB, serve=None), None, id="the memory of the pod at risk is unknown"),
        pytest.param(node(*FULL, pod_share("other", 4 * GIB), train=20 * GIB, serve=0, other=None), 12 * GIB - (4 * GIB - 400 * MIB), id="the memory of one of two pods at risk is unknown: a lower bound"),
        pytest.param(node(*FULL, pod_share("guest"), train=0, serve=0, guest=None), None, id="the pod without a share may be the cause"),
        pytest.param(node(*FULL, pod_share("guest"), train=15 * GIB, serve=0, guest=None), 12 * GIB - (9 * GIB - 400 * MIB), id="there is another cause"),
        pytest.param(node(pod_share("train", 2 * GIB), pod_share("guest"), train=0, guest=None), 0, id="enough is free, and the pod without a share cannot change that"),
        pytest.param(node(*FULL, train=15 * GIB, serve=0, problems=(Problem(Cause.TRUNCATED, A),)), None, id="processes are hidden"),
        pytest.param(node(), 0, id="no pod"),
    ],
)  # fmt: skip
def test_memory_at_risk(snapshot: Snapshot, expected: int | None) -> None:
    assert at_risk(snapshot) == expected


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
    assert (at_risk(snapshot, A), at_risk(snapshot, B)) == (None, GIB + 400 * MIB)


@dataclass(frozen=True)
class User:
    """A pod on the GPU: its share, what is known of its use, and whether that is all."""

    share: int | None
    used: int
    is_known: bool


AMOUNTS = st.integers(0, 12)
USERS = st.lists(st.builds(User, share=st.none() | AMOUNTS, used=AMOUNTS, is_known=st.booleans()), max_size=3)
SLACK = Slack(1 * GIB, Fraction(10, 100))


def by_definition(
    shares: list[int | None], used: tuple[int, ...], *, total: int, device_used: int, reserved: int
) -> int:
    """The definition, for known figures in GiB."""
    unused = sum(max(0, (share or 0) - amount) for share, amount in zip(shares, used, strict=True))
    missing = max(0, unused - max(total - device_used - reserved, 0))
    is_over = any(
        amount * GIB > (share or 0) * GIB + SLACK.of((share or 0) * GIB)
        for share, amount in zip(shares, used, strict=True)
    )
    return missing * GIB if is_over or sum(share or 0 for share in shares) > total else 0


@given(users=USERS, total=st.integers(1, 24), device_used=st.integers(0, 24), reserved=st.integers(0, 2))
def test_a_result_holds_for_every_value_that_an_unknown_figure_may_have(
    users: list[User], total: int, device_used: int, reserved: int
) -> None:
    shares = [user.share for user in users]
    result = at_risk_bytes(
        gpu(total_bytes=total * GIB, used_bytes=device_used * GIB, reserved_bytes=reserved * GIB),
        [holding_of(number, user) for number, user in enumerate(users)],
        promised_bytes=sum(share or 0 for share in shares) * GIB,
        slack=SLACK,
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
        pod_share=pod_share(name, None if user.share is None else user.share * GIB),
        gpu_uuid=A,
        gpu_index=0,
        used_bytes=user.used * GIB if user.is_known else None,
        processes=1,
        known_bytes=user.used * GIB,
    )
