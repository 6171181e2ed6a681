"""Memory of processes."""

import re
from pathlib import Path


def peak_resident_mib(pid: int) -> float:
    """Return the peak resident memory of a process in MiB (`VmHWM` of /proc/PID/status)."""
    line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    if line is None:
        raise ValueError(f"/proc/{pid}/status has no VmHWM")
    return int(line[1]) / 1024
