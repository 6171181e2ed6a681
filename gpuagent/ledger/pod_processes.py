"""The processes of the newest sample by pod, for readers who ask for them. Pure."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from msgspec import Struct

from gpuagent.gpus.gpu_reading import GpuProcess
from gpuagent.ledger.attribution import Attribution
from gpuagent.pods.inventory import NodePod
from gpuagent.sampling.sample import Sample
from gpuagent.table.gpu_rows import plain

_MOST_NAME: Final = 15
"""Characters of a process's name; the kernel keeps 15 bytes (TASK_COMM_LEN)."""


class PodProcess(Struct, frozen=True, gc=False):
    """A process of a pod on one GPU or MIG device."""

    uid: str
    """UID of the pod."""
    device: str
    """UUID of the GPU or MIG device."""
    pid: int
    """PID in the agent's PID namespace, which is the node's."""
    used_bytes: int | None


@dataclass(frozen=True)
class SampleProcesses:
    """The processes of a sample. Nothing is copied or sorted before the first question."""

    sample: Sample
    owners: Mapping[int, NodePod | None]
    """By PID, as in `Attribution`."""

    @classmethod
    def of(cls, sample: Sample, attribution: Attribution | None) -> "SampleProcesses":
        """Return the processes; none has a known pod until the pods have been listed."""
        return cls(sample, attribution.owners if attribution else {})

    @cached_property
    def by_pod(self) -> Mapping[str, list[PodProcess]]:
        """The processes of each pod by its UID, on every device."""
        by_pod: dict[str, list[PodProcess]] = {}
        for gpu in self.sample.reading.gpus:
            self._add(by_pod, gpu.uuid, gpu.processes or ())
            for instance in gpu.instances:
                self._add(by_pod, instance.uuid, instance.processes or ())
        return by_pod

    def _add(self, by_pod: dict[str, list[PodProcess]], device: str, processes: Iterable[GpuProcess]) -> None:
        for process in processes:
            pod = self.owners.get(process.pid)
            if pod is not None:
                entry = PodProcess(pod.uid, device, process.pid, process.used_bytes)
                by_pod.setdefault(pod.uid, []).append(entry)

    def largest(self, most: int, uid: str | None = None) -> tuple[list[PodProcess], int]:
        """Return the processes with the most memory, at most so many, and the number of the others.

        A process of unknown memory comes last.

        Args:
            most: upper bound of the processes.
            uid: UID of a pod, which may be unknown; None for all pods.
        """
        lists = self.by_pod.values() if uid is None else (self.by_pod.get(uid, []),)
        processes = [process for of_pod in lists for process in of_pod]
        largest = heapq.nlargest(most, processes, key=_order)
        return largest, len(processes) - len(largest)

    def name(self, pid: int) -> str | None:
        """Return the name of a process, which the process chooses, safe for a terminal; None if unknown.

        The look-up of the sample read it from /proc/<pid>/comm, together with the owner and the start of the
        process. It is never that of another process that has the PID by now.
        """
        origin = self.sample.origins.get(pid)
        return plain(origin.name[:_MOST_NAME]) or None if origin else None


def _order(process: PodProcess) -> tuple[int, int]:
    return -1 if process.used_bytes is None else process.used_bytes, -process.pid
