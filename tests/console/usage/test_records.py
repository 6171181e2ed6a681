"""Which records count, how far they cover a time, which series are refused, and what is read of pods whose share or
description changed, on a real Prometheus."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from console.cluster.prometheus import Prometheus, PrometheusError, PrometheusOptions
from console.usage.advise import as_text
from console.usage.pod_use import Doubt, PodUse, Window
from console.usage.records import EXPECTED, RecordedTime, Usage, read_recorded_time, read_usage, string
from console.usage.report import RECORDS, as_json, build_report, read_sums, row_labels
from console.usage.report import as_text as report_text
from console.usage.suggestions import Strategy
from tests.support.usage_history import END, GIB, JOB, records_of, rendered

DAY = 86_400
SHARE = "kaishare_pod_gpu_memory_share_bytes"
WHOLE = (0, 24)

SCENARIOS: Mapping[str, Mapping[tuple[str, str], tuple[tuple[int, int], tuple[tuple[int, int], ...]]]] = {
    # By cluster and job: the hours with a pod, and those with records.
    "whole": {("", JOB): (WHOLE, (WHOLE,))},
    "last half": {("", JOB): (WHOLE, ((12, 24),))},
    "first three quarters": {("", JOB): (WHOLE, ((0, 18),))},
    "gap": {("", JOB): (WHOLE, ((0, 10), (16, 24)))},
    "pods of the last half": {("", JOB): ((12, 24), ((12, 24),))},
    "only one cluster": {("a", JOB): (WHOLE, (WHOLE,)), ("b", JOB): (WHOLE, ())},
    "a job of a tenant": {("", JOB): (WHOLE, (WHOLE,)), ("", "tenant"): (WHOLE, ())},
    "two jobs": {("", JOB): (WHOLE, (WHOLE,)), ("", "a\x1b[31m\nb"): (WHOLE, (WHOLE,))},
    "a job for each cluster": {("a", JOB): (WHOLE, (WHOLE,)), ("b", "monitoring"): (WHOLE, (WHOLE,))},
    "no rules": {("", JOB): (WHOLE, ())},
    "replaced": {("", JOB): ((0, 12), (WHOLE,))},
}

DAYS = 10
BEGIN = END - round(1.5 * DAY)
"""The first record of a pod."""
GPU_BYTES = 80 * GIB
RECORDS_OF_PODS = {
    "pod:kaishare_gpu_share:ratio": ("share", 0.25),
    "pod:kaishare_gpu_used:ratio": ("used", 0.1),
    "pod:kaishare_gpu_used:max1m": ("used", 0.1),
    "pod:kaishare_gpu_over:seconds1m": ("over", None),
}
"""The figure of each record, and its default."""
PODS: Mapping[str, Mapping[str, Any]] = {
    # By namespace: figures of the last day and a half, or functions of the days before the end.
    "moved": {"share": lambda ago: 0.25 if ago >= 1 else 0.5},
    # KAI's rounding of a share in MiB is no change.
    "rounded": {"share": lambda ago: 0.25 if ago >= 1 else 0.245},
    "claimed": {},
    # The owner writes another size in the last six minutes, in which the use is another one, too.
    "renamed": {
        "used": lambda ago: 0.375 if ago < 6 / 1440 else 0.05, "size": lambda ago: "other" if ago < 6 / 1440 else "small",
    },
    # Figures that no GPU can have: too large for Prometheus' answer, and too large for a GPU; and no figure.
    "too-large": {"share": 1e300, "used": 1e300},
    "large": {"share": 2.0**52},
    "negative": {"share": -1.0},
    "unknown": {"used": math.nan},
    "early": {},
    "replicas": {"replicas": ("a", "b"), "over": lambda ago: 60.0 * (round(ago * 1440) % 60 < 30)},
}  # fmt: skip


def of_pods() -> Iterator[str]:
    labels = rendered({"job": JOB, "gpu_uuid": "GPU-1", "model": "H100"})
    counted = f"gpu:kaishare_gpu_memory_counted_bytes:max{labels} {GPU_BYTES}"
    yield from (f"{counted} {at}" for at in range(END - DAYS * DAY + 60, END + 1, 3600))
    for namespace, own in PODS.items():
        hours = {"job": JOB, "namespace": namespace}
        yield from (f"{EXPECTED}{rendered(hours)} 0.25 {at}" for at in range(BEGIN + 900, END + 1, 900))
        if namespace == "claimed":
            raw = f"{SHARE}{rendered(hours | {'uid': 'claimed', 'source': 'resource-claim'})} {GPU_BYTES / 4}"
            yield from (f"{raw} {at}" for at in range(BEGIN, END + 1, 60))
        if namespace == "early":  # its agent was there for as long before the rules were
            yield from (f"{SHARE}{rendered(hours)} 1 {at}" for at in range(2 * BEGIN - END, BEGIN, 60))
        for at in range(BEGIN + 60, END + 1, 60):
            now = {name: each((END - at) / DAY) if callable(each) else each for name, each in own.items()}
            described = hours | {
                "pod": "p", "uid": namespace, "gpu_uuid": "GPU-1", "size": now.get("size", "small"),
                "workload_kind": "Deployment", "workload": "web", "model": "H100",
            }  # fmt: skip
            for replica in now.get("replicas", ("",)):
                written = rendered(described | ({"prometheus_replica": replica} if replica else {}))
                for record, (figure, default) in RECORDS_OF_PODS.items():
                    if (value := now.get(figure, default)) is not None:
                        yield f"{record}{written} {value} {at}"


def of_scenarios() -> Iterator[str]:
    for name, origins in SCENARIOS.items():
        for (cluster, job), (pods, records) in origins.items():
            labels = {
                "scenario": name, "cluster": cluster, "job": job, "namespace": "vision", "uid": "u", "gpu_uuid": "g",
            }  # fmt: skip
            labels |= {"exported_namespace": "vision"} if name == "replaced" else {}
            labels = {label: value for label, value in labels.items() if value}
            begin = END - DAY
            for at in range(begin + pods[0] * 3600, begin + pods[1] * 3600 + 1, 60):
                yield f"{SHARE}{rendered(labels)} 1 {at}"
            for record in (EXPECTED, RECORDS["promised"]):
                for first, last in records:
                    for at in range(begin + first * 3600 + 900, begin + last * 3600 + 1, 900):
                        yield f"{record}{rendered(labels)} 0.25 {at}"
    forged = {"scenario": "forged", "job": JOB, "namespace": "vision"}
    values = ("3", "-5", "NaN", "+Inf", "1.5e308", "9007199254740994", "1e9")
    for size, value in enumerate(values):
        for record in (EXPECTED, RECORDS["promised"]):
            yield f"{record}{rendered(forged | {'namespace': f'n{size}'})} {value} {END}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with records_of(tmp_path_factory.mktemp("scenarios"), lines=of_scenarios()) as url:
        yield url


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with records_of(tmp_path_factory.mktemp("pods"), lines=of_pods()) as url:
        yield url


async def recorded_time(server: str, scenario: str) -> RecordedTime:
    options = PrometheusOptions(url=server, selector=f"scenario={string(scenario)}")
    async with Prometheus.open(options) as prometheus:
        recorded = await read_recorded_time(prometheus, Window(start=END - DAY, end=END))
        await read_sums(prometheus, ["namespace"], Window(start=END - DAY, end=END))
    return recorded


INSTALL = "install the recording rules: alerts.enabled in the chart, or deploy/alerts/README.md"


@pytest.mark.parametrize(
    ("scenario", "part", "remarks"),
    [
        ("whole", 1, ()),
        ("last half", 0.5, ("Recorded figures cover N% of this time; those of the rest are unknown; " + INSTALL + ".",)),
        ("first three quarters", 0.75, ("Recorded figures cover N% of this time; those of the rest are unknown; " + INSTALL + ".",)),
        ("gap", 1, ()),
        ("pods of the last half", 1, ()),
        ("only one cluster", 1, (f"Left out: cluster b, which has no recorded figures; {INSTALL}.",)),
        # The rules leave the job out, too, because any target can serve series with these names.
        ("a job of a tenant", 1, ()),
    ],
)  # fmt: skip
async def test_the_recorded_part(server: str, scenario: str, part: float, remarks: tuple[str, ...]) -> None:
    recorded = await recorded_time(server, scenario)
    assert recorded.part == pytest.approx(part, abs=0.03)
    assert [re.sub("[0-9]+%", "N%", text) for text in recorded.remarks] == list(remarks)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("no rules", "no recorded figures in this time; " + INSTALL),
        ("none", 'no pod with a share in this time; check --selector scenario="none"'),
        ("a job for each cluster", "several clusters match --selector scenario=\"a job for each cluster\": a, b; select one, such as"),
        # A pod that two jobs scrape would count twice.
        ("two jobs", "; select one, such as --selector 'job=\"NAME\"'"),
        ("replaced", "series of kaishare have the label exported_namespace, last at 2025-12-31 12:00 UTC: set honor_labels: true"),
        ("replaced", "openshift.io/cluster-monitoring=true"),
    ],
)  # fmt: skip
async def test_series_that_give_no_figure_are_one_line(server: str, scenario: str, message: str) -> None:
    with pytest.raises(PrometheusError) as refused:
        await recorded_time(server, scenario)
    assert message in str(refused.value)
    assert str(refused.value).startswith("http://127.0.0.1:")
    assert str(refused.value).isprintable()


async def test_values_that_no_hours_have_are_left_out_and_counted(server: str) -> None:
    """At most a million GPUs of a row have 2.4e7 hours a day."""
    async with Prometheus.open(PrometheusOptions(url=server, selector='scenario="forged"')) as prometheus:
        sums, remarks = await read_sums(prometheus, ["namespace"], Window(start=END - DAY, end=END))
    assert sums["promised"] == [({"namespace": "n0"}, 3.0)]
    assert remarks == ("Left out: 12 values of series that are negative, not finite or too large.",)
    report = build_report(sums, row_labels(["namespace"]), prices={}, remarks=remarks)
    assert remarks[0] in report_text(report, columns=200)
    assert json.loads(as_json(report))["totals"]["promised"] == 3.0


@pytest.mark.parametrize("minutes", [10, 89, 90, 601, 14 * 1440, 14 * 1440 + 10, 30 * 1440, 400 * 1440])
def test_parts_of_the_time_begin_with_the_window(minutes: int) -> None:
    window = Window(start=1.8e9 + 0.3 - minutes * 60, end=1.8e9 + 0.3)
    parts = (window.end - window.first_bucket) / window.bucket + 1
    assert parts == round(parts) <= 336
    begin = window.first_bucket - window.bucket
    assert window.start - parts < begin <= window.start + 0.001


async def usage_of(pods: str, namespace: str, *, days: float = 1.5) -> Usage:
    async with Prometheus.open(PrometheusOptions(url=pods)) as client:
        window = Window(start=END - days * DAY, end=END)
        return await read_usage(client, window, quantile=0.99, namespace=namespace)


async def use_of(pods: str, namespace: str, *, days: float = 1.5) -> PodUse:
    usage = await usage_of(pods, namespace, days=days)
    assert usage.remarks == ()
    (use,) = usage.uses
    return use


async def test_a_pod_whose_share_changed_is_left_out_and_counted(pods: str) -> None:
    usage = await usage_of(pods, "moved")
    assert usage.uses == []
    assert usage.remarks == ("Left out: 1 pod whose share changed; give a --since after that.",)
    assert (await use_of(pods, "moved", days=0.9)).share_bytes == GPU_BYTES / 2
    assert (await use_of(pods, "rounded")).share_bytes == GPU_BYTES / 4


async def test_a_claim_is_recognised(pods: str) -> None:
    assert (await use_of(pods, "claimed")).is_claim
    assert not (await use_of(pods, "rounded")).is_claim


@pytest.mark.parametrize("days", [1.5, DAYS], ids=["every minute", "at steps"])
async def test_descriptions_and_replicas_of_a_pod_are_one_pod(pods: str, days: float) -> None:
    """Replicas: Thanos without its replica label, or two replicas that write to one storage."""
    renamed = await use_of(pods, "renamed", days=days)
    assert renamed.names.size == "small"
    assert renamed.peak_bytes == 0.375 * GPU_BYTES
    assert renamed.quantile_bytes == pytest.approx(0.05 * GPU_BYTES, rel=0.01)
    assert renamed.low_bytes == 0.05 * GPU_BYTES
    assert renamed.doubt is not Doubt.GIVEN
    twice = await use_of(pods, "replicas", days=days)
    assert twice.seconds == twice.known_seconds == 1.5 * DAY
    assert twice.expected_seconds == pytest.approx(1.5 * DAY)
    assert twice.over_seconds == 18 * 3600
    assert twice.quantile_bytes == 0.1 * GPU_BYTES


@pytest.mark.parametrize(
    ("namespace", "dropped"), {"too-large": 1, "large": 1, "negative": 1, "unknown": 0}.items()
)
async def test_impossible_figures_are_dropped_and_counted(pods: str, namespace: str, dropped: int) -> None:
    usage = await usage_of(pods, namespace)
    assert usage.dropped == dropped
    assert [(use.peak_bytes, use.quantile_bytes) for use in usage.uses] == [(None, None)] * (1 - dropped)
    advice = Strategy().advise(usage.uses, None, dropped=usage.dropped)
    assert ("Dropped: 1 pod with names" in " ".join(as_text(advice, Strategy()))) == bool(dropped)


async def test_time_outside_the_records_is_unknown(pods: str) -> None:
    usage = await usage_of(pods, "early", days=3)
    (use,) = usage.uses
    assert use.expected_seconds == pytest.approx(2 * use.seconds, rel=0.06)
    assert usage.remarks[0].startswith("Recorded figures cover 5")
    (row,) = Strategy().advise(usage.uses, None).rows
    assert any(note.startswith("use known in ") for note in row.notes)
