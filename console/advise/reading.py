"""Reads the use of all pods from a Prometheus."""

import asyncio
import operator
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from console.advise.queries import Queries, RecordQueries, Window
from console.advise.shares import card_of
from console.advise.usage import NEAR, PodNames, PodUse, Point, by_share
from console.prometheus.client import InstantSeries, Prometheus, PrometheusError, RangeSeries
from service.units import duration

_PODS_AT_ONCE: Final = 100
"""Pods of one query on the agents' own series."""

_ENOUGH_RECORDS: Final = 0.95
"""Part of the time with pods that the records must cover to be used."""

_CHANGED_AT_ONCE: Final = 10
"""Pods of one query for all their values."""

_LOW: Final = 0.05

_ORIGINS: Final = {"cluster": 'job="kaishare-agent",cluster="NAME"', "job": 'job="NAME"'}
"""Labels of which the series must have one value, and a selector that names one."""

_Key = tuple[str, str]
"""UID of a pod, and UUID of a GPU."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of all pods."""

    uses: tuple[PodUse, ...]
    remarks: tuple[str, ...] = ()
    """Sentences about how it was read."""


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

    def merged(self, other: "_Presence") -> "_Presence":
        """Add another description of the same pod; that with more values stays."""
        more = self if self.count >= other.count else other
        first, last = min(self.first, other.first), max(self.last, other.last)
        return _Presence(more.labels, self.count + other.count, first, last)


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
    raw = Queries(window=window, selector=prometheus.selector, namespace=namespace)
    records = RecordQueries(window=window, selector=prometheus.selector, namespace=namespace)
    at_all, recorded = await asyncio.gather(_presence(prometheus, raw), _presence(prometheus, records))
    if not max(at_all, recorded):
        raise PrometheusError(_no_pods(prometheus, window, namespace))
    if recorded >= _ENOUGH_RECORDS * at_all:
        reader = _Reader(prometheus, records, quantile)
        return Usage(tuple(await reader.uses(_gpus(await reader.instant(records.gpus)))))
    reader = _Reader(prometheus, raw, quantile)
    uids = sorted({row.labels.get("uid", "") for row in await reader.instant(raw.all_uids)})
    gpus = _gpus(await reader.instant(raw.gpus))
    uses: list[PodUse] = []
    for chunk in _chunks(uids, _PODS_AT_ONCE):
        uses += await _Reader(prometheus, replace(raw, uids=chunk), quantile).uses(gpus)
    return Usage(tuple(uses), (_without_records(recorded, at_all),))


async def _presence(prometheus: Prometheus, queries: Queries) -> float:
    series = await prometheus.instant(queries.presence, queries.window.end)
    return max((entry.value for entry in series), default=0.0)


def _without_records(recorded: float, at_all: float) -> str:
    part = "have no data" if not recorded else f"cover {recorded / at_all:.0%} of this time"
    return (
        f"The recording rules {part}: the agents' own series were read, which is slower."
        " deploy/alerts/README.md says how to load the rules."
    )


def _no_pods(prometheus: Prometheus, window: Window, namespace: str) -> str:
    where = f" in namespace {namespace}" if namespace else ""
    return (
        f"{prometheus.address}: no pod with a share{where} in the last {duration(window.end - window.start)};"
        f" check --selector {prometheus.selector}, --since and the scrape configuration"
    )


class _Reader:
    """Reads the pods of one set of queries."""

    def __init__(self, prometheus: Prometheus, queries: Queries, quantile: float) -> None:
        self._prometheus = prometheus
        self._queries = queries
        self._quantile = quantile
        self._step = queries.step

    async def instant(self, query: str) -> list[InstantSeries]:
        return await self._prometheus.instant(query, self._queries.window.end)

    async def _by_pod(self, query: str, merge: Callable[[float, float], float] = max) -> dict[_Key, float]:
        """Return the value for each pod and GPU; several series of one pod have different descriptions."""
        values: dict[_Key, float] = {}
        for series in await self.instant(query):
            key = _key(series.labels)
            values[key] = merge(values[key], series.value) if key in values else series.value
        return values

    async def uses(self, gpus: Mapping[str, _Gpu]) -> list[PodUse]:
        """Return the use of the pods."""
        queries = self._queries
        high, known, largest, smallest, over_by_key, current = await asyncio.gather(
            self._by_pod(queries.used_quantile(self._quantile)),
            self._by_pod(queries.used_count, operator.add),
            self._by_pod(queries.largest_share),
            self._by_pod(queries.smallest_share, min),
            self._by_pod(queries.over_seconds),
            self._by_pod(queries.share),  # at the end of the window, if the pod still exists
        )
        presences, peaks = await asyncio.gather(self._presences(), self._buckets(queries.peaks_by_bucket))
        over = {uid: seconds for (uid, _), seconds in over_by_key.items()}
        counts = await self._by_pod(queries.share_count) if queries.share_count else {}
        infos = _infos(await self.instant(queries.infos)) if queries.infos else {}
        uses = []
        for key, presence in presences.items():
            gpu = gpus.get(key[1], _Gpu("", None))
            unit = self._unit(gpu)
            seconds = counts.get(key, presence.count) * self._step
            peak = _scaled(unit, peaks.get(key))
            use = PodUse(
                names=_names(presence.labels, infos.get(key[0], presence.labels), gpu.model),
                gpu_bytes=gpu.total_bytes,
                share_bytes=round(largest.get(key, 0.0) * unit),
                seconds=seconds,
                known_seconds=min(known.get(key, 0.0) * self._step, seconds),
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
        uses = await self._with_low(uses)
        changed = [use for use in uses if smallest.get(_pod_key(use)) != largest.get(_pod_key(use))]
        keys = set(map(_pod_key, changed))
        return [use for use in uses if _pod_key(use) not in keys] + await self._split(changed)

    async def _with_low(self, uses: list[PodUse]) -> list[PodUse]:
        """Add the low quantile of the pods that came near to their share; the others need none."""
        near = [use for use in uses if (use.peak_bytes or 0.0) >= NEAR * use.share_bytes]
        low: dict[_Key, float] = {}
        for chunk in _chunks(near, _PODS_AT_ONCE):
            queries = replace(self._queries, uids=tuple(dict.fromkeys(use.names.uid for use in chunk)))
            low |= await self._by_pod(queries.used_quantile(_LOW))
        units = {_pod_key(use): float(use.gpu_bytes or 0) if self._queries.in_ratios else 1.0 for use in near}
        return [
            replace(use, low_bytes=low[key] * units[key]) if (key := _pod_key(use)) in low else use
            for use in uses
        ]

    def _unit(self, gpu: _Gpu) -> float:
        """Return the bytes of one unit of an amount."""
        return float(gpu.total_bytes or 0) if self._queries.in_ratios else 1.0

    def _require_one_origin(self, series: Sequence[RangeSeries]) -> None:
        """Refuse series of several clusters or jobs: one pod would have several series at each time."""
        for label, example in _ORIGINS.items():
            values = {entry.labels.get(label, "") for entry in series}
            if len(values) > 1:
                raise PrometheusError(
                    f"{self._prometheus.address}: series of {len(values)} {label}s; name one with --selector,"
                    f" such as {example}"
                )

    async def _buckets(self, query: str) -> dict[_Key, RangeSeries]:
        """Return the values of an expression for each part of the window."""
        window = self._queries.window
        series = await self._prometheus.range(query, window.first_bucket, window.end, window.bucket)
        return {_key(entry.labels): entry for entry in series}

    async def _presences(self) -> dict[_Key, "_Presence"]:
        """Return each pod on each GPU, and when it was first and last seen.

        The first and last part of the time are filled as far as they have values, compared with a full one.
        """
        queries, window = self._queries, self._queries.window
        series = await self._prometheus.range(
            queries.counts_by_bucket, window.first_bucket, window.end, window.bucket
        )
        self._require_one_origin(series)
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
            over = {uid: values for (uid, _), values in (await self._values(queries.over)).items()}
            for use in chunk:
                key = _pod_key(use)
                unit = float(use.gpu_bytes or 0) if queries.in_ratios else 1.0
                amounts = used.get(key, {})
                points = [
                    Point(at, round(share * unit), _times(unit, amounts.get(at)))
                    for at, share in shares.get(key, {}).items()
                ]
                seconds = over.get(key[0], {})
                uses.extend(
                    _part_of(use, figures, points, seconds)
                    for figures in by_share(points, quantile=self._quantile, step=queries.window.step)
                )
        return uses

    async def _values(self, query: str) -> dict[_Key, dict[float, float]]:
        """Return the values of an expression over the window, at the times of the window's steps."""
        window = self._queries.window
        step = window.step
        start = window.start // step * step + step
        series = await self._prometheus.range(query, start, window.end, step)
        return {_key(entry.labels): dict(zip(entry.times, entry.values, strict=True)) for entry in series}


def _part_of(
    use: PodUse, figures: Mapping[str, Any], points: Sequence[Point], over: Mapping[float, float]
) -> PodUse:
    """Return the part of a pod's use in which it had one share."""
    times = {point.at for point in points if point.share_bytes == figures["share_bytes"]}
    seconds = sum(value for at, value in over.items() if at in times)
    total = sum(over.values())
    is_last = bool(points) and points[-1].share_bytes == figures["share_bytes"]
    return replace(
        use,
        **figures,
        over_seconds=_times(seconds / total if total else 0.0, use.over_seconds),
        is_current=use.is_current and is_last,
    )


def _times(unit: float, amount: float | None) -> float | None:
    return None if amount is None else amount * unit


def _scaled(unit: float, series: RangeSeries | None) -> RangeSeries | None:
    if series is None or unit == 1.0:
        return series
    return RangeSeries({}, series.times, array("d", (value * unit for value in series.values)))


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
