"""The simulated node: the same answers as a driver's, and a /proc and pod list that go with them."""

import json
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reading import DriverReplaced, GpuProcess
from gpuagent.problems import Cause
from gpuagent.simulation.scenario import FaultKind
from gpuagent.simulation.scenario_loading import parse_scenario
from gpuagent.simulation.simulated_node import SimulatedGpus
from service.documents import load_text
from tests.support.scenarios import GIB, A, B, causes, node, process


@pytest.fixture
def simulated(clock):
    made = []

    def make(document, **options):
        gpus = SimulatedGpus(scenario=parse_scenario(document, "test"), clock=clock, **options)
        made.append(gpus)
        return gpus

    yield make
    for gpus in made:
        gpus.close()


FAULTS = [
    pytest.param(fault, gpu, id=f"{fault} of {'the node' if gpu is None else gpu}")
    for fault in FaultKind
    if fault is not FaultKind.HANG
    for gpu in (None, 0, 1)
    if not (gpu is None and fault in ("gpu-lost", "reset-required", "garbage", "not-supported"))
    and not (
        gpu is not None
        and fault
        in (
            "driver-not-loaded", "uninitialized", "not-ready", "library-missing", "driver-replaced",
            "memory-unknown", "pid-namespace",
        )
    )
]  # fmt: skip


@pytest.mark.parametrize(("fault", "gpu"), FAULTS)
def test_a_simulated_fault_looks_like_the_drivers(driven, simulated, clock, fault, gpu):
    fault = {"fault": fault, "from": 2, "until": 4}
    if gpu is not None:
        fault["gpu"] = gpu
    if fault["fault"] == "memory-unknown":
        fault["pid"] = 101
    document = node(
        process(100, {0: "1Gi", 3: "3Gi"}, utilization=20),
        process(101, "2Gi", gpu=1, kind="compute+graphics", utilization={0: 30, 4: 0, 8: 50}),
        process(102, "1Gi", gpu="MIG-1", until=3), process(103, kind="mps", gpu=1),
        mig=[{"uuid": "MIG-1", "memory": "5Gi"}], faults=[fault], unaccounted="7Mi",
    )  # fmt: skip
    real, answers = driven(document)
    played = simulated(document)
    seen = set()
    for second in (0, 1, 2, 2.5, 3, 4, 5, 8):
        answers.show(second)
        clock.now = 1000.0 + second
        outcomes = []
        for gpus in (real, played):
            try:
                reading = gpus.read()
            except DriverReplaced:
                outcomes.append("replaced")
            else:
                outcomes.append((reading.gpus, causes(reading), reading.restart_may_help))
        if fault["fault"] == "old-driver" and second >= fault["until"]:
            continue  # the real source retries the newer call only from time to time
        assert outcomes[0] == outcomes[1]
        seen.add(str(outcomes[0]))
    assert len(seen) > 2


def test_the_source_is_marked_as_simulated(simulated):
    assert simulated(node()).is_simulated


def test_a_hang_blocks_the_reader_until_it_is_over(simulated, clock):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        clock.now += seconds

    gpus = simulated(node(process(100), faults=[{"fault": "hang", "from": 5, "until": 8}]), sleep=sleep)
    gpus.read()
    assert slept == []
    clock.now += 5
    assert gpus.read().gpus[0].processes == (GpuProcess(100, GIB),)
    assert 2.9 < sum(slept) < 3.2


PODS = {
    "node": {"name": "gpu-node-7", "labels": {"nvidia.com/gpu.memory": "16384"}},
    "pods": [
        {"name": "team-a/half", "fraction": 0.5, "gpu": 0, "queue": "team-a", "containers": ["main", "side"]},
        {"name": "team-b/some", "memory": 2000, "gpu": [0, 1]},
        {"name": "team-b/left", "fraction": "0.25", "gpu": 1, "reservation": False},
        {"name": "team-c/whole", "whole": 1},
        {"name": "team-c/edited", "fraction": "0.1", "gpu": 1, "annotations": {"gpu-fraction": "0.9"}},
    ],
}


def objects_of(gpus):
    items = json.loads(gpus.pods_file.read_text())["items"]
    return {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item
        for item in items
    }


def test_pods_in_short_form_come_with_the_objects_that_kai_creates(simulated):
    gpus = simulated({**node(), **PODS})
    assert gpus.node == "gpu-node-7"
    objects = objects_of(gpus)
    assert objects["Node", "", "gpu-node-7"]["metadata"]["labels"] == {"nvidia.com/gpu.memory": "16384"}
    half = objects["Pod", "team-a", "half"]
    assert half["metadata"]["annotations"] == {"gpu-fraction": "0.5", "received-resource-type": "Fraction"}
    assert half["metadata"]["labels"]["kai.scheduler/queue"] == "team-a"
    assert half["spec"]["nodeName"] == "gpu-node-7"
    assert [container["name"] for container in half["status"]["containerStatuses"]] == ["main", "side"]
    request = objects["BindRequest", "team-a", "half"]
    assert request["spec"]["receivedGPU"] == {"count": 1, "portion": "0.50"}
    assert request["metadata"]["ownerReferences"][0]["uid"] == half["metadata"]["uid"]
    some = objects["Pod", "team-b", "some"]
    assert some["metadata"]["annotations"]["gpu-fraction-num-devices"] == "2"
    assert objects["BindRequest", "team-b", "some"]["spec"]["receivedGPU"] == {"count": 2, "portion": "0.13"}
    whole = objects["Pod", "team-c", "whole"]
    assert whole["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert objects["Pod", "team-c", "edited"]["metadata"]["annotations"]["gpu-fraction"] == "0.9"
    assert objects["BindRequest", "team-c", "edited"]["spec"]["receivedGPU"]["portion"] == "0.10"

    reserved = {
        pod["metadata"]["labels"]["runai-gpu-group"]: pod["metadata"]["annotations"][
            "run.ai/reserve_for_gpu_index"
        ]
        for (kind, namespace, _), pod in objects.items()
        if (kind, namespace) == ("Pod", "kai-resource-reservation")
    }
    assert sorted(reserved.values()) == [A, B]
    assert reserved[half["metadata"]["labels"]["runai-gpu-group"]] == A
    groups = [
        key.partition("/")[2] for key in some["metadata"]["labels"] if key.startswith("runai-gpu-group/")
    ]
    assert [reserved[group] for group in groups] == [A, B]
    assert objects["Pod", "team-b", "left"]["metadata"]["labels"]["runai-gpu-group"] not in reserved


def test_objects_keep_their_fields_and_get_those_of_a_running_pod(simulated):
    static = {
        "kind": "Pod",
        "metadata": {
            "name": "static",
            "annotations": {"kubernetes.io/config.hash": "2732ca68f6358eba7703fb6f82a25c94"},
        },
        "spec": {"containers": [{"name": "one"}], "nodeName": "elsewhere"},
        "status": {"phase": "Failed"},
    }
    config = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": {"k": "v"}}
    gpus = simulated({**node(process(100, pod="default/static")), "objects": [static, config]})
    gpus.read()
    objects = objects_of(gpus)
    assert objects["ConfigMap", "n", "c"] == config
    pod = objects["Pod", "default", "static"]
    assert (pod["spec"]["nodeName"], pod["status"]["phase"]) == ("elsewhere", "Failed")
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    assert (gpus.proc_root / "100" / "cgroup").read_text() == (
        "0::/kubepods.slice/kubepods-pod2732ca68f6358eba7703fb6f82a25c94.slice"
        f"/cri-containerd-{container}.scope\n"
    )


def proc(gpus: SimulatedGpus) -> dict[int, tuple[str, str, int]]:
    """PID to name, cgroup and start time."""
    processes = {}
    for folder in gpus.proc_root.iterdir():
        stat = (folder / "stat").read_text()
        start = int(stat.rpartition(")")[2].split()[19])
        processes[int(folder.name)] = ((folder / "comm").read_text(), (folder / "cgroup").read_text(), start)
    return processes


def test_proc_has_the_processes_of_the_moment(simulated, clock):
    gpus = simulated(
        {
            **node(
                process(100, pod="team-a/half", container="side", until=10),
                process(100, "2Gi", gpu=1, pod="team-a/half", container="side", **{"from": 5, "until": 20}),
                process(100, pod="team-b/some", **{"from": 20}),
                process(101, name="Xorg", kind="graphics"),
                process(102, cgroup="12:pids:/as/it/is\n0::/x"),
                faults=[{"fault": "pid-namespace", "from": 30}],
            ),
            **PODS,
        }
    )
    gpus.read()
    first = proc(gpus)
    assert sorted(first) == [1, 2, 100, 101, 102]
    assert first[2][0] == "kthreadd\n"
    assert first[101][:2] == ("Xorg\n", "0::/system.slice/Xorg.service\n")
    assert first[102][1] == "12:pids:/as/it/is\n0::/x\n"
    side = objects_of(gpus)["Pod", "team-a", "half"]["status"]["containerStatuses"][1]["containerID"]
    assert side.removeprefix("containerd://") in first[100][1]
    clock.now += 15  # still the same process, now on the other GPU only
    gpus.read()
    assert proc(gpus) == first
    clock.now += 5  # its PID is another process's
    gpus.read()
    later = proc(gpus)
    assert later[100][1:] != first[100][1:]
    assert later[100][2] - first[100][2] == 2000  # hundredths of a second
    clock.now += 10
    assert causes(gpus.read()) == []
    assert proc(gpus)[2][0] != "kthreadd\n"
    assert 100 not in proc(gpus)


def test_closing_the_source_removes_its_folder(simulated):
    gpus = simulated(node())
    folder = gpus.pods_file.parent
    gpus.read()
    gpus.close()
    gpus.close()
    assert not folder.exists()


def test_a_lost_driver_keeps_the_folder(simulated, clock):
    gpus = simulated(node(process(100), faults=[{"fault": "driver-not-loaded", "until": 10}]))
    assert causes(gpus.read()) == [(Cause.NVML, "")]
    assert gpus.pods_file.exists()
    clock.now += 10
    assert gpus.read().gpus[0].processes == (GpuProcess(100, GIB),)


def test_the_example_of_the_docs_runs(simulated, clock):
    page = Path(__file__).parents[3] / "docs" / "scenario.md"
    example = page.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    (document,) = load_text(example, "docs/scenario.md")
    gpus = simulated(document)
    totals = []
    for _ in range(100):
        totals.append(sum(gpu.used_bytes for gpu in gpus.read().gpus))
        clock.now += 1
    assert len(set(totals)) > 2


def test_a_scenario_with_a_utilization_reports_that_of_every_process(simulated, clock):
    gpus = simulated(
        node(process(100, utilization={0: 20, 7: 90}, count=2), process(102, utilization=30, until=7),
             process(103, gpu=1))
    )  # fmt: skip
    assert [gpu.utilization for gpu in gpus.read().gpus] == [None, None]  # there is no interval yet
    clock.now += 5
    assert [gpu.utilization for gpu in gpus.read().gpus] == [{100: 20, 101: 20, 102: 30}, {}]
    clock.now += 5
    assert [gpu.utilization for gpu in gpus.read().gpus] == [{100: 90, 101: 90}, {}]


def test_without_a_utilization_a_scenario_reports_none(simulated, clock):
    gpus = simulated(node(process(100)))
    for _ in range(3):
        first = gpus.read().gpus[0]
        assert (first.utilization, first.utilization_unknown) == (
            None,
            "nvmlDeviceGetProcessUtilization: NotSupported",
        )
        clock.now += 5
    assert gpus.errors == {}
