"""The rows of a query's result. Pure."""

from array import array

from msgspec import Struct


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
