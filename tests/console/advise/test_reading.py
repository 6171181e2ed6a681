"""Reading the use of pods from a Prometheus that answers with fixed series."""

import re
from array import array
from typing import Any

from console.advise.queries import Window
from console.advise.reading import read_usage
from console.advise.usage import PodUse
from console.prometheus.client import InstantSeries, RangeSeries

MIB = 1 << 20
WINDOW = Window(start=1.8e9 - 14 * 86400, end=1.8e9)
SHARE = "pod:kaishare_gpu_share:ratio"
LABELS = {"uid": "a", "gpu_uuid": "GPU-1", "namespace": "team", "pod": "a", "size": "small"}
GPU = InstantSeries({"gpu_uuid": "GPU-1", "model": "Tesla T4"}, 15360.0 * MIB)


class Standin:
    """Answers the queries on the records about some pods of half a GPU."""

    address = "http://prometheus"
    selector = 'job="kaishare-agent"'

    def __init__(
        self, counts: list[RangeSeries], *, current: tuple[str, ...] = (), over: bool = True
    ) -> None:
        self._counts = counts
        self._current = current
        self._over = over

    async def instant(self, query: str, at: float) -> list[InstantSeries]:
        if "counted_bytes" in query:
            return [GPU]
        if "over:" in query and not self._over:
            return []
        if re.fullmatch(rf"max by \(.*\) \({SHARE}{{.*}}\)", query):
            return [InstantSeries(LABELS | {"uid": uid}, 0.5) for uid in self._current]
        return [InstantSeries(series.labels, 0.5) for series in self._counts]

    async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
        return self._counts if "count_over_time" in query else []


def counts(uid: str, *values: tuple[float, float], **labels: str) -> RangeSeries:
    """Return the numbers of values of a pod by seconds before the end of the window."""
    times = array("d", [WINDOW.end - before for before, _ in values])
    return RangeSeries(LABELS | {"uid": uid} | labels, times, array("d", [count for _, count in values]))


async def uses_of(*series: RangeSeries, **answers: Any) -> dict[str, PodUse]:
    prometheus: Any = Standin(list(series), **answers)
    usage = await read_usage(prometheus, WINDOW, quantile=0.99)
    return {use.names.uid: use for use in usage.uses}


async def test_pods_that_exist_are_those_with_a_share_at_the_end() -> None:
    uses = await uses_of(
        counts("ended", (0, 5)),  # for five minutes, at the beginning of the last hour
        counts("gap", (3600, 60), (0, 44)),  # records were missing for 16 minutes
        current=("gap",),
    )
    assert not uses["ended"].is_current
    assert uses["gap"].is_current
