"""Environment of this process, read from files and environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuagent.sampling.cgroups import CgroupNames, MalformedCgroup, read_names

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
