"""Asks a Prometheus of which origins there are pods in a time, and whether the recording rules cover it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from console.prometheus.coverage import (
    SHARE,
    RecordCoverage,
    SeriesOrigin,
    few,
    origin_of,
    without_other_jobs,
)
from console.prometheus.promql import one_of, range_of, string
from console.prometheus.query_api import Prometheus, PrometheusError

_LOOKS: Final = 100
"""Times at which it is asked whether there are records."""

_LOOKS_AT_SERIES: Final = 24
"""Most times without records at which it is asked whether there are series. A look at 1,000 pods takes about
30 ms. Reading the whole time would cost more the more often agents are scraped."""

_SHORTEST_STEP: Final = 60  # seconds

_SHORTEST_RECORD_RANGE: Final = 300  # seconds

_DAYS_AT_ONCE: Final = 7 * 86_400
"""Seconds of one query for all series of the origins that no look has seen."""

_EXAMPLES: Final = {"cluster": 'job="kaishare-agent",cluster="NAME"', "job": 'job="NAME"'}
"""Selectors that name one value of a label."""


async def record_coverage(
    prometheus: Prometheus, *, start: float, end: float, record: str, record_step: int, namespace: str = ""
) -> RecordCoverage:
    """Compare the times with records with the times with pods.

    Args:
        prometheus: the Prometheus.
        start: Unix seconds.
        end: Unix seconds.
        record: name of a record that exists while there are pods.
        record_step: seconds between two values of the record; it has none in a shorter time.
        namespace: the only namespace of the host cluster; empty for all.

    Raises:
        PrometheusError: there is no usable answer, or no pod.
        kube.access.AccessError: there are no credentials for the API server.
    """
    matchers = prometheus.selector + (f",namespace={string(namespace)}" if namespace else "")
    step = max(int(end - start) // _LOOKS, _SHORTEST_STEP)
    looks = range(max(int(end - start) // step, 1))
    within = max(record_step, _SHORTEST_RECORD_RANGE)
    recorded: defaultdict[SeriesOrigin, set[int]] = defaultdict(set)
    if end - start >= record_step:
        records = f"group by (cluster, job) (last_over_time({record}{{{matchers}}}[{within}s]))"
        for series in await prometheus.range(records, end - looks[-1] * step, end, step):
            recorded[origin_of(series.labels)] = {round((end - at) / step) for at in series.times}
    missing = [look for look in looks if any(look not in own for own in recorded.values()) or not recorded]
    thinned = missing[:: -(-len(missing) // _LOOKS_AT_SERIES) or 1]
    sampled = sorted({*thinned, 0, len(looks) // 2, looks[-1]})  # three for origins without any record
    present = await _present(prometheus, f"{SHARE}{{{matchers}}}", sampled, step=step, end=end)
    parts: dict[SeriesOrigin, float] = {}
    for origin in {*recorded, *present}:
        own = recorded[origin]
        unrecorded = [look for look in sampled if look not in own]
        lacking = len(present[origin].intersection(unrecorded)) / max(len(unrecorded), 1)
        at_all = len(own) + lacking * (len(looks) - len(own))
        if at_all:
            parts[origin] = len(own) / at_all
    # Few origins are left, so that the whole time can be read.
    rest = _other_than(parts, matchers)
    parts |= await _unseen_parts(prometheus, record, rest, start=int(start), end=int(end), within=within)
    if not parts:
        raise no_pods(prometheus, namespace)
    return RecordCoverage(without_other_jobs(parts))


def no_pods(prometheus: Prometheus, namespace: str = "") -> PrometheusError:
    """Return the error of a time without pods."""
    where = f" in namespace {namespace}" if namespace else ""
    return PrometheusError(
        f"{prometheus.address}: no pod with a share{where} in this time; check --selector"
        f" {prometheus.selector}, --since and the scrape configuration"
    )


def require_one(prometheus: Prometheus, origins: Collection[SeriesOrigin], *labels: str) -> None:
    """Refuse series of several jobs or clusters: a pod that two of them report would count twice.

    Args:
        prometheus: the Prometheus.
        origins: where the series come from.
        labels: `job`, `cluster`.

    Raises:
        PrometheusError: a label has several values.
    """
    for label in labels:
        names = {getattr(origin, label) for origin in origins}
        if len(names) < 2:
            continue
        raise PrometheusError(
            f"{prometheus.address}: several {label}s match --selector {prometheus.selector}: {few(names)};"
            f" select one, such as --selector '{_EXAMPLES[label]}'"
        )


async def _present(
    prometheus: Prometheus, selector: str, looks: Collection[int], *, step: int, end: float
) -> defaultdict[SeriesOrigin, set[int]]:
    """Return the looks at which each origin has series."""
    offsets = ((look, f" offset {look * step}s" if look else "") for look in looks)
    expressions = (
        f'label_replace(group by (cluster, job) ({selector}{offset}), "look", "{look}", "", "")'
        for look, offset in offsets
    )
    present: defaultdict[SeriesOrigin, set[int]] = defaultdict(set)
    numbers = {str(look): look for look in looks}
    for entry in await prometheus.instant(" or ".join(expressions), end):
        if (look := numbers.get(entry.labels.get("look", ""))) is not None:
            present[origin_of(entry.labels)].add(look)
    return present


def _other_than(origins: Collection[SeriesOrigin], matchers: str) -> Sequence[str]:
    """Return selectors of all series that are of none of these origins, in braces; no series matches two."""
    jobs: defaultdict[str, set[str]] = defaultdict(set)
    for origin in sorted(origins):
        jobs[origin.cluster].add(origin.job)
    clusters: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for cluster, own in jobs.items():
        clusters[tuple(sorted(own))].append(cluster)
    others = [f"{{{matchers},cluster!~{one_of(list(jobs))}}}"] if jobs else [f"{{{matchers}}}"]
    return [
        *others,
        *(
            f"{{{matchers},cluster=~{one_of(own)},job!~{one_of(names)}}}"
            for names, own in sorted(clusters.items())
        ),
    ]


async def _unseen_parts(
    prometheus: Prometheus, record: str, selectors: Sequence[str], *, start: int, end: int, within: int
) -> Mapping[SeriesOrigin, float]:
    """Return the part of the time with pods that has records, for origins that no look has seen.

    Reads every value of them, so that no pod is missed however short it runs.
    """
    present: Counter[SeriesOrigin] = Counter()
    recorded: Counter[SeriesOrigin] = Counter()
    with_pods: Counter[SeriesOrigin] = Counter()
    with_records: Counter[SeriesOrigin] = Counter()

    async def add(counts: Counter[SeriesOrigin], expression: str, at: int) -> bool:
        """Add the values of an expression; return whether there is one."""
        series = await prometheus.instant(expression, at)
        for own in series:
            counts[origin_of(own.labels)] += int(own.value)
        return bool(series)

    async def read(at: int, seconds: int) -> None:
        is_recorded = await add(recorded, _last(record, selectors, range_of(seconds)), at)
        if not await add(present, _last(SHARE, selectors, range_of(seconds)), at):
            return
        # A record describes the time before it.
        pods = _last(SHARE, selectors, f"{within}s", f" offset {within}s")
        subquery = f"[{range_of(seconds)}:{within}s]"
        await add(with_pods, f"count_over_time(({pods}){subquery})", at)
        if is_recorded:
            records = _last(record, selectors, f"{2 * within}s")
            await add(with_records, f"count_over_time(({pods} and {records}){subquery})", at)

    ends = range(end, start, -_DAYS_AT_ONCE)
    await asyncio.gather(*(read(at, min(_DAYS_AT_ONCE, at - start)) for at in ends))
    parts = {origin: with_records[origin] / count for origin, count in with_pods.items() if count}
    return dict.fromkeys(recorded, 1.0) | dict.fromkeys(present, 0.0) | parts


def _last(metric: str, selectors: Iterable[str], seconds: str, offset: str = "") -> str:
    """Return an expression with a series for each origin that has a value in the last seconds."""
    values = " or ".join(f"last_over_time({metric}{own}[{seconds}]{offset})" for own in selectors)
    return f"group by (cluster, job) ({values})"
