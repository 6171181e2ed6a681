"""The records of deploy/mixin/usage.libsonnet: how far they cover a time, and the use of all pods.

Only series that match the selector count, because any exporter can serve series with these names. A record of
a pod has a value a minute for each GPU, as a part of the memory that KAI counts. Series of one pod from two
replicas of a Prometheus, or with two descriptions, are one pod here: the largest value at each time.
"""

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from console.cluster.prometheus import Prometheus, PrometheusError, RangeSeries
from console.usage.pod_use import LOW, Peaks, PodNames, PodUse, Window, are_names, utc_minute
from kai.share import MIB
from kai.share_bytes import Card
from service.text import counted, first_few, one_line

SEEN: Final = "pod:kaishare_gpu_seen:max15m"  # Unix seconds at which a pod was last seen, each 15 minutes
HOURS_STEP: Final = 900  # seconds between two records of hours
EXPECTED: Final = "usage:kaishare_gpu_hours_expected:sum15m"  # a record that exists while there are pods

_SHARE: Final = "kaishare_pod_gpu_memory_share_bytes"  # the agents' series that a pod with a share has
_LOOKS: Final = 100  # times at which it is asked whether there are records
_LOOKS_AT_SERIES: Final = 48  # the same for pods, before or after the records; 1,000 pods take 30 ms each
_ENOUGH: Final = 0.95  # part of the time with pods from which the records count as complete
_INSTALL: Final = "install the recording rules: alerts.enabled in the chart, or deploy/alerts/README.md"


def string(text: str) -> str:
    """Return a text as a string of PromQL, in quotation marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def range_of(seconds: float) -> str:
    """Return the length of a range that counts each value once.

    Prometheus 2 includes both ends of a range, Prometheus 3 only the last one.
    """
    return f"{round(seconds * 1000) - 1}ms"


class RecordedTime(NamedTuple):
    """How far the records cover the time with pods."""

    matchers: str  # label matchers of the series that count, without braces
    part: float  # from 0 to 1. A gap between two records is known by the pods that are seen again after it
    remarks: tuple[str, ...] = ()


def claimed_pods(matchers: str, window: Window) -> str:
    """Return an expression with a value for each pod, by UID, whose share is a resource claim."""
    series = f'{_SHARE}{{{matchers},source="resource-claim"}}[{range_of(window.length)}:5m]'
    return f"count by (uid) (last_over_time({series}))"


async def read_recorded_time(prometheus: Prometheus, window: Window, namespace: str = "") -> RecordedTime:
    """Compare the time with records with the time with pods, in a namespace of the host or in all.

    Raises PrometheusError if Prometheus replaced the labels of the pods, without records or pods, and if the
    records have several clusters or jobs: a pod that two jobs report would count twice.
    """
    await _require_own_labels(prometheus, window)
    matchers = prometheus.selector + (f",namespace={string(namespace)}" if namespace else "")
    whole = range_of(max(window.length, HOURS_STEP))
    records = f"group by (cluster, job) (last_over_time({EXPECTED}{{{matchers}}}[{whole}]))"
    found = [labels for labels, _ in await prometheus.instant(records, window.end)]
    origin = {}
    for label, example in (("cluster", 'job="kaishare-agent",cluster="NAME"'), ("job", 'job="NAME"')):
        values = {labels.get(label, "") for labels in found}
        if len(values) > 1:
            raise PrometheusError(
                f"{prometheus.address}: several {label}s match --selector {prometheus.selector}:"
                f" {_few(values)}; select one, such as --selector '{example}'"
            )
        origin[label] = "".join(values)
    # The rules leave other jobs of a cluster out, too.
    others = f",cluster!={string(origin['cluster'])}" if found else ""
    without = f"group by (cluster) (last_over_time({_SHARE}{{{matchers}{others}}}[{whole}]))"
    lacking = [labels.get("cluster", "") for labels, _ in await prometheus.instant(without, window.end)]
    if not found and lacking:
        raise PrometheusError(f"{prometheus.address}: no recorded figures in this time; {_INSTALL}")
    if not found:
        where = f" in namespace {namespace}" if namespace else ""
        raise PrometheusError(
            f"{prometheus.address}: no pod with a share{where} in this time; check --selector"
            f" {prometheus.selector}, --since and the scrape configuration"
        )
    remarks = []
    if lacking:
        remarks.append(f"Left out: cluster {_few(lacking)}, which has no recorded figures; {_INSTALL}.")
    matchers += "".join(f",{label}={string(value)}" for label, value in origin.items())
    part = await _part(prometheus, matchers, window)
    if part < _ENOUGH:
        remarks.append(
            f"Recorded figures cover {part:.0%} of this time; those of the rest are unknown; {_INSTALL}."
        )
    return RecordedTime(matchers, part if part < _ENOUGH else 1.0, tuple(remarks))


def _few(values: Iterable[str]) -> str:
    return first_few([one_line(value, 60) or "(none)" for value in sorted(values)], 3)


async def _part(prometheus: Prometheus, matchers: str, window: Window) -> float:
    """Return the part of the time with pods that is not before the first record or after the last one."""
    step = max(window.length // _LOOKS, 60)
    records = f"group(last_over_time({EXPECTED}{{{matchers}}}[{HOURS_STEP}s]))"
    looks = await prometheus.range(records, window.start + step, window.end, step)
    if not looks:  # all records are between the looks
        return 1.0
    # A record has the time before it, and there may be one between two looks.
    first = max(looks[0].times[0] - HOURS_STEP - step, window.start)
    last = min(looks[0].times[-1] + step, window.end)
    lost = 0.0
    for start, end in ((window.start, first), (last, window.end)):
        if end > start:
            each = max(round(end - start) // _LOOKS_AT_SERIES, 60)
            times = f"count_over_time(group({_SHARE}{{{matchers}}})[{range_of(end - start)}:{each}s])"
            lost += each * sum(count for _, count in await prometheus.instant(times, end))
    return (last - first) / (last - first + lost)


async def _require_own_labels(prometheus: Prometheus, window: Window) -> None:
    """Refuse series of which Prometheus replaced the namespace by that of the agent.

    OpenShift's user workload monitoring does so whatever the monitor says: `enforcedNamespaceLabel` and
    `overrideHonorLabels` (cluster-monitoring-operator, assets/prometheus-user-workload/prometheus.yaml).
    """
    replaced = f'{_SHARE}{{{prometheus.selector},exported_namespace!=""}}'
    # The namespace of the agent stands in `namespace`, so that -n does not select these series.
    query = f"max(max_over_time(timestamp({replaced})[{range_of(window.length)}:5m]))"
    for _, last in await prometheus.instant(query, window.end):
        raise PrometheusError(
            f"{prometheus.address}: series of kaishare have the label exported_namespace, last at"
            f" {utc_minute(last)} UTC: set honor_labels: true for the agents' job (honorLabels: true in a"
            " PodMonitor), and give a --since after that. OpenShift's user workload monitoring replaces"
            " labels always: label the agents' namespace openshift.io/cluster-monitoring=true, so that the"
            " platform's Prometheus reads it, or use a Prometheus of your own"
        )


_SHARE_RATIO: Final = "pod:kaishare_gpu_share:ratio"
_USED: Final = "pod:kaishare_gpu_used:ratio"
_PEAK: Final = "pod:kaishare_gpu_used:max1m"
_OVER: Final = "pod:kaishare_gpu_over:seconds1m"
_COUNTED: Final = "gpu:kaishare_gpu_memory_counted_bytes:max"
_STEP: Final = 60  # seconds that a record stands for
_ON_GPU: Final = "uid, gpu_uuid"
DESCRIBED: Final = (
    "cluster, job, namespace, node, queue, vcluster, virtual_namespace, size, workload_kind, workload, model"
)
"""Labels of all records. Others tell the replicas of a Prometheus apart, which report one pod twice."""
_LABELS: Final = f"{DESCRIBED}, pod, {_ON_GPU}"  # of a record of pods
_PODS_AT_ONCE: Final = 100  # pods of one query that names them
_SAME_SHARE: Final = 0.01  # difference of two shares by which KAI's rounding may change one: a hundredth

_Key = tuple[str, str]  # UIDs of a pod and of a GPU; the latter is empty for a figure of the pod


class Usage(NamedTuple):
    """The use of all pods."""

    uses: Sequence[PodUse]
    remarks: Sequence[str] = ()  # sentences about how it was read
    dropped: int = 0  # pods with figures that no GPU can have


async def read_usage(
    prometheus: Prometheus, window: Window, *, quantile: float, namespace: str = ""
) -> Usage:
    """Read the use of all pods; those with a figure that no GPU can have are left out."""
    recorded = await read_recorded_time(prometheus, window, namespace)
    matchers, bucket = recorded.matchers, window.bucket

    def over_time(function: str, record: str, by: str = _ON_GPU, seconds: int = window.length) -> str:
        return f"max by ({by}) ({function}({record}{{{matchers}}}[{range_of(seconds)}]))"

    async def by_pod(query: str) -> dict[_Key, float]:
        return {_key(labels): value for labels, value in await prometheus.instant(query, window.end)}

    async def in_parts(function: str, record: str, by: str) -> list[RangeSeries]:
        query = over_time(function, record, by, bucket)
        return await prometheus.range(query, window.first_bucket, window.end, bucket)

    gpus, shares, peaks = await asyncio.gather(
        _read_gpus(prometheus, window),
        in_parts("count_over_time", _SHARE_RATIO, _LABELS),
        in_parts("max_over_time", _PEAK, _ON_GPU),
    )
    peaks_of = {_key(series.labels): series for series in peaks}
    descriptions: defaultdict[_Key, list[RangeSeries]] = defaultdict(list)
    for series in shares:
        descriptions[_key(series.labels)].append(series)
    step = "" if window.step == _STEP else f":{window.step}s"
    used = f"{_USED}{{{matchers}}}[{range_of(window.length)}{step}]"
    known = over_time("count_over_time", _USED, _LABELS)
    over = over_time("sum_over_time", _OVER, _LABELS)
    queries = {
        # Each description of a pod has its own quantile.
        "high": f"max by ({_ON_GPU}) (quantile_over_time({quantile}, {used}))",
        "low": f"max by ({_ON_GPU}) (quantile_over_time({LOW}, {used}))",
        "known": f"sum by ({_ON_GPU}) ({known})",
        "over": f"max by (uid) (sum by ({_ON_GPU}) ({over}))",  # on the GPU where it is most
        "current": f"max by ({_ON_GPU}) ({_SHARE_RATIO}{{{matchers}}})",  # of pods that exist at the end
        "largest": over_time("max_over_time", _SHARE_RATIO),
        "smallest": over_time("min_over_time", _SHARE_RATIO),
        "claimed": claimed_pods(matchers, window),
    }
    figures = dict(zip(queries, await asyncio.gather(*map(by_pod, queries.values())), strict=True))
    # The quantiles with all descriptions of a pod together, which is slower.
    several = {uid for (uid, _), own in descriptions.items() if len(own) > 1}
    uids = sorted(uid for uid in several if are_names({"uid": uid}))  # others are dropped
    for start in range(0, len(uids), _PODS_AT_ONCE):
        chosen = f'{matchers},uid=~"{"|".join(uids[start : start + _PODS_AT_ONCE])}"'
        merged = f"(max by ({_ON_GPU}) ({_USED}{{{chosen}}}))[{range_of(window.length)}:{window.step}s]"
        for name, part in (("high", quantile), ("low", LOW)):
            figures[name] |= await by_pod(f"quantile_over_time({part}, {merged})")
    uses = []
    for key, own in descriptions.items():
        model, gpu_bytes = gpus.get(key[1], ("", None))
        unit = float(gpu_bytes or 0)
        seconds = sum(sum(series.values) for series in own) * _STEP
        labels = max(own, key=lambda series: sum(series.values)).labels | {"model": model}
        times = [_first_and_last(series, bucket) for series in own]
        first, last = min(first for first, _ in times), max(last for _, last in times)
        high, low, known_samples = (figures[name].get(key) for name in ("high", "low", "known"))
        peak = peaks_of.get(key)
        use = PodUse(
            names=PodNames(**{name: labels.get(name, "") for name in PodNames._fields}),
            gpu_bytes=gpu_bytes,
            share_bytes=round(figures["largest"].get(key, 0.0) * unit),
            seconds=seconds,
            known_seconds=min((known_samples or 0.0) * _STEP, seconds),
            expected_seconds=max(last - first, seconds) / recorded.part,
            first=first,
            last=last,
            peak_bytes=None if peak is None else max(peak.values) * unit,
            quantile_bytes=None if high is None else high * unit,
            low_bytes=None if low is None else low * unit,
            over_seconds=figures["over"].get((key[0], "")),
            is_claim=(key[0], "") in figures["claimed"],
            is_current=key in figures["current"],
            bucket=bucket,
            peaks=Peaks(peak.times, array("d", [part * unit for part in peak.values])) if peak else Peaks(),
        )
        uses.append(use)
    largest, smallest = figures["largest"], figures["smallest"]
    changed = {key[0] for key in descriptions if largest.get(key, 0.0) - smallest.get(key, 0.0) > _SAME_SHARE}
    impossible = {use.names.uid for use in uses if not use.is_possible}
    left_out = f"Left out: {counted(len(changed), 'pod')} whose share changed; give a --since after that."
    return Usage(
        [use for use in uses if use.names.uid not in impossible | changed],
        (*recorded.remarks, *([left_out] if changed else [])),
        len(impossible - {""}),
    )


async def _read_gpus(prometheus: Prometheus, window: Window) -> dict[str, tuple[str, int | None]]:
    """Return the model and the memory of GPUs by UUID; no memory if KAI would share no such GPU."""
    total = f"{_COUNTED}{{{prometheus.selector}}}[{range_of(window.length)}]"
    gpus = {}
    query = f"max by (gpu_uuid, model) (max_over_time({total}))"
    for labels, value in await prometheus.instant(query, window.end):
        gpu_bytes: int | None = round(value)
        try:
            Card.from_mib(round(value) // MIB)
        except ValueError:
            gpu_bytes = None
        gpus[labels.get("gpu_uuid", "")] = labels.get("model", ""), gpu_bytes
    return gpus


def _first_and_last(series: RangeSeries, bucket: int) -> tuple[float, float]:
    """Return when a pod was first and last seen, of the counts of its samples in parts of the time.

    The first and last part of the time are filled as far as they have values, compared with a full one.
    """
    first_part, last_part = (min(series.values[end] * _STEP / bucket, 1) for end in (0, -1))
    last = series.times[-1] - (bucket * (1 - last_part) if len(series.times) > 1 else 0)
    return series.times[0] - bucket * first_part, last


def _key(labels: Mapping[str, str]) -> _Key:
    return labels.get("uid", ""), labels.get("gpu_uuid", "")
