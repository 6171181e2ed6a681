"""Checks that the agent sees all processes of the node: PID namespace and access to /proc."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from console.doctor.check_results import CheckResult, ok, problem, unknown
from console.doctor.device_access import Host, read_text
from console.doctor.driver_checks import Observation
from gpuagent.problems import Cause
from gpuagent.sampling.sample import LookupResult
from service.text import one_line

_HOST_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: the initial PID namespace has this number on every machine."""
_NAMESPACE: Final = "PID namespace"
_HOST_PID: Final = "set hostPID: true in the agent's pod"
_PROC: Final = "/proc"
_MOST_TRIED: Final = 5000
_VISIBLE_ALL: Final = frozenset({"", "0", "off"})
_ONLY_TRACERS: Final = frozenset({"4", "ptraceable"})


def proc_findings(observation: Observation, host: Host) -> Iterator[CheckResult]:
    """Check that the node's processes are visible."""
    yield _namespace(observation, host)
    yield from _mount(host)
    yield _readable(host)
    yield _security(host)
    for finding in observation.problems:
        if finding.cause is Cause.PROC_DENIED:
            yield problem(_PROC, f"a process on a GPU: {finding.detail}", _unhinder(host))


def _namespace(observation: Observation, host: Host) -> CheckResult:
    hidden = [finding for finding in observation.problems if finding.cause is Cause.PID_NAMESPACE]
    if hidden:
        return problem(_NAMESPACE, hidden[0].detail, _HOST_PID)
    second = (read_text(host.proc_root / "2/comm") or "").strip()
    own = _link(host.own / "ns/pid")
    if own == _HOST_NAMESPACE:
        if second != "kthreadd":
            return problem(
                _NAMESPACE,
                f"the host's, but {host.proc_root} is not the host's /proc: PID 2 is {second or 'missing'}",
                "remove --proc-root: with hostPID: true the container's own /proc is the host's",
            )
        return ok(_NAMESPACE, "the host's")
    seen = observation.lookup_counts[LookupResult.CONTAINER] + observation.lookup_counts[LookupResult.HOST]
    if seen:
        return ok(
            _NAMESPACE,
            f"not the machine's initial one, but it contains {seen} processes on GPUs (as on a KIND node)",
        )
    if second == "kthreadd":
        return problem(
            _NAMESPACE,
            f"{host.proc_root} is the host's, but the agent is in another namespace, and the driver reports"
            " PIDs of that namespace",
            _HOST_PID,
        )
    first, mine = read_text(host.proc_root / "1/cgroup"), read_text(host.own / "cgroup")
    if first is not None and first == mine:
        return problem(_NAMESPACE, "the container's own namespace: PID 1 is in the same container", _HOST_PID)
    return unknown(
        _NAMESPACE,
        "not the host's; without a process on a GPU it is unknown whether it is the node's (as on KIND)",
        f"{_HOST_PID}; run the check again while a pod uses a GPU",
    )


def _mount(host: Host) -> Iterator[CheckResult]:
    options = _mount_options(host)
    hidden = options.get("hidepid", "")
    if hidden in _VISIBLE_ALL:
        return
    group = options.get("gid", "0")
    is_member = hidden not in _ONLY_TRACERS and group.isdigit() and int(group) in host.groups
    if host.may_trace or is_member:
        how = "CAP_SYS_PTRACE" if host.may_trace else f"group {group}"
        yield ok(_PROC, f"mounted with hidepid={hidden}, which {how} bypasses")
        return
    way = "" if hidden in _ONLY_TRACERS else f"; or give the agent's pod supplementalGroups: [{group}]"
    yield problem(
        _PROC,
        f"mounted with hidepid={hidden}: other users' processes are hidden",
        f"mount /proc on the node without hidepid{way}",
    )


def _mount_options(host: Host) -> dict[str, str]:
    """Return the options of the file system at the proc root; empty if it is not a procfs."""
    options: dict[str, str] = {}
    for line in (read_text(host.own / "mountinfo") or "").splitlines():
        fields, _, system = line.partition(" - ")
        parts, kind = fields.split(), system.split()
        if len(parts) > 4 and len(kind) > 2 and kind[0] == "proc" and parts[4] == str(host.proc_root):
            pairs = (option.partition("=") for option in kind[2].split(","))
            options = {name: value for name, _, value in pairs}
    return options


def _readable(host: Host) -> CheckResult:
    try:
        with os.scandir(host.proc_root) as entries:
            pids = [entry.name for entry in entries if entry.name.isdigit()]
    except OSError as error:
        return problem(_PROC, f"{host.proc_root}: {error.strerror}", _unhinder(host))
    tried = pids[:_MOST_TRIED]
    denied: list[str] = []
    gone = 0
    for pid in tried:
        path = host.proc_root / pid / "cgroup"
        try:
            path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            gone += 1
        except OSError as error:
            denied.append(f"{path}: {error.strerror}")
    if denied:
        more = f", and {len(denied) - 1} more" if len(denied) > 1 else ""
        return problem(_PROC, f"{denied[0]}{more}, of {len(tried)} processes", _unhinder(host))
    if not pids:
        return problem(_PROC, f"{host.proc_root} has no process", "set --proc-root to the host's /proc")
    return ok(_PROC, f"the cgroup of each of {len(tried) - gone} processes is readable")


def _security(host: Host) -> CheckResult:
    enforcing = (read_text(host.under("/sys/fs/selinux/enforce")) or "").strip()
    context = _context(host)
    if not context and not enforcing:
        return ok("SELinux", "none")
    state = {"1": "enforcing", "0": "permissive"}.get(enforcing, "not visible from here")
    return ok("SELinux", f"{state}, security context {context or 'unknown'}")


def _unhinder(host: Host) -> str:
    if ":container_t:" in _context(host):
        return "SELinux confines the agent (container_t): set seLinuxOptions: {type: spc_t} in its pod"
    return "let the agent read /proc/<pid>/cgroup of every process, as Linux does by default"


def _context(host: Host) -> str:
    text = (read_text(host.own / "attr/current") or "").strip("\x00\n ")
    return "" if text == "unconfined" else one_line(text)


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
