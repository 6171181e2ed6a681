"""KaiAccounts of KAI that differ from the pods' requests, and honest ones: each with what doctor says.

Each attack was tried on KAI's programs (0.13.4 and 0.17.0): KAI's scheduler counts the pod as nothing, or in
another queue. Each honest difference names its source in KAI's code.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from console.doctor.accounting import evaluate, persistent_findings
from tests.support.kai_accounts import GPU, KaiAccounts, node

Fields = dict[str, Any]
MIG = {"nvidia.com/mig-1g.5gb": "0"}
FITS = "ok: the requests of"
RELEASES = ("v0.9.8", "v0.13.4", "v0.17.0")


def books(limit: float | None = None) -> KaiAccounts:
    return KaiAccounts.of_two_nodes(limit=limit)


def container(gpus: int, **fields: Any) -> Fields:
    amounts = {GPU: str(gpus)}
    return {"name": f"c{gpus}", "resources": {"limits": amounts, "requests": amounts}, **fields}


def of_memory(label: str | None) -> KaiAccounts:
    """Return a cluster with a pod of gpu-memory 2000 on a node with this label."""
    made = (
        books()
        .pod("memory", fraction="0.5", counted="86850791n")
        .annotated(gpu_fraction=None, gpu_memory="2000")
    )
    made.nodes[0] = node("gpu-node-0", memory=label)
    return made


def groups(spec: list[Fields]) -> Callable[[KaiAccounts], object]:
    return lambda made: [each["spec"].update(subGroups=spec) for each in made.pod_groups]


def pair(number: int) -> str:
    return f"g{number // 2}"


DELETED = {"deletionTimestamp": "2026-11-21T12:50:00Z", "deletionGracePeriodSeconds": 3600}
TERMINATING = {"deletionTimestamp": "2026-11-21T12:00:20Z", "deletionGracePeriodSeconds": 30}
MIG_DEVICES = {"nvidia.com/mig-1g.5gb": "4"}
CLAIM = {"resourceClaims": [{"name": "a", "resourceClaimName": "a"}]}
SUBGROUP = "kai.scheduler/subgroup-name"
LIMIT = 'problem: queue "team-b" has a limit of 1 GPU, and its pods request'
NODE = "problem: node gpu-node-0 has 2 GPUs, and its pods request"
COUNTS = 'problem: the pods of queue "team-b" request'
TWO_DEVICES = {
    "labels": {"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"},
    "annotations": {"gpu-fraction-num-devices": "2"},
}
GROUP = "problem: the shares of GPU group 63ba70c6-6b9e-4365-8165-0956d8d5f9f1 on node gpu-node-0 add up to"
SIDECARS = {"initContainers": [container(1, restartPolicy="Always"), container(1)]}
UNKNOWN_MEMORY = [
    'unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/memory (unknown memory of its node)',
    'unknown: the sum of 1 node is unknown: "gpu-node-0"; pods: team-b/memory (unknown memory of its node)',
    "ok: the requests of 1 pod add up to KAI's figures in 2 queues and fit on 1 node",
]
OF_INIT = {
    "initContainers": [container(1, restartPolicy="Always")],
    "containers": [{"name": "main", "resources": {}}],
}

CASES: list[tuple[KaiAccounts, list[str], tuple[str | None, ...]]] = [
    # attacks
    (books().pod("w1", 2, annotations=MIG).pod("x1", 2), [f'{NODE} 4 GPUs: team-b/w1, team-b/x1'], RELEASES),
    (books(1).pod("w", 1, many=3, node=lambda n: f"gpu-node-{n % 2}", annotations=lambda n: MIG if n else {}, counted="1"), [f"{LIMIT} 3 GPUs; KAI's status has 3 GPUs: team-b/w0, team-b/w1, team-b/w2"], ()),
    (books(1).pod("w", 1, many=3, node=lambda n: f"gpu-node-{n % 2}", annotations=lambda n: MIG if n else {}, counted="0"), [f"{COUNTS} 3 GPUs, and KAI counts 0 GPUs", f"{LIMIT} 3 GPUs; KAI's status has 0 GPUs: team-b/w0, team-b/w1, team-b/w2"], ()),
    (books(1).pod("s", many=4, fraction="0.5", annotations=MIG), [f"{LIMIT} 2 GPUs", f"{GROUP} 2 GPUs: team-b/s0"], ()),
    (books(1).pod("s", many=4, fraction="0.5", group=pair, spec=CLAIM), [f"{LIMIT} 2 GPUs", 'unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/s0 (resource claims)'], ()),
    (books().pod("w1", 2, queue="team-a", annotations=MIG).pod("w2", 2, node="gpu-node-1").edit(lambda made: made.queues[0]["spec"].update(resources={"gpu": {"limit": 3}})), ['problem: queue "department" has a limit of 3 GPUs, and its pods request 4 GPUs;'], ()),
    (books(1).pod("s", many=4, fraction="0.5", group=pair, labels=lambda n: {SUBGROUP: "foo"} if n < 2 else {}), [f"{LIMIT} 2 GPUs; KAI's status has 2 GPUs: team-b/s0, team-b/s1, team-b/s2, team-b/s3", 'problem: 2 pods with GPUs in a subgroup that the PodGroup lacks, which KAI counts in no queue: team-b/s0 (subgroup "foo"), team-b/s1 (subgroup "foo")'], RELEASES),
    # A RayCluster's groupName edited: the running pods keep their label.
    (books().pod("worker", 1, labels={SUBGROUP: "workers"}).pod("head", 1, labels={SUBGROUP: "head"}).edit(groups([{"name": "head", "minMember": 1}, {"name": "new", "parent": "all"}])), ['problem: 1 pod with GPUs in a subgroup that the PodGroup lacks, which KAI counts in no queue: team-b/worker (subgroup "workers")'], ()),
    (books().pod("worker", 1, labels={SUBGROUP: "all"}).edit(groups([{"name": "all"}, {"name": "head", "parent": "all"}])), ['problem: 1 pod with GPUs in a subgroup that the PodGroup lacks, which KAI counts in no queue: team-b/worker (subgroup "all")'], ()),
    (books().pod("r", 2, many=4, labels={"app": "kai-resource-reservation"}), [f"{NODE} 8 GPUs: team-b/r0, team-b/r1"], ()),
    # KAI's status follows a changed annotation at once.
    (books(1).pod("s1", fraction="0.9").pod("s2", fraction="0.5"), [f"{LIMIT} 1.4 GPUs", f"{GROUP} 1.4 GPUs: team-b/s1, team-b/s2"], ()),
    # KAI's scheduler finds PodGroups by name alone; its status looks in the pod's namespace.
    (books().pod("theirs", 1, namespace="team-a", queue="team-a").pod("borrower", 1, ungrouped=True).annotated(pod_group_name="pg-theirs"), [f"{COUNTS} 1 GPU, and KAI counts 0 GPUs: team-b/borrower"], ()),
    # The owner of the PodGroups was deleted under the pods.
    (books(1).pod("g0", 1).pod("g1", 1, ungrouped=True, node="gpu-node-1").pod("g2", 1, ungrouped=True), [f"{COUNTS} 3 GPUs, and KAI counts 1 GPU: team-b/g1, team-b/g2", f"{LIMIT} 3 GPUs; KAI's status has 1 GPU: team-b/g0, team-b/g1, team-b/g2"], ()),
    # `calculatedAllocatedResources` of `metadata/pod.go` adds up spec.containers only.
    (books(1).pod("x", 1, many=3, counted="0", spec=OF_INIT), [f"{LIMIT} 3 GPUs", f"{NODE} 3 GPUs"], ()),
    (books().pod("lost", 1, ungrouped=True, metadata={"labels": {}}).annotated(pod_group_name="none"), ['problem: 1 pod with GPUs in queues that do not exist: team-b/lost; queues: "default-queue"'], ()),
    (books(1).pod("slow", 1, metadata=DELETED).pod("next", 1), ["warning: 1 deleted pod with GPUs, which KAI no longer counts in a queue: team-b/slow (10 min ago)"], ()),
    (books(1).pod("slow", 1, metadata={**DELETED, "deletionTimestamp": "2026-11-21T12:58:00Z"}).pod("next", 1), [FITS], ()),
    *(
        (books().pod("slow", 1, metadata={**DELETED, "deletionGracePeriodSeconds": seconds}), ["warning: 1 deleted pod with GPUs, which KAI no longer counts in a queue: team-b/slow (365 d ago)"], ())
        for seconds in (1 << 62, -(1 << 62), 1 << 40)
    ),
    # Such a pod runs, and its PodGroup never gets a status.
    *(
        (books().pod("hex", fraction=text, counted="0"), [f"{COUNTS} 0.5 GPUs, and KAI counts 0 GPUs: team-b/hex"], (version,))
        for text, version in (("0x1p-1", "v0.9.8"), ("0.5_0", "v0.13.4"))
    ),
    # KAI's status counts a share only with the value Fraction (`received.go`).
    (books().pod("s1", fraction="0.5", counted="0", annotations={"received-resource-type": "Regular"}), [f"{COUNTS} 0.5 GPUs, and KAI counts 0 GPUs: team-b/s1"], ()),
    (books().pod("claim", spec={"resourceClaims": [{"name": "gpu"}]}).pod("s1", fraction="0.5", counted="0"), [f"{COUNTS} 0.5 GPUs, and KAI counts 0 GPUs: team-b/s1", 'unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/claim (resource claims)'], ()),
    # differences that KAI makes by itself
    # 2 × 0.3 is 0.3 in `Queue.status` (`fraction.go`, calculateAllocatedFraction), and 0.6 for the scheduler.
    (books(0.6).pod("two", fraction="0.3", **TWO_DEVICES).edit(lambda made: made.pods[0]["metadata"]["labels"].pop("runai-gpu-group")), [FITS], ()),
    (books(0.5).pod("two", fraction="0.3", **TWO_DEVICES).edit(lambda made: made.pods[0]["metadata"]["labels"].pop("runai-gpu-group")), ['problem: queue "team-b" has a limit of 0.5 GPUs'], ()),
    # `getFractionFromMemoryRequest` of `fraction.go`: 2000/23028, not 2000/23000.
    (of_memory("23028"), [FITS], ()),
    # KAI's podgroupcontroller cannot count it either (`getNodeSingleGpuMemory`).
    *((of_memory(label), UNKNOWN_MEMORY, ()) for label in (None, "", "many", "50")),
    # The scheduler compares units of memory rounded down to hundreds (`node_info.go`, GetResourceGpuMemory):
    # 8 × 0.125 is one GPU, and 8 × 0.13 in the queue.
    (books(2).pod("s", many=8, fraction="0.125"), [FITS], ()),
    (books(2).pod("s", many=8, fraction="0.125").pod("s9", fraction="0.02"), [f"{GROUP} 1.0"], ()),
    # `GPUs()` of `gpu_resource_requirment.go` rounds 0.004 to 0; the status counts 4m each.
    (books(0).pod("s", many=4, fraction="0.004"), [FITS], ()),
    (books(2).pod("sidecar", 1, counted="1", spec=SIDECARS), [FITS], ()),
    # `isAllocatedPod` of `metadata/pod.go`; it reads no deletionTimestamp.
    *((books(1).pod("done", 2, counted="0", annotations=MIG, status={"phase": phase}), ["ok: the requests of 0 pods add up to KAI's figures in 3 queues and fit on 2 nodes"], ()) for phase in ("Succeeded", "Failed")),
    (books(1).pod("waiting", 2, counted="0", status={"phase": "Pending"}, spec={"nodeName": ""}), [FITS], ()),
    (books(1).pod("old", 1, metadata=TERMINATING).pod("new", 1), [FITS], ()),
    # KAI's status sums each resource name for itself (`resources.go`, SumResources).
    (books().pod("mig", counted="0", spec={"containers": [{"name": "m", "resources": {"limits": MIG_DEVICES, "requests": MIG_DEVICES}}]}).edit(lambda made: made.pod_groups[0]["status"]["resourcesStatus"].update(allocated=MIG_DEVICES)), [FITS], ()),
    # KAI adds the devices of claims to nvidia.com/gpu (`pod.go`, DRAGPUResourceListFromClaims; not v0.9.8).
    *(
        (books().pod("claim", counted="2", **fields).pod("other", 1, queue="team-a", namespace="team-a"), ['unknown: the sum of 1 queue is unknown: "team-b"; pods: team-b/claim (resource claims)', "ok: the requests of 2 pods add up to KAI's figures in 2 queues and fit on 2 nodes"], ())
        for fields in ({"spec": CLAIM}, {"status": {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "x"}}})
    ),
    # Replicas count as GPUs. A GPU that fails leaves allocatable, not capacity, and its pod runs on.
    (books().pod("w", 1, many=8).edit(lambda made: made.nodes.__setitem__(0, node("gpu-node-0", 8))), [FITS], ()),
    (books().pod("w", 1, many=2).edit(lambda made: made.nodes.__setitem__(0, node("gpu-node-0", 2, allocatable={GPU: "1"}))), [FITS], ()),
    (books().pod("w1", 1).edit(lambda made: made.nodes.__setitem__(0, node("gpu-node-0", 0))), ['unknown: the sum of 1 node is unknown: "gpu-node-0"; pods: team-b/w1 (the node reports no GPU)', "ok: the requests of 1 pod add up to KAI's figures in 3 queues and fit on 1 node"], ()),
    (books(0).pod("other", 1, fraction="0.5", ungrouped=True, spec={"schedulerName": "default-scheduler"}), [FITS], ()),
    (books(0).pod("other", 1, fraction="0.5", ungrouped=True, spec={"schedulerName": "default-scheduler"}).pod("more", 2, queue="team-a"), [f"{NODE} 3 GPUs"], ()),
    # 2^63 passes admission and is bound without a GPU.
    (books().pod("huge", counted="0").annotated(gpu_memory="9223372036854775808"), [FITS], ()),
    # -1 is no limit (`resources.go` of the queue's API).
    (books(-1).pod("w1", 2), [FITS], ()),
]  # fmt: skip


@pytest.mark.parametrize(("accounts", "expected", "versions"), CASES)
def test_books_and_requests(
    accounts: KaiAccounts, expected: list[str], versions: tuple[str | None, ...]
) -> None:
    for version in versions or ("v0.17.0",):
        lines = accounts.add_up().findings(version)
        assert len(lines) == len(expected), lines
        assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


def test_without_kais_controllers_there_are_no_figures_to_compare() -> None:
    """`queuecontroller.enabled` of KAI's chart; nodes and limits are compared all the same."""
    accounts = books(1).pod("w1", 2)
    del accounts.pod_groups[0]["status"]
    limit, figures = accounts.findings()
    assert limit.startswith(f"{LIMIT} 2 GPUs")
    assert figures.startswith("unknown: KAI has written no figures")


@pytest.mark.parametrize("amount", ["1e999", "1e400", "none"])
def test_a_figure_that_no_number_holds_is_unknown(amount: str) -> None:
    """The pattern of quantities in KAI's definitions has no bound of the exponent."""
    accounts = books().pod("w1", 2).add_up()
    accounts.pod_groups[0]["status"]["resourcesStatus"]["allocated"][GPU] = amount
    assert not [line for line in accounts.findings() if line.startswith("problem")]


def test_queues_in_a_circle_are_read() -> None:
    accounts = books().pod("w1", 2).add_up()
    accounts.queues[0]["spec"] = {"parentQueue": "team-b", "resources": {"gpu": {"limit": 1}}}
    assert accounts.findings()


def test_thousands_of_pods_and_texts_of_tenants_are_bounded() -> None:
    accounts = books(1).pod("s", many=4000, fraction="0.5", group=lambda number: f"g{number}")
    reading = accounts.add_up().reading()
    began = time.thread_time()
    evaluation = evaluate(reading)
    assert len(list(persistent_findings(evaluation, evaluation))) == 2
    assert time.thread_time() - began < 1
    names = {"labels": {SUBGROUP: "s" * 63}, "group": "\N{RIGHT-TO-LEFT OVERRIDE}"}
    texts = lambda number: {f"nvidia.com/mig-{'x' * 250}{number}": "\x1b[31m\n" * 1000}  # noqa: E731
    hostile = books(1).pod("p", 2, many=300, annotations=texts, **names)
    evaluation = evaluate(hostile.add_up().reading())
    findings = list(persistent_findings(evaluation, evaluation))
    assert len(findings) == 3
    assert all(finding.what.isprintable() and len(finding.what) < 2500 for finding in findings)
