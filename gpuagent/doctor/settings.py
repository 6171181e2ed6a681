"""The settings of `doctor`."""

from dataclasses import dataclass
from pathlib import Path

from kai.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """Settings of `doctor`; the same as for `serve`, but all are optional."""

    scenario: Path | None = None
    simulates_cluster: bool = False
    """Whether GPUs and processes are made up from the pods of the cluster."""
    pods: Path | None = None
    """None: the pods of the cluster, if there is one."""
    needs_cluster: bool = False
    """Whether `--pods cluster` is set, which makes a missing cluster a problem."""
    node: str = ""
    proc_root: Path = Path("/proc")
    reservation_namespace: str
    reads_config_maps: bool = False
    kai_version: Version | None = None
    output: str = "text"
    """`text` or `json`."""
