"""A pod's own declaration of its share: annotations, labels and metadata at one time. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.pods.inventory import NodePod
from gpuagent.pods.workloads import Workload, workload_of
from gpuagent.shares.drift import Declared
from gpuagent.shares.placement import group_labels, groups_of
from gpuagent.shares.requests import ShareRequest, parse_share_request
from kai import keys
from kai.own_labels import SIZE, is_size_name


def pod_name(pod: NodePod) -> str:
    """Return the pod's name, as the prefix of notes."""
    return f"Pod {pod.namespace}/{pod.name}"


@dataclass(frozen=True, slots=True)
class PodDeclaration:
    """A pod's declaration at one time.

    It does not hold the pod, since the first declaration outlives old versions of the pod.
    """

    request: ShareRequest
    notes: tuple[str, ...]
    queue: str
    size: str
    workload: Workload
    group_labels: Mapping[str, str]

    @classmethod
    def by(cls, pod: NodePod) -> "PodDeclaration":
        """Read a pod's declaration."""
        request, notes = parse_share_request(pod.annotations, pod_name(pod))
        size = pod.annotations.get(SIZE, "")
        return cls(
            request,
            notes,
            queue=pod.labels.get(keys.QUEUE_LABEL, ""),
            size=size if is_size_name(size) else "",
            workload=workload_of(pod),
            group_labels=group_labels(pod.labels),
        )

    def declared(self, devices: int) -> Declared:
        """Return the request and the GPU groups of a share of so many devices."""
        return Declared(request=self.request, groups=groups_of(self.group_labels, devices))
