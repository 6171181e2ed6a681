"""Faults of the agent's own pod: device files, PID namespace and /proc, and rights on the API server."""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuagent.problems import OwnCause, Problem
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


class OwnContainer:
    """What the container got from the node. All files are of the kernel or in /dev: reading them is fast."""

    def __init__(
        self,
        *,
        proc_root: Path,
        root: Path = Path("/"),
        own: Path = Path("/proc/self"),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Set the /proc of the node, the root of the container, and the /proc folder of this process."""
        self._dev = root / "dev"
        self._requested = one_line(environment.get(VISIBLE_DEVICES_ENV, ""))
        self._is_blind = self._has_seen_gpus = self._has_seen_processes = False
        self._gpu_faults = tuple(
            self._hidden_gpus(is_monitor=bool(environment.get("NVIDIA_MIG_MONITOR_DEVICES")))
        )
        detail = _proc_fault(proc_root, own)
        self._proc_faults = (Problem(OwnCause.HOST_PROC, detail=detail),) if detail else ()

    def observe(self, sample: Sample) -> None:
        """Take from a sample whether the driver and /proc work."""
        placed = (LookupResult.CONTAINER, LookupResult.HOST)
        self._is_blind = not sample.reading.gpus and not sample.reading.is_hanging
        self._has_seen_gpus |= bool(sample.reading.gpus)
        self._has_seen_processes |= any(origin.result in placed for origin in sample.origins.values())

    def problems(self) -> tuple[Problem, ...]:
        """Return the present faults; device files count only while no GPU answers."""
        detail = self._device_fault() if self._is_blind else ""
        files = (Problem(OwnCause.DEVICE_FILES, detail=detail),) if detail else ()
        return (*files, *self._gpu_faults, *(() if self._has_seen_processes else self._proc_faults))

    def _device_fault(self) -> str:
        gpus = sorted(path.name for path in self._dev.glob("nvidia[0-9]*")) or ["nvidia0"]
        for path in (self._dev / name for name in ("nvidiactl", *gpus)):
            if not path.exists():  # the driver of WSL 2 has other files
                return "" if self._has_seen_gpus else f"there is no /dev/{path.name}: {self._remedy()}"
            # The system call checks the device cgroup, too, and does not wait for the driver as an open may
            # (Linux fs/namei.c, inode_permission).
            if not os.access(path, os.R_OK | os.W_OK):
                return (
                    f"no access to /dev/{path.name}: restart the agent's pod; if systemctl daemon-reload took"
                    " the access away, give the devices by CDI, which prevents it"
                )
        return ""

    def _remedy(self) -> str:
        if self._requested in _NO_DEVICES:
            return f"set runtimeClassName nvidia and {VISIBLE_DEVICES_ENV}=all in the agent's pod, or use CDI"
        return (
            f"{VISIBLE_DEVICES_ENV}={self._requested} had no effect: load the driver if the node has no such"
            " file either; set runtimeClassName nvidia; if the node's toolkit refuses the variable"
            f" (accept-nvidia-visible-devices-envvar-when-unprivileged), mount {_MOUNTS}/all or use CDI"
        )

    def _hidden_gpus(self, *, is_monitor: bool) -> Iterator[Problem]:
        if self._requested not in _NO_DEVICES | {"all"} and not _ALL_BY_CDI.fullmatch(self._requested):
            detail = (
                f"{VISIBLE_DEVICES_ENV}={self._requested} hides the other GPUs: set it to all, and do not"
                " request nvidia.com/gpu for the agent's pod"
            )
            yield Problem(OwnCause.VISIBLE_DEVICES, detail=detail)
        if is_monitor and not any(self._dev.glob("nvidia-caps/*")):
            detail = (
                "NVIDIA_MIG_MONITOR_DEVICES had no effect, and GPUs in MIG mode do not report their memory:"
                " container toolkits 1.18.0 to 1.20.0 ignore it in the mode jit-cdi; update the toolkit, or"
                " use CDI with management.nvidia.com/gpu=all"
            )
            yield Problem(OwnCause.MIG_MONITOR, detail=detail)


def _proc_fault(proc_root: Path, own: Path) -> str:
    """Return why processes cannot be found; empty if they can, or perhaps can, as on a node of KIND.

    Without a right to see other users' processes, PIDs 1 and 2 are hidden or not readable.
    """
    first, second = _text(proc_root / "1/cgroup"), _text(proc_root / "2/comm").strip()
    if not first and not second:
        return (
            f"{proc_root} does not show the node's processes: mount it on the node without hidepid, or give"
            " the agent's pod its gid as supplementalGroups; under SELinux set agent.seLinuxOptions"
        )
    try:
        is_first = str((own / "ns/pid").readlink()) == _FIRST_NAMESPACE
    except OSError:
        return ""
    if is_first:
        return "" if second == "kthreadd" else f"{proc_root} is not the node's /proc: remove --proc-root"
    if second == "kthreadd" or (first and first == _text(own / "cgroup")):
        return "the agent is not in the node's PID namespace: set hostPID: true in its pod"
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


POD_RIGHTS: Final = ("list pods", "watch pods")
EVENT_RIGHTS: Final = ("create events", "patch events")
EVICTION_RIGHTS: Final = ("create pods/eviction", "get pods")


class OwnRights:
    """The rights without which the agent knows no pods, or fails late. Others show when they are used."""

    def __init__(self, client: KubeClient, *rights: str, first_pause: float = 60.0) -> None:
        """Set the rights, and the seconds before missing ones are reviewed again; this doubles to 10 min."""
        self._client, self._missing, self._pause = client, rights, first_pause
        self.denied: tuple[str, ...] = ()

    async def run(self) -> None:
        """Review the rights until all are granted."""
        while self._missing:
            answers = [(right, await self._is_granted(right)) for right in self._missing]
            self._missing = tuple(right for right, is_granted in answers if not is_granted)
            self.denied = tuple(right for right, is_granted in answers if is_granted is False)
            if self._missing:
                await asyncio.sleep(jittered(self._pause, JITTER_AROUND))
                self._pause = min(2 * self._pause, 600.0)

    async def _is_granted(self, right: str) -> bool | None:
        """Return None if the API server does not say."""
        verb, _, resource = right.partition(" ")
        resource, _, part = resource.partition("/")
        try:
            status = await review_right(self._client, verb=verb, resource=resource, subresource=part)
        except (ApiError, Unreachable, AccessError):
            return None
        return None if status.error and not status.allowed else status.allowed
