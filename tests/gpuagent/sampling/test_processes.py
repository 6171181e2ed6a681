"""PID to origin: what is found, what may not be read, what ended, and what only looks like zero."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, GpuReading, MigInstance
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.cgroups import read_names
from gpuagent.sampling.processes import _SAMPLES_PER_READ, Processes, ProcFiles, ticks_since_boot
from gpuagent.sampling.sample import LookupResult, Origin
from tests.support import samples
from tests.support.proc_files import HOST, ProcTree, in_pod
from tests.support.samples import GIB

POD = "5a32f09b-656d-4306-8148-bc4dc509f5ac"
OTHER = "313732ef-cff3-4fbb-b16d-7cd8c978ad24"
LEAF = "0f" * 32


def gpu(*pids: int, uuid: str = "GPU-a", used: int | None = GIB, **fields: Any) -> Gpu:
    return samples.gpu(*((pid, 1 << 20) for pid in pids), uuid=uuid, used_bytes=used, **fields)


def reading(*gpus: Gpu) -> GpuReading:
    return GpuReading(gpus=gpus)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


@pytest.fixture
def visible_proc() -> Iterator[ProcTree]:
    """One that every user may look into, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield ProcTree(Path(folder) / "proc")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Become a user that may neither read nor signal processes of other users."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def look_up(proc: ProcTree, *pids: int) -> tuple[dict[int, Origin], tuple[Problem, ...]]:
    return Processes(proc_root=proc.root).look_up(reading(gpu(*pids)))


@pytest.mark.parametrize("gone", [12, 0, -1, 1 << 31, (1 << 32) - 1])
def test_processes_of_a_pod_of_the_host_and_of_no_process(proc: ProcTree, gone: int) -> None:
    proc.add(10, in_pod(POD), name="train")
    proc.add(11, HOST, name="Xorg")
    of_pod = Origin(result=LookupResult.CONTAINER, pod_uids=(POD,), container_id=LEAF, name="train")
    of_host = Origin(result=LookupResult.HOST, name="Xorg")
    origins = {10: of_pod, 11: of_host, gone: Origin(result=LookupResult.GONE)}
    assert look_up(proc, 10, 11, gone) == (origins, ())


@pytest.mark.parametrize("name", ["a) R 1 1 1 0 -1 0 (b", "spaces and )", "(", "", "two\nlines", "\udcff"])
def test_a_name_cannot_move_the_fields_of_stat(proc: ProcTree, name: str) -> None:
    folder = proc.add(10, in_pod(POD), start=777)
    for file in ("comm", "stat"):
        text = (folder / file).read_text().replace("python", name.replace("\n", "\\n"))
        (folder / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    processes = Processes(proc_root=proc.root)
    for _ in range(2):
        origins, problems = processes.look_up(reading(gpu(10)))
        assert origins[10].pod_uids == (POD,)
        assert not problems


def test_a_process_on_two_gpus_and_on_a_mig_device(proc: ProcTree) -> None:
    for pid in (10, 11, 12):
        proc.add(pid, in_pod(POD))
    instance = MigInstance(uuid="MIG-1", total_bytes=GIB, processes=(GpuProcess(12, None),))
    gpus = gpu(10, 11), gpu(11, uuid="GPU-b", index=1, instances=(instance,))
    origins, _ = Processes(proc_root=proc.root).look_up(reading(*gpus))
    assert {pid: origin.pod_uids for pid, origin in origins.items()} == dict.fromkeys((10, 11, 12), (POD,))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"cgroup": in_pod(OTHER), "start": 100}, {"start": 101}),
        ({"cgroup": HOST, "name": "runc:[2:INIT]"}, {"name": "train"}),
    ],
    ids=["another process", "a runtime's child that was moved to the pod's cgroup and runs its program"],
)
def test_a_reused_pid_and_another_program_are_looked_up_again(
    proc: ProcTree, first: dict[str, Any], then: dict[str, Any]
) -> None:
    processes = Processes(proc_root=proc.root)
    proc.add(10, **first)
    assert processes.look_up(reading(gpu(10)))[0][10].pod_uids != (POD,)
    proc.add(10, in_pod(POD), **then)
    assert processes.look_up(reading(gpu(10)))[0][10].pod_uids == (POD,)


def test_a_process_that_began_after_the_reading_is_not_the_one_that_the_driver_listed(proc: ProcTree) -> None:
    """Its PID was reused between the driver's list and the look-up; the next reading lists the process itself."""
    proc.add(10, in_pod(POD), start=500)
    processes = Processes(proc_root=proc.root)
    assert processes.look_up(reading(gpu(10)), began=600)[0][10].pod_uids == (POD,)
    proc.add(10, in_pod(OTHER), start=701)
    assert processes.look_up(reading(gpu(10)), began=700) == ({10: Origin(result=LookupResult.GONE)}, ())
    assert processes.look_up(reading(gpu(10)), began=701)[0][10].pod_uids == (OTHER,)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_pid_that_is_reused_while_it_is_looked_up(proc: ProcTree, rounds: int) -> None:
    """The cgroup is a pipe here, so that the process can change between the two looks at its start time."""
    folder = proc.add(10, in_pod(POD), start=100)
    cgroup, stat = folder / "cgroup", folder / "stat"
    cgroup.unlink()
    os.mkfifo(cgroup)

    def replace_it() -> None:
        for number in range(2):
            with cgroup.open("w") as pipe:  # when the reader has opened it too
                cgroup.unlink()
                os.mkfifo(cgroup)
                if number < rounds:
                    stat.write_text(stat.read_text().replace(f" {100 + number} ", f" {101 + number} "))
                pipe.write(in_pod(OTHER) + "\n")

    thread = threading.Thread(target=replace_it, daemon=True)
    thread.start()
    origin = look_up(proc, 10)[0][10]
    thread.join(5)
    assert origin.pod_uids == ((OTHER,) if rounds == 1 else ())
    assert origin.result is (LookupResult.CONTAINER if rounds == 1 else LookupResult.GONE)


def test_a_process_is_remembered_while_it_is_listed(proc: ProcTree) -> None:
    processes = Processes(proc_root=proc.root)
    folder = proc.add(10, in_pod(POD))
    processes.look_up(reading(gpu(10)))
    (folder / "cgroup").write_text("not read again\n")
    assert processes.look_up(reading(gpu(10)))[0][10].pod_uids == (POD,)
    processes.look_up(reading(gpu()))
    assert processes.look_up(reading(gpu(10)))[0][10].result is LookupResult.DENIED


LATER: Final = 2_000_000_000
"""Nanoseconds after which the files of a test count as settled."""


@pytest.fixture
def settled(proc: ProcTree) -> Processes:
    """Processes whose clock is ahead, so that even a new file may be trusted."""
    return Processes(proc_root=proc.root, clock=lambda: time.time_ns() + LATER)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, str]]:
    """Every file that is read, by PID and name."""
    reads: list[tuple[object, str]] = []
    original = ProcFiles._read

    def read(self: ProcFiles, pid: int | str, name: str) -> bytes | None:
        reads.append((pid, name))
        return original(self, pid, name)

    monkeypatch.setattr(ProcFiles, "_read", read)
    return reads


def test_the_file_of_an_unchanged_process_is_read_again_once_in_a_minute_of_samples(
    proc: ProcTree, settled: Processes, reads: list[tuple[object, str]]
) -> None:
    pids = range(100, 100 + 2 * _SAMPLES_PER_READ)
    for pid in pids:
        proc.add(pid, in_pod(POD))
    for _ in range(2):
        settled.look_up(reading(gpu(*pids)))
    reads.clear()
    for number in range(1, _SAMPLES_PER_READ + 1):
        origins, _ = settled.look_up(reading(gpu(*pids)))
        assert len(reads) == 2 * number, "two of the 24 processes in each sample"
        assert all(origin.pod_uids == (POD,) for origin in origins.values())
    assert sorted(reads) == [(pid, "stat") for pid in pids]
    time.sleep(0.02)  # longer than the kernel's tick, so that the change has a time stamp of its own
    proc.add(100, in_pod(OTHER), start=200)
    assert settled.look_up(reading(gpu(*pids)))[0][100].pod_uids == (OTHER,), "a changed file is read at once"


@pytest.mark.parametrize(("cgroup", "later"), [(in_pod(POD), 0), (HOST, LATER)], ids=["new", "the host's"])
def test_a_new_file_and_one_of_a_process_outside_of_pods_are_always_read(
    proc: ProcTree, reads: list[tuple[object, str]], cgroup: str, later: int
) -> None:
    """A runtime's child becomes a container's process by an exec, after its move to the pod's cgroup."""
    processes = Processes(proc_root=proc.root, clock=lambda: time.time_ns() + later)
    proc.add(100, cgroup)
    processes.look_up(reading(gpu(100)))
    for _ in range(3):
        reads.clear()
        processes.look_up(reading(gpu(100)))
        assert reads == [(100, "stat")]


LAST_PID: Final = Path("/proc/sys/kernel/ns_last_pid")


@contextmanager
def process_with_pid(pid: int, *command: str) -> Iterator[None]:
    """Start a process with a chosen PID."""
    try:
        LAST_PID.write_text(str(pid - 1))
    except OSError as error:
        pytest.skip(f"needs root, to choose a PID: {error}")
    with subprocess.Popen(command) as child:
        try:
            if child.pid != pid:
                pytest.skip(f"another process took PID {pid}")
            deadline = time.monotonic() + 5
            while Path(f"/proc/{pid}/comm").read_text().strip() != command[0]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield
        finally:
            child.kill()


def test_a_reused_pid_of_the_real_proc_is_noticed_at_once(
    reads: list[tuple[object, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the cgroup is made up: the files of processes in pods are the ones that are not always read."""
    monkeypatch.setattr(ProcFiles, "cgroup", lambda _self, _pid: read_names(in_pod(POD)))
    processes = Processes(proc_root=Path("/proc"), clock=lambda: time.time_ns() + LATER)
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    pid = (most // _SAMPLES_PER_READ - 1) * _SAMPLES_PER_READ  # its turn comes with the twelfth sample
    with process_with_pid(pid, "sleep", "30"):
        for _ in range(3):
            origins, _ = processes.look_up(reading(gpu(pid)))
        assert origins[pid].name == "sleep"
        reads.clear()
        processes.look_up(reading(gpu(pid)))
        assert reads == []
    with process_with_pid(pid, "tail", "-f", "/dev/null"):
        origins, _ = processes.look_up(reading(gpu(pid)))
        assert origins[pid].name == "tail"


@pytest.mark.parametrize(("state", "flags"), [("Z", 0), ("X", 0), ("D", 0x40450C), ("R", 0x4)])
def test_an_ending_process_that_the_kernel_shows_in_the_root_is_its_pods_and_not_the_hosts(
    proc: ProcTree, state: str, flags: int
) -> None:
    processes = Processes(proc_root=proc.root)
    proc.add(10, in_pod(POD))
    processes.look_up(reading(gpu(10)))
    for pid in (10, 11):
        proc.add(pid, "5:devices:/\n0::/", state=state, flags=flags)
    origins, problems = processes.look_up(reading(gpu(10, 11)))
    assert (origins[10].pod_uids, origins[11]) == ((POD,), Origin(result=LookupResult.GONE))
    assert problems == ()


@pytest.mark.parametrize("file", ["cgroup", "stat", "comm"])
def test_an_unreadable_process_is_a_reason_with_its_gpu(proc: ProcTree, file: str) -> None:
    folder = proc.add(10, in_pod(POD))
    proc.add(11, in_pod(OTHER))
    # A folder in a file's place is refused to root too, unlike a file without permissions.
    (folder / file).unlink()
    (folder / file).mkdir()
    gpus = gpu(11, uuid="GPU-a"), gpu(10, 11, uuid="GPU-b", index=1)
    origins, (problem,) = Processes(proc_root=proc.root).look_up(reading(*gpus))
    assert origins[10] == Origin(result=LookupResult.DENIED)
    assert origins[11].pod_uids == (OTHER,)
    assert (problem.cause, problem.gpu_uuid) == (Cause.PROC_DENIED, "GPU-b")
    assert f"10/{file}: Is a directory" in problem.detail
    assert "\n" not in problem.detail


def test_one_problem_a_gpu_however_many_processes(proc: ProcTree) -> None:
    for pid in (10, 11, 12):
        (proc.add(pid, "garbage") / "comm").write_text("x")
    (problem,) = look_up(proc, 10, 11, 12)[1]
    assert problem.gpu_uuid == "GPU-a"
    assert problem.detail.endswith("no line of the form <hierarchy>:<controllers>:<path>, and 2 more")


@pytest.mark.parametrize(
    "stat",
    ["", "10 (python", "10 (python) R 1 2", "10 python R " + "1 " * 30, "10 (p) R 1 1 1 1 1 x" + " 1" * 20],
)
def test_a_malformed_stat_is_a_reason(proc: ProcTree, stat: str) -> None:
    (proc.add(10, in_pod(POD)) / "stat").write_text(stat)
    origins, (problem,) = look_up(proc, 10)
    assert origins[10].result is LookupResult.DENIED
    assert "10/stat: not of the form" in problem.detail


@pytest.mark.parametrize(
    ("content", "pods"),
    [
        (b"\xff\xfe\n" + in_pod(POD).encode() + b"/\xff\n", (POD,)),
        (in_pod(POD).encode() + b"\n1:x:/" + b"a" * (1 << 20), (POD,)),
        (b"a" * (1 << 20), ()),
    ],
    ids=["bytes that are no text", "without end after the line", "without end"],
)
def test_bytes_that_are_no_text_and_files_without_end(
    proc: ProcTree, content: bytes, pods: tuple[str, ...]
) -> None:
    (proc.add(10, in_pod(OTHER)) / "cgroup").write_bytes(content)
    origin = look_up(proc, 10)[0][10]
    assert origin.pod_uids == pods
    assert origin.result is (LookupResult.CONTAINER if pods else LookupResult.DENIED)


def part(used: int | None, *pids: int) -> MigInstance:
    processes = tuple(GpuProcess(pid, 1) for pid in pids)
    return MigInstance(uuid="MIG-1", total_bytes=GIB, used_bytes=used, processes=processes)


def unknown(*instances: MigInstance) -> Gpu:
    """A GPU in MIG mode that does not report its memory."""
    return gpu(used=None, total_bytes=None, mig=True, instances=instances)


HIDDEN_LISTS = {
    "empty lists, and memory that is used": ((gpu(used=2 * GIB), gpu(uuid="GPU-b", used=0)), True),
    "one process anywhere": ((gpu(used=2 * GIB), gpu(10, uuid="GPU-b")), False),
    "one process on a MIG device": ((gpu(used=2 * GIB, mig=True, instances=(part(0, 10),)),), False),
    "no memory that would need a process": ((gpu(used=GIB),), False),
    "no GPU": ((), False),
    "GB10: a GPU of unknown memory may be in use": ((gpu(used=None, total_bytes=None),), True),
    "a MIG device in use": ((unknown(part(GIB + 1)),), True),
    "a MIG device of unknown memory": ((unknown(part(None)),), True),
    "a MIG device with little memory in use": ((unknown(part(GIB)),), False),
    "an unused MIG device": ((unknown(part(0)),), False),
    "no MIG device": ((unknown(),), False),
    "a list was dropped": ((gpu(used=2 * GIB, processes=None),), False),
}


@pytest.mark.parametrize(("gpus", "is_hidden"), HIDDEN_LISTS.values(), ids=HIDDEN_LISTS)
def test_no_process_beside_used_memory(proc: ProcTree, gpus: tuple[Gpu, ...], is_hidden: bool) -> None:
    proc.add(10, HOST)
    problems = Processes(proc_root=proc.root).look_up(reading(*gpus))[1]
    assert [(each.cause, each.gpu_uuid) for each in problems] == [(Cause.PID_NAMESPACE, "")] * is_hidden
    assert all("hostPID" in problem.detail for problem in problems)
    proc.add(2, "0::/", name="kthreadd")
    assert Processes(proc_root=proc.root).look_up(reading(*gpus))[1] == (), "the host's namespace"


def test_a_child_in_the_real_proc() -> None:
    """It runs, began before a reading that follows, and ends."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        began, processes = ticks_since_boot(), Processes(proc_root=Path("/proc"))
        origins, problems = processes.look_up(reading(gpu(child.pid, os.getpid())), began=began)
        assert origins[child.pid].result in (LookupResult.HOST, LookupResult.CONTAINER)
        assert origins[child.pid].name.startswith("python")
        assert not problems
        earlier = Processes(proc_root=Path("/proc")).look_up(reading(gpu(child.pid)), began=began - 1000)
        assert earlier[0][child.pid].result is LookupResult.GONE
        child.communicate()
    assert processes.look_up(reading(gpu(child.pid)))[0][child.pid].result is LookupResult.GONE


def test_a_process_that_is_hidden_but_lives(visible_proc: ProcTree) -> None:
    """With hidepid=2, another user's process has no folder in /proc, and a signal to it is not allowed."""
    (visible_proc.root / "self").symlink_to(str(os.getpid()))
    (visible_proc.add(10, in_pod(POD)) / "cgroup").chmod(0)
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            with as_nobody():
                hidden, denied = look_up(visible_proc, child.pid), look_up(visible_proc, 10)
        finally:
            child.kill()
    assert hidden[0] == {child.pid: Origin(result=LookupResult.DENIED)}
    assert "hidepid" in hidden[1][0].detail
    assert denied[0] == {10: Origin(result=LookupResult.DENIED)}
    assert denied[1][0].detail.endswith("/10/cgroup: Permission denied")
    assert look_up(visible_proc, child.pid)[0][child.pid].result is LookupResult.GONE
