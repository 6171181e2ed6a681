"""The doctor's results about the processes that the agent can see."""

from pathlib import Path

import pytest

from console.doctor.check_results import State
from console.doctor.device_access import Host
from console.doctor.driver_checks import Observation
from console.doctor.proc_checks import proc_findings
from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.sample import LookupResult, Origin
from tests.support.machine_files import (
    ALL_CAPABILITIES,
    NO_CAPABILITIES,
    OTHER_NAMESPACE,
    Machine,
    result_of,
    states,
)
from tests.support.proc_files import in_pod as cgroup
from tests.support.samples import HOST, gpu, in_pod

NAMESPACE = "PID namespace"
NOBODY = Observation()
SEEN = Observation(reading=GpuReading(gpus=(gpu((5, 1)),)), origins={5: in_pod("a"), 6: HOST})
GONE = Observation(origins={5: Origin(result=LookupResult.GONE)})


def test_a_machine_in_order(machine: Machine) -> None:
    findings = list(proc_findings(SEEN, machine.host))
    assert {finding.state for finding in findings} == {State.OK}
    assert result_of(findings, NAMESPACE).what == "the host's"
    assert result_of(findings, "/proc").what == "the cgroup of each of 3 processes is readable"
    assert result_of(findings, "SELinux").what == "none"


def test_this_machine_is_checked_without_an_error() -> None:
    findings = list(proc_findings(NOBODY, Host.here(Path("/proc"))))
    assert {NAMESPACE, "/proc", "SELinux"} <= {finding.check for finding in findings}
    assert all(finding.what.isprintable() for finding in findings)


def nested(machine: Machine) -> None:
    machine.namespace(OTHER_NAMESPACE)
    machine.proc.add(2, "0::/", name="sh")


def other_proc(machine: Machine) -> None:
    machine.proc.add(2, "0::/", name="sh")


def mounted_host_proc(machine: Machine) -> None:
    machine.namespace(OTHER_NAMESPACE)


def own_first(machine: Machine) -> None:
    nested(machine)
    machine.proc.add(1, cgroup("11111111-2222-4333-8444-555555555555"), name="kaishare-agent")


HIDDEN = Observation(problems=(Problem(Cause.PID_NAMESPACE, "", "the driver names no process"),))


@pytest.mark.parametrize(
    ("prepare", "look", "state", "what", "advice"),
    [
        (other_proc, NOBODY, State.PROBLEM, "is not the host's /proc: PID 2 is sh", "remove --proc-root"),
        (nested, SEEN, State.OK, "it contains 2 processes on GPUs (as on a KIND node)", ""),
        (nested, NOBODY, State.UNKNOWN, "without a process on a GPU", "set hostPID: true"),
        (nested, GONE, State.UNKNOWN, "without a process on a GPU", "set hostPID: true"),
        (mounted_host_proc, NOBODY, State.PROBLEM, "but the agent is in another namespace", "set hostPID: true"),
        (own_first, NOBODY, State.PROBLEM, "the container's own namespace: PID 1 is in the same container", "set hostPID: true"),
        (nested, HIDDEN, State.PROBLEM, "the driver names no process", "set hostPID: true"),
        (lambda machine: None, HIDDEN, State.PROBLEM, "the driver names no process", "set hostPID: true"),
    ],
)  # fmt: skip
def test_the_pid_namespace(machine: Machine, prepare, look, state, what, advice) -> None:  # type: ignore[no-untyped-def]
    prepare(machine)
    result = result_of(list(proc_findings(look, machine.host)), NAMESPACE)
    assert result.state is state
    assert what in result.what
    assert result.advice.startswith(advice)


@pytest.mark.parametrize(
    ("options", "capabilities", "groups", "wanted"),
    [
        ("rw", NO_CAPABILITIES, "", ""),
        ("rw,hidepid=0", NO_CAPABILITIES, "", ""),
        ("rw,hidepid=off", NO_CAPABILITIES, "", ""),
        ("rw,hidepid=1", NO_CAPABILITIES, "10", "problem mounted with hidepid=1: other users' processes are hidden"),
        ("rw,hidepid=invisible", NO_CAPABILITIES, "10", "problem mounted with hidepid=invisible"),
        ("rw,gid=1000,hidepid=2", NO_CAPABILITIES, "10", "problem mounted with hidepid=2"),
        ("rw,gid=1000,hidepid=2", NO_CAPABILITIES, "10 1000", "ok mounted with hidepid=2, which group 1000 bypasses"),
        ("rw,gid=1000,hidepid=2", ALL_CAPABILITIES, "10", "ok mounted with hidepid=2, which CAP_SYS_PTRACE bypasses"),
        ("rw,gid=1000,hidepid=ptraceable", NO_CAPABILITIES, "1000", "problem mounted with hidepid=ptraceable"),
    ],
)  # fmt: skip
def test_hidepid(machine: Machine, options: str, capabilities: str, groups: str, wanted: str) -> None:
    machine.mounted(options)
    machine.write_own("status", f"Gid:\t5\t5\t5\t5\nGroups:\t{groups}\nCapEff:\t{capabilities}\n")
    lines = [f"{f.state} {f.what}" for f in proc_findings(NOBODY, machine.host) if "hidepid" in f.what]
    assert len(lines) == bool(wanted)
    assert all(wanted in line for line in lines)


def test_the_advice_about_hidepid(machine: Machine) -> None:
    machine.mounted("rw,gid=1000,hidepid=2")
    advice = [f.advice for f in proc_findings(NOBODY, machine.host) if "hidepid" in f.what]
    assert advice == [
        "mount /proc on the node without hidepid; or give the agent's pod supplementalGroups: [1000]"
    ]


def test_processes_that_may_not_be_read(machine: Machine) -> None:
    for pid in (90, 91):
        (machine.proc.root / str(pid) / "cgroup").mkdir(parents=True)
    machine.write_own("attr/current", "system_u:system_r:container_t:s0:c1,c2\x00")
    machine.write("/sys/fs/selinux/enforce", "1")
    findings = list(proc_findings(NOBODY, machine.host))
    result = result_of(findings, "/proc")
    assert result.state is State.PROBLEM
    assert "/cgroup: Is a directory, and 1 more, of 5 processes" in result.what
    assert "seLinuxOptions: {type: spc_t}" in result.advice
    assert result_of(findings, "SELinux").what == (
        "enforcing, security context system_u:system_r:container_t:s0:c1,c2"
    )


def test_a_process_that_ended_meanwhile_is_not_counted(machine: Machine) -> None:
    (machine.proc.root / "99").mkdir()
    assert result_of(list(proc_findings(NOBODY, machine.host)), "/proc").what.startswith(
        "the cgroup of each of 3 "
    )


@pytest.mark.parametrize(("exists", "text"), [(True, "has no process"), (False, "No such file or directory")])
def test_an_invalid_proc_root(tmp_path: Path, exists: bool, text: str) -> None:
    folder = tmp_path / "empty"
    if exists:
        folder.mkdir()
    result = result_of(list(proc_findings(NOBODY, Host.here(folder))), "/proc")
    assert result.state is State.PROBLEM
    assert text in result.what


def test_look_ups_that_are_denied_to_the_agent(machine: Machine) -> None:
    look = Observation(problems=(Problem(Cause.PROC_DENIED, "GPU-1", "/proc/5/cgroup: Permission denied"),))
    findings = list(proc_findings(look, machine.host))
    assert states(findings, "/proc") == [State.OK, State.PROBLEM]
    assert findings[-1].what == "a process on a GPU: /proc/5/cgroup: Permission denied"
