"""A process of the doctor's own, found again or not."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from console.doctor.check_results import CheckResult, State
from console.doctor.device_access import Host
from console.doctor.driver_checks import Observation
from console.doctor.self_test import HELD_BYTES, PROGRAM, self_test_result
from gpuagent.gpus.gpu_reading import GpuReading, MigInstance
from gpuagent.sampling.processes import Processes
from tests.support.samples import GIB, MIB, A, B, gpu

PROC = Path("/proc")
HERE = Host.here(PROC)
READY = Observation(reading=GpuReading(gpus=(gpu(), gpu(uuid=B, index=1, used=5 * GIB))))
HOLDS = "import os, sys; open(%r, 'w').write(str(os.getpid())); print('held', flush=True); sys.stdin.read()"


def program(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", HOLDS % str(folder / "pid"))


def pid_of(folder: Path) -> int:
    return int((folder / "pid").read_text())


def looks(
    folder: Path, used: int | None = 300 * MIB, *, listed: bool = True, proc: Path = PROC
) -> Callable[[], Observation]:
    """Return a function that lists the running program as a driver would, looked up in the real /proc."""

    def look() -> Observation:
        holders = [(pid_of(folder), used)] if listed else []
        reading = GpuReading(gpus=(gpu(*holders), gpu(uuid=B, index=1)))
        origins, problems = Processes(proc_root=proc).look_up(reading)
        return Observation(reading=reading, origins=origins, problems=problems)

    return look


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def tried(folder: Path, again: Callable[[], Observation], host: Host = HERE) -> CheckResult:
    finding = self_test_result(READY, again, host, program=program(folder))
    assert has_ended(pid_of(folder))
    return finding


def test_a_process_that_is_found_again(tmp_path: Path) -> None:
    result = tried(tmp_path, looks(tmp_path))
    assert result.state is State.OK
    assert result.what.startswith(f"PID {pid_of(tmp_path)} was found on GPU 0 with 300.0 MiB")


def test_a_process_that_the_driver_does_not_list_is_a_problem(tmp_path: Path) -> None:
    result = tried(tmp_path, looks(tmp_path, listed=False))
    assert result.state is State.PROBLEM
    assert "the driver does not list it" in result.what
    assert "hostPID: true" in result.advice


@pytest.mark.parametrize(("used", "text"), [(None, "unknown"), (HELD_BYTES - 1, "16.0 MiB"), (0, "0 B")])
def test_impossible_figures_are_a_problem(tmp_path: Path, used: int | None, text: str) -> None:
    result = tried(tmp_path, looks(tmp_path, used))
    assert result.state is State.PROBLEM
    assert result.what.endswith(f"the driver reports {text}")


def test_a_proc_root_without_the_process(tmp_path: Path) -> None:
    other = tmp_path / "proc"
    other.mkdir()
    result = tried(tmp_path, looks(tmp_path, proc=other), Host.here(other))
    assert result.state is State.PROBLEM
    assert f"{other} does not show it" in result.what


def test_a_proc_root_that_shows_another_container(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "cgroup").write_text(f"0::/kubepods/pod{'a' * 32}/{'b' * 64}\n")
    elsewhere = Host(proc_root=PROC, own=own, environment={})
    result = tried(tmp_path, looks(tmp_path), elsewhere)
    assert result.state is State.PROBLEM
    assert "another container" in result.what


def test_the_emptiest_gpu_is_taken_and_only_if_it_has_room(tmp_path: Path) -> None:
    def again() -> Observation:
        return looks(tmp_path)()

    full = Observation(reading=GpuReading(gpus=(gpu(used=22 * GIB), gpu(uuid=B, index=1, used=23 * GIB))))
    never = (sys.executable, "-c", "raise SystemExit('must not start')")
    result = self_test_result(full, again, HERE, program=never)
    assert (result.state, result.what) == (State.UNKNOWN, "not checked: no GPU has 2.0 GiB free")
    roomy = Observation(reading=GpuReading(gpus=(gpu(used=22 * GIB), gpu(uuid=B, index=1))))
    visible = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    result = self_test_result(roomy, again, HERE, program=(sys.executable, "-c", visible))
    assert result.what == f"not checked: {B}"


def test_mig_and_no_gpu_are_not_tried() -> None:
    split = gpu(mig=True, instances=(MigInstance(uuid="MIG-1", total_bytes=GIB, processes=()),))
    for look in (
        Observation(),
        Observation(reading=GpuReading(gpus=(), is_hanging=True)),
        Observation(reading=GpuReading(gpus=(split,))),
    ):
        result = self_test_result(look, Observation, HERE, program=("must-not-start",))
        assert result.state is State.UNKNOWN
        assert "not checked" in result.what


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("print('cuInit failed with CUDA error 100')", "not checked: cuInit failed with CUDA error 100"),
        ("print('\\x1b[31m')", "not checked: \ufffd[31m"),
        ("pass", "not checked: the test process ended without output"),
        ("raise SystemExit(3)", "not checked: the test process ended without output"),
        ("import time; time.sleep(60)", "not checked: the test process allocated no memory within 1 s"),
    ],
)
def test_a_process_without_gpu_memory(script: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.doctor.self_test._LEAVE_SECONDS", 0.2)
    began = time.monotonic()
    result = self_test_result(READY, lambda: READY, HERE, program=(sys.executable, "-c", script), seconds=0.8)
    assert (result.state, result.what) == (State.UNKNOWN, text)
    assert time.monotonic() - began < 10


def test_a_process_that_cannot_be_killed_does_not_hold_up_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill
    monkeypatch.setattr("console.doctor.self_test._LEAVE_SECONDS", 0.2)

    def has_no_effect(process: "subprocess.Popen[bytes]") -> None:
        left.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", has_no_effect)  # as SIGKILL in state D
    began = time.monotonic()
    result = self_test_result(READY, lambda: READY, HERE, program=("sh", "-c", "exec sleep 60"), seconds=0.2)
    seconds = time.monotonic() - began
    (process,) = left
    assert process.poll() is None
    kill(process)
    process.wait(10)
    assert seconds < 10
    assert result.state is State.PROBLEM
    assert result.what.startswith(f"the test process cannot be killed: PID {process.pid} has not ended")


def test_a_driver_that_hangs_or_forgets_meanwhile(tmp_path: Path) -> None:
    assert (
        tried(tmp_path, lambda: Observation(reading=GpuReading(gpus=(), is_hanging=True))).state
        is State.PROBLEM
    )
    assert tried(tmp_path, Observation).state is State.UNKNOWN


# --- the program itself ---


@pytest.fixture
def libcuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in the place of the driver's."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is needed: apt-get install gcc")
    source = Path(__file__).parents[2].joinpath("support", "libcuda_stub.c")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, source], check=True
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


@pytest.mark.usefixtures("libcuda")
def test_the_program_holds_memory_until_it_is_released() -> None:
    seen: list[int] = []

    def again() -> Observation:
        pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit() and runs_program(path.name)]
        seen.extend(pids)
        reading = GpuReading(gpus=(gpu(*((pid, 300 * MIB) for pid in pids)),))
        origins, problems = Processes(proc_root=PROC).look_up(reading)
        return Observation(reading=reading, origins=origins, problems=problems)

    result = self_test_result(READY, again, HERE)
    assert result.state is State.OK
    assert len(seen) == 1
    assert has_ended(seen[0])


def runs_program(pid: str) -> bool:
    try:
        line = (PROC / pid / "cmdline").read_bytes()
        parent = (PROC / pid / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return PROGRAM[-1].encode() in line and parent == str(os.getpid())


@pytest.mark.usefixtures("libcuda")
@pytest.mark.parametrize(
    "name", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"]
)
def test_a_failed_cuda_call_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_STUB_FAILS", f"{name}:999")
    result = self_test_result(READY, lambda: READY, HERE)
    assert result.what == f"not checked: {name} failed with CUDA error 999"


def test_a_missing_cuda_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    result = self_test_result(READY, lambda: READY, HERE)
    assert (result.state, result.what.startswith("not checked: libcuda.so.1 not found")) == (
        State.UNKNOWN,
        True,
    )
    assert A in {gpu.uuid for gpu in READY.gpus}
