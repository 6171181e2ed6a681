"""The doctor's results about the devices of the container, and its advice."""

import os
from collections.abc import Callable

import pytest

from console.doctor.check_results import CheckResult, State
from console.doctor.device_access import MOUNTS, device_findings
from tests.support.machine_files import ALL_CAPABILITIES, Machine, result_of, states

CONFIG = "/etc/nvidia-container-runtime/config.toml"
OPERATOR = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
HARDENED = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
GPU_1 = "GPU-11111111-1111-1111-1111-111111111111"


def looked(machine: Machine, runtime_class: str | None = None) -> list[CheckResult]:
    return list(device_findings(machine.host, runtime_class))


@pytest.mark.parametrize(
    ("environment", "mounts", "capabilities", "runtime_class", "state", "text"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, (), "", "nvidia", State.OK,
         "environment variable NVIDIA_VISIBLE_DEVICES=all; runtimeClassName nvidia"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, (), "", "", State.OK,
         "environment variable NVIDIA_VISIBLE_DEVICES=all; no runtimeClassName"),
        ({"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=all"}, (), "", None, State.OK,
         "environment variable NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"),
        ({"NVIDIA_VISIBLE_DEVICES": "management.nvidia.com/gpu=all"}, (), "", None, State.OK,
         "environment variable NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all"),
        ({"NVIDIA_VISIBLE_DEVICES": "runtime.nvidia.com/gpu=all"}, (), "", None, State.OK, "runtime.nvidia.com/gpu=all"),
        ({"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"}, (), "", None, State.PROBLEM, "the agent does not see other GPUs"),
        ({"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=1,nvidia.com/gpu=0"}, (), "", None, State.PROBLEM, "the agent does not see other GPUs"),
        ({"NVIDIA_VISIBLE_DEVICES": MOUNTS}, ("all",), "", None, State.OK, f"volume mounts under {MOUNTS}: all"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, (), "", None, State.OK, "CDI (which sets NVIDIA_VISIBLE_DEVICES=void)"),
        ({}, (), ALL_CAPABILITIES, None, State.OK, "a privileged container, which has every device of the node"),
        ({}, (), "", None, State.OK, "CDI, or single device files"),
        ({"NVIDIA_VISIBLE_DEVICES": GPU_1}, (), "", None, State.PROBLEM, "the agent does not see other GPUs"),
    ],
)  # fmt: skip
def test_device_access_of_the_container(
    machine: Machine,
    environment: dict[str, str],
    mounts: tuple[str, ...],
    capabilities: str,
    runtime_class: str | None,
    state: State,
    text: str,
) -> None:
    machine.devices()
    machine.environment = environment
    for name in mounts:
        machine.write(f"{MOUNTS}/{name}")
    if capabilities:
        machine.capabilities(capabilities)
    findings = looked(machine, runtime_class)
    assert result_of(findings, "device files").what == "/dev/nvidiactl and nvidia0 can be opened"
    assert result_of(findings, "device access").state is state
    assert text in result_of(findings, "device access").what


@pytest.mark.parametrize(
    ("environment", "config", "privileged", "advice"),
    [
        ({}, None, False, "set runtimeClassName: nvidia and NVIDIA_VISIBLE_DEVICES=all"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None, False, "set runtimeClassName: nvidia"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, None, False, "had no effect: the pod lacks runtimeClassName: nvidia, or"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, HARDENED, False, "refuses NVIDIA_VISIBLE_DEVICES from unprivileged containers"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, HARDENED, True, "had no effect"),
        ({"NVIDIA_VISIBLE_DEVICES": MOUNTS}, "", False, "the node's toolkit refuses volume mounts"),
        ({"NVIDIA_VISIBLE_DEVICES": MOUNTS}, "accept-nvidia-visible-devices-as-volume-mounts = true", False,
         "set runtimeClassName: nvidia"),
    ],
)  # fmt: skip
def test_a_container_without_devices_gets_advice(
    machine: Machine, environment: dict[str, str], config: str | None, privileged: bool, advice: str
) -> None:
    machine.environment = environment
    if config is not None:
        machine.write(CONFIG, config)
    if privileged:
        machine.capabilities(ALL_CAPABILITIES)
    result = result_of(looked(machine), "device files")
    assert (result.state, result.what) == (State.PROBLEM, "there is no /dev/nvidiactl")
    assert advice in result.advice


def test_outside_a_container_the_advice_is_to_load_the_driver(machine: Machine) -> None:
    machine.write_own("cgroup", "0::/user.slice\n")
    findings = looked(machine)
    assert (
        result_of(findings, "device files").advice == "load the driver: nvidia-modprobe creates these files"
    )
    assert states(findings, "device access") == []


def test_only_the_control_device_is_not_enough(machine: Machine) -> None:
    machine.devices("nvidiactl")
    assert result_of(looked(machine), "device files").what == "there is no /dev/nvidia0, only /dev/nvidiactl"


def test_a_device_that_may_not_be_opened(machine: Machine) -> None:
    machine.devices("nvidiactl")
    os.mkfifo(machine.root / "dev/nvidia0")
    (machine.root / "dev/nvidia1").mkdir()
    result = result_of(looked(machine), "device files")
    assert (result.state, result.what) == (State.PROBLEM, "/dev/nvidia1: Is a directory")
    assert "CDI" in result.advice


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("utility", 0), ("all", 0), ("compute, utility", 0), ("", 0), ("compute", 1), ("graphics,video", 1)],
)
def test_the_library_comes_with_the_capability_utility(machine: Machine, value: str, wanted: int) -> None:
    machine.devices()
    machine.environment = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": value}
    problems = [f for f in looked(machine) if f.state is State.PROBLEM]
    assert len(problems) == wanted
    assert all("add utility" in result.advice for result in problems)


def test_a_requested_mig_monitor_capability_that_is_missing(machine: Machine) -> None:
    machine.devices()
    machine.environment = {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert states(looked(machine), "MIG monitor capability") == []
    machine.environment["NVIDIA_MIG_MONITOR_DEVICES"] = "all"
    result = result_of(looked(machine), "MIG monitor capability")
    assert result.state is State.WARNING
    assert "jit-cdi" in result.advice
    machine.write("dev/nvidia-caps/nvidia-cap2")
    assert states(looked(machine), "MIG monitor capability") == []


def written(*paths: tuple[str, str]) -> Callable[[Machine], None]:
    def write(machine: Machine) -> None:
        for path, text in paths:
            machine.write(path, text)

    return write


def behind_first_process(machine: Machine) -> None:
    machine.proc.add(1, "0::/init.scope")
    file = machine.proc.root / "1/root" / CONFIG.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(HARDENED)


@pytest.mark.parametrize(
    ("prepare", "state", "text"),
    [
        (written(), State.UNKNOWN, "the toolkit's configuration is not visible from this container"),
        (written((CONFIG, "")), State.OK,
         "NVIDIA_VISIBLE_DEVICES is accepted from every container; volume mounts are refused; mode auto, 0 CDI"),
        (written((CONFIG, HARDENED + 'accept-nvidia-visible-devices-as-volume-mounts = true\n[nvidia-container-runtime]\nmode = "cdi"')),
         State.OK, "is refused from unprivileged ones; volume mounts are accepted; mode cdi"),
        (written((OPERATOR, HARDENED)), State.OK, "is refused from unprivileged ones"),
        (behind_first_process, State.OK, "1/root/etc/nvidia-container-runtime/config.toml: NVIDIA_VISIBLE_DEVICES is refused"),
        (written((CONFIG, ""), ("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu"), ("/etc/cdi/other.yaml", "kind: x/y"),
                 ("/var/run/cdi/nvidia.json", "nvidia.com/gpu"), ("/etc/cdi/nvidia.txt", "nvidia")),
         State.OK, "2 CDI specifications of NVIDIA"),
        (written((CONFIG, "mode = [")), State.UNKNOWN, "config.toml: not TOML"),
        (written((CONFIG, "nvidia-container-runtime = 1")), State.OK, "mode auto"),
    ],
)  # fmt: skip
def test_settings_of_the_container_toolkit(
    machine: Machine, prepare: Callable[[Machine], None], state: State, text: str
) -> None:
    machine.devices()
    prepare(machine)
    result = result_of(looked(machine), "container toolkit")
    assert result.state is state
    assert text in result.what
    assert result.what.isprintable()


def test_no_value_acts_on_the_terminal(machine: Machine) -> None:
    machine.environment = {"NVIDIA_VISIBLE_DEVICES": "\x1b[31mall\nx", "NVIDIA_DRIVER_CAPABILITIES": "\x9b"}
    machine.write(f"{MOUNTS}/\x1b[2J")
    assert all(finding.what.isprintable() and finding.advice.isprintable() for finding in looked(machine))
    machine.devices()
    assert all(finding.what.isprintable() and finding.advice.isprintable() for finding in looked(machine))
