"""GPUs and processes made up from the pods that KAI placed, without a cluster."""

import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import DriverReplaced, Gpu, GpuReading
from gpuagent.pods.inventory import Inventory
from gpuagent.problems import Cause
from gpuagent.sampling.processes import Processes
from gpuagent.simulation.simulated_cluster import (
    DEFAULT_BYTES,
    MOST_GPUS,
    ClusterGpus,
    NodeGpus,
    driver_of_this_node,
    percent_of_share,
)
from kai.kaishare_keys import SIMULATE
from service.log import JsonLog
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_1,
    NODE,
    bind_request,
    fraction,
    node,
    pod,
    reservation,
    uid,
)
from tests.support.nvml_stub.build import built_library

MIB = 1 << 20
TOTAL = 23028 * MIB
HALF = 11500 * MIB  # of an A10, as KAI counts it
COUNT = "nvidia.com/gpu.count"


class Pods:
    """A source of pods that a test sets."""

    inventory: Inventory | None = None

    def seconds_since_contact(self) -> float:
        return 0.0

    async def run(self) -> None:
        raise NotImplementedError


class Simulated:
    """A simulated node, its pods and its log."""

    def __init__(self, folder: Path) -> None:
        self.stream = BytesIO()
        self.proc = folder / "real-proc"
        self.proc.mkdir()
        self.now = 0.0
        self.pods = Pods()
        self.source = ClusterGpus(node=NODE, log=JsonLog(self.stream), clock=lambda: self.now, proc=self.proc)
        self.source.follow(self.pods)
        self.processes = Processes(proc_root=self.source.proc_root)

    def show(self, *documents: dict[str, Any]) -> GpuReading:
        """Set the cluster's objects, and read."""
        self.pods.inventory = inventory(*documents)
        self.now += 5
        return self.source.read()

    def used(self, *documents: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Return the memory in bytes by GPU UUID and pod UID, as the agent attributes it."""
        reading = self.show(*documents)
        origins, problems = self.processes.look_up(reading)
        assert not problems
        return {
            gpu.uuid: {
                origins[process.pid].pod_uids[0]: process.used_bytes or 0 for process in gpu.processes or ()
            }
            for gpu in reading.gpus
        }

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Simulated]:
    made = Simulated(tmp_path)
    yield made
    made.source.close()
    assert not made.source.proc_root.exists()


LABELLED = node(**{COUNT: "2", "nvidia.com/gpu.product": "NVIDIA-A10"})
HELD = (LABELLED, reservation())


def annotated(percent: str) -> dict[str, Any]:
    return fraction(annotations={SIMULATE: percent})


# Pods and their memory.


def test_a_pod_that_kai_placed_has_one_process_within_its_share(simulated: Simulated) -> None:
    used = simulated.used(*HELD, fraction(), bind_request())
    assert used[GPU_0] == {uid(1): HALF * 80 // 100}
    assert [len(pods) for pods in used.values()] == [1, 0]


def test_the_process_keeps_its_pid_and_ends_with_its_pod(simulated: Simulated) -> None:
    first = simulated.show(*HELD, fraction()).gpus[0].processes
    second = simulated.show(*HELD, fraction(), pod("other", 2)).gpus[0].processes
    assert first == second
    assert first is not None
    folder = simulated.source.proc_root / str(first[0].pid)
    assert (folder / "comm").read_text() == "simulated\n"
    assert simulated.show(*HELD).gpus[0].processes == ()
    assert not folder.exists()
    again = simulated.show(*HELD, fraction()).gpus[0].processes
    assert again is not None
    assert again[0].pid != first[0].pid


@pytest.mark.parametrize(
    ("percent", "used"),
    [
        ("50%", HALF // 2),
        ("100%", HALF),
        ("150%", HALF * 150 // 100),
        ("1000%", TOTAL),  # a GPU holds no more than it has
    ],
)
def test_the_annotation_sets_the_memory(simulated: Simulated, percent: str, used: int) -> None:
    assert simulated.used(*HELD, annotated(percent))[GPU_0] == {uid(1): used}


def test_with_0_percent_there_is_no_process(simulated: Simulated) -> None:
    assert simulated.used(*HELD, annotated("0%"))[GPU_0] == {}


@pytest.mark.parametrize(
    "text",
    ["", "%", "50", "-1%", "+5%", "1001%", "1.5%", "5e1%", " 50%", "50%\n", "٥٠%", "9" * 4000 + "%", "over"],
)
def test_an_invalid_annotation_counts_as_none_and_is_logged_once(simulated: Simulated, text: str) -> None:
    for _ in range(3):
        assert simulated.used(*HELD, annotated(text))[GPU_0] == {uid(1): HALF * 80 // 100}
    (line,) = simulated.log_lines
    assert (line["message"], line["pod"]) == ("ignoring invalid annotation", "research/half")
    assert line["error"].endswith("is invalid; allowed: 0% to 1000%")
    assert len(line["error"]) < 200


def test_invalid_annotations_of_many_pods_have_a_limited_number_of_log_lines(simulated: Simulated) -> None:
    pods = [fraction(f"p{number}", number, annotations={SIMULATE: "x"}) for number in range(1, 101)]
    for count, lines in ((50, 20), (50, 20), (100, 40)):
        simulated.show(*HELD, *pods[:count])
        assert len({line["pod"] for line in simulated.log_lines}) == len(simulated.log_lines) == lines


def test_the_default_needs_no_annotation() -> None:
    assert percent_of_share({}) == 80


def test_a_pod_above_its_share_takes_no_memory_of_pods_within_theirs(simulated: Simulated) -> None:
    greedy = fraction("greedy", 1, annotations={SIMULATE: "1000%"})
    modest = fraction("modest", 2)
    used = simulated.used(*HELD, greedy, modest)[GPU_0]
    assert used == {uid(1): TOTAL - HALF * 80 // 100, uid(2): HALF * 80 // 100}


def of_default_scheduler() -> dict[str, Any]:
    made = pod(gpus="1")
    made["spec"]["schedulerName"] = "default-scheduler"
    return made


def test_the_utilisation_is_the_part_of_the_gpus_memory_that_the_process_holds(simulated: Simulated) -> None:
    simulated.show(*HELD, fraction(), bind_request())
    reading = simulated.show(*HELD, fraction(), bind_request())
    (process,) = reading.gpus[0].processes or ()
    percent = (process.used_bytes or 0) * 100 // TOTAL
    assert 0 < percent < 50
    assert [gpu.utilization for gpu in reading.gpus] == [{process.pid: percent}, {}]


def test_a_time_slice_is_no_whole_gpu(simulated: Simulated) -> None:
    sliced = node(**{COUNT: "2", "nvidia.com/gpu.replicas": "4"})
    assert all(not pods for pods in simulated.used(sliced, pod(gpus="1")).values())


def test_a_whole_gpu_moves_when_a_group_takes_it(simulated: Simulated) -> None:
    whole = pod("whole", 5, gpus="1")
    (first,) = (gpu for gpu, pods in simulated.used(LABELLED, whole).items() if pods)
    used = simulated.used(LABELLED, whole, reservation(gpu=first), fraction())
    assert set(used.pop(first)) == {uid(1)}
    assert [set(pods) for pods in used.values()] == [{uid(5)}]


@pytest.mark.parametrize("number", [1, 9])
def test_an_invented_group_takes_no_memory_of_a_pod_that_kai_recorded(
    simulated: Simulated, number: int
) -> None:
    recorded, invented = fraction("recorded", 5), fraction("invented", number, "0.9")
    used = simulated.used(*HELD, recorded, bind_request("recorded", 5), invented)[GPU_0]
    assert used == {uid(5): HALF * 80 // 100, uid(number): TOTAL - HALF * 80 // 100}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(fraction(phase="Pending"), id="not started"),
        pytest.param(fraction(phase="Succeeded"), id="finished"),
        pytest.param(fraction(group=None), id="not placed by KAI"),
        pytest.param(fraction(group=GROUP_1), id="in a group without a reservation pod"),
        pytest.param(pod(annotations={SIMULATE: "900%"}), id="without a share"),
        pytest.param(fraction(node="other"), id="of another node"),
        pytest.param(fraction(share="nonsense"), id="with a malformed share"),
        pytest.param(pod(gpus="2", annotations={"kubernetes.io/config.mirror": "x"}), id="static"),
        pytest.param(of_default_scheduler(), id="with a whole GPU from another scheduler"),
        pytest.param(pod(gpus="3"), id="with more whole GPUs than there are"),
    ],
)
def test_no_other_pod_has_a_process(simulated: Simulated, document: dict[str, Any]) -> None:
    assert all(not pods for pods in simulated.used(*HELD, document).values())


def test_a_whole_gpu_is_one_that_no_group_holds_and_stays_with_its_pod(simulated: Simulated) -> None:
    whole = pod("whole", 5, gpus="1")
    first = simulated.used(*HELD, whole)
    (gpu,) = (gpu for gpu, pods in first.items() if pods)
    assert gpu != GPU_0
    assert first[gpu] == {uid(5): TOTAL * 80 // 100}
    other = pod("a-second", 4, gpus="1")
    assert simulated.used(*HELD, whole, other) == first
    assert simulated.used(*HELD, other)[gpu] == {uid(4): TOTAL * 80 // 100}


def test_a_group_on_two_gpus_has_one_process_on_both(simulated: Simulated) -> None:
    labels = {"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}
    both = fraction(group=None, labels=labels, annotations={"gpu-fraction-num-devices": "2"})
    used = simulated.used(LABELLED, reservation("a", GPU_0), reservation("b", GPU_1, 901), both)
    assert used == {GPU_0: {uid(1): HALF * 80 // 100}, GPU_1: {uid(1): HALF * 80 // 100}}
    assert simulated.source.proc_root.joinpath("1000").exists()
    assert len(list(simulated.source.proc_root.iterdir())) == 3


# GPUs of the node.


def uuids(*documents: dict[str, Any], gpus: NodeGpus | None = None) -> list[str]:
    return [gpu.uuid for gpu in (gpus or NodeGpus(NODE)).update(inventory(*documents))]


def test_gpus_have_the_labels_memory_and_model(simulated: Simulated) -> None:
    gpus = simulated.show(*HELD).gpus
    assert [(gpu.total_bytes, gpu.model) for gpu in gpus] == [(TOTAL, "Simulated NVIDIA-A10")] * 2
    assert gpus[0].uuid == GPU_0


@pytest.mark.parametrize("memory", [None, "", "16 GiB", "-5", "9" * 30, "1"])
def test_without_a_valid_label_a_gpu_has_a_usual_size(memory: str | None) -> None:
    labels = node(memory, **{COUNT: "1"})["metadata"]["labels"]
    assert [gpu.memory for gpu in NodeGpus(NODE).update(Inventory(node_labels=labels))] == [DEFAULT_BYTES]


def test_made_up_uuids_are_the_same_after_a_restart_and_differ_between_nodes() -> None:
    assert uuids(LABELLED) == uuids(LABELLED)
    assert len(set(uuids(LABELLED))) == 2
    assert set(uuids(LABELLED)).isdisjoint(uuids(LABELLED, gpus=NodeGpus("other")))


def test_made_up_uuids_equal_those_of_the_fake_gpu_operator() -> None:
    labels = {COUNT: "1"}
    (gpu,) = NodeGpus("gpu-node-1").update(Inventory(node_labels=labels))
    assert gpu.uuid.startswith("GPU-977c4dd2-")  # published for that operator's node of this name


def test_reservation_pods_with_random_uuids_keep_the_number_of_gpus() -> None:
    gpus = NodeGpus(NODE)
    for number in range(50):
        names = [f"GPU-{number}-first", f"GPU-{number}-second"][: number % 3]
        pods = [reservation(name, name, 900 + place) for place, name in enumerate(names)]
        places = uuids(LABELLED, *pods, gpus=gpus)
        assert len(places) == 2
        assert set(names) <= set(places)


def test_a_named_gpu_replaces_a_made_up_one_and_stays_when_its_reservation_ends() -> None:
    gpus = NodeGpus(NODE)
    before = uuids(LABELLED, gpus=gpus)
    assert uuids(LABELLED, reservation(), gpus=gpus) == [GPU_0, before[1]]
    assert uuids(LABELLED, reservation(gpu=GPU_1), gpus=gpus) == [GPU_0, GPU_1]
    assert uuids(LABELLED, gpus=gpus) == [GPU_0, GPU_1]
    renamed = uuids(LABELLED, reservation(gpu="GPU-new"), gpus=gpus)
    assert len(renamed) == 2
    assert "GPU-new" in renamed


def test_without_a_count_the_gpus_are_the_named_ones() -> None:
    assert uuids(node(), reservation(), reservation(GROUP_1, GPU_1, 901)) == sorted([GPU_0, GPU_1])
    assert uuids(node()) == []


def test_a_smaller_count_takes_unnamed_gpus_away() -> None:
    gpus = NodeGpus(NODE)
    assert len(uuids(node(**{COUNT: "8"}), reservation(), gpus=gpus)) == 8
    assert uuids(node(**{COUNT: "1"}), reservation(), gpus=gpus) == [GPU_0]


@pytest.mark.parametrize("count", ["9999", "99999", "-1", "x"])
def test_a_nonsensical_count_is_bounded(count: str) -> None:
    assert len(uuids(node(**{COUNT: count}))) in (0, MOST_GPUS)


@pytest.mark.parametrize(
    "name", ["-1", "", "0", "GPU-", "GPU-" + "a" * 300, "GPU-a\nb", "MIG-1", "GPU-a,GPU-b"]
)
def test_a_reservation_pod_that_names_no_gpu_adds_none(name: str) -> None:
    assert len(uuids(LABELLED, reservation(gpu=name))) == 2
    assert name not in uuids(LABELLED, reservation(gpu=name))


def tenants_reservation(number: int) -> dict[str, Any]:
    """Return a reservation pod of a KAI inside a vCluster."""
    name, namespace = f"tenants-{number}", "vcluster-a"
    return reservation(
        f"group-{number}",
        f"GPU-tenant-{number}",
        number,
        namespace=namespace,
        annotations={
            "run.ai/reserve_for_gpu_index": f"GPU-tenant-{number}",
            "vcluster.loft.sh/object-name": name,
            "vcluster.loft.sh/object-namespace": "kai-resource-reservation",
            "vcluster.loft.sh/object-host-namespace": namespace,
            "vcluster.loft.sh/object-host-name": f"gpu-reservation-{number}",
        },
        labels={
            "app": "kai-resource-reservation",
            "runai-gpu-group": f"group-{number}",
            "vcluster.loft.sh/managed-by": "a",
        },
    )


def test_a_tenants_reservation_pods_add_no_gpu_beyond_the_nodes() -> None:
    many = [tenants_reservation(number) for number in range(1, 301)]
    made = inventory(*HELD, *many)
    assert sum(pod.is_tenants for pod in made.reservation_pods) == 300
    assert len(uuids(*HELD, *many)) == 2
    assert uuids(*HELD, *many)[0] == GPU_0
    assert len(uuids(node(), reservation(), *many)) == MOST_GPUS


# What is not known.


def test_before_the_pods_are_listed_no_gpu_is_known(simulated: Simulated) -> None:
    reading = simulated.source.read()
    (problem,) = reading.problems
    assert (reading.gpus, problem.cause) == ((), Cause.NVML)
    assert "have not been listed yet" in problem.detail
    assert not reading.restart_may_help


def test_a_node_without_gpus_is_known_to_have_none(simulated: Simulated) -> None:
    reading = simulated.show(node(None))
    assert (reading.gpus, reading.problems) == ((), ())


def test_without_the_node_object_the_reservation_pods_name_the_gpus(simulated: Simulated) -> None:
    reading = simulated.show(pod("other", 2))
    (problem,) = reading.problems
    assert "the Node is not readable" in problem.detail
    share = 16300 * MIB // 2  # of the usual size, rounded as KAI does
    assert simulated.used(reservation(), fraction()) == {GPU_0: {uid(1): share * 80 // 100}}
    assert not simulated.show().problems


def test_a_gpu_that_a_name_replaces_is_not_reported_as_lost(simulated: Simulated) -> None:
    assert not simulated.show(LABELLED).problems
    for number in range(5):
        simulated.now += 100
        reading = simulated.show(LABELLED, reservation(gpu=f"GPU-{number}"))
        assert (len(reading.gpus), reading.problems) == (2, ())


# Bounds.


def test_thousands_of_pods_are_truncated_as_the_driver_does_in_linear_time(simulated: Simulated) -> None:
    def show(count: int) -> tuple[float, Gpu, GpuReading]:
        documents = [
            fraction(f"p{number}", number, "0.01", annotations={SIMULATE: "5%"})
            for number in range(1001, 1001 + count)
        ]
        simulated.pods.inventory = inventory(*HELD, *documents)
        began = time.process_time()
        reading = simulated.source.read()
        return time.process_time() - began, reading.gpus[0], reading

    few = min(show(500)[0] for _ in range(3))
    seconds, gpu, reading = show(4000)
    assert seconds < 8 * max(few, 0.05) * 3
    assert [problem.cause for problem in reading.problems] == [Cause.TRUNCATED]
    assert len(gpu.processes or ()) == 950
    assert gpu.used_bytes is not None
    assert gpu.used_bytes <= TOTAL
    assert len(list(simulated.source.proc_root.iterdir())) == 952


def test_a_pod_with_another_uid_than_the_api_servers_has_no_process(simulated: Simulated) -> None:
    odd = fraction()
    odd["metadata"]["uid"] = f"x\n0::/kubepods/pod{uid(2)}"
    assert simulated.used(*HELD, odd)[GPU_0] == {}


# Safeguards.


def test_a_driver_that_is_loaded_later_ends_the_simulation(simulated: Simulated) -> None:
    assert simulated.show(*HELD).gpus
    (simulated.proc / "driver" / "nvidia").mkdir(parents=True)
    with pytest.raises(DriverReplaced, match="simulated GPUs are refused on a node with an NVIDIA driver"):
        simulated.source.read()


def test_a_driver_of_the_node_is_found_by_its_library_or_its_folder(tmp_path: Path) -> None:
    missing = "libkaishare-missing.so.1"
    assert driver_of_this_node(proc=tmp_path, library=missing) == ""
    library = str(built_library(tmp_path))
    assert driver_of_this_node(proc=tmp_path, library=library) == f"{library} loads"
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert driver_of_this_node(proc=tmp_path, library=missing) == f"{tmp_path}/driver/nvidia exists"


def test_every_reading_is_marked(simulated: Simulated) -> None:
    reading = simulated.show(*HELD)
    assert simulated.source.is_simulated
    assert reading.driver_version == "simulated"
    assert all(gpu.model.startswith("Simulated ") for gpu in reading.gpus)
    assert simulated.source.errors == {}


def test_a_process_whose_files_were_removed_is_no_crash(simulated: Simulated) -> None:
    simulated.show(*HELD, fraction())
    (simulated.source.proc_root / "1000" / "stat").unlink()
    assert simulated.show(*HELD).gpus
    assert simulated.used(*HELD, fraction())[GPU_0]
