"""Decodes objects from the API server's JSON, and converts pods to NodePods of limited size. Pure.

One pass reads every container, so the whole GPUs of the 1,000th container count. Containers are not kept,
except for the IDs of up to `MOST_CONTAINER_IDS` of them. The IDs identify a process whose cgroup path has no
pod UID.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

import msgspec

from gpuagent.pods import objects
from gpuagent.pods.bounds import (
    ANNOTATIONS,
    LABELS,
    LONGEST_KIND,
    LONGEST_NAME,
    ContainerCommand,
    bounded,
    commands_of,
    creation_time,
)
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.objects import (
    Metadata,
    Namespace,
    Node,
    NodeStatus,
    ObjectError,
    Pod,
    decode_object,
)
from kai import keys
from kai.gpu_resources import gpus_at_once, is_nothing, names_gpu
from kai.numbers import is_quantity, parse_quantity
from kai.share import shows_share
from kube.metadata import ObjectMeta
from service.json_depth import shallow_object
from service.names import LONGEST_LABEL, is_dns_subdomain
from service.text import MALFORMED, one_line, quoted

MOST_CONTAINER_IDS: Final = 128
MOST_CLAIMS: Final = 16
"""Maximum of ResourceClaims that are read of one pod."""
_MOST_GPUS: Final = 1 << 16
_DIGITS: Final = 20
"""Longest number of a variable in characters."""
_CONTAINER_ID = re.compile(r"[a-z0-9.+-]{0,63}://([0-9a-f]{64})")


def node_pod(pod: objects.Pod, *, commands: Callable[[], tuple[ContainerCommand, ...]] = tuple) -> NodePod:
    """Convert a pod; `commands` returns excerpts of its commands, called only if it requests a share.

    Raises:
        ObjectError: the UID is missing, a name is longer than the API allows, or a GPU count is invalid.
    """
    metadata, spec, status = pod.metadata, pod.spec, pod.status or objects.PodStatus()
    namespace, name, uid = _identity(metadata)
    where = f"Pod {namespace}/{name}"
    labels, annotations = LABELS.kept(metadata.labels), ANNOTATIONS.kept(metadata.annotations)
    ids = [
        (match[1], container.name[:LONGEST_LABEL])
        for container in status.containers
        if (match := _CONTAINER_ID.fullmatch(container.container_id or ""))
    ]
    controller = metadata.controller
    whole_gpus, notes_on_gpus = _whole_gpus(spec, where)
    claims, has_unnamed_claims = _claims(spec, status)
    by_scheduler = status.extended_resource_claim_status
    extended = (by_scheduler.request_mappings if by_scheduler else None) or ()
    return NodePod(
        namespace=namespace,
        name=name,
        uid=uid,
        phase=bounded(status.phase) or "Unknown",
        labels=labels,
        annotations=annotations,
        container_ids=tuple(container_id for container_id, _ in ids[:MOST_CONTAINER_IDS]),
        container_names=tuple(container for _, container in ids[:MOST_CONTAINER_IDS]),
        memory_variables=_memory_variables(spec),
        whole_gpus=whole_gpus,
        has_unsized_resource=_has_unsized_resource(spec),
        claims=claims[:MOST_CLAIMS],
        has_unnamed_claims=has_unnamed_claims or len(claims) > MOST_CLAIMS,
        has_gpus_by_claim=any(each.resource_name == keys.GPU_RESOURCE for each in extended),
        scheduling_group=bounded(spec.scheduling_group.pod_group_name) if spec.scheduling_group else "",
        commands=commands() if shows_share((*labels, *annotations)) else (),
        scheduler_name=bounded(spec.scheduler_name),
        config_hash=annotations.get(keys.CONFIG_HASH, ""),
        controller_uid=bounded(controller.uid),
        controller_kind=bounded(controller.kind, LONGEST_KIND),
        controller_name=bounded(controller.name),
        has_started=any(container.has_started for container in status.containers),
        has_bound_condition=any(
            condition.type == keys.BOUND_CONDITION and condition.status == "True"
            for condition in status.conditions or ()
        ),
        created=creation_time(metadata),
        is_terminating=bool(metadata.deletion_timestamp),
        notes=(*notes_on_gpus, *_notes(metadata, where, len(ids))),
    )


def _identity(metadata: objects.Metadata) -> tuple[str, str, str]:
    namespace, name = metadata.key
    where = f"Pod {namespace[:LONGEST_NAME]}/{name[:LONGEST_NAME]}"
    if not metadata.uid:
        raise ObjectError(f"{where}: metadata.uid: expected a UID, got none")
    if max(map(len, (namespace, name, metadata.uid))) > LONGEST_NAME:
        raise ObjectError(f"{where}: expected a name and a UID of at most {LONGEST_NAME} characters")
    return namespace, name, metadata.uid


def _whole_gpus(spec: objects.PodSpec, where: str) -> tuple[int, list[str]]:
    """Return the number of GPUs from the device plugin, and why it may be incomplete, in at most one note."""
    notes: list[str] = []
    regular = chain(spec.containers or (), spec.ephemeral_containers or ())
    number = gpus_at_once(
        _gpus(spec.init_containers or (), where, notes), (gpus for gpus, _ in _gpus(regular, where, notes))
    )
    return number, notes


def _gpus(
    containers: Iterable[objects.Container], where: str, notes: list[str]
) -> Iterator[tuple[int, bool]]:
    """Yield the number of GPUs of each container that requests some, and whether it is a sidecar."""
    for container in containers:
        amount = container.resources.gpus if container.resources else None
        if amount is None:
            continue
        place = f"{where}: container {container.name[:LONGEST_LABEL]}: {keys.GPU_RESOURCE}"
        try:
            number = _whole(amount)
        except ValueError as error:
            raise ObjectError(f"{place}: {error}") from None
        if number <= _MOST_GPUS:
            yield number, container.is_sidecar
        elif not notes:
            notes.append(f"{place}: {quoted(amount)} is more than any node has; ignored")


def _whole(quantity: objects.Quantity) -> int:
    """Return a number of GPUs; one above `_MOST_GPUS` may stand for an even larger number.

    The API server stores larger ones, such as 1e99999 (seen on 1.36.3), and such a pod must stay visible.

    Raises:
        ValueError: the API server would refuse the quantity.
    """
    try:
        amount = parse_quantity(quantity)
    except ValueError:
        if isinstance(quantity, str) and is_quantity(quantity):
            return _MOST_GPUS + 1
        raise
    if amount.denominator != 1 or amount.numerator < 0:
        raise ValueError(f'"{str(quantity)[:40]}" is not a whole number')
    return amount.numerator


def _memory_variables(spec: objects.PodSpec) -> dict[str, dict[str, str]]:
    """Return the variables by which a container asks the container toolkit for a memory limit."""
    found: dict[str, dict[str, str]] = {}
    for container in chain(spec.containers or (), spec.init_containers or ()):
        own = {
            variable.name: variable.value
            for variable in container.env or ()
            if variable.name in keys.MEMORY_VARIABLES and variable.value and len(variable.value) <= _DIGITS
        }
        if own and len(found) < MOST_CONTAINER_IDS:
            found[container.name[:LONGEST_LABEL]] = own
    return found


def _has_unsized_resource(spec: objects.PodSpec) -> bool:
    """Whether the pod requests GPUs of unknown size.

    A GPU resource other than `nvidia.com/gpu` is a part of a GPU, or a renamed resource of the device plugin.
    An amount of 0 does not count.
    """
    containers = chain(spec.containers or (), spec.init_containers or (), spec.ephemeral_containers or ())
    resources = [container.resources for container in containers if container.resources]
    amounts = [entry for each in resources for entry in (each.limits, each.requests) if entry]
    return any(
        name != keys.GPU_RESOURCE and names_gpu(name) and not is_nothing(amount)
        for entry in amounts
        for name, amount in entry.items()
    )


def _claims(spec: objects.PodSpec, status: objects.PodStatus) -> tuple[tuple[str, ...], bool]:
    """Return the names of the pod's ResourceClaims, and whether one has no name yet.

    The spec names a claim, or a template; the name of a template's claim is in the status, or null if the pod
    needs no claim (Kubernetes 1.36 core/v1 PodResourceClaimStatus).
    """
    generated = {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    names: list[str] = []
    is_unnamed = False
    for claim in spec.resource_claims or ():
        if not claim.resource_claim_name and claim.name not in generated:
            is_unnamed = True
        names.append(claim.resource_claim_name or generated.get(claim.name) or "")
    if status.extended_resource_claim_status is not None:
        names.append(status.extended_resource_claim_status.resource_claim_name or "")
    valid = [name for name in names if is_dns_subdomain(name)]  # becomes part of a path
    return tuple(dict.fromkeys(valid)), is_unnamed or len(valid) < len(list(filter(None, names)))


def _notes(metadata: objects.Metadata, where: str, container_ids: int) -> Iterator[str]:
    for key in sorted(ANNOTATIONS.too_long(metadata.annotations, keys.READ_ANNOTATIONS)):
        yield f"{where}: {key}: longer than {ANNOTATIONS.longest_value} characters; ignored"
    if container_ids > MOST_CONTAINER_IDS:
        yield (
            f"{where}: the pod has {container_ids} containers; processes of those beyond {MOST_CONTAINER_IDS}"
            " are attributed by the pod's UID only"
        )


class _Named(Protocol):
    @property
    def metadata(self) -> Metadata | ObjectMeta: ...


_Object = TypeVar("_Object", bound=_Named)


def decoder(kind: str, type_: type[_Object]) -> Callable[[bytes], _Object]:
    """Return a decoder of one kind from the API server's JSON, which skips irrelevant fields.

    The decoder raises ObjectError, with one line that names the object, for a malformed object.
    """
    decode = msgspec.json.Decoder(type_).decode

    def read(data: bytes) -> _Object:
        item = shallow_object(data)
        try:
            decoded = decode(item)
        except MALFORMED as error:
            raise ObjectError(_explain(item, kind, error)) from None
        if not decoded.metadata.name:
            raise ObjectError(_explain(item, kind, ValueError("no name")))
        return decoded

    return read


def gpus_offered(node: Node) -> int:
    """Return the larger of a node's capacity and allocatable amount of `nvidia.com/gpu`; 0 without any."""
    amounts = [(node.status.capacity or {}), (node.status.allocatable or {})] if node.status else []
    offered = 0
    for amount in (each.get(keys.GPU_RESOURCE) for each in amounts):
        try:
            offered = max(offered, _whole(amount or 0))
        except ValueError:
            continue
    return offered


def labels_decoder(kind: str, type_: type[Node | Namespace]) -> Callable[[bytes], Node | Namespace]:
    """Return a decoder that keeps the name, as many labels as may be kept, and the GPUs of a Node."""
    decode = decoder(kind, type_)

    def read(data: bytes) -> Node | Namespace:
        decoded = decode(data)
        metadata = Metadata(name=decoded.metadata.name, labels={**LABELS.kept(decoded.metadata.labels)})
        if isinstance(decoded, Node):
            return Node(metadata, NodeStatus(capacity={keys.GPU_RESOURCE: gpus_offered(decoded)}))
        return type_(metadata)

    return read


_decode_pod: Final = decoder("Pod", Pod)


def read_pod(data: bytes) -> NodePod:
    """Decode a pod from the API server's JSON; raise ObjectError if it is malformed."""
    return node_pod(_decode_pod(data), commands=lambda: commands_of(data))


def _explain(data: bytes, kind: str, error: Exception) -> str:
    """Describe a decoding error by object and field."""
    document: Any = None
    try:
        document = msgspec.json.decode(data)
        decode_object({**document, "kind": kind} if isinstance(document, dict) else document, kind=kind)
    except ObjectError as described:
        return str(described)
    except MALFORMED:
        return f"{kind}: not JSON: {one_line(str(error))}"
    return f"{kind}: {one_line(str(error))}"
