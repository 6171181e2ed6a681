"""Over-share policies of namespaces: labels, bounds, and labels that a vCluster mirrors."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.pods.tenants import namespace_label_key, tenant_of
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.over_share import STANDS_AFTER, GraceBounds, OverSharePolicies, OverSharePolicy
from gpuagent.verdicts.reasons import FlagReason
from kai import keys
from kai.own_labels import OVER_SHARE, OVER_SHARE_GRACE
from tests.support.samples import GIB, gpu, in_pod, pod, pod_share, sample, snapshot_of, uid_of

VC = "my-vcluster"
SYNCED = {
    keys.VCLUSTER_HOST_NAME: "train",
    keys.VCLUSTER_HOST_NAMESPACE: "team-a",
    keys.VCLUSTER_OBJECT_NAME: "train-0",
    keys.VCLUSTER_OBJECT_NAMESPACE: "ml",
}
UID = uid_of("train")


def mirrored(**labels: str) -> NodePod:
    """A pod of a vCluster whose namespace has these labels: over_share, over_share_grace, mode."""
    named = {
        namespace_label_key(VC, f"kaishare.dev/{key.replace('_', '-')}"): value
        for key, value in labels.items()
    }
    return pod("train", labels={keys.VCLUSTER_MANAGED_BY: VC, **named}, annotations=SYNCED)


def read(
    over_share_policies: OverSharePolicies, made: NodePod | None = None, at: float = 0.0, **namespace: Any
) -> OverSharePolicy:
    made = made or pod("train")
    labels = {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in namespace.items()}
    inventory = Inventory(pods={made.uid: made}, namespaces={"team-a": labels})
    pod_shares = [PodShare(pod=made, tenant=tenant_of(made))]
    return over_share_policies.read(inventory, pod_shares, at).get(made.uid, OverSharePolicy())


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
def test_labels_of_a_namespace_set_its_policy(
    labels: dict[str, Any], over_share_policy: OverSharePolicy
) -> None:
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
    over_share_policies = OverSharePolicies(bounds=GraceBounds(shortest=60, longest=3600))
    assert read(over_share_policies, over_share_grace=grace) == OverSharePolicy(grace=counts)
    assert len(over_share_policies.notes) == (0 if grace == "5m" else 1)


def test_labels_that_a_vcluster_mirrors_count_only_after_a_time() -> None:
    over_share_policies, made = OverSharePolicies(), mirrored(over_share="evict", over_share_grace="1h")
    policy = OverSharePolicy(evict=True, grace=3600)
    assert [read(over_share_policies, made, at) for at in (0, STANDS_AFTER - 0.1, STANDS_AFTER)] == [
        OverSharePolicy(),
        OverSharePolicy(),
        policy,
    ]
    changed = mirrored(over_share="evict", over_share_grace="2h")
    assert [read(over_share_policies, changed, at) for at in (40, 69, 70)] == [
        OverSharePolicy(),
        OverSharePolicy(),
        OverSharePolicy(evict=True, grace=7200),
    ]


def test_labels_that_a_vcluster_takes_back_never_count() -> None:
    """Observed on a cluster: the host's CREATE carries `=evil`, the first sync takes it away."""
    over_share_policies = OverSharePolicies()
    assert read(over_share_policies, mirrored(over_share="evict"), 0) == OverSharePolicy()
    assert [read(over_share_policies, mirrored(), at) for at in (0.1, 100)] == [
        OverSharePolicy(),
        OverSharePolicy(),
    ]


@pytest.mark.parametrize(
    ("tenant", "host", "over_share_policy"),
    [
        ({"over_share": "report"}, {"over_share": "evict"}, OverSharePolicy(evict=True)),
        ({"over_share": "evict"}, {}, OverSharePolicy(evict=True)),
        ({"over_share": "evict"}, {"mode": "off"}, OverSharePolicy()),
        ({"over_share_grace": "24h"}, {"over_share_grace": "5m"}, OverSharePolicy(grace=300)),
        ({"over_share_grace": "1m"}, {"over_share_grace": "5m"}, OverSharePolicy(grace=60)),
        ({"over_share_grace": "1m"}, {}, OverSharePolicy(grace=60)),
    ],
    ids=[
        "cannot call it off",
        "may ask",
        "off on the host",
        "no longer than the host's",
        "shorter",
        "where the host is silent",
    ],
)
def test_a_tenant_adds_to_the_policy_of_the_host(
    tenant: dict[str, Any], host: dict[str, Any], over_share_policy: OverSharePolicy
) -> None:
    over_share_policies, made = OverSharePolicies(), mirrored(**tenant)
    read(over_share_policies, made, 0, **host)
    assert read(over_share_policies, made, STANDS_AFTER, **host) == over_share_policy


def test_a_pod_outside_a_vcluster_has_no_mirrored_labels() -> None:
    copied = replace(mirrored(over_share="evict"), annotations={**SYNCED, keys.VCLUSTER_HOST_NAME: "victim"})
    unmanaged = replace(mirrored(over_share="evict"), annotations={})
    over_share_policies = OverSharePolicies()
    for at in (0, STANDS_AFTER):
        for made in (copied, unmanaged):
            assert read(over_share_policies, made, at) == OverSharePolicy()


def test_the_keys_are_those_that_vclusters_write() -> None:
    long = "platform-team-machine-learning-production"
    assert namespace_label_key(VC, OVER_SHARE) == "vcluster.loft.sh/ns-label-my-vcluster-x-f57c43a42d"
    assert (
        namespace_label_key(long, OVER_SHARE)
        == "vcluster.loft.sh/ns-label-platform-team-machine-lear-10a606c075"
    )


def test_recorded_pods_have_the_keys() -> None:
    folder = os.environ.get("KAISHARE_FIXTURES")
    if not folder:
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder with recorded objects")
    recorded = json.loads((Path(folder) / "vcluster" / "b_create.host.json").read_text())
    assert recorded["metadata"]["labels"][namespace_label_key(VC, OVER_SHARE)] == "evict"


def test_deleted_pods_are_forgotten() -> None:
    over_share_policies = OverSharePolicies()
    read(over_share_policies, mirrored(over_share="evict"))
    read(over_share_policies, pod("other"))
    assert over_share_policies._mirrored == {}


def test_thousands_of_bad_labels_make_few_lines() -> None:
    over_share_policies = OverSharePolicies()
    bad = {f"ns-{number}": {OVER_SHARE: "x"} for number in range(1000)}
    over_share_policies.read(Inventory(namespaces=bad), [], 0)
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
