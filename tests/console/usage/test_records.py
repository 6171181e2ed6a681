"""Which records count, how far they cover a time, and which series are refused, on a real Prometheus."""

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from console.cluster.prometheus import Prometheus, PrometheusError, PrometheusOptions
from console.usage.pod_use import Window
from console.usage.records import EXPECTED, RecordedTime, read_recorded_time, string
from console.usage.report import RECORDS, as_json, as_text, build_report, read_sums, row_labels
from tests.support.usage_history import END, JOB, records_of, rendered

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


def lines() -> Iterator[str]:
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
    with records_of(tmp_path_factory.mktemp("scenarios"), lines=lines()) as url:
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
    assert remarks[0] in as_text(report, columns=200)
    assert json.loads(as_json(report))["totals"]["promised"] == 3.0


@pytest.mark.parametrize("minutes", [10, 89, 90, 601, 14 * 1440, 14 * 1440 + 10, 30 * 1440, 400 * 1440])
def test_parts_of_the_time_begin_with_the_window(minutes: int) -> None:
    window = Window(start=1.8e9 + 0.3 - minutes * 60, end=1.8e9 + 0.3)
    parts = (window.end - window.first_bucket) / window.bucket + 1
    assert parts == round(parts) <= 336
    begin = window.first_bucket - window.bucket
    assert window.start - parts < begin <= window.start + 0.001
