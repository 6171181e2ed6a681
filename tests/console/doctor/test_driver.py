"""The doctor's results about the driver, through the real binding over a library that replaces NVML."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from console.doctor.check_results import CheckResult, State
from console.doctor.device_access import Host
from console.doctor.driver_checks import Observation, Probe, driver_findings, loaded_library, module_version
from gpuagent.gpus.gpu_reading import Gpu, GpuReading, GpuSource
from gpuagent.gpus.nvml import NvmlGpus
from gpuagent.sampling.processes import Processes
from gpuagent.simulation.scenario_loading import parse_scenario
from tests.support.machine_files import Machine, result_of, states
from tests.support.nvml_stub.build import ANSWERS, Answers, built_library, use_library
from tests.support.scenarios import A, node, process

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@x)\nGCC version: 13.3.0\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.1.2"
MAPS = f"7f0 r-xp 0 08:01 11 /bin/x\n7f1a-7f1b r-xp 00000000 08:01 12345                      {LIBRARY}\n"


@contextmanager
def looking(source: GpuSource, machine: Machine) -> Iterator[Probe]:
    looker = Probe(source=source, processes=Processes(proc_root=machine.proc.root))
    try:
        yield looker
    finally:
        looker.close()


@pytest.fixture
def examined(
    machine: Machine,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., list[CheckResult]]:
    """Return a function that gives the results for a node of a scenario."""

    def examine(*processes: dict[str, Any], contained: bool = True, **scenario: Any) -> list[CheckResult]:
        use_library(built_library(tmp_path_factory.getbasetemp()), monkeypatch)
        answers = Answers(tmp_path / "answers", parse_scenario(node(*processes, **scenario), "test"))
        monkeypatch.setenv(ANSWERS, str(answers.path))
        answers.show()
        if not contained:
            machine.write_own("cgroup", "0::/user.slice\n")
        with looking(NvmlGpus(), machine) as looker:
            return list(driver_findings(looker.observe(), machine.host))

    return examine


def test_versions_and_each_gpu(machine: Machine, examined: Callable[..., list[CheckResult]]) -> None:
    machine.write_own("maps", MAPS)
    findings = examined(process(77, utilization=5), process(78, gpu=1), process(79, gpu=1))
    assert {finding.state for finding in findings} == {State.OK}
    assert result_of(findings, "driver").what == f"version 580.65.06, library 570.1.2 ({LIBRARY})"
    first, second = (result_of(findings, f"GPU {index}").what for index in (0, 1))
    assert first == f"NVIDIA A10 {A}, 16.0 GiB, 1 process; utilisation by process reported"
    assert second.endswith(", 16.0 GiB, 2 processes; utilisation by process reported")


def test_a_gpu_that_reports_no_utilisation_is_no_problem(examined: Callable[..., list[CheckResult]]) -> None:
    finding = result_of(examined(process(77)), "GPU 0")
    refusal = "nvmlDeviceGetProcessUtilization: NotSupported"
    assert finding.state is State.OK
    assert finding.what.endswith(f"1 process; utilisation by process not reported ({refusal})")


@pytest.mark.parametrize(
    ("fault", "contained", "check", "what", "advice"),
    [
        ("library-missing", True, "driver", "LibraryNotFound", "runtimeClassName: nvidia"),
        ("library-missing", False, "driver", "LibraryNotFound", "install the NVIDIA driver"),
        ("driver-not-loaded", True, "driver", "DriverNotLoaded", "modprobe nvidia"),
        ("driver-replaced", True, "driver", "the versions of driver and library differ (kernel module 580.65.06", "restart the agent's pod"),
        ("not-ready", True, "driver", "NotReady", "wait"),
        ("no-permission", True, "driver", "NoPermission", "see the checks of the devices"),
        ("blocked", True, "driver", "OperatingSystem", "see the checks of the devices"),
        ("unknown-error", True, "driver", "Unknown", "see the checks of the devices"),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_work(
    machine: Machine,
    examined: Callable[..., list[CheckResult]],
    fault: str,
    contained: bool,
    check: str,
    what: str,
    advice: str,
) -> None:
    (machine.proc.root / "driver/nvidia").mkdir(parents=True)
    (machine.proc.root / "driver/nvidia/version").write_text(OPEN)
    findings = examined(faults=[{"fault": fault}], contained=contained)
    assert {finding.state for finding in findings} == {State.PROBLEM}
    result = result_of(findings, check)
    assert what in result.what
    assert advice in result.advice


@pytest.mark.parametrize(
    ("scenario", "what", "advice"),
    [
        ({"faults": [{"fault": "gpu-lost", "gpu": 0}]}, "GpuIsLost", "XID"),
        ({"faults": [{"fault": "reset-required", "gpu": 0}]}, "ResetRequired", "reset"),
        ({"faults": [{"fault": "garbage", "gpu": 0}]}, "", "535.54 to 535.86"),
        (
            {"faults": [{"fault": "memory-unknown", "pid": 77}]},
            "does not report the memory of 1 of 1 processes; their pods are evaluated by a lower bound only",
            "WSL",
        ),
    ],
)
def test_one_gpu_that_does_not_work_leaves_the_other(
    examined: Callable[..., list[CheckResult]], scenario: dict[str, Any], what: str, advice: str
) -> None:
    findings = examined(process(77), **scenario)
    assert states(findings, "driver") == [State.OK]
    assert states(findings, "GPU 1") == [State.OK]
    (result,) = [finding for finding in findings if finding.state is State.PROBLEM]
    assert what in result.what
    assert advice in result.advice


def test_a_list_that_is_cut_off(examined: Callable[..., list[CheckResult]]) -> None:
    findings = examined(process(100, "1Mi", count=960))
    (result,) = [finding for finding in findings if finding.state is State.PROBLEM]
    assert result.check == "GPU 0"
    assert "950" in result.advice
    assert "a lower bound" in result.advice


def test_mig_is_reported(examined: Callable[..., list[CheckResult]]) -> None:
    findings = examined(mig=[{"uuid": "MIG-1", "memory": "8Gi"}])
    assert result_of(findings, "GPU 0").what.endswith("MIG: reported, not evaluated")


def test_a_gpu_that_hangs_is_named_and_the_others_are_examined(
    machine: Machine,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_library(built_library(tmp_path_factory.getbasetemp()), monkeypatch)
    answers = Answers(tmp_path / "answers", parse_scenario(node(), "test"))
    monkeypatch.setenv(ANSWERS, str(answers.path))
    answers.show(more=["delay 1 -"])
    source = NvmlGpus(deadline=0.3)
    with looking(source, machine) as looker:
        findings = list(driver_findings(looker.observe(), machine.host))
        assert source.is_hanging, "a normal exit would wait for the call"
        assert states(findings, "GPU 0") == [State.OK]
        assert result_of(findings, "index-1").what.startswith("no answer within 0.3 s")
        answers.show(more=["hang"])
        (result,) = driver_findings(looker.observe(), machine.host)
        assert result.what.startswith("the driver does not respond")
        answers.show()
        until = time.monotonic() + 10
        while source.is_hanging:
            assert time.monotonic() < until


@pytest.mark.parametrize(
    ("text", "version"), [(OPEN, "580.65.06"), (CLOSED, "535.104.05"), ("", ""), ("nothing", "")]
)
def test_the_version_of_the_kernel_module(machine: Machine, text: str, version: str) -> None:
    if text:
        (machine.proc.root / "driver/nvidia").mkdir(parents=True)
        (machine.proc.root / "driver/nvidia/version").write_text(text)
    assert module_version(machine.host) == version


@pytest.mark.parametrize(
    ("maps", "wanted"),
    [
        (MAPS, (LIBRARY, "570.1.2")),
        ("7f r-xp 0 08:01 1    /x/libnvidia-ml.so.1\n", ("/x/libnvidia-ml.so.1", "")),
        ("7f r-xp 0 08:01 1    /x/libnvidia-ml.so\n", ("/x/libnvidia-ml.so", "")),
        ("7f r-xp 0 08:01 1    /x/libcuda.so.570.1.2\n", ("", "")),
        ("7f r-xp 0 00:00 0 \n", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_library_of_this_process(machine: Machine, maps: str, wanted: tuple[str, str]) -> None:
    machine.write_own("maps", maps)
    assert loaded_library(machine.host) == wanted


def test_the_library_that_is_really_loaded_is_found(examined: Callable[..., list[CheckResult]]) -> None:
    examined()
    assert loaded_library(Host.here(Path("/proc")))[0].endswith("libnvidia-ml.so.1")


def test_a_gpu_without_a_list_of_processes_is_named() -> None:
    silent = Gpu(index=0, uuid=A, model="X", total_bytes=1, used_bytes=0, reserved_bytes=None, processes=None)
    (_, result) = driver_findings(Observation(reading=GpuReading(gpus=(silent,))), Host.here(Path("/proc")))
    assert "processes unknown" in result.what


def test_gpus_of_unknown_memory(
    machine: Machine,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mig = ({"uuid": "MIG-1", "memory": "5Gi"}, {"uuid": "MIG-2", "memory": "5Gi"})
    use_library(built_library(tmp_path_factory.getbasetemp()), monkeypatch)
    answers = Answers(tmp_path / "answers", parse_scenario(node(mig=mig), "test"))
    monkeypatch.setenv(ANSWERS, str(answers.path))
    answers.show(
        more=[
            "fail nvmlDeviceGetMemoryInfo 0/- 4", "fail nvmlDeviceGetComputeRunningProcesses 0/- 4",
            "fail nvmlDeviceGetMemoryInfo 0/1 4", "fail nvmlDeviceGetMemoryInfo 1 3",
        ]
    )  # fmt: skip
    with looking(NvmlGpus(), machine) as looker:
        findings = list(driver_findings(looker.observe(), machine.host))
    warned = {result.check: result for result in findings if result.state is State.WARNING}
    assert set(warned) == {"memory of GPU 0", "memory of GPU 1", "memory of MIG-2"}
    assert "agent.migMonitor" in warned["memory of GPU 0"].advice
    assert "nvidia.com/gpu.memory" in warned["memory of GPU 1"].advice
    assert not [result for result in findings if result.state is State.PROBLEM]
    assert "memory unknown, 0 processes; MIG" in result_of(findings, "GPU 0").what
