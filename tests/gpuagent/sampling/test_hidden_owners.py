"""Processes whose owner the kernel does not show at their own PID: an exited leader, and what is in no /proc."""

import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.problems import Cause
from gpuagent.sampling import processes as lookup
from gpuagent.sampling.processes import Processes, ProcFiles
from gpuagent.sampling.sample import LookupResult
from tests.support.proc_files import HOST, ProcTree, in_pod
from tests.support.samples import GIB, gpu

POD = "5a32f09b-656d-4306-8148-bc4dc509f5ac"
V1_ROOT = "5:devices:/\n1:name=systemd:/"
V1_POD = f"5:devices:/kubepods/pod{POD}/{'0f' * 32}\n1:name=systemd:/kubepods/pod{POD}/{'0f' * 32}"
HYBRID = f"5:devices:/\n0::/docker/{'ab' * 32}/system.slice/containerd.service"


def reading(*pids: int) -> GpuReading:
    return GpuReading(gpus=(gpu(*((pid, GIB) for pid in pids), uuid="GPU-a"),))


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


@pytest.fixture
def processes(proc: ProcTree) -> Processes:
    return Processes(proc_root=proc.root)


def lookup_results(processes: Processes, *pids: int) -> list[LookupResult]:
    return [origin.result for origin in processes.look_up(reading(*pids))[0].values()]


@pytest.mark.parametrize("leader", [V1_ROOT, HYBRID, "0::/"])
def test_a_living_thread_tells_an_exited_leader(proc: ProcTree, processes: Processes, leader: str) -> None:
    """Seen on cgroup v1, kernel 6.18: main() calls pthread_exit, and a thread holds 60 GiB."""
    proc.add(10, leader, state="Z", name="hider")
    proc.add_thread(10, 10, leader, state="Z")
    proc.add_thread(10, 11, leader, flags=0x4)
    proc.add_thread(10, 12, V1_POD)
    for _ in range(3):
        origins, problems = processes.look_up(reading(10))
        assert (origins[10].result, origins[10].pod_uids) == (LookupResult.CONTAINER, (POD,))
        assert origins[10].name == "hider"
        assert problems == ()
    (proc.root / "10/task/12/cgroup").unlink()  # what was found is remembered, as for any process
    assert lookup_results(processes, 10) == [LookupResult.CONTAINER]


def test_a_living_thread_of_the_host_is_the_hosts(proc: ProcTree, processes: Processes) -> None:
    proc.add(10, V1_ROOT, state="Z")
    proc.add_thread(10, 11, "5:devices:/system.slice/sshd.service")
    assert lookup_results(processes, 10) == [LookupResult.HOST]
    proc.add(20, V1_ROOT, state="Z")
    proc.add_thread(20, 21, V1_ROOT)  # it lives, and is in the root itself
    assert lookup_results(processes, 20) == [LookupResult.HOST]


def test_on_cgroup_v2_the_leader_keeps_its_path(proc: ProcTree, processes: Processes) -> None:
    proc.add(10, in_pod(POD), state="Z")
    proc.add(11, HOST, state="Z")
    origins, problems = processes.look_up(reading(10, 11))
    assert origins[10].pod_uids == (POD,)
    assert origins[11].result is LookupResult.HOST
    assert problems == ()


@pytest.mark.parametrize("threads", ["none", "all exit", "no folder"])
@pytest.mark.parametrize("leader", [V1_ROOT, HYBRID])
def test_without_a_readable_thread_the_owner_is_unknown(
    proc: ProcTree, processes: Processes, threads: str, leader: str
) -> None:
    proc.add(10, leader, state="Z")
    if threads != "no folder":
        proc.add_thread(10, 10, leader, state="Z")
    if threads == "all exit":
        proc.add_thread(10, 11, leader, state="Z")
    assert processes.look_up(reading(10))[1] == ()  # it may just end
    for _ in range(3):
        origins, (problem,) = processes.look_up(reading(10))
        assert origins[10].result is LookupResult.DENIED
        assert (problem.cause, problem.gpu_uuid) == (Cause.PROC_DENIED, "GPU-a")
        assert problem.detail == f"the driver lists process 10, but {proc.root} does not show its owner"


def test_a_process_missing_in_proc_has_an_unknown_owner_from_the_second_sample_on(
    proc: ProcTree, processes: Processes
) -> None:
    for pid in range(100, 200):  # processes of one sample each
        assert processes.look_up(reading(pid))[1] == ()
    assert lookup_results(processes, 10, 0, 1 << 40) == [LookupResult.GONE] * 3
    for _ in range(3):
        assert lookup_results(processes, 10, 0, 1 << 40) == [LookupResult.DENIED] * 3
    processes.look_up(reading())
    assert lookup_results(processes, 10) == [LookupResult.GONE]  # another process, by all that is known
    proc.add(10, in_pod(POD))
    assert lookup_results(processes, 10) == [LookupResult.CONTAINER]


def test_a_thread_that_may_not_be_read_is_a_reason(proc: ProcTree, processes: Processes) -> None:
    proc.add(10, V1_ROOT, state="Z")
    (proc.add_thread(10, 11, "") / "cgroup").unlink()
    (proc.root / "10/task/11/cgroup").mkdir()
    origins, (problem,) = processes.look_up(reading(10))
    assert origins[10].result is LookupResult.DENIED
    assert "10/task/11/cgroup: Is a directory" in problem.detail


def test_few_threads_are_read(proc: ProcTree, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may have 30,000 threads, in any number of processes, none of which tells."""
    read: list[str] = []
    ask = ProcFiles.cgroup

    def counted(self: ProcFiles, pid: int | str) -> object:
        read.append(str(pid))
        return ask(self, pid)

    monkeypatch.setattr(ProcFiles, "cgroup", counted)
    proc.add(10, V1_ROOT, state="Z")
    for thread in range(1000, 1300):
        proc.add_thread(10, thread, V1_ROOT, state="Z")
    processes.look_up(reading(10))
    assert len([name for name in read if "task" in name]) == lookup.THREADS_OF_A_PROCESS
    for pid in range(20, 60):
        proc.add(pid, V1_ROOT, state="Z")
        for thread in range(100 * pid, 100 * pid + 70):
            proc.add_thread(pid, thread, V1_ROOT, state="Z")
    read.clear()
    processes.look_up(reading(10, *range(20, 60)))
    assert len([name for name in read if "task" in name]) == lookup.THREADS_OF_A_SAMPLE


def test_a_real_process_whose_main_thread_has_exited() -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print(flush=True), time.sleep(60))).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "Z"
            real = Processes(proc_root=Path("/proc"))
            own = real.look_up(reading(child.pid))[0][child.pid]
            assert own.result in (LookupResult.HOST, LookupResult.CONTAINER)
            names = lookup._origin(real._of_living_thread(child.pid), own.name)
            assert names.pod_uids == own.pod_uids
        finally:
            child.kill()


def test_thousands_of_processes_one_after_the_other_leave_nothing_behind(
    proc: ProcTree, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cgroup": in_pod(POD), "comm": "python\n"}
    stat = "{} (python) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 1000 200 0 0 0\n"

    def read(self: ProcFiles, pid: int | str, name: str) -> bytes | None:
        if isinstance(pid, int) and pid % 3 == 0:
            return None
        return (stat.format(pid, pid) if name == "stat" else files[name]).encode()

    monkeypatch.setattr(ProcFiles, "_read", read)
    numbers = random.Random(1)
    pids = numbers.sample(range(1000, 1 << 22), 5_000)
    tracemalloc.start()
    try:
        sizes = []
        for start in range(0, len(pids), 500):
            processes.look_up(reading(*pids[start : start + 500]))
            if start in (1_000, 4_500):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(processes._known) + len(processes._unplaced) == 500
    assert sizes[1] < sizes[0] + 100_000  # bytes
