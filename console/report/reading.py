"""Reads the hours of a report from a Prometheus."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from console.prometheus.client import InstantSeries, Prometheus, PrometheusError
from console.report.queries import FIGURES, RECORD_STEP, Period, Raw, Recorded, periods
from service.text import first_few, one_line

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
        PrometheusError: there is no usable answer or no pod, or several jobs of a cluster match the selector.
        kube.access.AccessError: there are no credentials for the API server.
    """
    by = (*labels, "model")
    recorded, raw = Recorded(prometheus.selector, by), Raw(prometheus.selector, by)
    whole = Period(int(start), int(end))
    step = max(whole.length // _LOOKS, 60)
    with_records = await prometheus.instant(recorded.presence(whole, step), end)
    at_all = await prometheus.instant(raw.presence(whole, step), end)
    has_records = whole.length >= RECORD_STEP and _largest(with_records) >= _ENOUGH_RECORDS * _largest(at_all)
    _check_jobs(prometheus, with_records if has_records else at_all)
    queries = recorded if has_records else raw
    sums: dict[str, list[tuple[Mapping[str, str], float]]] = {figure: [] for figure in FIGURES}
    for period in periods(start, end, has_records=has_records):
        for figure in FIGURES:
            series = await prometheus.instant(queries.hours(figure, period), period.end)
            sums[figure] += [(row.labels, row.value) for row in series]
    if not any(sums.values()):
        raise PrometheusError(
            f"{prometheus.address}: no pod with a share in this time; check --selector {prometheus.selector},"
            " --since and the scrape configuration"
        )
    return sums, () if has_records else (_SLOWER,)


def _check_jobs(prometheus: Prometheus, presence: Iterable[InstantSeries]) -> None:
    """Refuse several jobs of a cluster: pods that two of them scrape would count twice.

    Raises:
        PrometheusError: a cluster has several jobs.
    """
    jobs: dict[str, list[str]] = {}
    for series in presence:
        jobs.setdefault(series.labels.get("cluster", ""), []).append(series.labels.get("job", ""))
    for names in jobs.values():
        if len(names) > 1:
            matching = first_few([one_line(name, 60) or "(none)" for name in sorted(names)], 3)
            raise PrometheusError(
                f"{prometheus.address}: several jobs match --selector {prometheus.selector}, and their hours"
                f" would add up: {matching}; select one job"
            )


def _largest(presence: Iterable[InstantSeries]) -> float:
    return max((series.value for series in presence), default=0.0)
