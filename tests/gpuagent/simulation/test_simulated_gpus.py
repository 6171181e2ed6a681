"""GPUs and processes made up from the pods that KAI placed, without a cluster."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gpuagent.gpus.gpu_reading import DriverReplaced, GpuReading
from gpuagent.pods.inventory import Inventory
from gpuagent.problems import Cause
from gpuagent.sampling.sample import LookupResult
from gpuagent.simulation.simulated_gpus import (
    DEFAULT_BYTES,
    MOST_GPUS,
    NodeGpus,
    SimulatedGpus,
    driver_of_this_node,
)
from gpuagent.simulation.simulated_use import Course
from kai.kaishare_keys import SIMULATE
from service.log import JsonLog
from tests.support.driver_chain import ListedPods
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_1,
    NODE,
    bind_request,
    fraction,
    node,
    of_tenant,
    pod,
    reservation,
    uid,
)
from tests.support.nvml_stub.build import built_library

MIB = 1 << 20
TOTAL = 23028 * MIB
HALF = 11500 * MIB  # of an A10, as KAI counts it
USUAL = HALF * 80 // 100
COUNT = "nvidia.com/gpu.count"
LABELLED = node(**{COUNT: "2", "nvidia.com/gpu.product": "NVIDIA-A10"})
HELD = (LABELLED, reservation())


class Simulated:
    """A simulated node, its pods and its log."""

    def __init__(self, folder: Path) -> None:
        self.stream = BytesIO()
        self.proc = folder / "real-proc"
        self.proc.mkdir()
        self.now = 0.0
        self.pods = ListedPods(None)
        log = JsonLog(self.stream)
        self.source = SimulatedGpus(node=NODE, log=log, clock=lambda: self.now, proc=self.proc)
        self.source.follow(self.pods)

    def show(self, *documents: dict[str, Any]) -> GpuReading:
        """Set the cluster's objects, and read."""
        self.pods.inventory = inventory(*documents)
        self.now += 5
        return self.source.read()

    def used(self, *documents: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Return the memory in bytes by GPU UUID and pod UID, as the agent attributes it; without unused GPUs."""
        reading = self.show(*documents)
        origins, problems = self.source.look_up(reading)
        assert not problems
        return {
            gpu.uuid: {origins[each.pid].pod_uids[0]: each.used_bytes or 0 for each in gpu.processes}
            for gpu in reading.gpus
            if gpu.processes
        }

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def simulated(tmp_path: Path) -> Simulated:
    return Simulated(tmp_path)


def annotated(percent: str, name: str = "half", number: int = 1) -> dict[str, Any]:
    return fraction(name, number, annotations={SIMULATE: percent})


def of_default_scheduler() -> dict[str, Any]:
    made = pod(gpus="1")
    made["spec"]["schedulerName"] = "default-scheduler"
    return made


ON_TWO = fraction(
    group=None, labels={"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}, annotations={"gpu-fraction-num-devices": "2"}
)  # fmt: skip
ODD = fraction()
ODD["metadata"]["uid"] = f"x\n0::/kubepods/pod{uid(2)}"
USED: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, dict[str, int]]]] = {
    "within its share": ((*HELD, fraction(), bind_request()), {GPU_0: {uid(1): USUAL}}),
    "half of its share": ((*HELD, annotated("50%")), {GPU_0: {uid(1): HALF // 2}}),
    "above its share": ((*HELD, annotated("150%")), {GPU_0: {uid(1): HALF * 150 // 100}}),
    "a GPU holds no more than it has": ((*HELD, annotated("1000%")), {GPU_0: {uid(1): TOTAL}}),
    "0 % is no process": ((*HELD, annotated("0%")), {}),
    "a greedy pod takes no memory of a modest one": ((*HELD, annotated("1000%"), fraction("modest", 2)),
        {GPU_0: {uid(1): TOTAL - USUAL, uid(2): USUAL}}),
    **{f"nor does an invented group, by number {number}": (
        (*HELD, fraction("recorded", 5), bind_request("recorded", 5), fraction("invented", number, "0.9")),
        {GPU_0: {uid(5): USUAL, uid(number): TOTAL - USUAL}},
    ) for number in (1, 9)},
    "a group on two GPUs": ((LABELLED, reservation("a", GPU_0), reservation("b", GPU_1, 901), ON_TWO),
        {GPU_0: {uid(1): USUAL}, GPU_1: {uid(1): USUAL}}),
    "a time slice is no whole GPU": ((node(**{COUNT: "2", "nvidia.com/gpu.replicas": "4"}), pod(gpus="1")), {}),
    "not started": ((*HELD, fraction(phase="Pending")), {}),
    "finished": ((*HELD, fraction(phase="Succeeded")), {}),
    "not placed by KAI": ((*HELD, fraction(group=None)), {}),
    "in a group without a reservation pod": ((*HELD, fraction(group=GROUP_1)), {}),
    "without a share": ((*HELD, pod(annotations={SIMULATE: "900%"})), {}),
    "of another node": ((*HELD, fraction(node="other")), {}),
    "with a malformed share": ((*HELD, fraction(share="nonsense")), {}),
    "static": ((*HELD, pod(gpus="2", annotations={"kubernetes.io/config.mirror": "x"})), {}),
    "a whole GPU from another scheduler": ((*HELD, of_default_scheduler()), {}),
    "more whole GPUs than there are": ((*HELD, pod(gpus="3")), {}),
    "another UID than the API server's": ((*HELD, ODD), {}),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "expected"), USED.values(), ids=USED)
def test_processes_of_pods(
    simulated: Simulated, documents: tuple[dict[str, Any], ...], expected: dict[str, dict[str, int]]
) -> None:
    assert simulated.used(*documents) == expected


def test_the_process_keeps_its_pid_and_ends_with_its_pod(simulated: Simulated) -> None:
    first = simulated.show(*HELD, fraction()).gpus[0].processes
    assert first
    assert simulated.show(*HELD, fraction(), pod("other", 2)).gpus[0].processes == first
    ((pid, origin),) = simulated.source.look_up(simulated.source.read())[0].items()
    assert (pid, origin.result, origin.name) == (first[0].pid, LookupResult.CONTAINER, "simulated")
    reading = simulated.show(*HELD)
    assert reading.gpus[0].processes == ()
    assert simulated.source.look_up(reading) == ({}, ())
    again = simulated.show(*HELD, fraction()).gpus[0].processes
    assert again
    assert again[0].pid != first[0].pid


@pytest.mark.parametrize(
    "text",
    ["", "%", "50", "-1%", "+5%", "1001%", "1.5%", "5e1%", " 50%", "50%\n", "٥٠%", "9" * 4000 + "%", "over"],
)
def test_an_invalid_annotation_counts_as_none_and_is_logged_once(simulated: Simulated, text: str) -> None:
    for _ in range(3):
        assert simulated.used(*HELD, annotated(text)) == {GPU_0: {uid(1): USUAL}}
    (line,) = simulated.log_lines
    assert (line["message"], line["pod"]) == ("ignoring invalid annotation", "research/half")
    assert "is invalid; allowed: a part of the share from 0% to 1000%" in line["error"]
    assert len(line["error"]) < 300


@pytest.mark.parametrize(
    ("text", "percents"),
    [
        ("0s:40% 60s:150% 180s:40%", {0: 40, 59.9: 40, 60: 150, 179: 150, 180: 40, 10**9: 40}),
        ("30s:10%", {0: 10, 30: 10}),
        (" ".join(f"{second}s:{second}%" for second in range(32)), {0: 0, 31.5: 31}),
    ],
)
def test_a_course_has_steps_from_the_start_of_the_pod(text: str, percents: dict[float, int]) -> None:
    assert {second: Course.parse(text).at(second) for second in percents} == percents


@pytest.mark.parametrize(
    "text",
    [
        "0s:40%  60s:150%", "60s:40% 0s:150%", "0s:40% 0s:50%", "0s:40% 150%", "0s:1001%", "-1s:40%", "0m:40%",
        " ".join(f"{second}s:1%" for second in range(33)), "0s:1% " * 10**6,
    ],
)  # fmt: skip
def test_a_wrong_course_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(ValueError, match="is invalid; allowed") as refused:
        Course.parse(text)
    assert len(str(refused.value)) < 300


def test_a_pod_follows_its_course_and_the_gpu_with_it(simulated: Simulated) -> None:
    seen = [simulated.used(*HELD, annotated("0s:50% 10s:200% 20s:0%")) for _ in range(6)]
    used = [pods.get(GPU_0, {}).get(uid(1), 0) for pods in seen]
    assert used == [HALF // 2, HALF // 2, 2 * HALF, 2 * HALF, 0, 0]


def test_the_utilisation_is_the_part_of_the_gpus_memory_that_the_process_holds(simulated: Simulated) -> None:
    simulated.show(*HELD, fraction(), bind_request())
    reading = simulated.show(*HELD, fraction(), bind_request())
    (process,) = reading.gpus[0].processes or ()
    percent = (process.used_bytes or 0) * 100 // TOTAL
    assert 0 < percent < 50
    assert [gpu.utilization for gpu in reading.gpus] == [{process.pid: percent}, {}]


def test_a_whole_gpu_is_one_that_no_group_holds_and_stays_with_its_pod(simulated: Simulated) -> None:
    whole, other = pod("whole", 5, gpus="1"), pod("a-second", 4, gpus="1")
    first = simulated.used(*HELD, whole)
    (gpu,) = first
    assert gpu != GPU_0
    assert first[gpu] == {uid(5): TOTAL * 80 // 100}
    assert simulated.used(*HELD, whole, other) == first
    assert simulated.used(*HELD, other)[gpu] == {uid(4): TOTAL * 80 // 100}
    used = simulated.used(LABELLED, other, reservation(gpu=gpu), fraction())
    assert set(used.pop(gpu)) == {uid(1)}, "a group takes the GPU, and the pod moves"
    assert [set(pods) for pods in used.values()] == [{uid(4)}]


# GPUs of the node.


def uuids(*documents: dict[str, Any], gpus: NodeGpus | None = None) -> list[str]:
    return [gpu.uuid for gpu in (gpus or NodeGpus(NODE)).update(inventory(*documents))]


def test_gpus_have_the_labels_memory_and_model_and_are_marked(simulated: Simulated) -> None:
    reading = simulated.show(*HELD)
    assert [(gpu.total_bytes, gpu.model) for gpu in reading.gpus] == [(TOTAL, "Simulated NVIDIA-A10")] * 2
    assert (simulated.source.is_simulated, reading.driver_version) == (True, "simulated")
    assert simulated.source.errors == {}


@pytest.mark.parametrize("memory", [None, "", "16 GiB", "-5", "9" * 30, "1"])
def test_without_a_valid_label_a_gpu_has_a_usual_size(memory: str | None) -> None:
    labels = node(memory, **{COUNT: "1"})["metadata"]["labels"]
    (gpu,) = NodeGpus(NODE).update(Inventory(node_labels=labels))
    assert gpu.total_bytes == DEFAULT_BYTES


def test_made_up_uuids_are_the_same_after_a_restart_and_differ_between_nodes() -> None:
    assert uuids(LABELLED) == uuids(LABELLED)
    assert len({*uuids(LABELLED), *uuids(LABELLED, gpus=NodeGpus("other"))}) == 4
    (gpu,) = NodeGpus("gpu-node-1").update(Inventory(node_labels={COUNT: "1"}))
    assert gpu.uuid.startswith("GPU-977c4dd2-"), "published for the fake GPU operator's node of this name"


def test_named_gpus_replace_made_up_ones_and_stay_when_their_reservation_ends() -> None:
    gpus = NodeGpus(NODE)
    before = uuids(LABELLED, gpus=gpus)
    assert uuids(LABELLED, reservation(), gpus=gpus) == [GPU_0, before[1]]
    assert uuids(LABELLED, reservation(gpu=GPU_1), gpus=gpus) == [GPU_0, GPU_1]
    assert uuids(LABELLED, gpus=gpus) == [GPU_0, GPU_1]
    for number in range(50):
        names = [f"GPU-{number}-first", f"GPU-{number}-second"][: number % 3]
        pods = [reservation(name, name, 900 + place) for place, name in enumerate(names)]
        places = uuids(LABELLED, *pods, gpus=gpus)
        assert len(places) == 2
        assert set(names) <= set(places)


def test_the_count_of_the_node_bounds_the_gpus() -> None:
    assert uuids(node(), reservation(), reservation(GROUP_1, GPU_1, 901)) == sorted([GPU_0, GPU_1])
    assert uuids(node()) == []
    gpus = NodeGpus(NODE)
    assert len(uuids(node(**{COUNT: "8"}), reservation(), gpus=gpus)) == 8
    assert uuids(node(**{COUNT: "1"}), reservation(), gpus=gpus) == [GPU_0]
    for count in ("9999", "99999", "-1", "x"):
        assert len(uuids(node(**{COUNT: count}))) in (0, MOST_GPUS)


@pytest.mark.parametrize(
    "name", ["-1", "", "0", "GPU-", "GPU-" + "a" * 300, "GPU-a\nb", "MIG-1", "GPU-a,GPU-b"]
)
def test_a_reservation_pod_that_names_no_gpu_adds_none(name: str) -> None:
    assert len(uuids(LABELLED, reservation(gpu=name))) == 2
    assert name not in uuids(LABELLED, reservation(gpu=name))


def test_a_tenants_reservation_pods_add_no_gpu_beyond_the_nodes() -> None:
    many = [of_tenant(reservation(f"group-{n}", f"GPU-tenant-{n}", n)) for n in range(1, 301)]
    assert sum(pod.is_tenants for pod in inventory(*HELD, *many).reservation_pods) == 300
    assert len(uuids(*HELD, *many)) == 2
    assert uuids(*HELD, *many)[0] == GPU_0
    assert len(uuids(node(), reservation(), *many)) == MOST_GPUS


# What is not known.


def test_before_the_pods_are_listed_no_gpu_is_known(simulated: Simulated) -> None:
    reading = simulated.source.read()
    (problem,) = reading.problems
    assert (reading.gpus, problem.cause, reading.restart_may_help) == ((), Cause.NVML, False)
    assert "have not been listed yet" in problem.detail
    reading = simulated.show(node(None))
    assert (reading.gpus, reading.problems) == ((), ()), "a node without GPUs is known to have none"


def test_without_the_node_object_the_reservation_pods_name_the_gpus(simulated: Simulated) -> None:
    (problem,) = simulated.show(pod("other", 2)).problems
    assert "the Node is not readable" in problem.detail
    share = 16300 * MIB // 2  # of the usual size, rounded as KAI does
    assert simulated.used(reservation(), fraction()) == {GPU_0: {uid(1): share * 80 // 100}}
    assert not simulated.show().problems


def test_more_pods_than_a_driver_lists_are_truncated(simulated: Simulated) -> None:
    pods = [fraction(f"p{n}", n, "0.01", annotations={SIMULATE: "5%"}) for n in range(1001, 2001)]
    reading = simulated.show(*HELD, *pods)
    assert [problem.cause for problem in reading.problems] == [Cause.TRUNCATED]
    assert len(simulated.source.look_up(reading)[0]) == 950


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
