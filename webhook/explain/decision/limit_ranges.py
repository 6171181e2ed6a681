"""Defaults that the API server's plugin LimitRanger fills in before it calls webhooks. Pure.

Source: Kubernetes 1.36 plugin/pkg/admission/limitranger/admission.go, mergePodResourceRequirements.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from kube.objects import ObjectMeta

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
