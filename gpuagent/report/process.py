"""The agent's own CPU and memory, under the names every Prometheus client uses.

prometheus_client's collector would do, at 4 MiB of memory on every node for the five figures.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuagent.report.families import Family

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGESIZE")
_PROC: Final = Path("/proc")


def process_figures() -> Iterator[tuple[Family, float]]:
    """Yield this process's figures, as far as /proc tells them."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield Family.PROCESS_CPU, usage.ru_utime + usage.ru_stime
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Family.PROCESS_MAX_FILES, most_files
    try:
        fields = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()
        booted = next(
            int(line.split()[1])
            for line in (_PROC / "stat").read_text().splitlines()
            if line.startswith("btime ")
        )
        files = len(list((_PROC / "self" / "fd").iterdir()))
    except (OSError, StopIteration):
        return
    yield Family.PROCESS_RESIDENT, int(fields[21]) * _PAGE
    yield Family.PROCESS_STARTED, booted + int(fields[19]) / _TICKS
    yield Family.PROCESS_FILES, files
