"""From a Pod object to a NodePod: what is kept of a pod, within bounds. Pure.

Every container is looked at once, in one pass, so whole GPUs of the 1,000th container count. Containers
themselves are not kept, only the IDs of up to `MOST_CONTAINER_IDS` of them, by which a process is found where
its cgroup path has no pod UID.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from gpuagent.pods import objects
from gpuagent.pods.bounds import ANNOTATIONS, LABELS, LONGEST_NAME, bounded
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.launches import Launch
from gpuagent.pods.objects import ObjectError
from kai import keys
from kai.gpu_resources import names_gpu
from kai.quantity import parse_quantity

MOST_CONTAINER_IDS: Final = 128
_MOST_CONFIG_MAPS: Final = 8
_MOST_GPUS: Final = 1 << 16
_SHORT_DIGITS: Final = 4
_NOTHING: Final = (None, "0", 0)
"""Amounts of a resource that ask for none of it; the API server writes every zero as "0"."""
_LONGEST_CONTAINER_NAME: Final = 63
_SHARE_SIGNS: Final = frozenset({keys.GPU_FRACTION, keys.GPU_MEMORY, keys.GPU_GROUP})
_CONTAINER_ID = re.compile(r"[a-z0-9.+-]{0,63}://([0-9a-f]{64})")
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


def node_pod(pod: objects.Pod, *, launches: Callable[[], tuple[Launch, ...]] = tuple) -> NodePod:
    """Read what counts of a pod.

    Args:
        pod: the object.
        launches: tells how its containers are started; called only if the pod asks for a share.

    Raises:
        ObjectError: it has no UID, a longer name than the API has, or a count of GPUs that the API refuses.
    """
    metadata, spec, status = pod.metadata, pod.spec, pod.status or objects.PodStatus()
    namespace, name, uid = _identity(metadata)
    where = f"Pod {namespace}/{name}"
    labels, annotations = LABELS.kept(metadata.labels), ANNOTATIONS.kept(metadata.annotations)
    ids, count = _container_ids(status)
    return NodePod(
        namespace=namespace,
        name=name,
        uid=uid,
        phase=bounded(status.phase) or "Unknown",
        labels=labels,
        annotations=annotations,
        container_ids=ids,
        whole_gpus=_whole_gpus(spec, where),
        has_unsized_gpus=_has_unsized_gpus(spec),
        config_map_names=_config_map_names(spec, annotations),
        launches=launches() if _asks_for_share(labels, annotations) else (),
        scheduler_name=bounded(spec.scheduler_name),
        config_hash=annotations.get(keys.CONFIG_HASH, ""),
        is_bound=bool(spec.node_name),
        controller_uid=bounded(metadata.controller_uid),
        has_started=status.has_started,
        is_terminating=bool(metadata.deletion_timestamp),
        notes=tuple(_notes(metadata, where, count)),
    )


def _identity(metadata: objects.Metadata) -> tuple[str, str, str]:
    namespace, name = metadata.namespace or "default", metadata.name or ""
    where = f"Pod {namespace[:LONGEST_NAME]}/{name[:LONGEST_NAME]}"
    if not metadata.uid:
        raise ObjectError(f"{where}: metadata.uid: expected a UID, got none")
    if max(map(len, (namespace, name, metadata.uid))) > LONGEST_NAME:
        raise ObjectError(f"{where}: expected a name and a UID of at most {LONGEST_NAME} characters")
    return namespace, name, metadata.uid


def _asks_for_share(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    return not _SHARE_SIGNS.isdisjoint((*labels, *annotations)) or any(
        key.startswith((keys.CONTAINER_PREFIX, keys.GPU_GROUP_PREFIX)) for key in (*labels, *annotations)
    )


def _whole_gpus(spec: objects.PodSpec, where: str) -> int:
    """Count the GPUs that the device plugin gives: an init container gives its GPUs back when it ends."""
    regular = sum(_gpus(spec.containers, where)) + sum(_gpus(spec.ephemeral_containers, where))
    return max(regular, max(_gpus(spec.init_containers, where), default=0))


def _gpus(containers: list[objects.Container] | None, where: str) -> Iterator[int]:
    for container in containers or ():
        asked = container.resources.gpus if container.resources else None
        if asked is None:
            continue
        try:
            yield _whole(asked)
        except ValueError as error:
            shown = container.name[:_LONGEST_CONTAINER_NAME]
            raise ObjectError(f"{where}: container {shown}: {keys.GPU_RESOURCE}: {error}") from None


def _whole(asked: objects.Quantity) -> int:
    if isinstance(asked, str) and asked.isascii() and asked.isdigit() and len(asked) <= _SHORT_DIGITS:
        return int(asked)  # the API server's own form; a pod can have 10,000 of them
    amount = parse_quantity(asked)
    if amount.denominator != 1 or not 0 <= amount <= _MOST_GPUS:
        raise ValueError(f'"{str(asked)[:40]}" is not a whole number from 0 to {_MOST_GPUS}')
    return int(amount)


def _has_unsized_gpus(spec: objects.PodSpec) -> bool:
    """Whether the pod gets GPUs of a size that the pod does not tell; ends at the first sign of one.

    A resource claim may be for any device, and every GPU resource but `nvidia.com/gpu` stands for a part of a
    GPU, or for one that the device plugin was told to rename. An amount of 0 asks for nothing.
    """
    if spec.resource_claims:
        return True
    for container in chain(
        spec.containers or (), spec.init_containers or (), spec.ephemeral_containers or ()
    ):
        resources = container.resources
        for amounts in (resources.limits, resources.requests) if resources else ():
            for name, amount in (amounts or {}).items():
                if amount not in _NOTHING and name != keys.GPU_RESOURCE and names_gpu(name):
                    return True
    return False


def _container_ids(status: objects.PodStatus) -> tuple[tuple[str, ...], int]:
    """Return the IDs that are kept, and how many there are."""
    ids: list[str] = []
    count = 0
    for statuses in (
        status.container_statuses,
        status.init_container_statuses,
        status.ephemeral_container_statuses,
    ):
        for each in statuses or ():
            found = _CONTAINER_ID.fullmatch(each.container_id) if each.container_id else None
            if found is None:
                continue
            count += 1
            if len(ids) < MOST_CONTAINER_IDS:
                ids.append(found[1])
    return tuple(ids), count


def _config_map_names(spec: objects.PodSpec, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that KAI's ConfigMap of a pod can have, the likeliest first.

    `<annotation>-<index>` of the container that has the share, and `-i<index>` of an init container
    (`-<index>` of a named one too at v0.9.8, seen live). The pod's owner can write the annotation, so a text
    that is no name is never part of a path.
    """
    prefix = annotations.get(keys.SHARED_GPU_CONFIGMAP)
    if not prefix:
        return ()
    containers, init = spec.containers or [], spec.init_containers or []
    named = annotations.get(keys.CONTAINER_NAME)
    suffixes = [str(index) for index in _named(containers, named)]
    suffixes += [text for index in _named(init, named) for text in (f"i{index}", str(index))]
    suffixes += map(str, range(min(len(containers), _MOST_CONFIG_MAPS)))
    suffixes += [f"i{index}" for index in range(min(len(init), _MOST_CONFIG_MAPS))]
    names = (f"{prefix}-{suffix}" for suffix in dict.fromkeys(suffixes))
    return tuple(name for name in names if _NAME.fullmatch(name))[:_MOST_CONFIG_MAPS]


def _named(containers: list[objects.Container], name: str | None) -> list[int]:
    """Return the index of the container of that name; the API server lets no two have one name."""
    if name is None:
        return []
    return next(([index] for index, each in enumerate(containers) if each.name == name), [])


def _notes(metadata: objects.Metadata, where: str, container_ids: int) -> Iterator[str]:
    for key in sorted(ANNOTATIONS.too_long(metadata.annotations, keys.READ_ANNOTATIONS)):
        yield f"{where}: {key}: longer than {ANNOTATIONS.longest_value} characters; ignored"
    if container_ids > MOST_CONTAINER_IDS:
        yield (
            f"{where}: the pod has {container_ids} containers; processes of those beyond {MOST_CONTAINER_IDS}"
            " are attributed by the pod's UID only"
        )
