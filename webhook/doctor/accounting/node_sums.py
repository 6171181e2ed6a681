"""Adds up the requests of pods by node and by shared GPU."""

from collections import defaultdict
from dataclasses import dataclass, field

from service.check_results import problem
from service.text import one_line
from webhook.doctor.accounting.reading import (
    CHECK,
    REMEDY,
    TOLERANCE,
    Difference,
    Reading,
    SumComparison,
    gpus,
    named,
)
from webhook.doctor.accounting.requests import CLAIMS, GpuRequest

_GPU = 1 + TOLERANCE


@dataclass(slots=True)
class _SharedGpu:
    """The shares of one GPU.

    They are in the units of memory that KAI's scheduler compares (`gpu_sharing_node_info.go`), so that eight
    shares of 0.125 are one GPU, although each counts as 0.13 in its queue.
    """

    total: float = 0.0
    pods: list[GpuRequest] = field(default_factory=list)

    def add(self, pod: GpuRequest, part: float) -> None:
        """Add a pod with its part of the GPU."""
        self.total += part
        self.pods.append(pod)


def compare_nodes(reading: Reading) -> SumComparison:
    """Compare the requests of all pods on each node with its GPUs, and the shares of each GPU with one GPU.

    Every pod counts, of any scheduler, also while it is being deleted: it holds its GPUs until it has ended.
    A sum that is too large in spite of a missing figure is a difference; any other sum is then unknown.
    """
    result = SumComparison()
    sums: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[tuple[str, str], _SharedGpu] = defaultdict(_SharedGpu)
    pods: defaultdict[str, list[GpuRequest]] = defaultdict(list)
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for pod in reading.pods.items:
        pods[pod.node].append(pod)
        sums[pod.node] += pod.whole
        part = reading.node_of(pod).on_gpu(pod.share) if pod.share else 0.0
        if part is None or pod.obstacle not in ("", CLAIMS):
            unknown[pod.node].append(f"{pod.name} ({pod.obstacle or 'unknown memory of its node'})")
        elif pod.share:
            sums[pod.node] += part * pod.share.devices
            for group in pod.gpu_groups:
                shared[pod.node, group].add(pod, part)
    for node in reading.nodes.items:
        total = sums[node.name]
        if node.gpus and total > node.gpus + TOLERANCE:
            result.differences.append(
                Difference(
                    key=("node", node.name),
                    finding=problem(
                        CHECK,
                        f"node {one_line(node.name)} has {gpus(node.gpus)}, and its pods request"
                        f" {gpus(total)}: {named(pods[node.name])}",
                        REMEDY,
                    ),
                )
            )
        elif unknown[node.name]:
            result.unknown[node.name] = unknown[node.name]
        elif total and not node.gpus:  # the device plugin is away, or DRA provides the GPUs
            result.unknown[node.name] = [f"{pod.name} (the node reports no GPU)" for pod in pods[node.name]]
        elif node.gpus:
            result.compared.append(node.name)
    result.differences += [
        Difference(
            key=("GPU group", node, group),
            finding=problem(
                CHECK,
                f"the shares of GPU group {one_line(group)} on node {one_line(node)} add up to"
                f" {gpus(gpu.total)}: {named(gpu.pods)}",
                REMEDY,
            ),
        )
        for (node, group), gpu in shared.items()
        if gpu.total > _GPU
    ]
    return result
