"""Reads the hours of a report from a Prometheus."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from console.prometheus.client import Prometheus, PrometheusError
from console.report.queries import FIGURES, Period, Raw, Recorded, periods

_LOOKS: Final = 100
"""Times at which it is asked whether there was any pod."""

_ENOUGH_RECORDS: Final = 0.95
"""Period of the time with pods that the records must cover to be used."""

_SLOWER: Final = (
    "The recording rules do not cover this time: the agents' own series were read, which is slower."
    " deploy/alerts/README.md says how to load the rules."
)

Sums = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Hours by labels of a row, in several periods, for each figure."""


async def read_sums(
    prometheus: Prometheus, labels: Iterable[str], *, start: float, end: float
) -> tuple[Sums, tuple[str, ...]]:
    """Read the hours of each figure, and say how they were read.

    The records are used if they cover the time, else the agents' own series.

    Args:
        prometheus: the Prometheus.
        labels: labels of a row, without the model.
        start: Unix seconds.
        end: Unix seconds.

    Raises:
        PrometheusError: there is no usable answer, or no pod.
        kube.access.AccessError: there are no credentials for the API server.
    """
    by = (*labels, "model")
    recorded, raw = Recorded(prometheus.selector, by), Raw(prometheus.selector, by)
    whole = Period(int(start), int(end))
    step = max(whole.length // _LOOKS, 60)
    with_records = await _largest(prometheus, recorded.presence(whole, step), end)
    at_all = await _largest(prometheus, raw.presence(whole, step), end)
    if not max(with_records, at_all):
        raise PrometheusError(
            f"{prometheus.address}: no pod with a share in this time; check --selector {prometheus.selector},"
            " --since and the scrape configuration"
        )
    has_records = with_records >= _ENOUGH_RECORDS * at_all
    queries = recorded if has_records else raw
    sums: dict[str, list[tuple[Mapping[str, str], float]]] = {figure: [] for figure in FIGURES}
    for period in periods(start, end, has_records=has_records):
        for figure in FIGURES:
            series = await prometheus.instant(queries.hours(figure, period), period.end)
            sums[figure] += [(row.labels, row.value) for row in series]
    return sums, () if has_records else (_SLOWER,)


async def _largest(prometheus: Prometheus, query: str, at: float) -> float:
    return max((row.value for row in await prometheus.instant(query, at)), default=0.0)
