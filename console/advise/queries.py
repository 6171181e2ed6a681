"""The PromQL expressions of `advise`: on records of deploy/mixin/usage.libsonnet, or on the agents' series.

Only series that match the selector count, because any exporter can serve series with these names. Series of
one pod from several agents, or from one agent before and after its restart, are one series here: the largest
value at each time.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from console.prometheus.coverage import SHARE
from console.prometheus.promql import one_of, range_of, string

POD_LABELS: Final = "cluster, namespace, pod, uid, gpu_uuid, vcluster, virtual_namespace"
_ON_GPU: Final = "uid, gpu_uuid"
"""Labels of a pod on a GPU without its description, which may change while the pod runs."""
INFO_LABELS: Final = "uid, size, workload_kind, workload"

_USED: Final = "kaishare_pod_gpu_memory_used_bytes"
_OVER: Final = "kaishare_pod_over_share_seconds_total"
_INFO: Final = "kaishare_pod_info"
_TOTAL: Final = "kaishare_gpu_memory_total_bytes"

SHARE_RECORD: Final = "pod:kaishare_gpu_share:ratio"
_USED_RECORD: Final = "pod:kaishare_gpu_used:ratio"
_PEAK_RECORD: Final = "pod:kaishare_gpu_used:max1m"
_OVER_RECORD: Final = "pod:kaishare_gpu_over:seconds1m"
_COUNTED_RECORD: Final = "gpu:kaishare_gpu_memory_counted_bytes:max"
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
    """Expressions on the agents' own series, evaluated at the end of the window.

    Counts and quantiles look at one value a step, after series of several agents were merged; a subquery does
    that, and takes long.
    """

    window: Window
    selector: str
    """Label matchers without braces."""
    namespace: str = ""
    """The only namespace, of the host cluster; empty for all."""
    uids: tuple[str, ...] = ()
    """The only pods; empty for all."""

    in_ratios: ClassVar[bool] = False
    """Whether amounts are parts of the memory that KAI counts of a GPU, not bytes."""

    @property
    def step(self) -> int:
        """Seconds that one counted value stands for."""
        return self.window.step

    @property
    def full_bucket(self) -> float:
        """Number of values of a pod in a part of the time without a gap; 0 if it depends on the scrapes."""
        return 0.0

    @property
    def matchers(self) -> str:
        """Label matchers of the series of pods, without braces."""
        matchers = [self.selector]
        if self.namespace:
            matchers.append(f"namespace={string(self.namespace)}")
        if self.uids:
            matchers.append(f"uid=~{one_of(self.uids)}")
        return ",".join(matchers)

    def _pods(self, metric: str) -> str:
        return f"{metric}{{{self.matchers}}}"

    def _direct(self, function: str, metric: str, seconds: int) -> str:
        """Return a function of each series, and the largest result for each pod and GPU."""
        return f"max by ({POD_LABELS}) ({function}({self._pods(metric)}[{range_of(seconds)}]))"

    def _merged(self, function: str, expression: str, step: int) -> str:
        """Return a function of the values of an instant vector; it may end with its first arguments."""
        begin = function if "(" in function else f"{function}("
        return f"{begin}({expression})[{range_of(self.window.length)}:{step}s])"

    @property
    def used(self) -> str:
        """Bytes in use, by pod and GPU."""
        return f"max by ({_ON_GPU}) ({self._pods(_USED)})"

    @property
    def share(self) -> str:
        """Bytes of the share, by pod and GPU."""
        return f"max by ({_ON_GPU}) ({self._pods(SHARE)})"

    def over_within(self, seconds: int) -> str:
        """Seconds above the share in the last seconds, by pod: on the GPU where they are most.

        At least five minutes count, because an increase needs two scrapes.
        """
        return f"max by (uid) (increase({self._pods(_OVER)}[{max(seconds, _OVER_STEP)}s]))"

    @property
    def all_uids(self) -> str:
        """A series for each pod."""
        return self._merged("last_over_time", f"group by (uid) ({self._pods(SHARE)})", _OVER_STEP)

    @property
    def share_count(self) -> str:
        """Number of values of the share."""
        return self._merged("count_over_time", self.share, self.step)

    @property
    def used_count(self) -> str:
        """Number of values of the use."""
        return self._merged("count_over_time", self.used, self.step)

    def merged_quantile(self, quantile: float) -> str:
        """Quantile of the use, with the values of all descriptions of a pod together."""
        return self._merged(f"quantile_over_time({quantile}, ", self.used, self.window.step)

    def used_quantile(self, quantile: float) -> str:
        """Quantile of the use for each description of a pod, which is faster where there are records."""
        return self.merged_quantile(quantile)

    @property
    def changes(self) -> str:
        """Empty: the pods whose share changed are those whose smallest share is not their largest."""
        return ""

    @property
    def largest_share(self) -> str:
        """Largest share."""
        return self._direct("max_over_time", SHARE, self.window.length)

    @property
    def smallest_share(self) -> str:
        """Smallest share."""
        return f"min by ({POD_LABELS}) (min_over_time({self._pods(SHARE)}[{range_of(self.window.length)}]))"

    @property
    def counts_by_bucket(self) -> str:
        """Number of values of the share in a part of the time."""
        return self._direct("count_over_time", SHARE, self.window.bucket)

    @property
    def peaks_by_bucket(self) -> str:
        """Largest use in a part of the time."""
        return self._direct("max_over_time", _USED, self.window.bucket)

    @property
    def over_seconds(self) -> str:
        """Seconds above the share, by pod."""
        return self._merged("sum_over_time", self.over_within(_OVER_STEP), _OVER_STEP)

    @property
    def infos(self) -> str:
        """Number of times that each description of a pod was seen."""
        info = f"max by ({INFO_LABELS}) ({self._pods(_INFO)})"
        return self._merged("count_over_time", info, _OVER_STEP)

    @property
    def gpus(self) -> str:
        """Bytes of each GPU, by UUID and model."""
        total = f"max by (gpu_uuid, model) ({_TOTAL}{{{self.selector}}})"
        return self._merged("max_over_time", total, max(self.window.length // 1000, _SHORTEST_STEP))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQueries(Queries):
    """Expressions on the records, which have a value a minute for each pod and GPU, with its description."""

    in_ratios: ClassVar[bool] = True

    @property
    def step(self) -> int:
        """Seconds that one counted value stands for."""
        return RECORD_STEP

    def _recorded(self, function: str, record: str) -> str:
        """Return a function of the values of a record; it may end with its first arguments."""
        begin = function if "(" in function else f"{function}("
        return f"{begin}{self._pods(record)}[{range_of(self.window.length)}])"

    @property
    def full_bucket(self) -> float:
        """Number of values of a pod in a part of the time without a gap."""
        return self.window.bucket / RECORD_STEP

    @property
    def used(self) -> str:
        """Part of the GPU in use, by pod and GPU."""
        return f"max by ({_ON_GPU}) ({self._pods(_USED_RECORD)})"

    @property
    def share(self) -> str:
        """Part of the GPU that is the share, by pod and GPU."""
        return f"max by ({_ON_GPU}) ({self._pods(SHARE_RECORD)})"

    def over_within(self, seconds: int) -> str:
        """Seconds above the share in the last seconds, by pod: on the GPU where they are most."""
        return f"max by (uid) (sum_over_time({self._pods(_OVER_RECORD)}[{range_of(seconds)}]))"

    @property
    def share_count(self) -> str:
        """Empty: `counts_by_bucket` has all values."""
        return ""

    @property
    def used_count(self) -> str:
        """Number of values of the use."""
        return self._recorded("count_over_time", _USED_RECORD)

    def used_quantile(self, quantile: float) -> str:
        """Quantile of the use at the window's steps; every minute of two weeks takes twice as long."""
        if self.window.step == RECORD_STEP:
            return self._recorded(f"quantile_over_time({quantile}, ", _USED_RECORD)
        values = f"{self._pods(_USED_RECORD)}[{range_of(self.window.length)}:{self.window.step}s]"
        return f"quantile_over_time({quantile}, {values})"

    @property
    def changes(self) -> str:
        """The pods whose share changed."""
        return f"{self._recorded('changes', SHARE_RECORD)} > 0"

    @property
    def largest_share(self) -> str:
        """Largest share."""
        return self._recorded("max_over_time", SHARE_RECORD)

    @property
    def smallest_share(self) -> str:
        """Smallest share."""
        return self._recorded("min_over_time", SHARE_RECORD)

    @property
    def counts_by_bucket(self) -> str:
        """Number of values of the share in a part of the time; parts do not overlap."""
        return f"count_over_time({self._pods(SHARE_RECORD)}[{range_of(self.window.bucket)}])"

    @property
    def peaks_by_bucket(self) -> str:
        """Largest use in a part of the time, for each description of a pod."""
        return f"max_over_time({self._pods(_PEAK_RECORD)}[{range_of(self.window.bucket)}])"

    @property
    def over_seconds(self) -> str:
        """Seconds above the share, by pod."""
        return f"max by (uid) ({self._recorded('sum_over_time', _OVER_RECORD)})"

    @property
    def infos(self) -> str:
        """Empty: the records have the description."""
        return ""

    @property
    def gpus(self) -> str:
        """Bytes of each GPU that KAI counts, by UUID and model."""
        counted = f"{_COUNTED_RECORD}{{{self.selector}}}[{range_of(self.window.length)}]"
        return f"max by (gpu_uuid, model) (max_over_time({counted}))"
