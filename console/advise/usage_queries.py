"""The PromQL expressions of `advise`: on records of deploy/mixin/usage.libsonnet, or on the agents' series.

Only series that match the selector count, because any exporter can serve series with these names. Series of
one pod from several agents, or from one agent before and after its restart, are one series here: the largest
value at each time.
"""

import math
from dataclasses import dataclass
from typing import Final

from console.prometheus.coverage import SHARE
from console.prometheus.promql import one_of, range_of, string

_POD_LABELS: Final = "cluster, job, namespace, pod, uid, gpu_uuid, vcluster, virtual_namespace"
_RECORD_LABELS: Final = f"{_POD_LABELS}, node, queue, size, workload_kind, workload, model"
"""All labels of a record. Others tell the replicas of a Prometheus apart, which report one pod twice."""
_ON_GPU: Final = "uid, gpu_uuid"
"""Labels of a pod on a GPU without its description, which may change while the pod runs."""
_INFO_LABELS: Final = "uid, size, workload_kind, workload"

_USED: Final = "kaishare_pod_gpu_memory_used_bytes"
_INFO: Final = "kaishare_pod_info"
_TOTAL: Final = "kaishare_gpu_memory_total_bytes"
SHARE_RECORD: Final = "pod:kaishare_gpu_share:ratio"
_COUNTED_RECORD: Final = "gpu:kaishare_gpu_memory_counted_bytes:max"
_SERIES: Final = {
    "share": (SHARE, SHARE_RECORD),
    "used": (_USED, "pod:kaishare_gpu_used:ratio"),
    "peak": (_USED, "pod:kaishare_gpu_used:max1m"),
    "over": ("kaishare_pod_over_share_seconds_total", "pod:kaishare_gpu_over:seconds1m"),
}
"""The agents' series and the record of each figure."""
RECORD_STEP: Final = 60
"""Seconds between two values of a record."""

_OVER_STEP: Final = 300
"""Seconds of one increase of the counter."""

_MOST_STEPS: Final = 5000
"""Prometheus refuses range queries of more than 11,000 values a series."""

_SHORTEST_STEP: Final = 60

_HOUR: Final = 3600
_MOST_BUCKETS: Final = 336
"""Hours of two weeks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that is looked at, in Unix seconds."""

    start: float
    end: float

    @property
    def length(self) -> int:
        """Seconds."""
        return round(self.end - self.start)

    @property
    def step(self) -> int:
        """Seconds between two values that count, a multiple of 60."""
        return max(-(-self.length // (_MOST_STEPS * _SHORTEST_STEP)) * _SHORTEST_STEP, _SHORTEST_STEP)

    @property
    def bucket(self) -> int:
        """Seconds of the equal parts into which the time is divided: at most an hour, or several whole hours.

        They begin with the window, except for less than a second a part.
        """
        longest = -(-self.length // (_MOST_BUCKETS * _HOUR)) * _HOUR
        return -(-self.length // -(-self.length // longest))

    @property
    def first_bucket(self) -> float:
        """End of the first part, in Unix seconds; the last one ends with the window."""
        return self.end - (-(-self.length // self.bucket) - 1) * self.bucket

    def bucket_end(self, at: float) -> float:
        """Return the end of the part that has a time, in Unix seconds."""
        return self.first_bucket + max(math.ceil((at - self.first_bucket) / self.bucket), 0) * self.bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Expressions on the records or on the agents' own series, evaluated at the end of the window.

    Records have a value a minute for each pod and GPU, with its description. Of the agents' own series,
    counts and quantiles look at one value a step, after series of several agents were merged. A subquery does
    that, and takes long.
    """

    window: Window
    selector: str
    """Label matchers without braces."""
    has_records: bool
    namespace: str = ""
    """The only namespace, of the host cluster; empty for all."""
    uids: tuple[str, ...] = ()
    """The only pods; empty for all."""

    @property
    def step(self) -> int:
        """Seconds that one counted value stands for."""
        return RECORD_STEP if self.has_records else self.window.step

    @property
    def full_bucket(self) -> float:
        """Number of values of a pod in a part of the time without a gap; 0 if it depends on the scrapes."""
        return self.window.bucket / RECORD_STEP if self.has_records else 0.0

    @property
    def matchers(self) -> str:
        """Label matchers of the series of pods, without braces."""
        matchers = [self.selector]
        if self.namespace:
            matchers.append(f"namespace={string(self.namespace)}")
        if self.uids:
            matchers.append(f"uid=~{one_of(self.uids)}")
        return ",".join(matchers)

    def _pods(self, figure: str) -> str:
        return f"{_SERIES[figure][self.has_records]}{{{self.matchers}}}"

    def _of_samples(self, function: str, figure: str, seconds: int, merge: str = "max") -> str:
        """Return a function of every value in the last seconds, by pod and GPU."""
        labels = _RECORD_LABELS if self.has_records else _POD_LABELS
        return f"{merge} by ({labels}) ({function}({self._pods(figure)}[{range_of(seconds)}]))"

    def _at_steps(self, expression: str, step: int) -> str:
        """Return the values of an instant vector in the window, as a range vector."""
        return f"({expression})[{range_of(self.window.length)}:{step}s]"

    def _count(self, figure: str, now: str) -> str:
        """Return the number of values in the window, one a step."""
        if self.has_records:
            return self._of_samples("count_over_time", figure, self.window.length)
        return f"count_over_time({self._at_steps(now, self.step)})"

    @property
    def used(self) -> str:
        """Amount in use, by pod and GPU: a part of the memory that KAI counts, or bytes without records."""
        return f"max by ({_ON_GPU}) ({self._pods('used')})"

    @property
    def share(self) -> str:
        """Share, by pod and GPU, in the same unit."""
        return f"max by ({_ON_GPU}) ({self._pods('share')})"

    def over_within(self, seconds: int) -> str:
        """Seconds above the share in the last seconds, by pod: on the GPU where they are most.

        Without records at least five minutes count, because an increase needs two scrapes.
        """
        if self.has_records:
            return f"max by (uid) (sum_over_time({self._pods('over')}[{range_of(seconds)}]))"
        return f"max by (uid) (increase({self._pods('over')}[{max(seconds, _OVER_STEP)}s]))"

    @property
    def over_seconds(self) -> str:
        """Seconds above the share in the window, by pod."""
        if self.has_records:
            return self.over_within(self.window.length)
        return f"sum_over_time({self._at_steps(self.over_within(_OVER_STEP), _OVER_STEP)})"

    @property
    def all_uids(self) -> str:
        """A series for each pod."""
        pods = f"group by (uid) ({self._pods('share')})"
        return f"last_over_time({self._at_steps(pods, _OVER_STEP)})"

    @property
    def share_count(self) -> str:
        """Number of values of the share; empty with records, where `counts_by_bucket` has all values."""
        return "" if self.has_records else self._count("share", self.share)

    @property
    def used_count(self) -> str:
        """Number of values of the use."""
        return self._count("used", self.used)

    def merged_quantile(self, quantile: float) -> str:
        """Quantile of the use, with the values of all descriptions of a pod together."""
        return f"quantile_over_time({quantile}, {self._at_steps(self.used, self.window.step)})"

    def used_quantile(self, quantile: float) -> str:
        """Quantile of the use for each description of a pod, which is faster where there are records.

        It looks at the window's steps: every minute of two weeks takes twice as long.
        """
        if not self.has_records:
            return self.merged_quantile(quantile)
        step = "" if self.window.step == RECORD_STEP else f":{self.window.step}s"
        return f"quantile_over_time({quantile}, {self._pods('used')}[{range_of(self.window.length)}{step}])"

    @property
    def changes(self) -> str:
        """The pods whose share changed. Empty without records: those whose bounds of the share differ."""
        return f"{self._of_samples('changes', 'share', self.window.length)} > 0" if self.has_records else ""

    @property
    def largest_share(self) -> str:
        """Largest share."""
        return self._of_samples("max_over_time", "share", self.window.length)

    @property
    def smallest_share(self) -> str:
        """Smallest share."""
        return self._of_samples("min_over_time", "share", self.window.length, merge="min")

    @property
    def counts_by_bucket(self) -> str:
        """Number of values of the share in a part of the time; parts do not overlap."""
        return self._of_samples("count_over_time", "share", self.window.bucket)

    @property
    def peaks_by_bucket(self) -> str:
        """Largest use in a part of the time."""
        return self._of_samples("max_over_time", "peak", self.window.bucket)

    @property
    def infos(self) -> str:
        """Number of times that each description of a pod was seen; empty with records, which have it."""
        info = f"max by ({_INFO_LABELS}) ({_INFO}{{{self.matchers}}})"
        return "" if self.has_records else f"count_over_time({self._at_steps(info, _OVER_STEP)})"

    @property
    def gpus(self) -> str:
        """Bytes of each GPU, by UUID and model: those that KAI counts, or all without records."""
        if self.has_records:
            counted = f"{_COUNTED_RECORD}{{{self.selector}}}[{range_of(self.window.length)}]"
            return f"max by (gpu_uuid, model) (max_over_time({counted}))"
        total = f"max by (gpu_uuid, model) ({_TOTAL}{{{self.selector}}})"
        return f"max_over_time({self._at_steps(total, max(self.window.length // 1000, _SHORTEST_STEP))})"
