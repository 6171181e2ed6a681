"""The evidence that a pod is a rank of a distributed job, row by row of the table in the code."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kai.command_lines import LONGEST_COMMAND_LINE
from kai.kaishare_keys import SIZE
from tests.support.decisions import decide, policy_of
from tests.support.pods import container, gpu_container, pod, view
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.distributed import (
    CLUSTER,
    JAX_PROCESSES,
    JOB_SET,
    KUEUE_COUNT,
    KUEUE_GROUP,
    KUEUE_SERVING,
    LWS_SIZE,
    MOST_RANKS,
    MPI_OPERATOR,
    MPI_OPERATOR_NAME,
    VARIABLES,
    Evidence,
    evidence_of,
)
from webhook.policy.reasons import LONGEST_WARNING, Clipped, Finding, Reason

HALF = {"kaishare.dev/gpu-fraction": "0.5"}
LONG = "x" * 63


def variables(**values: Any) -> list[dict[str, Any]]:
    """Return environment variables; a value that is not a string becomes a reference to a field."""
    reference = {"fieldRef": {"fieldPath": "metadata.name"}}
    return [
        {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": reference}
        for name, value in values.items()
    ]


def rank(
    *command: str, env: Any = (), owner: str | None = None, others: Any = (), **fields: Any
) -> dict[str, Any]:
    """Return a pod with a whole GPU in its first container, owned by a kind of `kubeflow.org`."""
    if owner is not None:
        reference = {"apiVersion": "kubeflow.org/v1", "kind": owner, "name": "job"}
        fields["metadata"] = {"ownerReferences": [reference]}
    first = gpu_container(env=list(env))
    if command:
        first["command"] = list(command)
    return pod(first, *others, **fields)


def evidence_text(document: dict[str, Any]) -> str | None:
    """Return the evidence of a pod as text."""
    read = view(document)
    evidence = evidence_of(read, read.containers[0])
    return None if evidence is None else str(evidence)


def fields_of(part: str, name: str) -> dict[str, Any]:
    return {part: {name: "3"}}


def cluster(**tasks: Any) -> list[dict[str, Any]]:
    return variables(TF_CONFIG=json.dumps({"cluster": tasks, "task": {"type": "worker", "index": 0}}))


def kueue(count: str, **annotations: str) -> dict[str, Any]:
    return rank(labels={KUEUE_GROUP: "group"}, annotations={KUEUE_COUNT.name: count, **annotations})


@pytest.mark.parametrize("name", [row.name for row in VARIABLES])
def test_a_variable_of_a_launcher(name: str) -> None:
    def of(value: str | None) -> str | None:
        return evidence_text(rank(env=variables(**{name: value})))

    workload = "a LeaderWorkerSet of {} ranks" if name == "LWS_GROUP_SIZE" else f"{name} is {{}}"
    for value, ranks in (("2", "2"), ("64", "64"), ("1:4", "4"), ("2:2", "2"), ("007", "7"), (str(MOST_RANKS), str(MOST_RANKS))):  # fmt: skip
        assert of(value) == workload.format(ranks), value
    harmless: tuple[str | None, ...] = ("1", "1:1", "0", "", str(MOST_RANKS + 1), "9" * 4000, "two", "2.0", "-2", " 2", "2\n", "1:2:3", "٣", None)  # fmt: skip
    for value in harmless:
        assert of(value) is None, value
    assert evidence_text(rank(others=[container("side", env=variables(**{name: "4"}))])) is None
    assert evidence_text(rank(init=[container("first", env=variables(**{name: "4"}))])) is None


TABLE: list[tuple[str, dict[str, Any], str | None]] = [
    ("nothing", rank(), None),
    ("the last of one name counts: 1", rank(env=[*variables(WORLD_SIZE="4"), *variables(WORLD_SIZE="1")]), None),
    ("the last of one name counts: 4", rank(env=[*variables(WORLD_SIZE="1"), *variables(WORLD_SIZE="4")]), "WORLD_SIZE is 4"),
    ("the last of one name is a reference", rank(env=[*variables(WORLD_SIZE="4"), *variables(WORLD_SIZE=None)]), None),
    ("the larger of two names", rank(env=variables(WORLD_SIZE="8", PET_NNODES="2")), "WORLD_SIZE is 8"),
    ("names of other types", rank(env=[{"name": ["RANK"]}, {"name": {}}, {"name": None}, {}, 5, None]), None),
    ("MASTER_ADDR and RANK", rank(env=variables(MASTER_ADDR="a", RANK="0")), "MASTER_ADDR and RANK are set"),
    ("RANK by reference", rank(env=variables(MASTER_ADDR="a", RANK=None)), "MASTER_ADDR and RANK are set"),
    ("RANK alone", rank(env=variables(RANK="0")), None),
    ("MASTER_ADDR, RANK and WORLD_SIZE 1", rank(env=variables(MASTER_ADDR="a", RANK="0", WORLD_SIZE="1")), None),
    ("a PyTorchJob", rank(owner="PyTorchJob", env=variables(WORLD_SIZE="4")), "a PyTorchJob of 4 ranks"),
    ("a PyTorchJob of one rank", rank(owner="PyTorchJob", env=variables(WORLD_SIZE="1", RANK="0", MASTER_ADDR="a")), None),
    ("a PyTorchJob without a number", rank(owner="PyTorchJob"), None),
    ("an elastic PyTorchJob", rank(owner="PyTorchJob", env=variables(PET_NNODES="1:3")), "a PyTorchJob of 3 ranks"),
    ("an XGBoostJob", rank(owner="XGBoostJob", env=variables(WORLD_SIZE="3")), "an XGBoostJob of 3 ranks"),
    ("a PaddleJob", rank(owner="PaddleJob", env=variables(PADDLE_NNODES="2")), "a PaddleJob of 2 ranks"),
    ("a JAXJob", rank(owner="JAXJob", env=variables(NUM_PROCESSES="2")), "a JAXJob of 2 ranks"),
    ("a JAXJob of one process", rank(owner="JAXJob", env=variables(NUM_PROCESSES="1")), None),
    ("NUM_PROCESSES elsewhere", rank(env=variables(NUM_PROCESSES="2")), None),
    ("an unknown kind of the operator's group", rank(owner="x" * 4000, env=variables(WORLD_SIZE="2")), "WORLD_SIZE is 2"),
    ("an MPIJob", rank(owner="MPIJob"), "an MPIJob"),
    ("an MPIJob with a number", rank(owner="MPIJob", env=variables(OMPI_COMM_WORLD_SIZE="2")), "an MPIJob of 2 ranks"),
    ("an MPIJob with a number of 1", rank(owner="MPIJob", env=variables(WORLD_SIZE="1")), "an MPIJob"),
    ("the launcher of an MPIJob", rank(labels={MPI_OPERATOR.name: MPI_OPERATOR_NAME}), "an MPIJob"),
    ("another operator's label", rank(labels={MPI_OPERATOR.name: "pytorchjob-controller"}), None),
    ("an MPIJob of another group", pod(gpu_container(), metadata={"ownerReferences": [{"apiVersion": "example.com/v1", "kind": "MPIJob", "name": "a"}]}), None),
    ("a TFJob", rank(owner="TFJob", env=cluster(ps=["a"], worker=["b", "c"])), "a TFJob of 3 tasks"),
    ("a TFJob with dynamic workers", rank(owner="TFJob", env=cluster(ps=None, worker={"0": "a"})), "a TFJob"),
    ("a TF_CONFIG by hand", rank(env=cluster(worker=["b", "c"])), "a TF_CONFIG of 2 tasks"),
    ("a TF_CONFIG with dynamic workers", rank(env=cluster(worker={"0": "a"})), "TF_CONFIG has dynamic workers"),
    ("a TF_CONFIG of one task", rank(env=cluster(worker=["b"])), None),
    ("a TF_CONFIG of 1500 tasks", rank(env=cluster(worker=[f"{LONG}-{n}.{LONG}.svc:2222" for n in range(1500)])), "a TF_CONFIG of 1500 tasks"),
    ("a TF_CONFIG without tasks", rank(env=cluster()), None),
    ("a TF_CONFIG beyond any object", rank(env=variables(TF_CONFIG=json.dumps({"cluster": {"worker": ["a" * 600_000] * 2}}))), None),
    ("a TF_CONFIG that is no JSON", rank(env=variables(TF_CONFIG="{cluster")), None),
    ("a TF_CONFIG whose tasks are no texts", rank(env=cluster(worker=[[], []])), None),
    ("a TF_CONFIG of another shape", rank(env=variables(TF_CONFIG='{"cluster": {"worker": 4}}')), None),
    ("a TF_CONFIG that is nested deep", rank(env=variables(TF_CONFIG='{"cluster": ' + "[" * 50_000)), None),
    ("a LeaderWorkerSet", rank(annotations={LWS_SIZE.name: "2"}), "a LeaderWorkerSet of 2 ranks"),
    ("a LeaderWorkerSet of 1", rank(annotations={LWS_SIZE.name: "1"}), None),
    ("a Kueue group", kueue("2"), "a Kueue group of 2 pods"),
    ("a Kueue group of 1", kueue("1"), None),
    ("a Kueue group that serves", kueue("2", **{KUEUE_SERVING: "true"}), None),
    ("a Kueue group that does not serve", kueue("2", **{KUEUE_SERVING: "false"}), "a Kueue group of 2 pods"),
    ("Kueue's annotation without its label", rank(annotations={KUEUE_COUNT.name: "2"}), None),
    *[(f"{row.name}, {part}", pod(gpu_container(), **fields_of(part, row.name)), "a JobSet of 3 jobs") for row in JOB_SET for part in ("labels", "annotations")],
    ("a JobSet of one job", rank(labels={row.name: "1" for row in JOB_SET}, annotations={row.name: "1" for row in JOB_SET}), None),
    ("a TrainJob of one node", rank(env=variables(PET_NNODES="1"), labels={JOB_SET[1].name: "3"}), None),
    ("a TrainJob of two nodes", rank(env=variables(PET_NNODES="2"), labels={JOB_SET[1].name: "3"}), "PET_NNODES is 2"),
    ("torchrun with =", rank("torchrun", "--nnodes=2", "train.py"), "torchrun's --nnodes is 2"),
    ("torchrun with a blank", rank("torchrun", "--nnodes", "2", "train.py"), "torchrun's --nnodes is 2"),
    ("torchrun with a range", rank("torchrun", "--nnodes=1:4", "train.py"), "torchrun's --nnodes is 4"),
    ("torchrun on one node", rank("torchrun", "--nnodes=1", "train.py"), None),
    ("torchrun alone", rank("torchrun", "--standalone", "train.py"), None),
    ("torchrun with a reference", rank("torchrun", "--nnodes=$(NODES)", "train.py"), None),
    ("torchrun in a shell with =", rank("sh", "-c", "cd /x && torchrun --nnodes=2 train.py"), "torchrun's --nnodes is 2"),
    ("torchrun in a shell with a blank", rank("/bin/bash", "-lc", "exec /opt/bin/torchrun --nnodes 2 train.py"), "torchrun's --nnodes is 2"),
    ("the module of torchrun", rank("python3", "-m", "torch.distributed.run", "--nnodes=2"), "torchrun's --nnodes is 2"),
    ("the older module", rank("python", "-m", "torch.distributed.launch", "--nnodes", "2"), "torchrun's --nnodes is 2"),
    ("another program", rank("launch", "--nnodes=2", "torch.py"), None),
    ("torchrun in a container without GPU", rank(others=[container("side", command=["torchrun", "--nnodes=2"])]), None),
    ("an Indexed Job", rank(labels={"batch.kubernetes.io/job-completion-index": "3"}, annotations={"batch.kubernetes.io/job-completion-index": "3"}), None),
    ("a StatefulSet", rank(labels={"apps.kubernetes.io/pod-index": "3"}), None),
    ("a RayCluster", rank(labels={"ray.io/cluster": "a", "ray.io/node-type": "worker"}), None),
    ("a Volcano Job", rank(labels={"volcano.sh/job-name": "a", "volcano.sh/task-index": "1"}, annotations={"scheduling.k8s.io/group-name": "g"}), None),
    ("Spark", rank(labels={"spark-role": "executor", "spark-app-selector": "a"}), None),
    ("Grove", rank(labels={"grove.io/podgang": "a", "grove.io/podclique": "b"}), None),
]  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case[0])
def test_the_evidence_of_a_pod(case: tuple[str, dict[str, Any], str | None]) -> None:
    _, document, expected = case
    assert evidence_text(document) == expected


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (["/bin/bash", "-euo", "pipefail", "-c", "torchrun --nnodes=4 t.py"], 4),
        (["bash", "-o", "pipefail", "-c", "torchrun --nnodes 4 t.py"], 4),
        (["bash", "-ce", "torchrun --nnodes=4 t.py"], 4),
        (["bash", "-c", "torchrun --node_rank=${HOSTNAME##*-} --nnodes=4 t.py"], 4),
        (["torchrun", "--nnodes=4", "--no-python", "bash", "-c", "python t.py"], 4),
        (["torchrun", "--nnodes=4", "train.py", "--nnodes=1"], 4),
        (["torchrun", "--nnodes=1", "train.py", "--nnodes", "8"], None),
        (["torchrun", "--standalone", "train.py", "--nnodes=8"], None),
        (["torchrun", "--nproc_per_node", "1", "--nnodes", "2", "train.py"], 2),
        (["python", "-m", "torch.distributed.run", "--nnodes=1:3", "-m", "train", "--nnodes=1"], 3),
        (["bash", "-c", "torchrun --nnodes=4 a.py && torchrun --nnodes=1 b.py"], 4),
        (["sh", "-c", "cd /x;torchrun --nnodes=4 a.py"], 4),
        (["sh", "-c", "(torchrun --nnodes=4 a.py)"], 4),
        (["sh", "-c", "torchrun --nnodes=4&"], 4),
        (["torchrun", "--nnode=4", "a.py"], 4),
        (["torchrun", "--nnodes=$(NODES)", "a.py"], 3),
        (["sh", "-c", "torchrun --nnodes=$NODES a.py"], 3),
        (["sh", "-c", "torchrun --nnodes=${NODES} a.py"], 3),
        (["sh", "-c", "torchrun --nnodes=$OTHER a.py"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_torchruns_own_option_counts(command: list[str], ranks: int | None) -> None:
    worker = gpu_container(command=command, env=[{"name": "NODES", "value": "3"}])
    document = view(pod(worker))
    evidence = evidence_of(document, document.containers[0])
    assert (evidence.ranks if evidence else None) == ranks


def test_long_values_of_references_do_not_lengthen_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def measured(words: Sequence[str]) -> Sequence[str]:
        read.append(sum(map(len, words)))
        return words

    monkeypatch.setattr("webhook.policy.distributed.script_words", measured)
    script = "torchrun " + "$A" * 8000
    worker = gpu_container(command=["sh", "-c", script], env=[{"name": "A", "value": "x" * 16}])
    document = view(pod(worker))
    assert evidence_of(document, document.containers[0]) is None
    assert read
    assert max(read) <= LONGEST_COMMAND_LINE


ALL_EVIDENCE = [
    *(
        Evidence(row.workload or row.name, MOST_RANKS, row.unit)
        for row in (*VARIABLES, JAX_PROCESSES, CLUSTER, LWS_SIZE, KUEUE_COUNT, *JOB_SET)
    ),
    Evidence("an XGBoostJob", MOST_RANKS),
    Evidence("torchrun's --nnodes", MOST_RANKS),
    Evidence("MASTER_ADDR and RANK are set"),
    Evidence("TF_CONFIG has dynamic workers"),
]


@pytest.mark.parametrize("evidence", ALL_EVIDENCE, ids=str)
def test_warnings_of_any_evidence_keep_their_remedy(evidence: Evidence) -> None:
    where = Clipped("on the namespace shares them")
    details = {"container": Clipped(LONG), "evidence": str(evidence), "where": where}
    kept = Finding(Reason.DISTRIBUTED, details).warning
    assert f" keeps its whole GPU: {evidence}; kaishare.dev/distributed=share " in kept
    hint = Finding(Reason.RANKS_MAY_MEET, {"evidence": str(evidence)}).warning
    assert hint.endswith("use whole GPUs")
    assert max(len(kept), len(hint)) <= LONGEST_WARNING


SIZES = {
    "size.kaishare.dev/train": "0.25",
    "size.kaishare.dev/other": "0.75",
    "size.kaishare.dev/whole": "1",
    "size.kaishare.dev/broken": "7",
}
SELECTORS = {
    "size.kaishare.dev/train": "app in (a,b)",
    "size.kaishare.dev/other": "app in (b)",
    "size.kaishare.dev/whole": "app=whole",
}
BY_SIZE: list[tuple[str, dict[str, str], str, list[str]]] = [
    ("no size", {}, "distributed", ["distributed"]),
    ("a selector", {"app": "a"}, "distributed", ["distributed"]),
    ("two selectors", {"app": "b"}, "distributed", ["distributed"]),
    ("the selector of a whole GPU", {"app": "whole"}, "size-whole-gpu", []),
    ("a named size", {SIZE: "train"}, "whole-gpu-converted", ["whole-gpu-converted", "ranks-may-meet"]),
    ("a named size of a whole GPU", {SIZE: "whole"}, "size-whole-gpu", []),
    ("an unknown size", {SIZE: "none"}, "size-unknown", ["size-unknown"]),
    ("an invalid size", {SIZE: "broken"}, "policy-invalid", ["policy-invalid"]),
]


@pytest.mark.parametrize("case", BY_SIZE, ids=lambda case: case[0])
def test_a_named_size_beats_the_evidence(case: tuple[str, dict[str, str], str, list[str]]) -> None:
    _, labels, reason, warnings = case
    policy = policy_of({"kai.scheduler/queue": "q", **HALF, **SIZES}, SELECTORS)
    document = rank(env=variables(WORLD_SIZE="4"), labels=labels)
    decision = decide(policy, document, DecisionSettings())
    assert decision.reason.code == reason
    assert [warning.reason.code for warning in decision.warnings] == warnings
    without = decide(policy, rank(labels=labels), DecisionSettings())
    assert without.reason is not Reason.DISTRIBUTED
    if labels.get("app") == "b":
        assert without.reason is Reason.SIZE_AMBIGUOUS


def test_a_rank_that_names_a_size_without_a_gpu_gets_the_hint() -> None:
    policy = policy_of({"kai.scheduler/queue": "q", **SIZES})
    document = pod(container(env=variables(WORLD_SIZE="4")), labels={SIZE: "train"})
    decision = decide(policy, document, DecisionSettings())
    assert decision.reason is Reason.SHARE_INJECTED
    assert [warning.reason for warning in decision.warnings] == [Reason.RANKS_MAY_MEET]
