"""What a running service holds: memory, threads, descriptors, connections and asyncio tasks."""

import contextlib
import os
import signal
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import until

_TASKS_ON_SIGNAL = """
import asyncio, signal
from pathlib import Path
def _count_tasks(number, frame):
    tasks = asyncio.all_tasks(asyncio.get_running_loop())
    Path({file!r}).write_text(str(sum(not task.done() for task in tasks)))
signal.signal(signal.SIGUSR2, _count_tasks)
"""


def tasks_on_signal(file: Path) -> str:
    """Return Python code for the start of a program: on SIGUSR2 it writes its number of tasks to a file."""
    return _TASKS_ON_SIGNAL.format(file=str(file))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What a process holds at one moment."""

    mib: float
    threads: int
    connections: int
    """Connections that it has accepted on its ports."""
    descriptors: int
    """Open descriptors without those of `connections`."""
    tasks: int
    """Unfinished asyncio tasks without those of `connections`: aiohttp has one for each."""

    @property
    def text(self) -> str:
        """Return all figures in one line."""
        return (
            f"{self.mib:.1f} MiB, {self.threads} threads, {self.descriptors} descriptors,"
            f" {self.tasks} tasks, {self.connections} connections"
        )


def _accepted(pid: int, ports: Collection[int]) -> int:
    """Count the established connections of a process whose local port is one of `ports`."""
    folder = Path(f"/proc/{pid}/fd")
    sockets = set()
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(link.readlink()))
    count = 0
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port, is_listening = int(fields[1].rpartition(":")[2], 16), fields[3] == "0A"
        count += port in ports and not is_listening and f"socket:[{fields[9]}]" in sockets
    return count


async def process_state(pid: int, ports: Collection[int], tasks: Path) -> ProcessState:
    """Return what a process holds; its program has the code of `tasks_on_signal`."""
    tasks.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    text = str(await until(lambda: tasks.exists() and tasks.read_text(), "the process has counted its tasks"))
    connections = _accepted(pid, ports)
    return ProcessState(
        mib=resident_mib(pid),
        threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
        connections=connections,
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())) - connections,
        tasks=int(text) - connections,
    )


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much a figure grows over the time of its points, by the line of least squares.

    Args:
        points: time and figure.
    """
    times, figures = zip(*points, strict=True)
    return float(statistics.linear_regression(times, figures).slope * (times[-1] - times[0]))
