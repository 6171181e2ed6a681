"""The records of deploy/mixin/usage.libsonnet: how far they cover a time, and the use of all pods.

Only series that match the selector count, because any exporter can serve series with these names. A record of
a pod has a value a minute for each GPU, as a part of the memory that KAI counts. Series of one pod from two
replicas of a Prometheus, or with two descriptions, are one pod here: the largest value at each time.
"""

import asyncio
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from console.cluster.prometheus import Prometheus, PrometheusError, RangeSeries
from console.usage.pod_use import LOW, NEAR, Peaks, PodNames, PodUse, Window, utc_minute
from kai.share import MIB
from kai.share_bytes import Card
from service.text import counted, first_few, one_line

SEEN: Final = "pod:kaishare_gpu_seen:max15m"
"""Unix seconds at which a pod was last seen on a GPU, each 15 minutes."""
HOURS_STEP: Final = 900  # seconds between two records of hours
EXPECTED: Final = "usage:kaishare_gpu_hours_expected:sum15m"  # a record that exists while there are pods

_SHARE: Final = "kaishare_pod_gpu_memory_share_bytes"  # the agents' series that a pod with a share has
_LOOKS: Final = 100  # times at which it is asked whether there are records
_LOOKS_AT_SERIES: Final = 24
"""Most times outside the records at which it is asked whether there are pods. 1,000 pods take 30 ms."""
_ENOUGH: Final = 0.95  # part of the time with pods from which the records count as complete
_REGEX_SYNTAX: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")
_INSTALL: Final = "install the recording rules: alerts.enabled in the chart, or deploy/alerts/README.md"


def string(text: str) -> str:
    """Return a text as a string of PromQL, in quotation marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def one_of(values: Iterable[str]) -> str:
    """Return a string of PromQL with a regular expression that matches any of the values and no other."""
    return string("|".join(_REGEX_SYNTAX.sub(r"\\\g<0>", value) for value in values))


def range_of(seconds: float) -> str:
    """Return the length of a range that counts each value once.

    Prometheus 2 includes both ends of a range, Prometheus 3 only the last one.
    """
    return f"{round(seconds * 1000) - 1}ms"


def claimed_pods(matchers: str, window: Window) -> str:
    """Return an expression with a value for each pod, by UID, whose share is a resource claim."""
    series = f'{_SHARE}{{{matchers},source="resource-claim"}}'
    return f"count by (uid) (last_over_time({series}[{range_of(window.length)}:5m]))"


class SeriesOrigin(NamedTuple):
    """Where series come from; both are label values that any target can have."""

    cluster: str
    job: str

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> "SeriesOrigin":
        """Return where a series comes from."""
        return cls(labels.get("cluster", ""), labels.get("job", ""))


def few(values: Iterable[str]) -> str:
    """Return the first three values of a label, for a message."""
    return first_few([one_line(value, 60) or "(none)" for value in sorted(values)], 3)


class RecordedTime(NamedTuple):
    """How far the records cover the time with pods."""

    origins: Collection[SeriesOrigin]
    part: float
    """From 0 to 1. A gap between two records is known by the pods that are seen again after it."""
    remarks: tuple[str, ...] = ()


async def read_recorded_time(prometheus: Prometheus, window: Window, namespace: str = "") -> RecordedTime:
    """Compare the time with records with the time with pods, in a namespace of the host or in all.

    Raises PrometheusError if Prometheus replaced the labels of the pods, and without records or pods.
    """
    await _require_own_labels(prometheus, window)
    matchers = prometheus.selector + (f",namespace={string(namespace)}" if namespace else "")
    whole = range_of(max(window.length, HOURS_STEP))
    records = f"group by (cluster, job) (last_over_time({EXPECTED}{{{matchers}}}[%s]))"
    origins = {
        SeriesOrigin.of(series.labels) for series in await prometheus.instant(records % whole, window.end)
    }
    # The rules leave other jobs of a cluster out, too.
    clusters = one_of(sorted({origin.cluster for origin in origins}))
    others = f"{{{matchers}{f',cluster!~{clusters}' if origins else ''}}}"
    without = f"group by (cluster) (last_over_time({_SHARE}{others}[{whole}]))"
    lacking = [each.labels.get("cluster", "") for each in await prometheus.instant(without, window.end)]
    if not origins:
        if not lacking:
            raise no_pods(prometheus, namespace)
        raise PrometheusError(f"{prometheus.address}: no recorded figures in this time; {_INSTALL}")
    remarks = []
    if lacking:
        remarks.append(f"Left out: cluster {few(lacking)}, which has no recorded figures; {_INSTALL}.")
    part = await _part(prometheus, records % f"{HOURS_STEP}s", f"{_SHARE}{{{matchers}}}", window)
    if part < _ENOUGH:
        remarks.append(
            f"Recorded figures cover {part:.0%} of this time; those of the rest are unknown; {_INSTALL}."
        )
    return RecordedTime(origins, part if part < _ENOUGH else 1.0, tuple(remarks))


async def _part(prometheus: Prometheus, records: str, pods: str, window: Window) -> float:
    """Return the part of the time with pods that is not before the first record or after the last one."""
    step = max(window.length // _LOOKS, 60)
    last_look = max(window.length // step, 1) - 1
    looks = await prometheus.range(records, window.end - last_look * step, window.end, step)
    covered = lost = 0.0
    for series in (each for each in looks if each.times):
        # A record has the time before it, and there may be one between two looks.
        first, last = series.times[0] - HOURS_STEP - step, series.times[-1] + step
        times = [window.end - look * step for look in range(last_look + 1)]
        outside = [at for at in times if not first <= at <= last]
        covered += len(times) - len(outside)
        sampled = outside[:: -(-len(outside) // _LOOKS_AT_SERIES) or 1]
        own = SeriesOrigin.of(series.labels)
        selector = f"{pods[:-1]},cluster={string(own.cluster)},job={string(own.job)}}}"
        answers = [await prometheus.instant(f"group({selector})", at) for at in sampled]
        lost += len(outside) * sum(map(bool, answers)) / max(len(sampled), 1)
    return covered / (covered + lost) if covered else 1.0  # all records may be between the looks


async def _require_own_labels(prometheus: Prometheus, window: Window) -> None:
    """Refuse series of which Prometheus replaced the namespace by that of the agent.

    OpenShift's user workload monitoring does so whatever the monitor says: `enforcedNamespaceLabel` and
    `overrideHonorLabels` (cluster-monitoring-operator, assets/prometheus-user-workload/prometheus.yaml).
    """
    replaced = f'{_SHARE}{{{prometheus.selector},exported_namespace!=""}}'
    # The namespace of the agent stands in `namespace`, so that -n does not select these series.
    last = await prometheus.instant(
        f"max by (job) (max_over_time(timestamp({replaced})[{range_of(window.length)}:5m]))", window.end
    )
    if last:
        at = utc_minute(max(series.value for series in last))
        raise PrometheusError(
            f"{prometheus.address}: series of kaishare have the label exported_namespace, last at {at} UTC:"
            " set honor_labels: true for the agents' job (honorLabels: true in a PodMonitor), and give a"
            " --since after that. OpenShift's user workload monitoring replaces labels always: label the"
            " agents' namespace openshift.io/cluster-monitoring=true, so that the platform's Prometheus reads"
            " it, or use a Prometheus of your own"
        )


def no_pods(prometheus: Prometheus, namespace: str = "") -> PrometheusError:
    """Return the error of a time without pods."""
    where = f" in namespace {namespace}" if namespace else ""
    return PrometheusError(
        f"{prometheus.address}: no pod with a share{where} in this time; check --selector"
        f" {prometheus.selector}, --since and the scrape configuration"
    )


_EXAMPLES: Final = {"cluster": 'job="kaishare-agent",cluster="NAME"', "job": 'job="NAME"'}
"""Selectors that name one value of a label."""


def require_one(prometheus: Prometheus, origins: Collection[SeriesOrigin], *labels: str) -> None:
    """Raise PrometheusError if a label has several values: a pod that two jobs report would count twice."""
    for label in labels:
        names = {getattr(origin, label) for origin in origins}
        if len(names) > 1:
            raise PrometheusError(
                f"{prometheus.address}: several {label}s match --selector {prometheus.selector}:"
                f" {few(names)}; select one, such as --selector '{_EXAMPLES[label]}'"
            )


_SHARE_RATIO: Final = "pod:kaishare_gpu_share:ratio"
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

_Key = tuple[str, str]  # UIDs of a pod and of a GPU; the latter is empty for a figure of the pod


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
            self._by_pod(_now(_SHARE_RATIO, self._matchers)),  # of pods that still exist at the end
            self._by_pod(self._over_time("max_over_time", _SHARE_RATIO, length, "max")),
            self._by_pod(self._over_time("min_over_time", _SHARE_RATIO, length, "min")),
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
        total = f"{_COUNTED}{{{self._prometheus.selector}}}[{range_of(self._window.length)}]"
        query = f"max by (gpu_uuid, model) (max_over_time({total}))"
        gpus = {}
        for series in await self._prometheus.instant(query, self._window.end):
            gpu_bytes: int | None = round(series.value)
            try:
                Card.from_mib(round(series.value) // MIB)
            except ValueError:
                gpu_bytes = None
            gpus[series.labels.get("gpu_uuid", "")] = series.labels.get("model", ""), gpu_bytes
        return gpus

    async def _peaks(self) -> dict[_Key, Peaks]:
        bucket = self._window.bucket
        query = self._over_time("max_over_time", _PEAK, bucket, "max")
        series = await self._range(query, self._window.first_bucket, bucket)
        return {_key(each.labels): Peaks(each.times, each.values) for each in series}

    async def _presences(self) -> dict[_Key, _Presence]:
        """Return each pod on each GPU, and when it was first and last seen.

        The first and last part of the time are filled as far as they have values, compared with a full one.
        """
        bucket = self._window.bucket
        query = self._over_time("count_over_time", _SHARE_RATIO, bucket, "max", _LABELS)
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
