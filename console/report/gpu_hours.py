"""Reads the GPU-hours of a report from a Prometheus: on recorded series, or on those of the agents.

Both count in the same way, which deploy/mixin/usage.libsonnet explains. Only series that match the selector
count, because any exporter can serve series with these names.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console.prometheus.coverage import RecordCoverage, few
from console.prometheus.promql import one_of, range_of
from console.prometheus.query_api import Prometheus
from console.prometheus.records import no_pods, record_coverage, require_one

FIGURES: Final = (
    "promised", "whole", "used", "used_known", "active", "active_known", "idle", "over", "expected",
)  # fmt: skip
"""Hours of each row: `whole` is promised if each pod had whole GPUs, `expected` the time between the first
and the last value of each pod, and `…_known` the part of it with a figure."""

_OF_MINUTE: Final = {"whole": "promised", "used_known": "used", "active_known": "active"}
"""Figures of `Raw` that count the minutes of another one."""

RECORDS: Final = {
    figure: f"usage:kaishare_{'pod' if figure == 'over' else 'gpu'}_hours_{figure}:sum15m"
    for figure in FIGURES
}
_SEEN: Final = "pod:kaishare_gpu_seen:timestamp"
_ON_GPU: Final = "cluster, job, uid, gpu_uuid"
_DESCRIBED: Final = (
    "namespace, node, queue, vcluster, virtual_namespace, size, workload_kind, workload, model"
)
_DAY: Final = 86_400
_RECORDS_AT_ONCE: Final = 31 * _DAY
RECORD_STEP: Final = 900
"""Seconds between two values of a record. A shorter time may contain none."""
_STEP: Final = 60
"""Seconds between two looks at the agents' own series."""
_LONGEST_GAP: Final = 600
"""Seconds for which a counter keeps its last value; the records keep it for an hour, which is slower."""


@dataclass(frozen=True, slots=True)
class Period:
    """A time, in Unix seconds."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Seconds."""
        return self.end - self.start


def periods(start: float, end: float, *, has_records: bool) -> Iterator[Period]:
    """Divide the time into periods that one query can read."""
    most = _RECORDS_AT_ONCE if has_records else _DAY
    at = int(start)
    while at < int(end):
        yield Period(at, min(at + most, int(end)))
        at += most


@dataclass(frozen=True, slots=True)
class Recorded:
    """Expressions on the records, evaluated at the end of a period.

    Other labels than those of a record tell the replicas of a Prometheus apart: each hour counts once.
    """

    selector: str
    """Label matchers without braces."""
    by: Sequence[str]
    """Labels of a row."""

    def gaps_before(self, period: Period) -> str:
        """Return the hours of gaps that end in a period, before it, by row; `expected` contains them."""
        first_day = min(period.length, _DAY)
        seen = f"{_SEEN}{{{self.selector}}}"
        later = period.length - first_day
        first = f"min_over_time({seen}[{range_of(first_day)}]{f' offset {later}s' if later else ''})"
        before = f"last_over_time({seen}[{range_of(_DAY)}] offset {period.length}s)"
        of_pods = f"({period.start} - {before} > {RECORD_STEP}) and ({first} - {before} <= {_DAY})"
        return f"sum by ({', '.join(self.by)}) (max by ({_ON_GPU}, {_DESCRIBED}) ({of_pods})) / 3600"

    def hours(self, figure: str, period: Period) -> str:
        """Return the hours of a figure in a period, by row."""
        samples = f"{RECORDS[figure]}{{{self.selector}}}[{range_of(period.length)}]"
        return (
            f"sum by ({', '.join(self.by)}) (max by (cluster, job, {_DESCRIBED}) (sum_over_time({samples})))"
        )


@dataclass(frozen=True, slots=True)
class Raw:
    """Expressions on the agents' own series, evaluated at the end of a period.

    The expressions of a minute are those of the rules; tests/console/report/test_queries.py compares them.
    """

    selector: str
    by: Sequence[str]
    start: int = 0
    """Unix seconds before which no time counts."""

    def hours(self, figure: str, period: Period) -> str:
        """Return the hours of a figure in a period, by row."""
        by = ", ".join(self.by)
        if figure == "expected":
            seen = f"(0 * ({self.description}) + time())"
            latest, before = (
                f"{seen}[{range_of(period.length)}:{_STEP}s]",
                f"{seen}[{range_of(_DAY)}:{_STEP}s] offset {period.length}s",
            )
            return (
                f"sum by ({by}) (max_over_time({latest}) - clamp_min(last_over_time({before}), {self.start})"
                f" or max_over_time({latest}) - min_over_time({latest}) + {_STEP}) / 3600"
            )
        if figure == "over":
            over = f"({self._of_pod(self.over)})[{range_of(period.length)}:{_STEP}s]"
            return f"sum by ({by}) (max by ({_DESCRIBED}, cluster, job, uid) (sum_over_time({over}))) / 3600"
        expression = getattr(self, _OF_MINUTE.get(figure, figure))
        expression = f"{expression} > bool -1" if figure in _OF_MINUTE else expression
        values = f"({self._of_pod(expression)})[{range_of(period.length)}:{_STEP}s]"
        return f"sum by ({by}) (sum_over_time({values})) * {_STEP} / 3600"

    def _series(self, name: str) -> str:
        return f"kaishare_{name}{{{self.selector}}}"

    def _once(self, name: str) -> str:
        return f"max by ({_ON_GPU}) ({self._series(name)})"

    def _of_gpu(self, name: str) -> str:
        counted = f"floor({self._series('gpu_memory_total_bytes')} / 104857600) * 104857600 > 0"
        gpu = "cluster, job, gpu_uuid"
        return f"{self._once(name)} / on ({gpu}) group_left () max by ({gpu}) ({counted})"

    @property
    def promised(self) -> str:
        """What KAI charges of each GPU."""
        return f"ceil(100 * clamp_max({self._of_gpu('pod_gpu_memory_share_bytes')}, 1) - 0.01) / 100"

    @property
    def used(self) -> str:
        """The part of the GPU in use."""
        return self._of_gpu("pod_gpu_memory_used_bytes")

    @property
    def active(self) -> str:
        """The utilisation."""
        return self._once("pod_gpu_utilization_ratio")

    @property
    def idle(self) -> str:
        """What KAI charges while no kernel runs, else 0."""
        return f"{self.promised} * on ({_ON_GPU}) ({self.active} == bool 0)"

    @property
    def over(self) -> str:
        """Seconds above the share in the last minute."""
        counter = self._series("pod_over_share_seconds_total")
        now = f"last_over_time({counter}[{_STEP}s])"
        before = f"last_over_time({counter}[{_LONGEST_GAP}s] offset {_STEP}s)"
        return f"max by ({_ON_GPU}) ({now} - {before} >= 0 or {now} < {before} or clamp_max({now}, {_STEP}))"

    @property
    def description(self) -> str:
        """A series for each pod on each GPU, with its description."""
        share, used = (self._series(f"pod_gpu_memory_{name}_bytes") for name in ("share", "used"))
        gpu, pod = "cluster, job, gpu_uuid", "cluster, job, uid"
        own = f"{_ON_GPU}, namespace, pod, node, queue, vcluster, virtual_namespace"
        return (
            f"group by ({own}) (topk by ({_ON_GPU}) (1, {share} or on ({_ON_GPU}) {used}))"
            f" * on ({gpu}) group_left (model) group by ({gpu}, model)"
            f" (topk by ({gpu}) (1, {self._series('gpu_memory_total_bytes')}))"
            f" * on ({pod}) group_left (size, workload_kind, workload)"
            f" (topk by ({pod}) (1, {self._series('pod_info')}))"
        )

    def _of_pod(self, figure: str) -> str:
        return f"({figure}) * on ({_ON_GPU}) group_left ({_DESCRIBED}) ({self.description})"


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
