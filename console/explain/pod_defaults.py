"""What the API server fills into a pod before it calls webhooks, LimitRanges included. Pure.

Source: Kubernetes 1.36 plugin/pkg/admission/limitranger/admission.go, mergePodResourceRequirements.

Source: Kubernetes 1.36 pkg/apis/core/v1/defaults.go (SetDefaults_PodSpec, SetDefaults_Pod) and apimachinery
pkg/api/resource/quantity.go (UnmarshalJSON). The order is decoding, defaults, the plugins LimitRanger and
Priority, then webhooks (seen on Kubernetes 1.36.3).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from console.explain.document_parts import as_map, with_containers
from kai import keys
from kube.kinds import ObjectMeta

_CONTAINER: Final = "Container"

Amounts = Mapping[str, str | int]


class _Item(Struct, frozen=True, rename="camel"):
    type: str = ""
    default: dict[str, str | int] | None = None
    default_request: dict[str, str | int] | None = None


class _Spec(Struct, frozen=True):
    limits: list[_Item] | None = None


class _LimitRange(Struct, frozen=True):
    metadata: ObjectMeta
    spec: _Spec = _Spec()


_limit_range = msgspec.json.Decoder(_LimitRange)


@dataclass(frozen=True, slots=True)
class ContainerDefaults:
    """The defaults of one LimitRange for every container of its namespace."""

    namespace: str
    name: str
    limits: Amounts
    requests: Amounts

    def names(self, resource: str) -> bool:
        """Whether there is a default for a resource."""
        return resource in self.limits or resource in self.requests


def decode_defaults(document: bytes) -> ContainerDefaults:
    """Decode a LimitRange.

    Raises:
        msgspec.DecodeError: the document is no LimitRange.
    """
    limit_range = _limit_range.decode(document)
    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}
    for item in limit_range.spec.limits or ():
        if item.type == _CONTAINER:
            limits |= item.default or {}
            requests |= item.default_request or {}
    return ContainerDefaults(limit_range.metadata.namespace, limit_range.metadata.name, limits, requests)


def with_defaults(container: dict[str, Any], defaults: Iterable[ContainerDefaults]) -> dict[str, Any]:
    """Return a container with the defaults of LimitRanges; the given container is not changed.

    A value that the API server would refuse is returned as it is.
    """
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        return container
    for added in defaults:
        for part, amounts in (("limits", added.limits), ("requests", added.requests)):
            given = resources.get(part)
            if amounts and (given is None or isinstance(given, dict)):
                resources = {**resources, part: {**amounts, **(given or {})}}
    return {**container, "resources": resources} if resources else container


SERVER_METADATA: Final = frozenset(
    {
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    }
)
"""Metadata that only an API server writes. `kubectl get -o yaml` shows it."""

_KINDS: Final = ("limits", "requests")
_MAPS: Final = ("labels", "annotations")


def filled_in(pod: dict[str, Any], defaults: Sequence[ContainerDefaults] = ()) -> dict[str, Any]:
    """Return the pod with the fields that decisions read and that the API server fills in.

    These are the scheduler's name, requests that equal their limits, and the defaults of LimitRanges.

    Args:
        pod: the pod as its creator sends it; it is not changed.
        defaults: of the LimitRanges in the pod's namespace.
    """
    spec = pod.get("spec")
    if isinstance(spec, dict):
        filled = with_containers(spec, lambda container: with_defaults(_with_requests(container), defaults))
        scheduler = {} if spec.get("schedulerName") else {"schedulerName": keys.DEFAULT_SCHEDULER}
        pod = {**pod, "spec": filled | scheduler}
    return normalized(pod)


def normalized(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the API server writes it after decoding.

    Labels, annotations and amounts are in the order of their keys. A null amount is 0, a null name is empty,
    and white space around an amount is removed. The given pod is not changed.
    """
    written = dict(pod)
    metadata = pod.get("metadata")
    if isinstance(metadata, dict):
        written["metadata"] = metadata | {part: _sorted(metadata[part]) for part in _MAPS if part in metadata}
    if "spec" in pod:
        written["spec"] = with_containers(pod["spec"], _container)
    return written


def _sorted(entries: Any) -> Any:
    """Return a map in the order in which Go writes it: by the bytes of its keys, which is by code points."""
    return (
        dict(sorted(entries.items(), key=lambda entry: str(entry[0])))
        if isinstance(entries, dict)
        else entries
    )


def _container(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container as the API server writes it."""
    written = container | ({"name": ""} if container.get("name", "") is None else {})
    resources = as_map(written.get("resources"))
    amounts = {kind: resources[kind] for kind in _KINDS if isinstance(resources.get(kind), dict)}
    for kind, entries in amounts.items():
        amounts[kind] = _sorted({name: _amount(amount) for name, amount in entries.items()})
    return {**written, "resources": resources | amounts} if amounts else written


def _amount(amount: Any) -> Any:
    if amount is None:
        return "0"
    return amount.strip() if isinstance(amount, str) else amount


def _with_requests(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container whose missing requests equal its limits (SetDefaults_Pod)."""
    resources = as_map(container.get("resources"))
    limits, requests = resources.get("limits"), resources.get("requests") or {}
    if not limits or not isinstance(limits, dict) or not isinstance(requests, dict):
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}
