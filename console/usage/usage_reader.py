"""Reads the use of all pods from the records of each minute, for `advise`.

A record has a value a minute for each pod and GPU, as a part of the memory that KAI counts. Series of one pod
from two replicas of a Prometheus, or with two descriptions, are one pod here: the largest value at each time.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from console.cluster.prometheus import Prometheus, RangeSeries
from console.usage.pod_use import LOW, NEAR, Peaks, PodNames, PodUse, Window
from console.usage.records import (
    SeriesOrigin,
    claimed_pods,
    one_of,
    range_of,
    read_recorded_time,
    require_one,
    string,
)
from kai.share import MIB
from kai.share_bytes import Card
from service.text import counted

_SHARE: Final = "pod:kaishare_gpu_share:ratio"
_USED: Final = "pod:kaishare_gpu_used:ratio"
_PEAK: Final = "pod:kaishare_gpu_used:max1m"
_OVER: Final = "pod:kaishare_gpu_over:seconds1m"
_COUNTED: Final = "gpu:kaishare_gpu_memory_counted_bytes:max"
_STEP: Final = 60  # seconds that a record stands for
_ON_GPU: Final = "uid, gpu_uuid"
_LABELS: Final = (
    "cluster, job, namespace, pod, uid, gpu_uuid, vcluster, virtual_namespace, node, queue, size,"
    " workload_kind, workload, model"
)
"""All labels of a record. Others tell the replicas of a Prometheus apart, which report one pod twice."""
_PODS_AT_ONCE: Final = 100  # pods of one query that names them
_SAME_SHARE: Final = 0.01  # difference of two shares by which KAI's rounding may change one: a hundredth

_Key = tuple[str, str]
"""UIDs of a pod and of a GPU; the latter is empty for a figure of the pod."""


class Usage(NamedTuple):
    """The use of all pods."""

    uses: tuple[PodUse, ...]
    remarks: tuple[str, ...] = ()  # sentences about how it was read
    dropped: int = 0  # pods with figures that no GPU can have


async def read_usage(
    prometheus: Prometheus, window: Window, *, quantile: float, namespace: str = ""
) -> Usage:
    """Read the use of all pods; those with a figure that no GPU can have are left out."""
    recorded = await read_recorded_time(prometheus, window, namespace)
    require_one(prometheus, recorded.origins, "cluster", "job")
    matchers = prometheus.selector + (f",namespace={string(namespace)}" if namespace else "")
    uses, changed = await _Reader(prometheus, window, matchers, quantile).uses()
    impossible = {use.names.uid for use in uses if not use.is_possible}
    kept = (
        replace(use, expected_seconds=use.expected_seconds / recorded.part)
        for use in uses
        if use.names.uid not in impossible | changed
    )
    left_out = f"Left out: {counted(len(changed), 'pod')} whose share changed; give a --since after that."
    remarks = (*recorded.remarks, *([left_out] if changed else []))
    return Usage(tuple(kept), remarks, len(impossible - {""}))


class _Presence(NamedTuple):
    """When a pod was seen on a GPU, and the description that it had longest."""

    samples: float  # with this description
    labels: Mapping[str, str]
    total: float  # samples with any description
    first: float
    last: float


class _Reader:
    """Reads the records of one window. The expressions are evaluated at its end."""

    def __init__(self, prometheus: Prometheus, window: Window, matchers: str, quantile: float) -> None:
        self._prometheus = prometheus
        self._window = window
        self._matchers = matchers
        self._quantile = quantile

    async def _by_pod(self, query: str) -> dict[_Key, float]:
        series = await self._prometheus.instant(query, self._window.end)
        return {_key(each.labels): each.value for each in series}

    async def _range(self, query: str, start: float, step: float) -> list[RangeSeries]:
        series = await self._prometheus.range(query, start, self._window.end, step)
        return [each for each in series if each.values]

    async def _of_pods(self, uids: Iterable[str], query: Callable[[str], str]) -> dict[_Key, float]:
        """Return the value of some pods only; `query` makes the expression for their matchers."""
        names = sorted(uids)
        chunks = (names[start : start + _PODS_AT_ONCE] for start in range(0, len(names), _PODS_AT_ONCE))
        queries = (query(f"{self._matchers},uid=~{one_of(chunk)}") for chunk in chunks)
        answers = await asyncio.gather(*map(self._by_pod, queries))
        return {key: value for answer in answers for key, value in answer.items()}

    def _over_time(self, function: str, record: str, seconds: int, merge: str, by: str = _ON_GPU) -> str:
        """Return a function of every value in the last seconds."""
        return f"{merge} by ({by}) ({function}({record}{{{self._matchers}}}[{range_of(seconds)}]))"

    def _quantile_of_use(self, quantile: float, matchers: str) -> str:
        """Return a quantile of the use at the window's steps; each description of a pod has its own."""
        step = "" if self._window.step == _STEP else f":{self._window.step}s"
        used = f"{_USED}{{{matchers}}}[{range_of(self._window.length)}{step}]"
        return f"max by ({_ON_GPU}) (quantile_over_time({quantile}, {used}))"

    def _merged_quantile(self, quantile: float, matchers: str) -> str:
        """Return the same with all descriptions of a pod together, which is slower."""
        steps = f"{range_of(self._window.length)}:{self._window.step}s"
        return f"quantile_over_time({quantile}, ({_now(_USED, matchers)})[{steps}])"

    async def uses(self) -> tuple[list[PodUse], set[str]]:
        """Return the use of the pods, and the UIDs of those whose share changed."""
        window, length = self._window, self._window.length
        known_time = self._over_time("count_over_time", _USED, length, "max", _LABELS)
        gpus, presences, peaks = await asyncio.gather(self._gpus(), self._presences(), self._peaks())
        over = f"max by ({_LABELS}) (sum_over_time({_OVER}{{{self._matchers}}}[{range_of(length)}]))"
        high, known, over_seconds, current, largest, smallest, claimed = await asyncio.gather(
            self._by_pod(self._quantile_of_use(self._quantile, self._matchers)),
            self._by_pod(f"sum by ({_ON_GPU}) ({known_time})"),
            self._by_pod(f"max by (uid) (sum by ({_ON_GPU}) ({over}))"),  # on the GPU where it is most
            self._by_pod(_now(_SHARE, self._matchers)),  # at the end of the window, if the pod still exists
            self._by_pod(self._over_time("max_over_time", _SHARE, length, "max")),
            self._by_pod(self._over_time("min_over_time", _SHARE, length, "min")),
            self._by_pod(claimed_pods(self._matchers, window)),
        )
        several = {uid for (uid, _), presence in presences.items() if presence.samples != presence.total}
        high |= await self._of_pods(several, lambda own: self._merged_quantile(self._quantile, own))
        uses: dict[_Key, PodUse] = {}
        for key, presence in presences.items():
            model, gpu_bytes = gpus.get(key[1], ("", None))
            unit = float(gpu_bytes or 0)
            seconds = presence.total * _STEP
            peak = peaks.get(key, Peaks())
            names = {name: presence.labels.get(name, "") for name in PodNames._fields}
            uses[key] = PodUse(
                names=PodNames(**names | {"model": model}),
                gpu_bytes=gpu_bytes,
                share_bytes=round(largest.get(key, 0.0) * unit),
                seconds=seconds,
                known_seconds=min(known.get(key, 0.0) * _STEP, seconds),
                expected_seconds=max(presence.last - presence.first, seconds),
                first=presence.first,
                last=presence.last,
                peak_bytes=max(peak.values) * unit if peak.values else None,
                quantile_bytes=_times(unit, high.get(key)),
                low_bytes=None,
                over_seconds=over_seconds.get((key[0], "")),
                is_claim=(key[0], "") in claimed,
                is_current=key in current,
                bucket=window.bucket,
                peaks=Peaks(peak.times, array("d", (part * unit for part in peak.values))),
            )
        await self._add_low(uses, several)
        changed = {key[0] for key in uses if largest.get(key, 0.0) - smallest.get(key, 0.0) > _SAME_SHARE}
        return list(uses.values()), changed

    async def _add_low(self, uses: dict[_Key, PodUse], several: set[str]) -> None:
        """Add the low quantile of the pods that came near to their share, or whose peaks are flat."""
        uids = {
            use.names.uid
            for use in uses.values()
            if (use.peak_bytes or 0.0) >= NEAR * use.share_bytes or use.has_flat_peaks
        }
        low = await self._of_pods(uids, lambda own: self._quantile_of_use(LOW, own))
        low |= await self._of_pods(uids & several, lambda own: self._merged_quantile(LOW, own))
        for key in low.keys() & uses.keys():
            uses[key] = replace(uses[key], low_bytes=low[key] * float(uses[key].gpu_bytes or 0))

    async def _gpus(self) -> dict[str, tuple[str, int | None]]:
        """Return the model and the memory of GPUs by UUID; no memory if KAI would share no such GPU."""
        counted = f"{_COUNTED}{{{self._prometheus.selector}}}[{range_of(self._window.length)}]"
        query = f"max by (gpu_uuid, model) (max_over_time({counted}))"
        gpus = {}
        for series in await self._prometheus.instant(query, self._window.end):
            total: int | None = round(series.value)
            try:
                Card.from_mib(round(series.value) // MIB)
            except ValueError:
                total = None
            gpus[series.labels.get("gpu_uuid", "")] = series.labels.get("model", ""), total
        return gpus

    async def _peaks(self) -> dict[_Key, Peaks]:
        """Return the largest use in each part of the window."""
        bucket = self._window.bucket
        query = self._over_time("max_over_time", _PEAK, bucket, "max")
        series = await self._range(query, self._window.first_bucket, bucket)
        return {_key(each.labels): Peaks(each.times, each.values) for each in series}

    async def _presences(self) -> dict[_Key, _Presence]:
        """Return each pod on each GPU, and when it was first and last seen.

        The first and last part of the time are filled as far as they have values, compared with a full one.
        """
        bucket = self._window.bucket
        query = self._over_time("count_over_time", _SHARE, bucket, "max", _LABELS)
        series = await self._range(query, self._window.first_bucket, bucket)
        require_one(self._prometheus, [SeriesOrigin.of(each.labels) for each in series], "cluster", "job")
        full = bucket / _STEP
        presences: dict[_Key, _Presence] = {}
        for each in series:
            first = each.times[0] - bucket * min(each.values[0] / full, 1)
            last = each.times[-1]
            if last > each.times[0]:
                last -= bucket * max(1 - each.values[-1] / full, 0)
            total = samples = sum(each.values)
            labels: Mapping[str, str] = each.labels
            if (other := presences.get(_key(labels))) is not None:
                total += other.total
                first, last = min(first, other.first), max(last, other.last)
                if other.samples >= samples:
                    samples, labels = other.samples, other.labels
            presences[_key(labels)] = _Presence(samples, labels, total, first, last)
        return presences


def _key(labels: Mapping[str, str]) -> _Key:
    return labels.get("uid", ""), labels.get("gpu_uuid", "")


def _now(record: str, matchers: str) -> str:
    return f"max by ({_ON_GPU}) ({record}{{{matchers}}})"


def _times(unit: float, amount: float | None) -> float | None:
    return None if amount is None else amount * unit
