"""Memory of processes, and the memory limits of the chart."""

import re
from pathlib import Path
from typing import Final

from tests.support import yaml_text

_CHART: Final = Path(__file__).parents[2] / "deploy" / "helm" / "kaishare" / "values.yaml"


def peak_resident_mib(pid: int) -> float:
    """Return the peak resident memory of a process in MiB (`VmHWM` of /proc/PID/status)."""
    line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    if line is None:
        raise ValueError(f"/proc/{pid}/status has no VmHWM")
    return int(line[1]) / 1024


def memory_limit_mib(service: str) -> int:
    """Return the memory limit of `agent` or `webhook` in the chart, in MiB."""
    values = yaml_text.load(_CHART.read_text(encoding="utf-8"))
    limit: str = values[service]["resources"]["limits"]["memory"]
    return int(limit.removesuffix("Mi"))
