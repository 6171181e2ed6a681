"""What belongs to a node's pods and is fetched by name: which objects, and under which names. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.decoding import decoder
from gpuagent.pods.lookups import Kind, Wanted
from kai import keys

_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_A_FEW_MINUTES: Final = 300.0
_MOST_CONFIG_MAPS: Final = 8  # names tried for one pod
_FINISHED: Final = ("Succeeded", "Failed")
_SIGNS: Final = frozenset({keys.GPU_FRACTION, keys.GPU_MEMORY, keys.RECEIVED_RESOURCE_TYPE, keys.GPU_GROUP})
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")

BIND_REQUESTS: Final = Kind(
    resource="bindrequests.scheduling.run.ai",
    prefix="/apis/scheduling.run.ai/v1alpha2",
    decode=decoder("BindRequest", objects.BindRequestObject),
    without="shares are what the pods' annotations say, which their owners may edit",
    is_expected=True,
)
CONFIG_MAPS: Final = Kind(
    resource="configmaps",
    prefix="/api/v1",
    decode=decoder("ConfigMap", objects.ConfigMap),
    without="KAI's ConfigMaps say nothing of shares and GPUs",
    is_expected=True,
)
NODES: Final = Kind(
    resource="nodes",
    prefix="/api/v1",
    decode=decoder("Node", objects.Node),
    without="device memory is the driver's figure and not the node label that KAI counts with",
    accept=_METADATA,
    again_seconds=_A_FEW_MINUTES,
)
NAMESPACES: Final = Kind(
    resource="namespaces",
    prefix="/api/v1",
    decode=decoder("Namespace", objects.Namespace),
    without="no namespace can ask for evictions or for a grace of its own",
    accept=_METADATA,
    again_seconds=_A_FEW_MINUTES,
)


class _Spec(objects.PodSpec, frozen=True, rename="camel"):
    scheduler_name: str | None = None


class ScheduledPod(objects.Pod, frozen=True):
    """A pod, with who placed it."""

    spec: _Spec


class Belongings:
    """Knows what to fetch for the pods of a node."""

    def __init__(self, *, node: str, reservation_namespace: str, with_config_maps: bool) -> None:
        self._node = node
        self._reservation_namespace = reservation_namespace
        self._with_config_maps = with_config_maps
        self._config_maps: dict[str, Wanted | None] = {}
        """By pod UID, as it was when the pod was first seen: its owner may edit the annotation that names
        them, and make a ConfigMap."""

    def of(self, pods: Iterable[ScheduledPod]) -> Iterator[Wanted]:
        """Yield what belongs to these pods, all bound to the node."""
        config_maps: dict[str, Wanted | None] = {}
        namespaces: set[str] = set()
        yield Wanted(kind=NODES, names=(self._node,))
        for pod in pods:
            metadata = pod.metadata
            namespace, name, uid = metadata.namespace or "", metadata.name or "", metadata.uid or ""
            if not namespace or not uid:
                continue
            namespaces.add(namespace)
            is_finished = pod.status is not None and pod.status.phase in _FINISHED
            if is_finished or namespace == self._reservation_namespace:
                continue
            if may_be_kais(pod):
                yield Wanted(kind=BIND_REQUESTS, namespace=namespace, names=(name,), pod_uid=uid)
            if uid in self._config_maps:
                config_maps[uid] = self._config_maps[uid]
            else:
                names = config_map_names(pod) if self._with_config_maps else ()
                wanted = Wanted(kind=CONFIG_MAPS, namespace=namespace, names=names, pod_uid=uid)
                config_maps[uid] = wanted if names else None
        self._config_maps = config_maps
        yield from (wanted for wanted in config_maps.values() if wanted is not None)
        for namespace in sorted(namespaces):
            yield Wanted(kind=NAMESPACES, names=(namespace,))


def may_be_kais(pod: ScheduledPod) -> bool:
    """Whether KAI may have placed a pod: by its scheduler, which nobody can edit, or by any sign of a share.

    Static pods were placed by nobody.
    """
    annotations, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    if keys.MIRROR_POD in annotations:
        return False
    return pod.spec.scheduler_name != keys.DEFAULT_SCHEDULER or not _SIGNS.isdisjoint((*annotations, *labels))


def config_map_names(pod: ScheduledPod) -> tuple[str, ...]:
    """Return the names that KAI's ConfigMap of a pod may have, the likeliest first.

    `<annotation>-<index>` of the container that has the share, and `-i<index>` of an init container
    (`-<index>` of one too at v0.9.8, seen live). The annotation is the owner's to write, so what is no name
    is never part of a path.
    """
    annotations, spec = pod.metadata.annotations or {}, pod.spec
    prefix = annotations.get(keys.SHARED_GPU_CONFIGMAP)
    if not prefix:
        return ()
    containers, init = spec.containers or [], spec.init_containers or []
    suffixes = [
        *((str(index), one.name) for index, one in enumerate(containers)),
        *((f"i{index}", one.name) for index, one in enumerate(init)),
        *((str(index), one.name) for index, one in enumerate(init)),
    ]
    named = annotations.get(keys.CONTAINER_NAME)
    likeliest = [suffix for suffix, name in suffixes if name == named]
    names = (f"{prefix}-{suffix}" for suffix in dict.fromkeys([*likeliest, *dict(suffixes)]))
    return tuple(name for name in names if _NAME.fullmatch(name))[:_MOST_CONFIG_MAPS]
