"""A node's labels and capacity: missing GPUs, cards of another size, and plugins that share GPUs."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.node_pods import gpus_offered
from gpuagent.pods.objects import Node, NodeStatus
from gpuagent.shares.placement import is_time_sliced
from gpuagent.verdicts.node_labels import label_problems
from tests.support.inventories import built
from tests.support.kube_objects import GPU_0, fraction, node, pod, reservation, uid
from tests.support.sample_pipeline import Pipeline
from tests.support.samples import A, B, gpu, sample, snapshot_of

COUNT, MEMORY = "nvidia.com/gpu.count", "nvidia.com/gpu.memory"
GKE = "cloud.google.com/gke-gpu-sharing-strategy"
CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"


def snapshot(*uuids: str, lost: tuple[LostGpu, ...] = (), **fields: Any) -> Snapshot:
    gpus = [gpu(uuid=uuid, index=number, **fields) for number, uuid in enumerate(uuids)]
    return replace(snapshot_of(sample(*gpus)), lost_gpus=lost)


def inventory(offered: int = 0, **labels: str) -> Inventory:
    return Inventory(node_labels=labels, offered_gpus=offered)


def told(inventory: Inventory, snapshot: Snapshot) -> dict[str, str]:
    return {problem.cause: problem.detail for problem in label_problems(inventory, snapshot)}


@pytest.mark.parametrize(
    ("given", "seen", "is_missing"),
    [
        pytest.param(inventory(**{COUNT: "2"}), snapshot(A), True, id="after a restart the driver lists one of two"),
        pytest.param(inventory(**{COUNT: "2"}), snapshot(A, lost=(LostGpu(1, B),)), True, id="before it, too: the driver no longer lists it"),
        pytest.param(inventory(**{COUNT: "2"}), snapshot(A, lost=(LostGpu(1, B, error="GpuIsLost"),)), False, id="a lost GPU is listed, and has a problem of its own"),
        pytest.param(inventory(**{COUNT: "2"}), snapshot(A, B), False, id="all are there"),
        pytest.param(inventory(**{COUNT: "1"}), snapshot(A, B), False, id="more than the label"),
        pytest.param(inventory(8, **{COUNT: "1"}), snapshot(A), False, id="the label comes before the capacity"),
        pytest.param(inventory(2), snapshot(A), True, id="without the label the capacity counts"),
        pytest.param(inventory(3), snapshot(A, B), True, id="no multiple"),
        pytest.param(inventory(20), snapshot(A, B), False, id="a multiple: the plugin may share GPUs"),
        pytest.param(inventory(3, **{GKE: "mps"}), snapshot(A, B), False, id="GKE shares GPUs"),
        pytest.param(inventory(), snapshot(A), False, id="nothing is known"),
        pytest.param(inventory(**{COUNT: "7"}), snapshot(A, mig=True), False, id="MIG devices"),
    ],
)  # fmt: skip
def test_a_gpu_missing_in_the_driver_is_a_problem(given: Inventory, seen: Snapshot, is_missing: bool) -> None:
    assert ("gpu-missing" in told(given, seen)) is is_missing


def test_it_stands_in_every_output_and_suspends_nothing() -> None:
    seen = Pipeline(gpu_uuids=(GPU_0,))
    seen.see(node(**{COUNT: "2"}), reservation(), fraction(), used_bytes={uid(1): {GPU_0: 20 << 30}}, times=5)
    (problem,) = seen.api_shares["problems"]
    assert (problem["reason"], problem["gpuUuid"]) == ("gpu-missing", "")
    assert problem["detail"] == "the node's label nvidia.com/gpu.count says 2, and the driver lists 1 GPU"
    assert "nvidia-smi -L" in problem["firstAct"]
    assert seen.api_shares["attributionOk"] is True
    assert seen.flagged == {(uid(1), GPU_0, "over-share")}


@pytest.mark.parametrize(
    ("label", "models", "words"),
    [
        ("24576", ("A10", "A10"), None),
        ("23028", ("A10", "A10"), None),
        ("12288", ("A10", "A10"), "KAI counts 12.0 GiB for each GPU of the node"),
        ("49152", ("A10", "A10"), "GPU 0 (A10) has 24.0 GiB, GPU 1 (A10) has 24.0 GiB"),
        ("24576", ("A10", "L4"), "the node has 2 models: A10, L4"),
        ("none", ("A10", "L4"), None),
    ],
)
def test_a_label_of_another_card_is_told(label: str, models: tuple[str, str], words: str | None) -> None:
    gpus = [gpu(uuid=uuid, index=i, model=models[i]) for i, uuid in enumerate((A, B))]
    detail = told(inventory(**{MEMORY: label}), snapshot_of(sample(*gpus))).get("node-label", "")
    assert (words or "") in detail
    assert bool(detail) is (words is not None)


@pytest.mark.parametrize(
    ("status", "offered"),
    [
        (None, 0),
        (NodeStatus(), 0),
        (NodeStatus(capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "6"}), 8),
        (NodeStatus(allocatable={"nvidia.com/gpu": 4, "cpu": "9"}), 4),
        (NodeStatus(capacity={"nvidia.com/gpu": "many"}, allocatable={"nvidia.com/gpu": None}), 0),
    ],
)
def test_the_gpus_that_a_node_offers(status: NodeStatus | None, offered: int) -> None:
    assert gpus_offered(Node(metadata=None, status=status)) == offered  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "offered", "is_shared"),
    [
        ({}, 2, False), ({}, 4, True), ({GKE: "time-sharing"}, 2, True), ({CLIENTS: "2"}, 2, True),
        ({CLIENTS: "1"}, 2, False), ({"nvidia.com/gpu.replicas": "4"}, 2, True),
    ],
)  # fmt: skip
def test_pods_of_shared_gpus_are_not_accused(labels: dict[str, str], offered: int, is_shared: bool) -> None:
    """A whole GPU of such a plugin may be one that a KAI group holds; no label of NVIDIA's need say so."""
    of_node = node(**labels)
    of_node["status"] = {"capacity": {"nvidia.com/gpu": str(offered)}}
    objects = of_node, reservation(), pod("whole", gpus="1")
    assert is_time_sliced(built(*objects).inventory, 2) is is_shared
    seen = Pipeline()
    seen.see(*objects, used_bytes={uid(1): {GPU_0: 2 << 30}}, times=5)
    assert (seen.flagged == set()) is is_shared


@pytest.mark.parametrize(
    ("text", "count"),
    [("8", 8), ("0", 0), ("", None), ("-1", None), ("8 GPUs", None), ("9" * 5, None), ("\u0668", None)],
)
def test_the_label_counts_the_gpus_if_it_is_a_number(text: str, count: int | None) -> None:
    assert inventory(**{COUNT: text}).labelled_gpus == count
    assert Inventory().labelled_gpus is None
