"""Faults of the agent's own pod: what the kernel, the container runtime and the API server withhold from it."""

import ctypes.util
import os
import shutil
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.own_pod import OwnContainer
from gpuagent.problems import Cause, OwnCause, Problem, Suspension
from gpuagent.sampling.sample import Origin, Sample
from tests.support.agent_process import Agent, agent
from tests.support.kube_objects import NODE
from tests.support.machine_files import OTHER_NAMESPACE, OWN_POD, Machine
from tests.support.nvml_stub.build import ANSWERS, Answers, built_library
from tests.support.proc_files import ProcTree
from tests.support.proc_files import in_pod as cgroup
from tests.support.samples import A, gpu, in_pod
from tests.support.scenarios import node as scenario
from tests.support.scenarios.loading import parse_scenario

VISIBLE, MIG_MONITOR = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"
MOUNTS = "/var/run/nvidia-container-devices"


def sample(*, gpus: int = 0, origins: dict[int, Origin] | None = None, is_hanging: bool = False) -> Sample:
    reading = GpuReading(gpus=(gpu((5, 1)),) * gpus, is_hanging=is_hanging)
    return Sample(reading=reading, origins=origins or {}, taken_at=0.0, wall_time=0.0, seconds=0.0)


def faults(container: OwnContainer) -> dict[Cause | OwnCause, str]:
    return {problem.cause: problem.detail for problem in container.problems()}


def blind(machine: Machine) -> dict[Cause | OwnCause, str]:
    """Return the faults after a sample in which no GPU answered."""
    container = machine.container
    container.observe(sample())
    return faults(container)


@pytest.mark.parametrize(
    ("files", "requested", "detail"),
    [
        ((), "", "there is no /dev/nvidiactl: set runtimeClassName nvidia and NVIDIA_VISIBLE_DEVICES=all"),
        ((), "void", "there is no /dev/nvidiactl: set runtimeClassName nvidia"),
        ((), MOUNTS, "there is no /dev/nvidiactl: set runtimeClassName nvidia"),
        ((), "all", "there is no /dev/nvidiactl: NVIDIA_VISIBLE_DEVICES=all had no effect: load the driver"),
        (("nvidiactl",), "", "there is no /dev/nvidia0: "),
    ],
)
def test_a_container_without_device_files(
    machine: Machine, files: tuple[str, ...], requested: str, detail: str
) -> None:
    if files:
        machine.devices(*files)
    machine.environment = {VISIBLE: requested}
    entries = blind(machine)
    assert list(entries) == [OwnCause.DEVICE_FILES]
    assert entries[OwnCause.DEVICE_FILES].startswith(detail)
    machine.devices()
    assert blind(machine) == {}


def test_a_device_file_that_may_not_be_opened(machine: Machine) -> None:
    machine.devices("nvidiactl", "nvidia0")
    assert blind(machine) == {}
    (machine.root / "dev/nvidia0").chmod(0)
    user = os.getuid()
    if not user:
        os.setresuid(65534, -1, -1)  # access(2) checks the real user; root may open everything
    try:
        entries = blind(machine)
    finally:
        os.setresuid(user, -1, -1)
    assert entries[OwnCause.DEVICE_FILES].startswith("no access to /dev/nvidia")


def test_device_files_count_only_while_no_gpu_answers(machine: Machine) -> None:
    container = machine.container
    assert faults(container) == {}, "before the first sample"
    container.observe(sample(is_hanging=True))
    assert faults(container) == {}
    container.observe(sample())
    assert list(faults(container)) == [OwnCause.DEVICE_FILES]
    container.observe(sample(gpus=1))
    assert faults(container) == {}
    container.observe(sample())
    assert faults(container) == {}, "the driver of WSL 2 has no such files"


@pytest.mark.parametrize(
    ("value", "is_fault"),
    [
        ("all", False), ("void", False), (MOUNTS, False), ("nvidia.com/gpu=all", False),
        ("management.nvidia.com/gpu=all", False), ("nvidia.com/gpu=0", True), (A, True), ("0", True),
        ("nvidia.com/gpu=1,nvidia.com/gpu=all", True), ("\x1b[31mall\nx", True),
    ],
)  # fmt: skip
def test_a_container_that_got_some_gpus_only(machine: Machine, value: str, is_fault: bool) -> None:
    machine.environment = {VISIBLE: value}
    entries = faults(machine.container)
    assert list(entries) == [OwnCause.VISIBLE_DEVICES] * is_fault
    assert all(detail.isprintable() for detail in (*entries.values(), *blind(machine).values()))


def test_a_requested_mig_monitor_capability_that_is_missing(machine: Machine) -> None:
    machine.environment = {MIG_MONITOR: "all"}
    assert "jit-cdi" in faults(machine.container)[OwnCause.MIG_MONITOR]
    machine.write("dev/nvidia-caps/nvidia-cap2")
    assert faults(machine.container) == {}


def test_a_proc_that_hides_the_processes_of_other_users(machine: Machine) -> None:
    """As with hidepid=2; with hidepid=1 or SELinux the files are there, and cannot be read."""
    for pid in (1, 2):
        machine.proc.end(pid)
    assert "without hidepid" in faults(machine.container)[OwnCause.HOST_PROC]
    for pid in (1, 2):
        for name in ("cgroup", "comm"):
            (machine.proc.root / str(pid) / name).mkdir(parents=True)
    container = machine.container
    assert "agent.seLinuxOptions" in faults(container)[OwnCause.HOST_PROC]
    container.observe(sample(gpus=1, origins={5: in_pod("a")}))
    assert faults(container) == {}, "then a denied process is a problem of its GPU"


@pytest.mark.parametrize(
    ("namespace", "second", "is_first_in_container", "detail"),
    [
        ("", "kthreadd", False, ""),
        ("", "sh", False, "is not the node's /proc: remove --proc-root"),
        (OTHER_NAMESPACE, "kthreadd", False, "not in the node's PID namespace: set hostPID: true"),
        (OTHER_NAMESPACE, "sh", True, "not in the node's PID namespace: set hostPID: true"),
        (OTHER_NAMESPACE, "sh", False, ""),  # as on a node of KIND
    ],
)
def test_the_pid_namespace(
    machine: Machine, namespace: str, second: str, is_first_in_container: bool, detail: str
) -> None:
    machine.proc.add(2, "0::/", name=second)
    if namespace:
        machine.namespace(namespace)
    if is_first_in_container:
        machine.proc.add(1, cgroup(OWN_POD), name="kaishare-agent")
    container = machine.container
    assert [text for text in faults(container).values() if detail not in text] == []
    assert list(faults(container)) == [OwnCause.HOST_PROC] * bool(detail)
    container.observe(sample(gpus=1, origins={5: in_pod("a")}))
    assert faults(container) == {}, "a process was found, so the namespace is the one of the driver"


@pytest.mark.parametrize("cause", list(OwnCause))
def test_a_fault_of_the_own_pod_suspends_nothing(cause: OwnCause) -> None:
    assert not Suspension.of([Problem(cause, detail="x")], {A}).covers(A)


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        ("library-missing", "libnvidia-ml.so.1 not found: this node has no NVIDIA driver"),
        ("driver-not-loaded", "the NVIDIA driver is not loaded"),
        ("no-permission", "no permission to open the driver's device files"),
        ("blocked", "the system blocks this container from the driver's device files"),
        ("unknown-error", "the container has lost its device files"),
    ],
)
def test_an_agent_tells_its_faults_from_its_start_until_they_are_gone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, fault: str, detail: str
) -> None:
    """In the API and the log, and in no metric; the driver's own error stands beside them."""
    tree, driver = ProcTree(tmp_path / "proc"), tmp_path / "driver"
    tree.add(2, "0::/", name="kthreadd")
    driver.mkdir()
    (tmp_path / "pods.json").write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    library = built_library(tmp_path_factory.getbasetemp())
    faults = [{"fault": fault}]
    if fault == "library-missing":
        if ctypes.util.find_library("nvidia-ml"):
            pytest.skip("a real NVIDIA driver is here: its library cannot be missing")
        faults = []
    else:
        shutil.copy(library, driver)
    Answers(tmp_path / "answers", parse_scenario(scenario(faults=faults), "test")).show()
    environment = {"LD_LIBRARY_PATH": str(driver), ANSWERS: f"{tmp_path}/answers", VISIBLE: "0"}
    options = f"--node {NODE} --pods {tmp_path}/pods.json --proc-root {tree.root} --interval 200ms"
    with agent(tmp_path / "log", *options.split(), **environment) as running:
        running.until(lambda: {"nvml", "visible-devices"} <= details(running).keys())
        running.until(lambda: {"nvml", "visible-devices"} <= logged(running))
        assert detail in details(running)["nvml"]
        assert ("device-files" in details(running)) is not Path("/dev/nvidia0").exists()
        assert logged(running) >= details(running).keys()
        assert not [series for series in running.series() if "visible-devices" in series]
        reported = details(running).keys() - {"visible-devices"}
        Answers(tmp_path / "answers", parse_scenario(scenario(), "test")).show()
        if fault == "library-missing":
            shutil.copy(library, driver)
        running.until(lambda: reported <= {line["reason"] for line in running.log_lines("problem gone")})
        assert details(running).keys() == {"visible-devices"}


def details(running: Agent) -> dict[str, str]:
    return {problem["reason"]: problem["detail"] for problem in running.shares()["problems"]}


def logged(running: Agent) -> set[str]:
    return {line["reason"] for line in running.log_lines("problem appeared")}
