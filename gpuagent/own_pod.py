"""Faults of the agent's own pod: device files, PID namespace and /proc, and rights on the API server."""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuagent.pods.cluster_pods import ClusterPods
from gpuagent.pods.inventory import UnavailableReason
from gpuagent.problems import OwnCause, OwnProblem
from gpuagent.sampling.sample import LookupResult, Sample
from kai.keys import VISIBLE_DEVICES_ENV
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.tokens import review_right
from service.backoff import JITTER_AROUND, jittered
from service.text import one_line

_MOUNTS: Final = "/var/run/nvidia-container-devices"
_NO_DEVICES: Final = frozenset({"", "void", "none", _MOUNTS})
_ALL_BY_CDI: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*=all")
"""All devices of a CDI kind, such as `management.nvidia.com/gpu=all` (SPEC.md of CDI)."""
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: the initial PID namespace has this number on every machine."""
_SYS_PTRACE: Final = 1 << 19
_HIDES_NOTHING: Final = frozenset({"", "0", "off"})
_ONLY_TRACERS: Final = frozenset({"4", "ptraceable"})


class OwnContainer:
    """What the container got from the node. All files are of the kernel or of /dev: reading them is fast."""

    def __init__(
        self,
        *,
        proc_root: Path,
        root: Path = Path("/"),
        own: Path = Path("/proc/self"),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Set the /proc of the node, the root of the container, and the /proc folder of this process."""
        self._proc_root, self._dev, self._own = proc_root, root / "dev", own
        self._environment = environment
        self._is_blind = self._has_seen_gpus = self._has_seen_processes = False
        self._hidden = (*self._hidden_gpus(), *self._hidden_processes())
        self._other_namespace = tuple(self._namespace())

    def observe(self, sample: Sample) -> None:
        """Take from a sample whether the driver and /proc work."""
        placed = (LookupResult.CONTAINER, LookupResult.HOST)
        self._is_blind = not sample.reading.gpus and not sample.reading.is_hanging
        self._has_seen_gpus |= bool(sample.reading.gpus)
        self._has_seen_processes |= any(origin.result in placed for origin in sample.origins.values())

    @property
    def problems(self) -> tuple[OwnProblem, ...]:
        """The present faults; device files count only while no GPU answers."""
        files = self._device_files() if self._is_blind else ()
        return (*files, *self._hidden, *(() if self._has_seen_processes else self._other_namespace))

    def _device_files(self) -> Iterator[OwnProblem]:
        capabilities = self._environment.get("NVIDIA_DRIVER_CAPABILITIES") or "utility"
        if not {"utility", "all"} & set(capabilities.replace(",", " ").split()):
            detail = f"NVIDIA_DRIVER_CAPABILITIES={one_line(capabilities)} leaves out the driver's library"
            yield OwnProblem(OwnCause.DEVICE_FILES, f"{detail}: add utility to the list")
        gpus = sorted(path.name for path in self._dev.glob("nvidia[0-9]*")) or ["nvidia0"]
        for path in (self._dev / name for name in ("nvidiactl", *gpus)):
            if not path.exists():
                if self._has_seen_gpus:
                    return  # as on WSL 2, where the driver has other files
                yield OwnProblem(OwnCause.DEVICE_FILES, f"there is no /dev/{path.name}: {self._remedy()}")
                return
            # The system call checks the device cgroup, too, and does not wait for the driver as an open may
            # (Linux fs/namei.c, inode_permission).
            if not os.access(path, os.R_OK | os.W_OK):
                yield OwnProblem(
                    OwnCause.DEVICE_FILES,
                    f"no access to /dev/{path.name}: restart the agent's pod; if systemctl daemon-reload"
                    " took the access away, give the devices by CDI, which prevents it",
                )
                return

    def _remedy(self) -> str:
        requested = self._environment.get(VISIBLE_DEVICES_ENV, "")
        if requested in _NO_DEVICES:
            return f"set runtimeClassName nvidia and {VISIBLE_DEVICES_ENV}=all in the agent's pod, or use CDI"
        return (
            f"{VISIBLE_DEVICES_ENV}={one_line(requested)} had no effect: load the driver if the node has no"
            " such file either; set runtimeClassName nvidia; if the node's toolkit refuses the variable"
            f" (accept-nvidia-visible-devices-envvar-when-unprivileged), mount {_MOUNTS}/all or use CDI"
        )

    def _hidden_gpus(self) -> Iterator[OwnProblem]:
        requested = self._environment.get(VISIBLE_DEVICES_ENV, "")
        if requested not in _NO_DEVICES | {"all"} and not _ALL_BY_CDI.fullmatch(requested):
            yield OwnProblem(
                OwnCause.VISIBLE_DEVICES,
                f"{VISIBLE_DEVICES_ENV}={one_line(requested)} hides the other GPUs: set it to all, and do not"
                " request nvidia.com/gpu for the agent's pod",
            )
        is_monitor = bool(self._environment.get("NVIDIA_MIG_MONITOR_DEVICES"))
        if is_monitor and not any(self._dev.glob("nvidia-caps/*")):
            yield OwnProblem(
                OwnCause.MIG_MONITOR,
                "NVIDIA_MIG_MONITOR_DEVICES is set, but /dev/nvidia-caps is empty, so that GPUs in MIG mode"
                " do not report their memory: container toolkits 1.18.0 to 1.20.0 ignore the variable in the"
                " mode jit-cdi; update the toolkit, or use CDI with management.nvidia.com/gpu=all",
            )

    def _hidden_processes(self) -> Iterator[OwnProblem]:
        """Yield the fault of a /proc that hides processes (Linux fs/proc/base.c, has_pid_permissions)."""
        options: dict[str, str] = {}
        for line in _text(self._own / "mountinfo").splitlines():
            mount, _, system = line.partition(" - ")
            if mount.split()[4:5] == [str(self._proc_root)] and system.startswith("proc "):
                options = dict(option.partition("=")[::2] for option in system.split()[-1].split(","))
        hidden = options.get("hidepid", "")
        status = dict(line.partition(":")[::2] for line in _text(self._own / "status").splitlines())
        groups = {*status.get("Groups", "").split(), *status.get("Gid", "").split()[3:]}
        group = "" if hidden in _ONLY_TRACERS else options.get("gid", "0")
        may_trace = bool(int(status.get("CapEff", "0"), 16) & _SYS_PTRACE)
        if hidden not in _HIDES_NOTHING and group not in groups and not may_trace:
            other = f", or give the agent's pod supplementalGroups: [{group}]" if group else ""
            yield OwnProblem(
                OwnCause.HIDEPID,
                f"{self._proc_root} is mounted with hidepid={hidden}, which hides other users' processes:"
                f" mount /proc on the node without it{other}",
            )

    def _namespace(self) -> Iterator[OwnProblem]:
        """Yield the fault of a /proc and PID namespace that are not the node's, until a process is found."""
        is_hosts_proc = _text(self._proc_root / "2/comm").strip() == "kthreadd"
        try:
            is_first = str((self._own / "ns/pid").readlink()) == _FIRST_NAMESPACE
        except OSError:
            return
        first, own = _text(self._proc_root / "1/cgroup"), _text(self._own / "cgroup")
        if is_first and not is_hosts_proc:
            detail = f"{self._proc_root} is not the node's /proc: remove --proc-root"
        elif not is_first and (is_hosts_proc or (first and first == own)):
            detail = "the agent is not in the node's PID namespace: set hostPID: true in its pod"
        else:
            return  # the node's, or, as on a node of KIND, perhaps the node's
        yield OwnProblem(OwnCause.HOST_PID, detail)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


POD_RIGHTS: Final = ("list pods", "watch pods")
EVENT_RIGHTS: Final = ("create events", "patch events")
EVICTION_RIGHTS: Final = ("create pods/eviction", "get pods")
RECORD_RIGHTS: Final = ("create events", "list events")
"""Rights in the agent's own namespace, for the records of evictions."""
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 600.0


class OwnRights:
    """The rights without which the agent knows no pods, or fails late. Others show when they are used."""

    def __init__(
        self, client: KubeClient, *, writes_events: bool, evicts: bool, first_pause: float = _FIRST_PAUSE
    ) -> None:
        """Set what the agent may do, and the seconds before missing rights are reviewed again."""
        self._client, self._pause = client, first_pause
        everywhere = POD_RIGHTS + EVENT_RIGHTS * writes_events + EVICTION_RIGHTS * evicts
        self._missing = [(right, "") for right in everywhere]
        self._missing += [(right, client.namespace) for right in RECORD_RIGHTS * evicts]
        self.problems: tuple[OwnProblem, ...] = ()

    async def run(self) -> None:
        """Review the rights until all are granted."""
        while self._missing:
            answers = [(right, await self._is_granted(*right)) for right in self._missing]
            self._missing = [right for right, is_granted in answers if not is_granted]
            denied = [
                f"{right} in {namespace}" if namespace else right
                for (right, namespace), is_granted in answers
                if is_granted is False
            ]
            detail = f"no right to {', '.join(denied)}: apply the chart's roles kaishare-agent"
            self.problems = (OwnProblem(OwnCause.RIGHTS, detail),) if denied else ()
            if self._missing:
                await asyncio.sleep(jittered(self._pause, JITTER_AROUND))
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    async def _is_granted(self, right: str, namespace: str) -> bool | None:
        """Return None if the API server does not say."""
        verb, _, resource = right.partition(" ")
        resource, _, part = resource.partition("/")
        try:
            status = await review_right(
                self._client, verb=verb, resource=resource, subresource=part, namespace=namespace
            )
        except (ApiError, Unreachable, AccessError):
            return None
        return None if status.error and not status.allowed else status.allowed


class OwnPod:
    """All faults of the agent's own pod."""

    def __init__(
        self, *, container: OwnContainer | None, rights: OwnRights | None, pods: ClusterPods | None
    ) -> None:
        """Set what is checked: no container with simulated GPUs, and no rights with a file of pods."""
        self._container, self._rights, self._pods = container, rights, pods

    def observe(self, sample: Sample) -> None:
        """Take from a sample whether the driver and /proc work."""
        if self._container is not None:
            self._container.observe(sample)

    def problems(self) -> tuple[OwnProblem, ...]:
        """Return the present faults."""
        kinds = self._pods.unavailable if self._pods else ()
        denied = [kind.line for kind in kinds if kind.reason is UnavailableReason.DENIED]
        return (
            *(self._container.problems if self._container else ()),
            *(OwnProblem(OwnCause.RIGHTS, line) for line in denied),
            *(self._rights.problems if self._rights else ()),
        )

    async def run(self) -> None:
        """Review the rights until all are granted."""
        if self._rights is not None:
            await self._rights.run()
