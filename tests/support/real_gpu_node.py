"""A node with a real GPU: pods whose CUDA processes run in cgroups of the kernel, and their file for the agent."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.agent_process import Agent, agent
from tests.support.cuda_process import CudaProcess
from tests.support.kube_objects import NODE, bind_request, fraction, reservation, uid
from tests.support.pod_cgroups import PodCgroups, pod_cgroups


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
    with pod_cgroups() as cgroups:
        node = RealGpuNode(folder=folder, gpu_uuid=gpu_uuid, cgroups=cgroups)
        try:
            yield node
        finally:
            for process in list(node.processes):
                node.end(process)
