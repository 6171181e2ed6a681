"""`report` on a real Prometheus with known data, compared with a brute-force reference of the same samples."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from console.cluster.prometheus import Prometheus, PrometheusError, PrometheusOptions
from console.usage.pod_use import Window
from console.usage.records import SEEN
from console.usage.report import FIGURES, RECORDS, Report, Row, build_report, read_sums, row_labels
from kai.share_bytes import Card
from tests.console.usage.test_advise_against_prometheus import A100, H100, T4, share_of
from tests.support import grafana, prometheus_server
from tests.support.usage_history import (
    END,
    GIB,
    HOURS,
    JOB,
    MIB,
    MODELS,
    START,
    History,
    PodHistory,
    always,
    records_of,
    rendered,
)

UNTIL = END + 900
"""The last record of the hours is written up to 15 minutes after the last sample."""


def pod(namespace: str, name: str, fraction: float = 0.25, model: str = H100, **more: object) -> PodHistory:
    settings = {"share": always(share_of(fraction, model)), "used": always(4 * GIB), "model": model, **more}
    return PodHistory(namespace=namespace, pod=name, **settings)  # type: ignore[arg-type]


PODS = (
    # The agent was away for four hours and then replaced. Idle in the first half.
    pod("vision", "web-a", gaps=((10, 14),), restarts=(14.0,), size="small", utilization=lambda hour: 0 if hour <= 18 else 0.5),
    # Two agents report it, and an exporter of a tenant claims that it has the whole GPU.
    pod("vision", "web-b", agents=2, size="small", utilization=always(0.25)),
    pod("vision", "web-b", 1.0, job="tenant", size="small", used=always(70 * GIB), utilization=always(1.0)),
    # A StatefulSet gives a new pod the name of the last one.
    pod("names", "db-0", uid="first", hours=(0, 10), kind="StatefulSet", workload="db"),
    pod("names", "db-0", uid="second", hours=(11, HOURS), kind="StatefulSet", workload="db"),
    pod("rebound", "again", share=lambda hour: share_of(0.1 if hour <= 18 else 0.2)),
    pod("rebound", "other", 0.1),
    pod("mixed", "on-t4", 0.5, T4, queue="science"),
    pod("mixed", "on-a100", 0.5, A100, queue="science"),
    # KAI charges 10,000 MiB as 0.13 of an H100.
    pod("mixed", "in-mib", queue="science", share=always(10_000 * MIB)),
    pod("blind", "partly", used=lambda hour: None if 10 < hour <= 22 else 8 * GIB),
    pod("blind", "never", used=lambda _: None),
    # Above its share for six hours; the agent's restarts reset the counter.
    pod("over", "greedy", 0.1, used=lambda hour: (12 if 6 < hour <= 12 else 4) * GIB, over=True, restarts=(9.0, 20.0)),
    # Another queue from hour 12 on: the pod is two series.
    pod("moved", "pod", 0.1, hours=(0, 12), used=lambda hour: (12 if hour > 8 else 4) * GIB, over=True),
    pod("moved", "pod", 0.1, hours=(12, HOURS), used=lambda hour: (12 if hour <= 15 else 4) * GIB, over=True, queue="science", restarts=(12.0,)),
    pod("tenant-a", "x-default", vcluster="red", virtual_namespace="default"),
    pod("whole", "train", share=always(MODELS[H100] * MIB), gpus=2, kind="Job", workload="train"),
    # Names that would act in a spreadsheet.
    pod("vision", "lies", size="=cmd()"),
    pod("vision", "spaces", workload="a b"),
)  # fmt: skip

_LINE = re.compile(r"(\w+)\{(.*)\} (\S+) (\d+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@cache
def reference() -> dict[tuple[str, str], dict[str, float]]:
    """Return the hours of each pod on each GPU, from every raw sample of the agents, by UID and UUID."""
    samples: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    counters: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    over: dict[tuple[str, str], float] = defaultdict(float)
    for line in History(PODS).openmetrics():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        if labels["job"] != JOB or "uid" not in labels or "gpu_uuid" not in labels:
            continue
        key, value, at = (labels["uid"], labels["gpu_uuid"]), float(match[3]), int(match[4])
        if match[1] == "kaishare_pod_over_share_seconds_total":
            before = counters[key].get(labels["instance"], 0.0)
            counters[key][labels["instance"]] = value
            over[key] += value - before
            continue
        series = samples[(match[1], *key)]
        series[at] = max(series.get(at, value), value)
    pods: dict[tuple[str, str], dict[str, float]] = {}
    for (name, uid, gpu), shares in samples.items():
        if not name.endswith("share_bytes"):
            continue
        mib = next(mib for index, mib in enumerate(MODELS.values()) if gpu.startswith(f"GPU-{index}-"))
        card = Card.from_mib(mib)
        used = samples.get(("kaishare_pod_gpu_memory_used_bytes", uid, gpu), {})
        active = samples.get(("kaishare_pod_gpu_utilization_ratio", uid, gpu), {})
        charged = {at: min(card.portion_of_memory(int(share / MIB)), 1.0) for at, share in shares.items()}
        memory = card.units * card.unit_bytes
        figures = {
            "promised": sum(charged.values()) / 60,
            "whole": len(charged) / 60,
            "used": sum(value / memory for value in used.values()) / 60 if used else None,
            "used_known": len(used) / 60 if used else None,
            "active": sum(active.values()) / 60 if active else None,
            "active_known": len(active) / 60 if active else None,
            "idle": sum(charged[at] for at, value in active.items() if not value) / 60 if active else None,
            "over": over[(uid, gpu)] / 3600 if (uid, gpu) in over else None,
            "expected": (max(shares) - min(shares) + 60) / 3600,
        }
        pods[(uid, gpu)] = {figure: value for figure, value in figures.items() if value is not None}
    return pods


def of_pods(*uids: str) -> Row:
    """Return the reference of some pods as one row."""
    sums = {
        figure: [({}, own[figure]) for (uid, _), own in reference().items() if uid in uids and figure in own]
        for figure in FIGURES
    }
    return build_report(sums, (), prices={}).total


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with records_of(tmp_path_factory.mktemp("recorded"), *PODS) as url:
        yield url


def on_dashboard(
    url: str, query: str, variables: Mapping[str, str] | None = None, *, board: str = "fleet"
) -> list[Any]:
    """Return what a panel shows of the whole time."""
    running = prometheus_server.Prometheus(url, None, Path())  # type: ignore[arg-type]
    query = query.replace("$__range", f"{UNTIL - START}s")
    return running.instant(grafana.load(board).interpolated(query, variables or {}), UNTIL)


async def report_of(url: str, *by: str, start: float = START, end: float = UNTIL, **more: object) -> Report:
    labels = row_labels(by)
    async with Prometheus.open(PrometheusOptions(url=url)) as client:
        sums, remarks = await read_sums(client, labels, Window(start=start, end=end))
    return build_report(sums, labels, remarks=remarks, **{"prices": {}, **more})  # type: ignore[arg-type]


def hours_of(report: Report, model: str = H100, **names: str) -> Row:
    (row,) = [
        row
        for row in report.rows
        if row["model"] == model and all(row[label] == name for label, name in names.items())
    ]
    return row


def assert_equal(actual: Row, expected: Row) -> None:
    for figure in expected.keys() - {"cost"}:
        value = expected[figure]
        approximate = None if value is None else pytest.approx(value, rel=0.01, abs=1e-6)
        assert actual[figure] == approximate, figure


BY_NAMESPACE = [
    ("vision", H100, ("web-a", "web-b", "lies", "spaces")), ("names", H100, ("first", "second")),
    ("rebound", H100, ("again", "other")), ("mixed", T4, ("on-t4",)), ("mixed", A100, ("on-a100",)),
    ("mixed", H100, ("in-mib",)), ("blind", H100, ("partly", "never")), ("over", H100, ("greedy",)),
    ("moved", H100, ("pod",)), ("tenant-a", H100, ("x-default",)), ("whole", H100, ("train",)),
]  # fmt: skip


@pytest.mark.slow
async def test_rows_equal_the_reference(server: str) -> None:
    report = await report_of(server, "namespace")
    assert len(report.rows) == len(BY_NAMESPACE)
    for namespace, model, uids in BY_NAMESPACE:
        assert_equal(hours_of(report, model, namespace=namespace), of_pods(*uids))
    assert_equal(report.total, of_pods(*(uid for uid, _ in reference())))
    assert report.dropped == []
    assert report.remarks == ()


async def test_a_time_without_pods_is_an_error(server: str) -> None:
    with pytest.raises(PrometheusError, match="no pod with a share in this time"):
        await report_of(server, "namespace", start=START - 86_400, end=START - 3_600)


QUEUES = {
    ("science", "", T4), ("science", "", A100), ("science", "", H100), ("team", "", H100),
    ("team", "red", H100),
}  # fmt: skip
SIZES = {("", H100), ("small", H100), ("", T4), ("", A100)}


@pytest.mark.parametrize(
    ("by", "rows"),
    [(["queue"], QUEUES), (["size"], SIZES), (["node", "size"], {("n1", *row) for row in SIZES})],
    ids=["queue", "size", "node and size"],
)
async def test_groupings_have_one_total(server: str, by: Sequence[str], rows: set[tuple[str, ...]]) -> None:
    report = await report_of(server, *by)
    assert {tuple(row[name] or "" for name in report.names) for row in report.rows} == rows
    assert_equal(report.total, of_pods(*(uid for uid, _ in reference())))
    assert len(report.dropped) == ("size" in by)


async def test_totals_are_those_of_the_dashboard(server: str) -> None:
    board = grafana.load("fleet")
    report = await report_of(server, "namespace")
    for title, figure in (
        ("GPU-hours promised", "promised"),
        ("GPU-hours used", "used"),
        ("GPU-hours idle", "idle"),
        ("GPU-hours saved", "saved"),
        ("Time with known use", "coverage"),
    ):
        (sample,) = on_dashboard(server, board.expression(title))
        assert float(sample["value"][1]) == pytest.approx(report.total[figure]), title
    samples = on_dashboard(server, board.expression("GPU-hours by team", "activity known"))
    teams = {sample["metric"]["namespace"]: float(sample["value"][1]) for sample in samples}
    vision = hours_of(report, namespace="vision")["activeCoverage"]
    assert vision is not None
    assert vision < 0.9
    assert teams["vision"] == pytest.approx(vision)


def test_the_advice_of_a_namespace_is_by_share_and_counts_pods_on_several_gpus_once(server: str) -> None:
    def of_column(column: str, namespace: str) -> dict[str, float]:
        query = grafana.load("namespace").expression("Use against share, by workload", column)
        samples = on_dashboard(server, query, {"namespace": namespace}, board="namespace")
        return {sample["metric"]["share"]: float(sample["value"][1]) for sample in samples}

    used, hours = 4 * GIB / (MODELS[H100] // 100 * 100 * MIB), pytest.approx(HOURS, rel=0.01)
    assert of_column("pod-hours", "rebound") == {"0.1": hours, "0.2": hours}
    for column in ("used in 99 % of the time", "peak"):
        assert of_column(column, "rebound") == {"0.1": pytest.approx(used), "0.2": pytest.approx(used)}
    assert of_column("pod-hours", "whole") == {"1": hours}
    for namespace, over in (("moved", 7), ("over", 6)):
        assert of_column("hours over the share", namespace) == {"0.1": pytest.approx(over, rel=0.01)}


async def test_an_agent_away_for_more_than_a_day_is_unknown_time(tmp_path: Path) -> None:
    with records_of(tmp_path, pod("names", "db-0"), pod("gone", "away", gaps=((4, 34),))) as url:
        report = await report_of(url, "namespace")
        (sample,) = on_dashboard(url, grafana.load("fleet").expression("Time with known use"))
    away = hours_of(report, namespace="gone")
    assert away["coverage"] == pytest.approx(6 / 36, rel=0.02)
    assert away["promised"] == pytest.approx(0.25 * 6, rel=0.01)
    assert hours_of(report, namespace="names")["coverage"] == pytest.approx(1, rel=0.01)
    assert float(sample["value"][1]) == pytest.approx(report.total["coverage"], rel=0.01)


async def test_records_between_the_looks_are_records(server: str) -> None:
    """Looks at 400 days are four days apart; none is in the 36 hours."""
    report = await report_of(server, "namespace", start=END - 398 * 86_400, end=END + 2 * 86_400)
    assert_equal(report.total, of_pods(*(uid for uid, _ in reference())))
    assert report.remarks == ()


async def test_records_of_two_replicas_count_once(tmp_path: Path) -> None:
    """Thanos without its replica label, or two replicas that write to one storage."""
    values = {"promised": 1, "used_known": 1}
    lines = []
    for replica in ("a", "b"):
        labels = {"job": JOB, "namespace": "vision", "model": H100, "prometheus_replica": replica}
        lines += [
            f"{record}{rendered(labels)} {values.get(figure, 2)} {at}"
            for figure, record in RECORDS.items()
            for at in range(START + 900, END + 1, 900)
        ]
        seen = rendered(labels | {"uid": "a", "gpu_uuid": "GPU-1"})
        lines += [f"{SEEN}{seen} {at} {at}" for at in range(START - 7200, END + 1, 900)]
    with records_of(tmp_path, lines=lines) as url:
        total = (await report_of(url, "namespace", end=END)).total
    assert (total["promised"], total["used"], total["saved"]) == (4 * HOURS, 8 * HOURS, 4 * HOURS)
    assert total["coverage"] == pytest.approx(0.5, rel=1e-6)
