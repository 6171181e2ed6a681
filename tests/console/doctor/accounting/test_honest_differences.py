"""Differences that KAI makes by itself are no findings; each test names the source."""

import time
from typing import Any

import pytest

from console.doctor.accounting import evaluate, persistent_findings
from tests.support.kai_accounts import GPU, KaiAccounts, node

Fields = dict[str, Any]


def container(gpus: int, **fields: Any) -> Fields:
    amounts = {GPU: str(gpus)}
    return {"name": f"c{gpus}", "resources": {"limits": amounts, "requests": amounts}, **fields}


def states(lines: list[str]) -> list[str]:
    return [line.partition(":")[0] for line in lines]


def test_devices_count_once_in_the_status_and_each_in_the_limit() -> None:
    """2 × 0.3 is 0.3 in `Queue.status` (`fraction.go`, calculateAllocatedFraction), and 0.6 for the scheduler."""
    accounts = KaiAccounts.of_two_nodes(limit=0.6)
    labels = {"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}
    pod = accounts.run("two", fraction="0.3", annotations={"gpu-fraction-num-devices": "2"}, labels=labels)
    del pod["metadata"]["labels"]["runai-gpu-group"]
    assert states(accounts.add_up().findings()) == ["ok"]
    accounts.queues[2]["spec"]["resources"]["gpu"]["limit"] = 0.5
    assert states(accounts.findings()) == ["problem"]


def of_memory(label: str | None) -> KaiAccounts:
    """Return a cluster with a pod of gpu-memory 2000 on a node with this label."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.nodes[0] = node("gpu-node-0", memory=label)
    pod = accounts.run("memory", fraction="0.5", counted="86850791n")
    del pod["metadata"]["annotations"]["gpu-fraction"]
    pod["metadata"]["annotations"]["gpu-memory"] = "2000"
    return accounts.add_up()


def test_a_share_of_memory_is_divided_by_the_label() -> None:
    """`getFractionFromMemoryRequest` of `fraction.go`: 2000/23028, not 2000/23000."""
    assert states(of_memory("23028").findings()) == ["ok"]


@pytest.mark.parametrize("label", [None, "", "many", "50"])
def test_a_share_of_memory_on_a_node_of_unknown_memory_is_unknown(label: str | None) -> None:
    """KAI's podgroupcontroller cannot count it either (`getNodeSingleGpuMemory`)."""
    assert of_memory(label).findings() == [
        'unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/memory (unknown memory of its node)',
        'unknown: the sum of 1 node is unknown: "gpu-node-0"; pods: team-b/memory (unknown memory of its node)',
        "ok: the requests of 1 pod add up to KAI's figures in 2 queues and fit on 1 node",
    ]


def test_shares_of_memory_and_fractions_fill_a_gpu() -> None:
    """The scheduler compares units of memory rounded down to hundreds (`node_info.go`, GetResourceGpuMemory)."""
    accounts = KaiAccounts.of_two_nodes(limit=2)
    for number in range(8):
        accounts.run(f"s{number}", fraction="0.125")
    assert states(accounts.add_up().findings()) == ["ok"], "8 × 0.125 is one GPU, and 8 × 0.13 in the queue"
    accounts.run("s9", fraction="0.02")
    assert states(accounts.add_up().findings()) == ["problem"]


def test_limits_count_hundredths() -> None:
    """`GPUs()` of `gpu_resource_requirment.go` rounds 0.004 to 0; the status counts 4m each."""
    accounts = KaiAccounts.of_two_nodes(limit=0)
    for number in range(4):
        accounts.run(f"s{number}", fraction="0.004")
    assert states(accounts.add_up().findings()) == ["ok"]


def test_the_status_leaves_out_sidecars_and_init_containers() -> None:
    """`calculatedAllocatedResources` of `metadata/pod.go` adds up spec.containers."""
    accounts = KaiAccounts.of_two_nodes(limit=2)
    pod = accounts.run("sidecar", 1, counted="1")
    pod["spec"]["initContainers"] = [container(1, restartPolicy="Always"), container(1)]
    assert states(accounts.add_up().findings()) == ["ok"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_count_nowhere(phase: str) -> None:
    """`isAllocatedPod` of `metadata/pod.go`."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    accounts.run("done", 2, counted="0", annotations={"nvidia.com/mig-1g.5gb": "0"})["status"]["phase"] = (
        phase
    )
    assert accounts.add_up().findings() == [
        "ok: the requests of 0 pods add up to KAI's figures in 3 queues and fit on 2 nodes"
    ]


def test_pods_that_are_not_bound_count_nowhere() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    pod = accounts.run("waiting", 2, counted="0")
    del pod["spec"]["nodeName"]
    pod["status"]["phase"] = "Pending"
    assert states(accounts.add_up().findings()) == ["ok"]


def test_a_terminating_pod_is_in_the_status_and_not_in_the_limit() -> None:
    """`isAllocatedPod` reads no deletionTimestamp; the scheduler's Releasing is not allocated (`pod_status.go`)."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    pod = accounts.run("old", 1)
    pod["metadata"] |= {"deletionTimestamp": "2026-11-21T12:00:20Z", "deletionGracePeriodSeconds": 30}
    accounts.run("new", 1)
    assert states(accounts.add_up().findings()) == ["ok"]


def test_mig_devices_are_left_out_on_both_sides() -> None:
    """KAI's status sums each resource name for itself (`resources.go`, SumResources)."""
    accounts = KaiAccounts.of_two_nodes()
    pod = accounts.run("mig", counted="0")
    mig = {"nvidia.com/mig-1g.5gb": "4"}
    pod["spec"]["containers"] = [{"name": "main", "resources": {"limits": mig, "requests": mig}}]
    accounts.pod_groups[0]["status"]["resourcesStatus"]["allocated"] = mig
    assert states(accounts.add_up().findings()) == ["ok"]


@pytest.mark.parametrize(
    "fields",
    [
        {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
        {"status": {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "x"}}},
    ],
)
def test_resource_claims_make_the_sum_of_the_queue_unknown(fields: Fields) -> None:
    """KAI adds the devices of claims to nvidia.com/gpu (`pod.go`, DRAGPUResourceListFromClaims; not v0.9.8)."""
    accounts = KaiAccounts.of_two_nodes()
    pod = accounts.run("claim", counted="2")
    pod |= {key: value for key, value in fields.items() if key == "status"}
    pod["spec"] |= {key: value for key, value in fields.items() if key != "status"}
    accounts.run("other", 1, queue="team-a", namespace="team-a")
    assert accounts.add_up().findings() == [
        'unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/claim (resource claims)',
        "ok: the requests of 2 pods add up to KAI's figures in 2 queues and fit on 2 nodes",
    ]


@pytest.mark.parametrize("status", [{}, {"allocatable": {GPU: "1"}}])
def test_a_node_with_time_slices_or_a_failed_gpu(status: Fields) -> None:
    """Replicas count as GPUs. A GPU that fails leaves allocatable, not capacity, and its pod runs on."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.nodes[0] = node("gpu-node-0", 8 if not status else 2, **status)
    for number in range(8 if not status else 2):
        accounts.run(f"w{number}", 1)
    assert states(accounts.add_up().findings()) == ["ok"]


def test_the_gpus_of_a_node_whose_device_plugin_is_away_are_unknown() -> None:
    accounts = KaiAccounts.of_two_nodes()
    accounts.nodes[0] = node("gpu-node-0", 0)
    accounts.run("w1", 1)
    assert accounts.add_up().findings() == [
        'unknown: the sum of 1 node is unknown: "gpu-node-0"; pods: team-b/w1 (the node reports no GPU)',
        "ok: the requests of 1 pod add up to KAI's figures in 3 queues and fit on 1 node",
    ]


def test_pods_of_another_scheduler_count_on_their_node_alone() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=0)
    pod = accounts.run("other", 1, fraction="0.5")
    pod["spec"]["schedulerName"] = "default-scheduler"
    accounts.pod_groups.clear()
    assert states(accounts.add_up().findings()) == ["ok"]
    accounts.run("more", 2, queue="team-a")
    (line,) = accounts.add_up().findings()
    assert line.startswith("problem: node gpu-node-0 has 2 GPUs, and its pods request 3 GPUs")


def test_a_gpu_memory_that_the_scheduler_ignores_holds_nothing() -> None:
    """2^63 passes admission and is bound without a GPU (facts/kai.md 1.4)."""
    accounts = KaiAccounts.of_two_nodes()
    pod = accounts.run("huge", counted="0")
    pod["metadata"]["annotations"]["gpu-memory"] = "9223372036854775808"
    assert states(accounts.add_up().findings()) == ["ok"]


def test_an_unlimited_queue() -> None:
    """-1 and an absent limit are no limit (`resources.go` of the queue's API)."""
    for limit in (None, -1):
        accounts = KaiAccounts.of_two_nodes(limit=limit)
        accounts.run("w1", 2)
        assert states(accounts.add_up().findings()) == ["ok"]


def test_without_kais_controllers_there_are_no_figures_to_compare() -> None:
    """`queuecontroller.enabled` of KAI's chart; nodes and limits are compared all the same."""
    accounts = KaiAccounts.of_two_nodes(limit=1)
    accounts.run("w1", 2)
    del accounts.pod_groups[0]["status"]
    lines = accounts.findings()
    assert states(lines) == ["problem", "unknown"]
    assert lines[0].startswith('problem: queue "team-b" has a limit of 1 GPU, and its pods request 2 GPUs')
    assert lines[1].startswith("unknown: KAI has written no figures")


@pytest.mark.parametrize("amount", ["1e999", "1e400", "none"])
def test_a_figure_that_no_number_holds_is_unknown(amount: str) -> None:
    """The pattern of quantities in KAI's definitions has no bound of the exponent."""
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("w1", 2)
    accounts.add_up().pod_groups[0]["status"]["resourcesStatus"]["allocated"][GPU] = amount
    assert "problem" not in states(accounts.findings())


def test_queues_in_a_circle_are_read() -> None:
    accounts = KaiAccounts.of_two_nodes()
    accounts.run("w1", 2)
    accounts.add_up()
    accounts.queues[0]["spec"] = {"parentQueue": "team-b", "resources": {"gpu": {"limit": 1}}}
    assert accounts.findings()


def test_a_cluster_of_thousands_of_pods_is_read_in_linear_time() -> None:
    accounts = KaiAccounts.of_two_nodes(limit=1)
    for number in range(4000):
        accounts.run(f"s{number}", fraction="0.5", group=f"g{number}")
    reading = accounts.add_up().reading()
    began = time.thread_time()
    evaluation = evaluate(reading)
    assert len(list(persistent_findings(evaluation, evaluation))) == 2
    assert time.thread_time() - began < 1
