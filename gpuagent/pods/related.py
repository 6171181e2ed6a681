"""The kinds of objects that are fetched for a node's pods, and their names. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.decoding import decoder
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.lookups import Kind, ObjectRef
from kai import keys
from kai.share import shows_share

_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

CONFIG_MAPS: Final = Kind(  # KAI completes one before it binds the pod, so it is never fetched again
    resource="configmaps",
    decode=decoder("ConfigMap", objects.ConfigMap),
    without="shares and GPUs in KAI's ConfigMaps are unknown",
)
NODES: Final = Kind(
    resource="nodes",
    decode=decoder("Node", objects.Node),
    without="GPU memory is the driver's figure instead of the node label that KAI uses",
    accept=_METADATA,
    again_seconds=300.0,
    is_cached=True,
)
NAMESPACES: Final = Kind(
    resource="namespaces",
    decode=decoder("Namespace", objects.Namespace),
    without="namespaces cannot enable eviction or set their own grace, and pods have no names of a vCluster",
    accept=_METADATA,
    again_seconds=1800.0,
    is_cached=True,
    is_spread=True,
)


def namespace_ref(name: str) -> ObjectRef:
    """Return the reference to a namespace."""
    return ObjectRef(names=(name,))


class ConfigMapRefs:
    """References to KAI's ConfigMaps by pod UID, as first seen.

    The pod's owner may edit the annotation with the name, and create a ConfigMap.
    """

    def __init__(self, *, reservation_namespace: str) -> None:
        self._reservation_namespace = reservation_namespace
        self._first: Mapping[str, ObjectRef] = {}

    def of(self, pods: Iterable[NodePod]) -> Iterable[ObjectRef]:
        """Return the references of these pods, and forget all other pods."""
        self._first = {
            pod.uid: self._first.get(pod.uid)
            or ObjectRef(namespace=pod.namespace, names=pod.config_map_names, pod_uid=pod.uid)
            for pod in pods
            if not pod.is_finished and pod.namespace != self._reservation_namespace
        }
        return (ref for ref in self._first.values() if ref.names)


def may_be_kais(pod: NodePod) -> bool:
    """Whether KAI may have placed a pod: by its immutable scheduler name, or by any sign of a share.

    Static pods have no scheduler.
    """
    if keys.MIRROR_POD in pod.annotations:
        return False
    return pod.scheduler_name != keys.DEFAULT_SCHEDULER or shows_share((*pod.annotations, *pod.labels))
