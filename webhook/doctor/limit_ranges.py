"""LimitRanges that give nvidia.com/gpu to every container of a managed namespace."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from service.check_results import CheckResult, ok, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.doctor.cluster import Cluster, Namespace

_CHECK: Final = "limit ranges"
_LIMIT_RANGES: Final = ListSpec(
    resource="limitranges",
    path="/api/v1/limitranges",
    without=f"whether a LimitRange gives {keys.GPU_RESOURCE} to every container was not checked",
)

Amounts = dict[str, str | int] | None


class _Metadata(Struct, frozen=True):
    name: str
    namespace: str = ""


class _Limits(Struct, frozen=True):
    default: Amounts = None
    requests: Amounts = msgspec.field(name="defaultRequest", default=None)


class _Spec(Struct, frozen=True):
    limits: list[_Limits] | None = None


class _LimitRange(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


_limit_range = msgspec.json.Decoder(_LimitRange).decode


async def limit_range_findings(reader: ApiReader, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """Name the LimitRanges with a default for nvidia.com/gpu in namespaces whose pods are changed."""
    if not cluster.acting:
        return
    found = await reader.list(_LIMIT_RANGES, partial(_giving_gpus, managed=cluster.acting))
    if found.items:
        yield warning(
            _CHECK,
            f"{counted(len(found.items), 'LimitRange')} with a default for {keys.GPU_RESOURCE}:"
            f" {listed(found.items)}. Every container gets one; it is removed beside the policy's share only",
            f"remove {keys.GPU_RESOURCE} from default and defaultRequest",
        )
    elif found.extent is Completeness.WHOLE:
        yield ok(_CHECK, f"no default for {keys.GPU_RESOURCE} in managed namespaces")


def _giving_gpus(item: bytes, managed: Mapping[str, Namespace]) -> str | None:
    found = _limit_range(item)
    if found.metadata.namespace not in managed:
        return None
    for limits in found.spec.limits or ():
        if keys.GPU_RESOURCE in (limits.default or {}) or keys.GPU_RESOURCE in (limits.requests or {}):
            return f"{found.metadata.namespace}/{found.metadata.name}"
    return None
