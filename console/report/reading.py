"""Reads the hours of a report from a Prometheus."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from console.prometheus.client import Prometheus
from console.prometheus.coverage import RecordCoverage, few
from console.prometheus.promql import one_of
from console.prometheus.records import no_pods, record_coverage, require_one
from console.report.queries import FIGURES, RECORD_STEP, RECORDS, Raw, Recorded, periods

Sums = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Hours by labels of a row, in several periods, for each figure."""

_MOST_GPUS: Final = 1_000_000
"""Pods or GPUs of one row. Hours of more are a mistake or forged."""


async def read_sums(
    prometheus: Prometheus, labels: Iterable[str], *, start: float, end: float
) -> tuple[Sums, tuple[str, ...]]:
    """Read the hours of each figure, and say how they were read.

    For each cluster the records are used if they cover the time, else the agents' own series.

    Args:
        prometheus: the Prometheus.
        labels: labels of a row, without the model.
        start: Unix seconds.
        end: Unix seconds.

    Raises:
        PrometheusError: there is no usable answer or no pod, or several jobs of a cluster match the selector.
        kube.access.AccessError: there are no credentials for the API server.
    """
    by = (*labels, "model")
    coverage = await record_coverage(
        prometheus, start=start, end=end, record=RECORDS["expected"], record_step=RECORD_STEP
    )
    clusters = sorted({origin.cluster for origin in coverage.parts})
    for cluster in clusters:
        require_one(prometheus, [origin for origin in coverage.parts if origin.cluster == cluster], "job")
    parts = tuple(_parts(prometheus.selector, by, coverage, int(start)))
    queries = [
        (figure, 1, source.hours(figure, period), period.end)
        for source, has_records in parts
        for period in periods(start, end, has_records=has_records)
        for figure in FIGURES
    ]
    for source, has_records in parts:
        if isinstance(source, Recorded):
            first = next(periods(start, end, has_records=has_records))
            queries.append(("expected", -1, source.gaps_before(first), first.end))
    most = (end - start) / 3600 * _MOST_GPUS
    answers = await asyncio.gather(*(prometheus.instant(query, at, most=most) for *_, query, at in queries))
    sums: dict[str, list[tuple[Mapping[str, str], float]]] = {figure: [] for figure in FIGURES}
    for (figure, sign, *_), series in zip(queries, answers, strict=True):
        sums[figure] += [(row.labels, sign * row.value) for row in series]
    if not any(sums.values()):
        raise no_pods(prometheus)
    return sums, (*_added_up(clusters), *coverage.remarks, *prometheus.remarks)


def _added_up(clusters: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if rows contain several clusters."""
    if len(clusters) > 1:
        names = few(clusters)
        yield f'Rows add up {len(clusters)} clusters: {names}. --selector with cluster="NAME" selects one.'


def _parts(
    selector: str, by: Sequence[str], coverage: RecordCoverage, start: int
) -> Iterator[tuple[Recorded | Raw, bool]]:
    """Yield the expressions of the clusters with and without records, and whether they are on records."""
    covered, lacking = ([origin.cluster for origin in own] for own in (coverage.covered, coverage.lacking))
    if covered:
        yield Recorded(f"{selector},cluster=~{one_of(covered)}" if lacking else selector, by), True
    if lacking:
        yield Raw(f"{selector},cluster=~{one_of(lacking)}" if covered else selector, by, start), False
