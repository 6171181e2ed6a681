"""The real binding over a library that answers, and fails, as a driver does."""

from dataclasses import replace

import pytest

from gpuagent.gpus.driver import MOST_LISTED
from gpuagent.gpus.gpu_reading import GpuProcess, LostGpu, MigInstance
from gpuagent.problems import NOT_LISTED, Cause
from tests.support.scenarios import GIB, A, B, causes, node, process


def test_a_healthy_driver_is_read_completely(driven):
    processes = process(100), process(101, "2Gi", gpu=1), process(100, "5Gi", gpu=1)
    gpus, _ = driven(node(*processes, unaccounted="10Mi"))
    assert gpus.errors == {}, "no call precedes the first read"
    reading = gpus.read()
    assert causes(reading) == []
    assert reading.driver_version == "580.65.06"
    first, second = reading.gpus
    assert (first.index, first.uuid, first.model) == (0, A, "NVIDIA A10")
    assert (first.total_bytes, first.reserved_bytes) == (16 * GIB, GIB // 2)
    assert first.used_bytes == GIB + 10 * 2**20
    assert first.processes == (GpuProcess(100, GIB),)
    assert (second.index, second.uuid) == (1, B)
    assert set(second.processes) == {GpuProcess(100, 5 * GIB), GpuProcess(101, 2 * GIB)}, "100 is on both"
    assert gpus.errors == {}
    assert not gpus.is_simulated


def test_a_library_without_the_newest_calls_is_read_by_older_ones(driven):
    gpus, _ = driven(node(process(100)), "-DWITHOUT_V3", "-DWITHOUT_MEMORY_V2")
    for _ in range(3):
        first = gpus.read().gpus[0]
        assert first.processes == (GpuProcess(100, GIB),)
        # The first version of the call does not tell what is reserved apart.
        assert (first.used_bytes, first.reserved_bytes) == (GIB + GIB // 2, None)
    assert gpus.errors["nvmlDeviceGetComputeRunningProcesses", "FunctionNotFound"] == 1


def test_reserved_memory_is_known_again_once_the_newer_call_works(driven, clock):
    gpus, answers = driven(node(process(100), faults=[{"fault": "old-driver", "until": 10}]))
    assert gpus.read().gpus[0].reserved_bytes is None
    answers.show(10)
    for _ in range(13):
        reading = gpus.read()
    assert reading.gpus[0].reserved_bytes == GIB // 2
    assert reading.gpus[0].used_bytes == GIB


LISTINGS = {
    "both lists of one process are the same memory": ([process(100, "3Gi", kind="compute+graphics")], {100: 3 * GIB}),
    "graphics alone counts": ([process(100, "1Gi", kind="graphics")], {100: GIB}),
    "a client of an MPS server counts": ([process(100, "1Gi", kind="mps"), process(101)], {100: GIB, 101: GIB}),
    "no process": ([], {}),
    "one that holds nothing": ([process(100, 0)], {100: 0}),
    "memory that the driver cannot tell is not zero": ([process(100), process(101)], {100: None, 101: GIB}),
}  # fmt: skip


@pytest.mark.parametrize(("processes", "expected"), LISTINGS.values(), ids=LISTINGS)
def test_the_lists_become_one(driven, processes, expected):
    faults = [{"fault": "memory-unknown", "pid": pid} for pid, used in expected.items() if used is None]
    gpus, _ = driven(node(*processes, faults=faults))
    reading = gpus.read()
    assert {process.pid: process.used_bytes for process in reading.gpus[0].processes} == expected
    assert causes(reading) == []


@pytest.mark.parametrize(("fault", "error"), [("gpu-lost", "GpuIsLost"), ("reset-required", "ResetRequired")])
def test_a_lost_gpu_leaves_the_others_and_comes_back(driven, clock, fault, error):
    gpus, answers = driven(
        node(process(100), process(101, gpu=1), faults=[{"fault": fault, "gpu": 0, "from": 10, "until": 20}])
    )
    assert len(gpus.read().gpus) == 2
    answers.show(10)
    for _ in range(3):
        reading = gpus.read()
        assert [gpu.uuid for gpu in reading.gpus] == [B]
        assert causes(reading) == [(Cause.NVML, A)]
        assert error in reading.problems[0].detail
        assert not reading.restart_may_help
    assert gpus.errors == {("nvmlDeviceGetMemoryInfo", error): 1}  # not asked again before its time
    answers.show(20)
    clock.now += 1
    reading = gpus.read()
    assert [gpu.uuid for gpu in reading.gpus] == [A, B]
    assert reading.gpus[0].processes == (GpuProcess(100, GIB),)
    assert causes(reading) == []


@pytest.mark.parametrize("fault", ["gpu-lost", "no-permission", "blocked", "unknown-error"])
def test_a_gpu_lost_before_the_agent_started_has_no_uuid_yet(driven, clock, fault):
    gpus, answers = driven(node(faults=[{"fault": fault, "gpu": 0, "until": 5}]))
    reading = gpus.read()
    assert [gpu.uuid for gpu in reading.gpus] == [B]
    assert causes(reading) == [(Cause.NVML, "index-0")]  # empty would be the whole node
    assert [replace(lost, error=NOT_LISTED) for lost in reading.lost] == [LostGpu(0)]
    assert reading.lost[0].error == reading.problems[0].error
    answers.show(5)
    clock.now += 1
    assert [gpu.uuid for gpu in gpus.read().gpus] == [A, B]


@pytest.mark.parametrize(
    ("fault", "error", "is_of_gpus"),
    [
        ("gpu-lost", "GpuIsLost", True), ("no-permission", "NoPermission", True),
        ("blocked", "OperatingSystem", True), ("unknown-error", "Unknown", True),
        ("driver-not-loaded", "DriverNotLoaded", False), ("not-ready", "NotReady", False),
        ("library-missing", "LibraryNotFound", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("begins", [0, 10], ids=["from the start", "later"])
def test_while_no_gpu_responds_the_problem_concerns_the_node(driven, clock, fault, error, is_of_gpus, begins):
    places = [{"gpu": 0}, {"gpu": 1}] if is_of_gpus else [{}]
    faults = [{"fault": fault, "from": begins, "until": begins + 100, **place} for place in places]
    gpus, answers = driven(node(process(100), faults=faults))
    if begins:
        assert len(gpus.read().gpus) == 2
        answers.show(begins)
    for _ in range(20):
        reading = gpus.read()
        assert (reading.gpus, causes(reading)) == ((), [(Cause.NVML, "")])
        assert error in reading.problems[0].detail
        assert reading.restart_may_help is (is_of_gpus and (fault, begins) != ("no-permission", 0))
        clock.now += 0.5
    if not is_of_gpus:
        assert gpus.errors[("nvmlInit", error)] == 4 - (begins > 0)  # after 1, 2 and 4 seconds
    answers.show(begins + 100)
    clock.now += 60
    reading = gpus.read()
    assert [gpu.uuid for gpu in reading.gpus] == [A, B]
    assert reading.gpus[0].processes == (GpuProcess(100, GIB),)
    assert causes(reading) == []


def test_a_driver_without_process_lists_gives_devices_and_a_reason(driven, clock):
    gpus, answers = driven(
        node(process(100), process(101, gpu=1), faults=[{"fault": "not-supported", "gpu": 0, "until": 10}])
    )
    for _ in range(5):
        reading = gpus.read()
        assert reading.gpus[0].processes is None
        assert reading.gpus[0].used_bytes == GIB
        assert reading.gpus[1].processes == (GpuProcess(101, GIB),)
        assert causes(reading) == [(Cause.NVML, A)]
    assert gpus.errors == {("nvmlDeviceGetComputeRunningProcesses", "NotSupported"): 2}  # _v3 and _v2, once
    answers.show(10)
    clock.now += 1
    assert gpus.read().gpus[0].processes == (GpuProcess(100, GIB),)


@pytest.mark.parametrize(("count", "is_cut"), [(MOST_LISTED - 1, False), (MOST_LISTED, True), (1200, True)])
def test_a_list_as_long_as_the_driver_allows_may_lack_processes(driven, count, is_cut):
    gpus, _ = driven(node(process(1000, "1Mi", count=count)))
    reading = gpus.read()
    assert len(reading.gpus[0].processes) == min(count, MOST_LISTED)
    assert causes(reading) == ([(Cause.TRUNCATED, A)] if is_cut else [])


def test_a_list_that_grows_while_it_is_read_is_read_again(driven):
    gpus, answers = driven(node(process(100)))
    answers.show(more=["race 0 2"])
    reading = gpus.read()
    assert reading.gpus[0].processes == (GpuProcess(100, GIB),)
    assert gpus.errors == {("nvmlDeviceGetComputeRunningProcesses", "InsufficientSize"): 2}


def test_a_driver_without_gpus_is_not_a_lost_one(driven, clock):
    gpus, answers = driven(node())
    answers.write([])
    reading = gpus.read()
    assert (reading.gpus, causes(reading), reading.restart_may_help) == ((), [(Cause.NVML, "")], False)
    answers.show()
    clock.now += 1
    assert len(gpus.read().gpus) == 2


MIG = ({"uuid": "MIG-1", "memory": "5Gi"}, {"uuid": "MIG-2", "memory": "10Gi"})


def test_mig_devices_have_their_own_processes(driven):
    gpus, _ = driven(
        node(process(100, "1Gi", gpu="MIG-1"), process(101, "2Gi", gpu="MIG-2"), process(102, gpu=1), mig=MIG)
    )
    first, second = gpus.read().gpus
    assert first.mig
    assert first.used_bytes == 3 * GIB
    assert first.processes == ()  # the driver lists them for the whole GPU too
    parts = (("MIG-1", 5, 1, 100), ("MIG-2", 10, 2, 101))
    assert first.instances == tuple(
        MigInstance(uuid=uuid, total_bytes=total * GIB, used_bytes=used * GIB, processes=(GpuProcess(pid, used * GIB),))
        for uuid, total, used, pid in parts
    )  # fmt: skip
    assert not second.mig
    assert gpus.errors == {}


def test_two_mig_devices_of_one_uuid_count_once_and_are_a_problem(driven):
    gpus, answers = driven(node(mig=MIG))
    answers.write([f"gpu 0 {A} {16 * GIB} 0 0 A100", *[f"mig 0 MIG-1 {GIB} 0 0"] * 2])
    reading = gpus.read()
    assert [part.uuid for part in reading.gpus[0].instances] == ["MIG-1"]
    assert causes(reading) == [(Cause.NVML, A)]


def test_closing_shuts_nvml_down_and_a_later_read_initialises_it_again(driven):
    gpus, _ = driven(node(process(100)))
    assert len(gpus.read().gpus) == 2
    gpus.close()
    assert len(gpus.read().gpus) == 2
    assert gpus.errors == {}
