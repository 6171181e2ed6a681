"""Where this process runs, as far as files and its environment tell."""

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
    """The files to look at."""

    root: Path = Path("/")
    """Of this container, or of the node outside one."""
    proc_root: Path = Path("/proc")
    """Where processes are looked up."""
    own: Path = Path("/proc/self")
    """This process."""
    environment: Mapping[str, str]

    @classmethod
    def here(cls, proc_root: Path) -> "Host":
        """This process, looking processes up there."""
        return cls(proc_root=proc_root, environment=os.environ)

    def under(self, path: str) -> Path:
        """An absolute path under the root."""
        return self.root / path.lstrip("/")

    @property
    def names(self) -> CgroupNames:
        """What this process's own cgroup path names; in a cgroup namespace of its own, nothing."""
        text = read_text(self.own / "cgroup")
        try:
            return read_names(text) if text else CgroupNames()
        except MalformedCgroup:
            return CgroupNames()

    @property
    def is_contained(self) -> bool:
        """Whether this is a container, by the marks that runtimes leave."""
        marks = (self.under("/.dockerenv"), self.under("/run/.containerenv"))
        return (
            "KUBERNETES_SERVICE_HOST" in self.environment
            or any(mark.exists() for mark in marks)
            or bool(self.names.container_id)
        )

    @property
    def may_trace(self) -> bool:
        """Whether it has CAP_SYS_PTRACE, which sees through hidepid."""
        return self._may(_SYS_PTRACE)

    @property
    def is_privileged(self) -> bool:
        """Whether it has CAP_SYS_ADMIN, as every privileged container has."""
        return self._may(_SYS_ADMIN)

    @property
    def groups(self) -> frozenset[int]:
        """Every group that counts for files."""
        fields = self._status
        found = fields.get("Groups", "").split() + fields.get("Gid", "").split()[3:]
        return frozenset(int(group) for group in found if group.isdigit())

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
    """Read a small file; None if it is not there or may not be read."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return None
