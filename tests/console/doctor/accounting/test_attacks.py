"""Labels and annotations by which pods hold more GPUs than KAI counts (review of 0.17.0 and 0.13.4).

Each key was tried on KAI's programs: KAI's scheduler counts the pod as nothing, or in another queue.
"""

import pytest

from console.doctor.accounting import evaluate, persistent_findings
from tests.support.kai_accounts import KaiAccounts

MIG = {"nvidia.com/mig-1g.5gb": "0"}


def problems(accounts: KaiAccounts, version: str = "v0.17.0") -> list[str]:
    return [line for line in accounts.findings(version) if not line.startswith("ok")]


@pytest.mark.parametrize("version", ["v0.9.8", "v0.13.4", "v0.17.0"])
def test_a_mig_annotation_lets_more_gpus_be_requested_than_the_node_has(version: str) -> None:
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("w1", 2, annotations=MIG)
    accounts.run("x1", 2)
    assert problems(accounts.add_up(), version) == [
        (
            "problem: node gpu-node-0 has 2 GPUs, and its pods request 4 GPUs:"
            ' team-b/w1 (annotation nvidia.com/mig-1g.5gb="0"), beside 1 other pod'
        )
    ]


@pytest.mark.parametrize("counted", ["1", "0"])
def test_a_mig_annotation_lets_a_queue_pass_its_limit(counted: str) -> None:
    """KAI's status may be right or wrong; its scheduler is wrong."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(3):
        accounts.run(
            f"w{number}", 1, node=f"gpu-node-{number % 2}", annotations=MIG if number else {}, counted=counted
        )
    lines = problems(accounts.add_up())
    assert lines[-1].startswith(
        f'problem: queue "team-b" has a limit of 1 GPU, and its pods request 3 GPUs; KAI\'s status has'
        f" {3 * int(counted)} GPUs: team-b/w1 (annotation"
    )
    assert len(lines) == (1 if counted == "1" else 2)


def test_shares_with_a_mig_annotation_fill_a_gpu_twice() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(4):
        accounts.run(f"s{number}", fraction="0.5", annotations=MIG)
    lines = problems(accounts.add_up())
    assert [line.partition(":")[2].split(" and its ")[0].split(" add up")[0] for line in lines] == [
        ' queue "team-b" has a limit of 1 GPU,',
        " the shares of GPU group 63ba70c6-6b9e-4365-8165-0956d8d5f9f1 on node gpu-node-0",
    ]
    assert "add up to 2 GPUs: team-b/s0" in lines[1]


def test_a_claim_beside_a_share_does_not_hide_the_share_from_the_limit() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(4):
        pod = accounts.run(f"s{number}", fraction="0.5", group=f"group-{number // 2}")
        pod["spec"]["resourceClaims"] = [{"name": "a", "resourceClaimName": "a"}]
    assert any(
        'queue "team-b" has a limit of 1 GPU, and its pods request 2 GPUs' in line
        for line in problems(accounts.add_up())
    )


def test_the_limit_of_a_parent_queue_covers_its_child_queues() -> None:
    accounts = KaiAccounts.of_two_nodes()
    accounts.queues[0]["spec"]["resources"] = {"gpu": {"limit": 3}}
    accounts.run("w1", 2, queue="team-a", annotations=MIG)
    accounts.run("w2", 2, queue="team-b", node="gpu-node-1")
    (line,) = problems(accounts.add_up())
    assert line.startswith('problem: queue "department" has a limit of 3 GPUs, and its pods request 4 GPUs;')


@pytest.mark.parametrize("version", ["v0.9.8", "v0.13.4", "v0.17.0"])
def test_an_unknown_subgroup(version: str) -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(4):
        labels = {"kai.scheduler/subgroup-name": "foo"} if number < 2 else {}
        accounts.run(f"s{number}", fraction="0.5", group=f"group-{number // 2}", labels=labels)
    lines = problems(accounts.add_up(), version)
    assert lines == [
        (
            'problem: queue "team-b" has a limit of 1 GPU, and its pods request 2 GPUs; KAI\'s status has 2 GPUs:'
            " team-b/s0, team-b/s1, team-b/s2, team-b/s3"
        ),
        (
            "problem: 2 pods with GPUs in a subgroup that the PodGroup lacks, which KAI counts in no queue:"
            ' team-b/s0 (subgroup "foo"), team-b/s1 (subgroup "foo")'
        ),
    ]


def test_a_subgroup_that_the_owner_removed() -> None:
    """A RayCluster's groupName edited: the running pods keep their label (facts/kai-keys.md, Shape)."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("worker", 1, labels={"kai.scheduler/subgroup-name": "workers"})
    accounts.run("head", 1, labels={"kai.scheduler/subgroup-name": "head"})
    for group in accounts.pod_groups:
        group["spec"]["subGroups"] = [{"name": "head", "minMember": 1}, {"name": "new", "parent": "all"}]
    (line,) = problems(accounts.add_up())
    assert line.endswith(': team-b/worker (subgroup "workers")')


def test_a_subgroup_with_children_has_no_pods() -> None:
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("worker", 1, labels={"kai.scheduler/subgroup-name": "all"})
    accounts.pod_groups[0]["spec"]["subGroups"] = [{"name": "all"}, {"name": "head", "parent": "all"}]
    (line,) = problems(accounts.add_up())
    assert line.endswith(': team-b/worker (subgroup "all")')


def test_the_label_of_reservation_pods() -> None:
    accounts = KaiAccounts.of_two_nodes()
    for number in range(4):
        accounts.run(f"r{number}", 2, labels={"app": "kai-resource-reservation"})
    (line,) = problems(accounts.add_up())
    assert line.startswith(
        "problem: node gpu-node-0 has 2 GPUs, and its pods request 8 GPUs: team-b/r0 (label"
    )


def test_a_fraction_that_was_changed_on_a_running_pod() -> None:
    """KAI's status follows the annotation at once (facts/kai.md 1.7)."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    accounts.run("s1", fraction="0.9")
    accounts.run("s2", fraction="0.5")
    lines = problems(accounts.add_up())
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == ["queue", "the"]
    assert "add up to 1.4 GPUs: team-b/s1, team-b/s2" in lines[1]


def test_a_pod_in_the_pod_group_of_another_namespace() -> None:
    """KAI's scheduler finds PodGroups by name alone; its status looks in the pod's namespace."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("theirs", 1, namespace="team-a", queue="team-a")
    accounts.run("borrower", 1)
    accounts.pods[-1]["metadata"]["annotations"]["pod-group-name"] = "pg-theirs"
    accounts.pod_groups.pop()
    assert problems(accounts.add_up()) == [
        'problem: the pods of queue "team-b" request 1 GPU, and KAI counts 0 GPUs: team-b/borrower'
    ]


def test_pods_whose_pod_group_is_gone() -> None:
    """Its owner was deleted under them: KAI counts them in no queue, and never reclaims them."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(3):
        accounts.run(f"g{number}", 1, node=f"gpu-node-{number % 2}")
    del accounts.pod_groups[1:]
    assert problems(accounts.add_up()) == [
        'problem: the pods of queue "team-b" request 3 GPUs, and KAI counts 1 GPU: team-b/g1, team-b/g2',
        (
            'problem: queue "team-b" has a limit of 1 GPU, and its pods request 3 GPUs; KAI\'s status has 1 GPU:'
            " team-b/g0, team-b/g1, team-b/g2"
        ),
    ]


def test_a_gpu_in_an_init_container_only_counts_for_limit_and_node() -> None:
    """`calculatedAllocatedResources` of `metadata/pod.go` adds up spec.containers only."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(3):
        pod = accounts.run(f"x{number}", 1, counted="0")
        sidecar = {**pod["spec"]["containers"][0], "name": "sidecar", "restartPolicy": "Always"}
        pod["spec"]["initContainers"] = [sidecar]
        pod["spec"]["containers"] = [{"name": "main", "resources": {}}]
    lines = problems(accounts.add_up())
    assert [line.partition(":")[0] for line in lines] == ["problem", "problem"]
    assert "has a limit of 1 GPU, and its pods request 3 GPUs" in lines[0]
    assert "node gpu-node-0 has 2 GPUs, and its pods request 3 GPUs" in lines[1]


def test_a_pod_without_pod_group_and_queue_belongs_to_kais_default_queue() -> None:
    accounts = KaiAccounts.of_two_nodes()
    pod = accounts.run("lost", 1)
    pod["metadata"]["labels"] = {}
    pod["metadata"]["annotations"] = {"pod-group-name": "none"}
    accounts.pod_groups.clear()
    (line,) = problems(accounts.add_up())
    assert line == (
        'problem: 1 pod with GPUs in queues that do not exist: team-b/lost; queues: "default-queue"'
    )


def test_a_deleted_pod_that_still_runs() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    pod = accounts.run("slow", 1)
    accounts.run("next", 1)
    pod["metadata"] |= {"deletionTimestamp": "2026-11-21T12:50:00Z", "deletionGracePeriodSeconds": 3600}
    assert problems(accounts.add_up()) == [
        ("warning: 1 deleted pod with GPUs, which KAI no longer counts in a queue: team-b/slow (10 min ago)")
    ]
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T12:58:00Z"
    assert problems(accounts) == [], "2 minutes are no finding"


@pytest.mark.parametrize("seconds", [1 << 62, -(1 << 62), 1 << 40])
def test_a_grace_period_that_leaves_the_range_of_dates(seconds: int) -> None:
    accounts = KaiAccounts.of_two_nodes()
    pod = accounts.run("slow", 1)
    pod["metadata"] |= {"deletionTimestamp": "2026-11-21T12:50:00Z", "deletionGracePeriodSeconds": seconds}
    (line,) = problems(accounts.add_up())
    assert line.endswith("team-b/slow (more than a day ago)")


@pytest.mark.parametrize(("text", "version"), [("0x1p-1", "v0.9.8"), ("0.5_0", "v0.13.4")])
def test_a_fraction_that_kais_status_cannot_read(text: str, version: str) -> None:
    """Such a pod runs, and its PodGroup never gets a status (facts/kai.md 1.4)."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("hex", fraction=text, counted="0")
    assert problems(accounts.add_up(), version) == [
        (
            'problem: the pods of queue "team-b" request 0.5 GPUs, and KAI counts 0 GPUs: team-b/hex;'
            " KAI's status cannot read gpu-fraction of team-b/hex, and leaves out their PodGroups"
        )
    ]


def test_a_false_received_resource_type() -> None:
    """KAI's status counts a share only with the value Fraction (`received.go`)."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("s1", fraction="0.5", counted="0", annotations={"received-resource-type": "Regular"})
    (line,) = problems(accounts.add_up())
    assert line.endswith("request 0.5 GPUs, and KAI counts 0 GPUs: team-b/s1")


def test_a_pod_with_a_claim_hides_no_other_pod_of_its_queue() -> None:
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("claim")["spec"]["resourceClaims"] = [{"name": "gpu"}]
    accounts.run("s1", fraction="0.5", counted="0")
    assert problems(accounts.add_up()) == [
        'problem: the pods of queue "team-b" request 0.5 GPUs, and KAI counts 0 GPUs: team-b/s1',
        'unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/claim (resource claims)',
    ]


def test_text_of_tenants_is_bounded_and_printable() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(300):
        labels = {"kai.scheduler/subgroup-name": "s" * 63}
        annotations = {f"nvidia.com/mig-{'x' * 250}{number}": "\x1b[31m\n" * 1000}
        accounts.run(
            f"p{number}", 2, labels=labels, annotations=annotations, group="\N{RIGHT-TO-LEFT OVERRIDE}"
        )
    evaluation = evaluate(accounts.add_up().reading())
    findings = list(persistent_findings(evaluation, evaluation))
    assert len(findings) == 3
    for finding in findings:
        assert finding.what.isprintable()
        assert len(finding.what) < 2500
