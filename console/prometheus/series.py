"""The rows of a query's result, and the syntax of the names in their labels. Pure."""

from array import array
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kai.own_labels import is_size_name
from service.names import is_dns_label, is_dns_subdomain, is_gpu_model, is_kind, is_label_value

_SYNTAX: Final = {
    "namespace": is_dns_label,
    "vcluster": is_dns_label,
    "virtual_namespace": is_dns_label,
    "queue": is_label_value,
    "workload_kind": is_kind,
    "workload": is_dns_subdomain,
    "size": is_size_name,
    "node": is_dns_subdomain,
    "model": is_gpu_model,
}


def are_names(labels: Mapping[str, str]) -> bool:
    """Whether each value is empty or has the syntax of its label, so that it can be printed and pasted."""
    return all(not name or _SYNTAX[label](name) for label, name in labels.items())


class InstantSeries(Struct, frozen=True):
    """A series with one value."""

    labels: dict[str, str]
    value: float


class RangeSeries(Struct, frozen=True):
    """A series with its values over time."""

    labels: dict[str, str]
    times: "array[float]"
    """Unix seconds, ascending."""
    values: "array[float]"
