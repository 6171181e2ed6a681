"""The PromQL expressions of `report`, on recorded series or on those that the agents serve.

Both count in the same way, which deploy/mixin/usage.libsonnet explains. Only series that match the selector
count, because any exporter can serve series with these names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

FIGURES: Final = (
    "promised", "whole", "used", "used_known", "active", "active_known", "idle", "over", "expected",
)  # fmt: skip
"""Hours of each row: `whole` is promised if each pod had whole GPUs, `expected` the time between the first
and the last value of each pod, and `…_known` the part of it with a figure."""

_RECORDS: Final = {
    figure: f"usage:kaishare_{'pod' if figure == 'over' else 'gpu'}_hours_{figure}:sum15m"
    for figure in FIGURES
}
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
    """Expressions on the records, evaluated at the end of a period."""

    selector: str
    """Label matchers without braces."""
    by: Sequence[str]
    """Labels of a row."""

    def hours(self, figure: str, period: Period) -> str:
        """Return the hours of a figure in a period, by row."""
        samples = f"{_RECORDS[figure]}{{{self.selector}}}[{period.length}s]"
        return f"sum by ({', '.join(self.by)}) (sum_over_time({samples}))"

    def presence(self, period: Period, step: int) -> str:
        """Return at how many times there were hours of any pod, by cluster and job."""
        hours = f"last_over_time({_RECORDS['expected']}{{{self.selector}}}[{RECORD_STEP}s])"
        return f"count_over_time(group by (cluster, job) ({hours})[{period.length}s:{step}s])"


@dataclass(frozen=True, slots=True)
class Raw:
    """Expressions on the agents' own series, evaluated at the end of a period."""

    selector: str
    by: Sequence[str]

    def hours(self, figure: str, period: Period) -> str:
        """Return the hours of a figure in a period, by row."""
        by = ", ".join(self.by)
        if figure == "expected":
            seen = f"(0 * ({self._description}) + time())"
            latest, before = (
                f"{seen}[{period.length}s:{_STEP}s]",
                f"{seen}[{_DAY}s:{_STEP}s] offset {period.length}s",
            )
            return (
                f"sum by ({by}) (max_over_time({latest}) - last_over_time({before})"
                f" or max_over_time({latest}) - min_over_time({latest}) + {_STEP}) / 3600"
            )
        if figure == "over":
            over = f"({self._of_pod(self._over)})[{period.length}s:{_STEP}s]"
            return f"sum by ({by}) (max by ({_DESCRIBED}, cluster, job, uid) (sum_over_time({over}))) / 3600"
        expression = {
            "promised": self._promised,
            "whole": f"{self._promised} > bool -1",
            "used": self._used,
            "used_known": f"{self._used} > bool -1",
            "active": self._active,
            "active_known": f"{self._active} > bool -1",
            "idle": f"{self._promised} * on ({_ON_GPU}) ({self._active} == bool 0)",
        }[figure]
        values = f"({self._of_pod(expression)})[{period.length}s:{_STEP}s]"
        return f"sum by ({by}) (sum_over_time({values})) * {_STEP} / 3600"

    def presence(self, period: Period, step: int) -> str:
        """Return at how many times there was any pod, by cluster and job."""
        pods = f"group by (cluster, job) ({self._series('pod_gpu_memory_share_bytes')})"
        return f"count_over_time({pods}[{period.length}s:{step}s])"

    def _series(self, name: str) -> str:
        return f"kaishare_{name}{{{self.selector}}}"

    def _once(self, name: str) -> str:
        return f"max by ({_ON_GPU}) ({self._series(name)})"

    def _of_gpu(self, name: str) -> str:
        counted = f"floor({self._series('gpu_memory_total_bytes')} / 104857600) * 104857600 > 0"
        gpu = "cluster, job, gpu_uuid"
        return f"{self._once(name)} / on ({gpu}) group_left () max by ({gpu}) ({counted})"

    @property
    def _promised(self) -> str:
        return f"ceil(100 * clamp_max({self._of_gpu('pod_gpu_memory_share_bytes')}, 1) - 0.01) / 100"

    @property
    def _used(self) -> str:
        return self._of_gpu("pod_gpu_memory_used_bytes")

    @property
    def _active(self) -> str:
        return self._once("pod_gpu_utilization_ratio")

    @property
    def _over(self) -> str:
        counter = self._series("pod_over_share_seconds_total")
        now = f"last_over_time({counter}[{_STEP}s])"
        before = f"last_over_time({counter}[{_LONGEST_GAP}s] offset {_STEP}s)"
        return f"max by ({_ON_GPU}) ({now} - {before} >= 0 or {now} < {before} or clamp_max({now}, {_STEP}))"

    @property
    def _description(self) -> str:
        """A series for each pod on each GPU, with its description."""
        share, used = (self._series(f"pod_gpu_memory_{name}_bytes") for name in ("share", "used"))
        gpu, pod = "cluster, job, gpu_uuid", "cluster, job, uid"
        own = f"{_ON_GPU}, namespace, node, queue, vcluster, virtual_namespace"
        return (
            f"group by ({own}) (topk by ({_ON_GPU}) (1, {share} or on ({_ON_GPU}) {used}))"
            f" * on ({gpu}) group_left (model) group by ({gpu}, model)"
            f" (topk by ({gpu}) (1, {self._series('gpu_memory_total_bytes')}))"
            f" * on ({pod}) group_left (size, workload_kind, workload)"
            f" topk by ({pod}) (1, {self._series('pod_info')})"
        )

    def _of_pod(self, figure: str) -> str:
        return f"({figure}) * on ({_ON_GPU}) group_left ({_DESCRIBED}) ({self._description})"
