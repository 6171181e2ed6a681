"""Checks how this container got the GPUs, whether it can use them, and what the container toolkit refuses.

The ways are those of NVIDIA's container toolkit (`config.toml`): the environment variable
NVIDIA_VISIBLE_DEVICES, mounts under /var/run/nvidia-container-devices, and CDI.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console.doctor.check_results import CheckResult, ok, problem, unknown, warning
from gpuagent.sampling.cgroups import CgroupNames, MalformedCgroup, read_names
from kai import keys
from service.text import counted, one_line

_SYS_PTRACE: Final = 19
_SYS_ADMIN: Final = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Paths of the files to read."""

    root: Path = Path("/")
    """Root of this container, or of the node outside of one."""
    proc_root: Path = Path("/proc")
    """The /proc in which processes are looked up."""
    own: Path = Path("/proc/self")
    """The /proc folder of this process."""
    environment: Mapping[str, str]

    @classmethod
    def here(cls, proc_root: Path) -> "Host":
        """Return the environment of this process, with the given /proc."""
        return cls(proc_root=proc_root, environment=os.environ)

    def under(self, path: str) -> Path:
        """Return an absolute path below the root."""
        return self.root / path.lstrip("/")

    @property
    def names(self) -> CgroupNames:
        """Names in this process's own cgroup path; empty in a private cgroup namespace."""
        text = read_text(self.own / "cgroup")
        try:
            return read_names(text) if text else CgroupNames()
        except MalformedCgroup:
            return CgroupNames()

    @property
    def is_contained(self) -> bool:
        """Whether this process runs in a container, according to files of container runtimes."""
        marks = (self.under("/.dockerenv"), self.under("/run/.containerenv"))
        return (
            "KUBERNETES_SERVICE_HOST" in self.environment
            or any(mark.exists() for mark in marks)
            or bool(self.names.container_id)
        )

    @property
    def may_trace(self) -> bool:
        """Whether the process has CAP_SYS_PTRACE, which bypasses hidepid."""
        return self._may(_SYS_PTRACE)

    @property
    def is_privileged(self) -> bool:
        """Whether the process has CAP_SYS_ADMIN, as every privileged container has."""
        return self._may(_SYS_ADMIN)

    @property
    def groups(self) -> frozenset[int]:
        """All groups of the process, supplementary groups included."""
        fields = self._status
        numbers = fields.get("Groups", "").split() + fields.get("Gid", "").split()[3:]
        return frozenset(int(group) for group in numbers if group.isdigit())

    def _may(self, capability: int) -> bool:
        text = self._status.get("CapEff", "")
        try:
            return bool(int(text, 16) >> capability & 1)
        except ValueError:
            return False

    @property
    def _status(self) -> dict[str, str]:
        lines = (line.partition(":") for line in (read_text(self.own / "status") or "").splitlines())
        return {name: value.strip() for name, _, value in lines}


def read_text(path: Path) -> str | None:
    """Read a small file; None if it is missing or not readable."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return None


MOUNTS: Final = "/var/run/nvidia-container-devices"
_FILES: Final = "device files"
_ACCESS: Final = "device access"
_TOOLKIT: Final = "container toolkit"
_CONFIGS: Final = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
_CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
_BY_VARIABLE: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_BY_MOUNT: Final = "accept-nvidia-visible-devices-as-volume-mounts"
_GPU_FILE = re.compile(r"nvidia[0-9]+")
_ALL_BY_CDI = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*=all")
"""All devices of a CDI kind, as `VENDOR/CLASS=all` (CDI's SPEC.md), as `management.nvidia.com/gpu=all`."""
_NO_DEVICES: Final = frozenset({"", "void", "none"})
_MIG_MONITOR: Final = "NVIDIA_MIG_MONITOR_DEVICES"
_GIVE: Final = "set runtimeClassName: nvidia and NVIDIA_VISIBLE_DEVICES=all in the agent's pod"


@dataclass(frozen=True, slots=True)
class _Toolkit:
    """Relevant settings of the container toolkit."""

    path: Path
    by_variable: bool
    by_mount: bool
    mode: str


def device_findings(host: Host, runtime_class: str | None = None) -> Iterator[CheckResult]:
    """Check the device files and how the container got them.

    Args:
        host: this container or node.
        runtime_class: RuntimeClass of the agent's own pod; empty if it has none, None if unknown.
    """
    refused = _refused(host)
    toolkit = _toolkit(host)
    yield _files(host, refused, toolkit)
    if host.is_contained:
        ways = _ways(host, has_devices=not refused)
        if ways:
            yield _access(host, ways, runtime_class)
        yield from _capabilities(host)
    yield _toolkit_finding(host, toolkit)


def _refused(host: Host) -> str:
    """Return why the device files cannot be used; empty if they can."""
    folder = host.under("/dev")
    if not (folder / "nvidiactl").exists():
        return "there is no /dev/nvidiactl"
    for name in ("nvidiactl", *_gpu_files(host)):
        try:
            os.close(os.open(folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            return f"/dev/{name}: {error.strerror}"
    return "" if _gpu_files(host) else "there is no /dev/nvidia0, only /dev/nvidiactl"


def _gpu_files(host: Host) -> list[str]:
    try:
        return sorted(path.name for path in host.under("/dev").iterdir() if _GPU_FILE.fullmatch(path.name))
    except OSError:
        return []


def _files(host: Host, refused: str, toolkit: _Toolkit | str) -> CheckResult:
    if not refused:
        return ok(_FILES, f"/dev/nvidiactl and {', '.join(_gpu_files(host))} can be opened")
    if not refused.startswith("there is no"):
        return problem(
            _FILES,
            refused,
            "the container's device cgroup or the file mode denies access. If systemctl daemon-reload removed"
            " the access, restart the container, and use CDI to prevent it",
        )
    if not host.is_contained:
        return problem(_FILES, refused, "load the driver: nvidia-modprobe creates these files")
    return problem(_FILES, refused, _how_to_give(host, toolkit))


def _how_to_give(host: Host, toolkit: _Toolkit | str) -> str:
    """Return what is missing in a container without devices."""
    requested = host.environment.get(keys.VISIBLE_DEVICES_ENV, "")
    settings = toolkit if isinstance(toolkit, _Toolkit) else None
    if requested == MOUNTS and settings and not settings.by_mount:
        return f"the node's toolkit refuses volume mounts: set {_BY_MOUNT} = true, or use CDI"
    if requested in _NO_DEVICES or requested == MOUNTS:
        return _GIVE
    if settings and not settings.by_variable and not host.is_privileged:
        return (
            f"the node's toolkit refuses {keys.VISIBLE_DEVICES_ENV} from unprivileged containers"
            f" ({_BY_VARIABLE} = false): mount {MOUNTS}/all instead, or use CDI"
        )
    return (
        f"{keys.VISIBLE_DEVICES_ENV}={one_line(requested)} had no effect: the pod lacks runtimeClassName:"
        f" nvidia, or the node's toolkit refuses the variable ({_BY_VARIABLE} = false). In that case mount"
        f" {MOUNTS}/all, or use CDI"
    )


def _ways(host: Host, *, has_devices: bool) -> list[str]:
    """Return all ways through which the container may have got its devices."""
    requested = host.environment.get(keys.VISIBLE_DEVICES_ENV, "")
    ways = []
    mounted = _entries(host.under(MOUNTS))
    if mounted:
        ways.append(f"volume mounts under {MOUNTS}: {', '.join(mounted)}")
    if requested not in _NO_DEVICES and requested != MOUNTS:
        ways.append(f"environment variable {keys.VISIBLE_DEVICES_ENV}={one_line(requested)}")
    if has_devices and not ways:
        if requested == "void":
            ways.append(f"CDI (which sets {keys.VISIBLE_DEVICES_ENV}=void)")
        elif host.is_privileged:
            ways.append("a privileged container, which has every device of the node")
        else:
            ways.append("CDI, or single device files")
    return ways


def _access(host: Host, ways: list[str], runtime_class: str | None) -> CheckResult:
    pod = {None: "", "": "; no runtimeClassName"}.get(runtime_class, f"; runtimeClassName {runtime_class}")
    ways_text = " and ".join(ways) + pod
    requested = host.environment.get(keys.VISIBLE_DEVICES_ENV, "")
    if requested not in _NO_DEVICES | {"all", MOUNTS} and not _ALL_BY_CDI.fullmatch(requested):
        return problem(
            _ACCESS,
            f"{ways_text}: the agent does not see other GPUs",
            f"set {keys.VISIBLE_DEVICES_ENV}=all, and do not request {keys.GPU_RESOURCE} for the agent's pod",
        )
    return ok(_ACCESS, ways_text)


def _capabilities(host: Host) -> Iterator[CheckResult]:
    requested = host.environment.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if requested and not {"utility", "all"} & {name.strip() for name in requested.split(",")}:
        yield problem(
            _ACCESS,
            f"NVIDIA_DRIVER_CAPABILITIES={one_line(requested)} excludes the driver's library",
            "add utility to the list",
        )
    if host.environment.get(_MIG_MONITOR) and not _entries(host.under("/dev/nvidia-caps")):
        yield warning(
            "MIG monitor capability",
            f"{_MIG_MONITOR} is set, but /dev/nvidia-caps is empty: GPUs in MIG mode do not"
            " report their memory",
            "NVIDIA's container toolkit 1.18.0 to 1.20.0 ignores the variable in its mode jit-cdi:"
            " update the toolkit, or use CDI with management.nvidia.com/gpu=all",
        )


def _toolkit_finding(host: Host, toolkit: _Toolkit | str) -> CheckResult:
    if isinstance(toolkit, str):
        return unknown(
            _TOOLKIT,
            toolkit,
            f"on the node, {_CONFIGS[0]} shows the refused ways: {_BY_VARIABLE}, {_BY_MOUNT} and mode",
        )
    specs = sum(
        name.endswith((".yaml", ".yml", ".json")) and "nvidia" in (read_text(host.under(folder) / name) or "")
        for folder in _CDI_FOLDERS
        for name in _entries(host.under(folder))
    )
    variable = "accepted from every container" if toolkit.by_variable else "refused from unprivileged ones"
    return ok(
        _TOOLKIT,
        f"{toolkit.path}: {keys.VISIBLE_DEVICES_ENV} is {variable}; volume mounts are"
        f" {'accepted' if toolkit.by_mount else 'refused'}; mode {toolkit.mode},"
        f" {counted(specs, 'CDI specification')} of NVIDIA",
    )


def _toolkit(host: Host) -> _Toolkit | str:
    """Read the toolkit's settings from this container, or from the root of the node's first process.

    Returns:
        The settings, or why they are not known.
    """
    for path in (
        base / name.lstrip("/") for base in (host.root, host.proc_root / "1/root") for name in _CONFIGS
    ):
        text = read_text(path)
        if text is None:
            continue
        try:
            config: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            return f"{path}: not TOML: {one_line(str(error))}"
        runtime = config.get("nvidia-container-runtime")
        mode = runtime.get("mode", "auto") if isinstance(runtime, dict) else "auto"
        return _Toolkit(
            path=path,
            by_variable=config.get(_BY_VARIABLE, True) is not False,
            by_mount=config.get(_BY_MOUNT, False) is True,
            mode=one_line(str(mode)),
        )
    return "the toolkit's configuration is not visible from this container"


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(one_line(path.name) for path in folder.iterdir())
    except OSError:
        return []
