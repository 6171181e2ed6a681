"""Determines which objects belong to a node's pods, and their names. Pure."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.decoding import decoder
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.lookups import Kind, ObjectRef
from kai import keys

_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_A_FEW_MINUTES: Final = 300.0
_SIGNS: Final = frozenset({keys.GPU_FRACTION, keys.GPU_MEMORY, keys.RECEIVED_RESOURCE_TYPE, keys.GPU_GROUP})
_SIGN_PREFIXES: Final = (keys.CONTAINER_PREFIX, keys.GPU_GROUP_PREFIX)

BIND_REQUESTS: Final = Kind(
    resource="bindrequests.scheduling.run.ai",
    prefix="/apis/scheduling.run.ai/v1alpha2",
    decode=decoder("BindRequest", objects.BindRequestObject),
    without="shares come from the pods' own annotations, which their owners can edit",
    is_expected=True,
)
CONFIG_MAPS: Final = Kind(
    resource="configmaps",
    prefix="/api/v1",
    decode=decoder("ConfigMap", objects.ConfigMap),
    without="shares and GPUs in KAI's ConfigMaps are unknown",
    is_expected=True,
)
NODES: Final = Kind(
    resource="nodes",
    prefix="/api/v1",
    decode=decoder("Node", objects.Node),
    without="GPU memory is the driver's figure instead of the node label that KAI uses",
    accept=_METADATA,
    again_seconds=_A_FEW_MINUTES,
)
NAMESPACES: Final = Kind(
    resource="namespaces",
    prefix="/api/v1",
    decode=decoder("Namespace", objects.Namespace),
    without="namespaces cannot enable eviction or set their own grace",
    accept=_METADATA,
    again_seconds=_A_FEW_MINUTES,
)


class RelatedObjects:
    """Determines the objects to fetch for the pods of a node."""

    def __init__(self, *, node: str, reservation_namespace: str, with_config_maps: bool) -> None:
        self._node = node
        self._reservation_namespace = reservation_namespace
        self._with_config_maps = with_config_maps
        self._config_maps: dict[str, ObjectRef | None] = {}
        """ConfigMap references by pod UID, as first seen. The pod's owner may edit the annotation with the
        name, and create a ConfigMap."""

    def of(self, pods: Iterable[NodePod]) -> Iterator[ObjectRef]:
        """Yield the objects that belong to these pods, which are all bound to the node."""
        config_maps: dict[str, ObjectRef | None] = {}
        namespaces: set[str] = set()
        yield ObjectRef(kind=NODES, names=(self._node,))
        for pod in pods:
            namespaces.add(pod.namespace)
            if self._is_skipped(pod):
                continue
            if may_be_kais(pod):
                yield ObjectRef(
                    kind=BIND_REQUESTS, namespace=pod.namespace, names=(pod.name,), pod_uid=pod.uid
                )
            if pod.uid in self._config_maps:
                config_maps[pod.uid] = self._config_maps[pod.uid]
            else:
                names = pod.config_map_names if self._with_config_maps else ()
                ref = ObjectRef(kind=CONFIG_MAPS, namespace=pod.namespace, names=names, pod_uid=pod.uid)
                config_maps[pod.uid] = ref if names else None
        self._config_maps = config_maps
        yield from (ref for ref in config_maps.values() if ref is not None)
        for namespace in sorted(namespaces):
            yield ObjectRef(kind=NAMESPACES, names=(namespace,))

    def bind_requests_unknown(
        self, pods: Iterable[NodePod], answered: Collection[tuple[str, str]]
    ) -> frozenset[tuple[str, str]]:
        """Return namespace and name of the pods whose possible BindRequest is not known yet.

        Args:
            pods: the node's pods.
            answered: namespace and name of BindRequests whose state is known.
        """
        return frozenset(
            pod.key
            for pod in pods
            if pod.key not in answered and not self._is_skipped(pod) and may_be_kais(pod)
        )

    def _is_skipped(self, pod: NodePod) -> bool:
        return pod.is_finished or pod.namespace == self._reservation_namespace


def may_be_kais(pod: NodePod) -> bool:
    """Whether KAI may have placed a pod: by its immutable scheduler name, or by any sign of a share.

    Static pods have no scheduler.
    """
    if keys.MIRROR_POD in pod.annotations:
        return False
    if pod.scheduler_name != keys.DEFAULT_SCHEDULER:
        return True
    return any(key in _SIGNS or key.startswith(_SIGN_PREFIXES) for key in (*pod.annotations, *pod.labels))
