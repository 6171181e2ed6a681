"""A node with a real GPU: pods whose CUDA processes run in cgroups of the kernel, and their file for the agent."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.agent_process import Agent, agent
from tests.support.cuda_process import CudaProcess
from tests.support.kube_objects import NODE, bind_request, fraction, reservation, uid
from tests.support.proc_files import in_pod

_WITHOUT_SETTINGS: Final = ("name=systemd", "memory", "pids")
"""Hierarchies of cgroup v1 that take a process without further settings."""


class PodCgroups:
    """The cgroups of some pods. Creating them needs root and a writable hierarchy."""

    def __init__(self) -> None:
        self._roots = [root for root in _hierarchies() if _is_writable(root)]
        self._folders: set[Path] = set()

    @property
    def are_possible(self) -> bool:
        return bool(self._roots)

    def move(self, pid: int, uid: str, container: str = "0f" * 32) -> None:
        self._move(pid, Path(in_pod(uid, container).partition("::/")[2]))

    def move_to_child(self, pid: int, uid: str, name: str, container: str = "0f" * 32) -> None:
        """Move a process of a pod into a cgroup that a tenant creates below the container's."""
        self._move(pid, Path(in_pod(uid, container).partition("::/")[2], name))

    def _move(self, pid: int, path: Path) -> None:
        for root in self._roots:
            (root / path).mkdir(parents=True, exist_ok=True)
            self._folders |= {root / parent for parent in (path, *path.parents) if parent.name}
            (root / path / "cgroup.procs").write_text(f"{pid}\n")

    def remove(self) -> None:
        for folder in sorted(self._folders, key=lambda path: len(path.parts), reverse=True):
            for _ in range(50):  # the kernel lets go of an ended process a moment later
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
                else:
                    break


def _hierarchies() -> Iterator[Path]:
    """Yield the mount points of cgroup v2, and of those of v1 that need no settings."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup2" or (
            kind == "cgroup" and any(name in options.split(",") for name in _WITHOUT_SETTINGS)
        ):
            yield Path(mount.split(" ")[4])


def _is_writable(root: Path) -> bool:
    probe = root / "kaishare-probe"
    try:
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class RealGpuNode:
    """The first GPU of this machine, its pods and their processes."""

    folder: Path
    gpu_uuid: str
    cgroups: PodCgroups
    portions: dict[str, str] = field(default_factory=dict)
    """Part of the GPU of each pod, by name. An agent reads them at its start."""
    processes: dict[CudaProcess, str] = field(default_factory=dict)
    """Pod of each living process."""

    def start(self, pod: str, count: int = 1) -> list[CudaProcess]:
        """Start processes of a pod at the same time; wait until they have their contexts."""
        started = [CudaProcess() for _ in range(count)]
        number = self._number(pod)
        for process in started:
            self.processes[process] = pod
            self.cgroups.move(process.pid, uid(number), _container(number))
        for process in started:
            process.wait_for_context()
        return started

    def move_to_child(self, process: CudaProcess, name: str) -> None:
        """Move a process into a cgroup of any name below its container's, as a tenant can."""
        number = self._number(self.processes[process])
        self.cgroups.move_to_child(process.pid, uid(number), name, _container(number))

    def end(self, process: CudaProcess) -> None:
        process.end()
        del self.processes[process]

    @contextmanager
    def agent(self, *options: str) -> Iterator[Agent]:
        """Run an agent that finds the pods in a file and the processes in /proc."""
        items = [reservation(gpu=self.gpu_uuid)]
        for name, portion in self.portions.items():
            number = self._number(name)
            statuses = [{"name": "main", "containerID": f"containerd://{_container(number)}"}]
            items += [
                fraction(name, number, portion, containerStatuses=statuses),
                bind_request(name, number, portion),
            ]
        file = self.folder / "pods.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        with agent(self.folder / "log", "--node", NODE, "--pods", str(file), *options) as running:
            yield running

    def _number(self, pod: str) -> int:
        return 1 + list(self.portions).index(pod)


def _container(number: int) -> str:
    return f"{number:064x}"


@contextmanager
def real_gpu_node(folder: Path, gpu_uuid: str) -> Iterator[RealGpuNode]:
    """Yield a node without pods; end its processes and remove their cgroups in the end."""
    node = RealGpuNode(folder=folder, gpu_uuid=gpu_uuid, cgroups=PodCgroups())
    try:
        yield node
    finally:
        try:
            for process in list(node.processes):
                node.end(process)
        finally:
            node.cgroups.remove()
