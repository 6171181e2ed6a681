"""Checks for LimitRanges that add nvidia.com/gpu to every container of a managed namespace."""

from collections.abc import Collection
from functools import partial
from typing import Final

from kai import keys
from service.check_results import CheckResult, ok, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.explain.decision.limit_ranges import decode_defaults

_CHECK: Final = "limit ranges"
_LIMIT_RANGES: Final = ListSpec(
    resource="limitranges",
    without=f"LimitRanges with a default for {keys.GPU_RESOURCE} were not checked",
    is_namespaced=True,
)


async def limit_range_findings(reader: ApiReader, cluster: Cluster) -> list[CheckResult]:
    """Return a warning about LimitRanges with a default for nvidia.com/gpu in managed namespaces."""
    if not cluster.acting:
        return []
    limit_ranges = await reader.list(_LIMIT_RANGES, partial(_with_gpu_default, managed=cluster.acting))
    if limit_ranges.items:
        finding = warning(
            _CHECK,
            f"{counted(len(limit_ranges.items), 'LimitRange')} with a default for {keys.GPU_RESOURCE}:"
            f" {listed(limit_ranges.items)}. Every container gets a GPU request, which kaishare removes only"
            " from pods with the policy's share",
            f"remove {keys.GPU_RESOURCE} from default and defaultRequest",
        )
        return [finding]
    if limit_ranges.outcome is ListOutcome.WHOLE:
        return [ok(_CHECK, f"no default for {keys.GPU_RESOURCE} in managed namespaces")]
    return []


def _with_gpu_default(item: bytes, managed: Collection[str]) -> str | None:
    """Return a LimitRange's name if it has a default for GPUs and its namespace is managed."""
    defaults = decode_defaults(item)
    if defaults.namespace not in managed or not defaults.names(keys.GPU_RESOURCE):
        return None
    return f"{defaults.namespace}/{defaults.name}"
