"""Reads the use of all pods from a Prometheus."""

import asyncio
import operator
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from console.advise.pod_use import NEAR, PodNames, PodUse, Point, by_share, is_possible
from console.advise.share_values import card_of
from console.advise.usage_queries import RECORD_STEP, SHARE_RECORD, Queries, Window
from console.prometheus.coverage import origin_of
from console.prometheus.promql import InstantSeries, RangeSeries
from console.prometheus.query_api import Prometheus
from console.prometheus.records import record_coverage, require_one

_PODS_AT_ONCE: Final = 100
"""Pods of one query on the agents' own series."""

_CHANGED_AT_ONCE: Final = 10
"""Pods of one query for all their values."""

_LOW: Final = 0.05

_ORIGIN: Final = ("cluster", "job")
"""Labels with one value. Otherwise one pod would have several series at each time."""

_Key = tuple[str, str]
"""UID of a pod, and UUID of a GPU."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of all pods."""

    uses: tuple[PodUse, ...]
    remarks: tuple[str, ...] = ()
    """Sentences about how it was read."""
    dropped: int = 0
    """Pods with figures that no GPU can have."""


@dataclass(frozen=True, slots=True)
class _Presence:
    """When a pod was seen on a GPU, and its description."""

    labels: Mapping[str, str]
    count: float
    """Number of values."""
    first: float
    """Unix seconds."""
    last: float
    """Unix seconds."""
    is_one_series: bool = True
    """Whether all values have one description."""

    def merged(self, other: "_Presence") -> "_Presence":
        """Add another description of the same pod; that with more values stays."""
        more = self if self.count >= other.count else other
        first, last = min(self.first, other.first), max(self.last, other.last)
        return _Presence(more.labels, self.count + other.count, first, last, is_one_series=False)


@dataclass(frozen=True, slots=True)
class _Gpu:
    model: str
    total_bytes: int | None


async def read_usage(
    prometheus: Prometheus, window: Window, *, quantile: float, namespace: str = ""
) -> Usage:
    """Read the use of all pods, from the records if they cover the time.

    Args:
        prometheus: the Prometheus.
        window: the time.
        quantile: from 0 to 1.
        namespace: the only namespace of the host cluster; empty for all.

    Raises:
        PrometheusError: there is no usable answer, or no pod.
        kube.access.AccessError: there are no credentials for the API server.
    """
    coverage = await record_coverage(
        prometheus,
        start=window.start,
        end=window.end,
        record=SHARE_RECORD,
        record_step=RECORD_STEP,
        namespace=namespace,
    )
    require_one(prometheus, coverage.parts, *_ORIGIN)
    queries = Queries(
        window=window, selector=prometheus.selector, has_records=not coverage.lacking, namespace=namespace
    )
    reader = _Reader(prometheus, queries, quantile)
    gpus = _gpus(await reader.instant(queries.gpus))
    if queries.has_records:
        return await reader.usage(gpus)
    uids = sorted({row.labels.get("uid", "") for row in await reader.instant(queries.all_uids)})
    uses: list[PodUse] = []
    dropped = 0
    for chunk in _chunks(uids, _PODS_AT_ONCE):
        usage = await _Reader(prometheus, replace(queries, uids=chunk), quantile).usage(gpus)
        uses += usage.uses
        dropped += usage.dropped
    return Usage(tuple(uses), coverage.remarks, dropped)


class _Reader:
    """Reads the pods of one set of queries."""

    def __init__(self, prometheus: Prometheus, queries: Queries, quantile: float) -> None:
        self._prometheus = prometheus
        self._queries = queries
        self._quantile = quantile
        self._step = queries.step
        self._impossible: set[str] = set()
        """UIDs of the pods with figures that no GPU can have."""

    async def instant(self, query: str) -> list[InstantSeries]:
        """Return the possible values of an expression at the end of the window."""
        series = await self._prometheus.instant(query, self._queries.window.end)
        return [entry for entry in series if self._are_possible(entry.labels, (entry.value,))]

    async def _range(self, query: str, start: float, step: float) -> list[RangeSeries]:
        """Return the series whose values are all possible, until the end of the window."""
        series = await self._prometheus.range(query, start, self._queries.window.end, step)
        return [entry for entry in series if self._are_possible(entry.labels, entry.values)]

    def _are_possible(self, labels: Mapping[str, str], values: Iterable[float]) -> bool:
        """Whether a pod on a GPU can have the values; notes the pod if not."""
        are_possible = all(map(is_possible, values))
        if not are_possible:
            self._impossible.add(labels.get("uid", ""))
        return are_possible

    async def usage(self, gpus: Mapping[str, _Gpu]) -> Usage:
        """Return the use of the pods; pods with a figure that no GPU can have are left out."""
        uses = await self._uses(gpus)
        self._impossible |= {use.names.uid for use in uses if not use.is_possible}
        return Usage(
            tuple(use for use in uses if use.names.uid not in self._impossible),
            dropped=len(self._impossible - {""}),
        )

    async def _by_pod(self, query: str, merge: Callable[[float, float], float] = max) -> dict[_Key, float]:
        """Return the value for each pod and GPU; several series of one pod have different descriptions."""
        values: dict[_Key, float] = {}
        for series in await self.instant(query) if query else ():
            key = _key(series.labels)
            values[key] = merge(values[key], series.value) if key in values else series.value
        return values

    async def _of_pods(
        self,
        uids: Iterable[str],
        expression: Callable[[Queries], str],
        merge: Callable[[float, float], float] = max,
    ) -> dict[_Key, float]:
        """Return the value for each of some pods and GPU; see `_by_pod`."""
        chunks = _chunks(sorted(set(uids)), _PODS_AT_ONCE)
        queries = (expression(replace(self._queries, uids=chunk)) for chunk in chunks)
        answers = await asyncio.gather(*(self._by_pod(query, merge) for query in queries))
        return {key: value for answer in answers for key, value in answer.items()}

    async def _uses(self, gpus: Mapping[str, _Gpu]) -> list[PodUse]:
        """Return the use of the pods."""
        queries = self._queries
        (presences, peaks), (high, known, over_by_key, current, changes) = await asyncio.gather(
            asyncio.gather(self._presences(), self._peaks()),
            asyncio.gather(
                self._by_pod(queries.used_quantile(self._quantile)),
                self._by_pod(queries.used_count, operator.add),
                self._by_pod(queries.over_seconds),
                self._by_pod(queries.share),  # at the end of the window, if the pod still exists
                self._by_pod(queries.changes),
            ),
        )
        constant = {
            key: current[key]
            for key, presence in presences.items()
            if queries.changes and presence.is_one_series and key in current and key not in changes
        }
        others = {uid for uid, gpu_uuid in presences if (uid, gpu_uuid) not in constant}
        largest = constant | await self._of_pods(others, lambda queries: queries.largest_share)
        smallest = constant | await self._of_pods(others, lambda queries: queries.smallest_share, min)
        over = {uid: seconds for (uid, _), seconds in over_by_key.items()}
        counts = await self._by_pod(queries.share_count)
        several = {key[0] for key, presence in presences.items() if not presence.is_one_series}
        high |= await self._of_pods(several, lambda queries: queries.merged_quantile(self._quantile))
        infos = _infos(await self.instant(queries.infos)) if queries.infos else {}
        uses = []
        for key, presence in presences.items():
            gpu = gpus.get(key[1], _Gpu("", None))
            unit = self._unit(gpu.total_bytes)
            seconds = counts.get(key, presence.count) * self._step
            peak = _scaled(unit, peaks.get(key))
            use = PodUse(
                names=_names(presence.labels, infos.get(key[0], presence.labels), gpu.model),
                gpu_bytes=gpu.total_bytes,
                share_bytes=round(largest.get(key, 0.0) * unit),
                seconds=seconds,
                known_seconds=min(known.get(key, 0.0) * self._step, seconds),
                expected_seconds=max(presence.last - presence.first, seconds),
                first=presence.first,
                last=presence.last,
                peak_bytes=max(peak.values, default=None) if peak else None,
                quantile_bytes=_times(unit, high.get(key)),
                low_bytes=None,
                over_seconds=over.get(key[0]),
                is_current=key in current,
                bucket=queries.window.bucket,
                peaks=peak,
            )
            uses.append(use)
        uses = await self._with_low(uses, several)
        changed = [use for use in uses if smallest.get(_pod_key(use)) != largest.get(_pod_key(use))]
        keys = set(map(_pod_key, changed))
        return [use for use in uses if _pod_key(use) not in keys] + await self._split(changed)

    async def _with_low(self, uses: list[PodUse], several: Collection[str]) -> list[PodUse]:
        """Add the low quantile of the pods that came near to their share on a GPU, or whose peaks are flat.

        Args:
            uses: the use of all pods.
            several: UIDs of pods with several descriptions.
        """
        uids = {
            use.names.uid
            for use in uses
            if (use.peak_bytes or 0.0) >= NEAR * use.share_bytes or use.has_flat_peaks
        }
        low = await self._of_pods(uids, lambda queries: queries.used_quantile(_LOW))
        low |= await self._of_pods(uids.intersection(several), lambda queries: queries.merged_quantile(_LOW))
        return [
            replace(use, low_bytes=_times(self._unit(use.gpu_bytes), low.get(_pod_key(use)))) for use in uses
        ]

    def _unit(self, gpu_bytes: int | None) -> float:
        """Return the bytes of one unit of an amount."""
        return float(gpu_bytes or 0) if self._queries.has_records else 1.0

    async def _peaks(self) -> dict[_Key, RangeSeries]:
        """Return the largest use in each part of the window."""
        window = self._queries.window
        peaks: dict[_Key, RangeSeries] = {}
        for series in await self._range(self._queries.peaks_by_bucket, window.first_bucket, window.bucket):
            key = _key(series.labels)
            peaks[key] = _larger(peaks[key], series) if key in peaks else series
        return peaks

    async def _presences(self) -> dict[_Key, "_Presence"]:
        """Return each pod on each GPU, and when it was first and last seen.

        The first and last part of the time are filled as far as they have values, compared with a full one.
        """
        queries, window = self._queries, self._queries.window
        series = await self._range(queries.counts_by_bucket, window.first_bucket, window.bucket)
        require_one(self._prometheus, [origin_of(entry.labels) for entry in series], *_ORIGIN)
        full = queries.full_bucket or max((max(entry.values, default=0) for entry in series), default=1)
        presences: dict[_Key, _Presence] = {}
        for entry in series:
            if not len(entry.values):
                continue
            first = entry.times[0] - window.bucket * min(entry.values[0] / full, 1)
            last = entry.times[-1]
            if last > entry.times[0]:
                last -= window.bucket * max(1 - entry.values[-1] / full, 0)
            presence = _Presence(entry.labels, sum(entry.values), first, last)
            key = _key(entry.labels)
            presences[key] = presences[key].merged(presence) if key in presences else presence
        return presences

    async def _split(self, changed: Sequence[PodUse]) -> list[PodUse]:
        """Return the use of pods whose share changed, once for each share."""
        uses: list[PodUse] = []
        for chunk in _chunks(changed, _CHANGED_AT_ONCE):
            queries = replace(self._queries, uids=tuple(use.names.uid for use in chunk))
            shares = await self._values(queries.share)
            used = await self._values(queries.used)
            over_query = queries.over_within(queries.window.step)
            over = {uid: values for (uid, _), values in (await self._values(over_query)).items()}
            for use in chunk:
                key = _pod_key(use)
                unit = self._unit(use.gpu_bytes)
                amounts = used.get(key, {})
                seconds = over.get(key[0], {})
                points = [
                    Point(at, round(share * unit), _times(unit, amounts.get(at)), seconds.get(at, 0.0))
                    for at, share in shares.get(key, {}).items()
                ]
                uses += by_share(use, points, quantile=self._quantile, window=queries.window) or [use]
        return uses

    async def _values(self, query: str) -> dict[_Key, dict[float, float]]:
        """Return the values of an expression over the window, at the times of the window's steps."""
        window = self._queries.window
        step = window.step
        start = window.start // step * step + step
        series = await self._range(query, start, step)
        return {_key(entry.labels): dict(zip(entry.times, entry.values, strict=True)) for entry in series}


def _times(unit: float, amount: float | None) -> float | None:
    return None if amount is None else amount * unit


def _scaled(unit: float, series: RangeSeries | None) -> RangeSeries | None:
    if series is None or unit == 1.0:
        return series
    return RangeSeries({}, series.times, array("d", (value * unit for value in series.values)))


def _larger(series: RangeSeries, other: RangeSeries) -> RangeSeries:
    """Return the larger value at each time of two series."""
    values = dict(zip(series.times, series.values, strict=True))
    for at, value in zip(other.times, other.values, strict=True):
        values[at] = max(values.get(at, value), value)
    return RangeSeries({}, array("d", sorted(values)), array("d", (values[at] for at in sorted(values))))


def _names(labels: Mapping[str, str], info: Mapping[str, str], model: str) -> PodNames:
    return PodNames(
        uid=labels.get("uid", ""),
        gpu_uuid=labels.get("gpu_uuid", ""),
        namespace=labels.get("namespace", ""),
        pod=labels.get("pod", ""),
        vcluster=labels.get("vcluster", ""),
        virtual_namespace=labels.get("virtual_namespace", ""),
        size=info.get("size", ""),
        workload_kind=info.get("workload_kind", ""),
        workload=info.get("workload", ""),
        model=model,
    )


def _infos(series: Iterable[InstantSeries]) -> dict[str, dict[str, str]]:
    """Return the description of each pod by UID; of several the one that was seen most."""
    by_uid: defaultdict[str, list[InstantSeries]] = defaultdict(list)
    for entry in series:
        by_uid[entry.labels.get("uid", "")].append(entry)
    return {
        uid: max(several, key=lambda entry: (entry.value, sorted(entry.labels.items()))).labels
        for uid, several in by_uid.items()
    }


def _gpus(series: Iterable[InstantSeries]) -> dict[str, _Gpu]:
    """Return the GPUs by UUID; the memory is None if KAI would share no such GPU."""
    gpus = {}
    for entry in series:
        total: int | None = round(entry.value)
        try:
            card_of(round(entry.value))
        except ValueError:
            total = None
        gpus[entry.labels.get("gpu_uuid", "")] = _Gpu(entry.labels.get("model", ""), total)
    return gpus


def _key(labels: Mapping[str, str]) -> _Key:
    return labels.get("uid", ""), labels.get("gpu_uuid", "")


def _pod_key(use: PodUse) -> _Key:
    return use.names.uid, use.names.gpu_uuid


def _chunks(items: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(items), size):
        yield tuple(items[start : start + size])
