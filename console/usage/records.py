"""The records of deploy/mixin/usage.libsonnet: PromQL about them, and whether they cover a time.

Only series that match the selector count, because any exporter can serve series with these names.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from console.cluster.prometheus import Prometheus, PrometheusError
from console.usage.pod_use import Window, utc_minute
from service.text import first_few, one_line

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
    """Compare the time with records with the time with pods, before any figure is read.

    An empty namespace of the host cluster stands for all.

    Raises:
        PrometheusError: Prometheus replaced the labels of the pods, there are no records, or no pods.
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
    """Refuse series with several values of a label: a pod that two jobs report would count twice.

    Raises:
        PrometheusError: a label has several values.
    """
    for label in labels:
        names = {getattr(origin, label) for origin in origins}
        if len(names) > 1:
            raise PrometheusError(
                f"{prometheus.address}: several {label}s match --selector {prometheus.selector}:"
                f" {few(names)}; select one, such as --selector '{_EXAMPLES[label]}'"
            )
