"""Over-share policies of namespaces: labels and bounds."""

from typing import Any

import pytest

from gpuagent.pods.inventory import Inventory
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.over_share import OverSharePolicies, OverSharePolicy
from kai.kaishare_keys import OVER_SHARE, OVER_SHARE_GRACE
from tests.support.samples import GIB, gpu, in_pod, pod, pod_share, sample, snapshot_of, uid_of


def read(over_share_policies: OverSharePolicies, **namespace: Any) -> OverSharePolicy:
    made = pod("train")
    labels = {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in namespace.items()}
    inventory = Inventory(pods={made.uid: made}, namespaces={"team-a": labels})
    return over_share_policies.read(inventory).get(made.uid, OverSharePolicy())


@pytest.mark.parametrize(
    ("labels", "over_share_policy"),
    [
        ({}, OverSharePolicy()),
        ({"over_share": "report"}, OverSharePolicy()),
        ({"over_share": "evict"}, OverSharePolicy(evict=True)),
        ({"over_share_grace": "10m"}, OverSharePolicy(grace=600)),
        ({"over_share": "evict", "over_share_grace": "30s"}, OverSharePolicy(evict=True, grace=30)),
        ({"over_share": "evict", "mode": "off"}, OverSharePolicy()),
        ({"over_share": "evict", "mode": "observe"}, OverSharePolicy(evict=True)),
    ],
)
def test_namespace_labels_set_the_policy(labels: dict[str, Any], over_share_policy: OverSharePolicy) -> None:
    over_share_policies = OverSharePolicies()
    assert read(over_share_policies, **labels) == over_share_policy
    assert not over_share_policies.notes


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        ({"over_share": "kill"}, f'Namespace team-a: label {OVER_SHARE}: "kill" is invalid and ignored; allowed: report, evict'),
        ({"over_share_grace": "29s"}, f'Namespace team-a: label {OVER_SHARE_GRACE}: "29s" is invalid and ignored; allowed: an integer and s, m or h, from 30s to 24h'),
        ({"over_share_grace": "25h"}, f'Namespace team-a: label {OVER_SHARE_GRACE}: "25h" is invalid and ignored; allowed: an integer and s, m or h, from 30s to 24h'),
        ({"over_share_grace": "5"}, f'Namespace team-a: label {OVER_SHARE_GRACE}: "5" is invalid and ignored; allowed: an integer and s, m or h, from 30s to 24h'),
    ],
)  # fmt: skip
def test_an_invalid_value_is_ignored_and_noted(labels: dict[str, Any], line: str) -> None:
    over_share_policies = OverSharePolicies()
    assert read(over_share_policies, **labels) == OverSharePolicy()
    assert list(over_share_policies.notes) == [line]
    read(over_share_policies)
    assert not over_share_policies.notes


@pytest.mark.parametrize(("grace", "counts"), [("30s", 60), ("5m", 300), ("24h", 3600)])
def test_a_grace_is_limited_to_the_administrators_bounds(grace: str, counts: float) -> None:
    over_share_policies = OverSharePolicies(shortest_grace=60, longest_grace=3600)
    assert read(over_share_policies, over_share_grace=grace) == OverSharePolicy(grace=counts)
    assert len(over_share_policies.notes) == (0 if grace == "5m" else 1)


def test_thousands_of_bad_labels_make_few_lines() -> None:
    over_share_policies = OverSharePolicies()
    bad = {f"ns-{number}": {OVER_SHARE: "x"} for number in range(1000)}
    over_share_policies.read(Inventory(namespaces=bad))
    assert len(over_share_policies.notes) == 20


@pytest.mark.parametrize(
    ("grace", "over_share", "no_share"),
    [(30.0, [False, False, True, True], [False, True, True, True]), (None, [False, True, True, True], [False, True, True, True])],
)  # fmt: skip
def test_the_grace_of_a_namespace_is_the_judges_for_over_share_alone(
    grace: float | None, over_share: list[bool], no_share: list[bool]
) -> None:
    judge = Judge(grace=10, interval=10, longest_gap=15)
    graces = {} if grace is None else {uid_of("train"): grace, uid_of("stray"): grace}
    seen: dict[FlagReason, list[bool]] = {FlagReason.OVER_SHARE: [], FlagReason.NO_SHARE: []}
    for at in (0, 10, 20, 30, 40):
        taken = sample(
            gpu((10, 2 * GIB), (11, GIB)), origins={10: in_pod("train"), 11: in_pod("stray")}, at=at
        )
        verdicts, _ = judge.judge(snapshot_of(taken, pod_share("train", GIB), pod_share("stray")), graces)
        for key, verdict in verdicts.by_key.items():
            if key.reason in seen and at in (0, 10, 30, 40):
                seen[key.reason].append(verdict.is_flagged)
    assert (seen[FlagReason.OVER_SHARE], seen[FlagReason.NO_SHARE]) == (over_share, no_share)
