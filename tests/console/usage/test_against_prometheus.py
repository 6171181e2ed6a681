"""`advise` and `report` on a real Prometheus with known data, and the hours compared with a brute-force reference of
the same samples."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from console.cluster.prometheus import Prometheus, PrometheusOptions
from console.usage.advice import KnownNamespace
from console.usage.advise import as_json, as_text
from console.usage.pod_use import Doubt, Window
from console.usage.records import SEEN, read_usage
from console.usage.report import FIGURES, RECORDS, Report, Row, build_report, read_sums, row_labels
from console.usage.suggestions import Strategy
from kai.share_bytes import Card
from tests.support import grafana, prometheus_server
from tests.support.usage_history import (
    END,
    GIB,
    HOURS,
    JOB,
    MIB,
    MODELS,
    START,
    PodHistory,
    always,
    noisy,
    records_of,
    rendered,
)
from webhook.policy.labels import PolicyMetadata, label_problems

H100, T4, A100 = "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A100-SXM4-80GB"
UNTIL = END + 900
"""The last record of the hours is written up to 15 minutes after the last sample."""


def share_of(fraction: float, model: str = H100) -> float:
    """Return the bytes of a fraction: KAI counts whole hundreds of MiB."""
    return int(fraction * (MODELS[model] // 100 * 100)) * MIB


def pod(namespace: str, name: str, fraction: float = 0.25, model: str = H100, **more: object) -> PodHistory:
    settings = {"share": always(share_of(fraction, model)), "used": always(4 * GIB), "model": model, **more}
    return PodHistory(namespace=namespace, pod=name, **settings)  # type: ignore[arg-type]


WHOLE = always(MODELS[H100] * MIB)
RED = {"vcluster": "red", "virtual_namespace": "default"}
PODS = (
    # The agent was away for four hours and then replaced. Idle in the first half.
    pod("vision", "web-a", size="small", used=noisy(6 * GIB, 2 * GIB, seed=1), gaps=((10, 14),), restarts=(14.0,), utilization=lambda hour: 0 if hour <= 18 else 0.5),
    # Two agents report it, and an exporter of a tenant claims that it has the whole GPU.
    pod("vision", "web-b", size="small", used=noisy(9 * GIB, 3 * GIB, seed=2), agents=2, utilization=always(0.25)),
    pod("vision", "web-b", 1.0, job="tenant", size="small", used=always(70 * GIB), utilization=always(1.0)),
    # A StatefulSet gives a new pod the name of the last one.
    pod("names", "db-0", uid="first", hours=(0, 10), kind="StatefulSet", workload="db"),
    pod("names", "db-0", uid="second", hours=(11, HOURS), kind="StatefulSet", workload="db"),
    pod("rebound", "again", share=lambda hour: share_of(0.1 if hour <= 18 else 0.2)),
    pod("rebound", "other", 0.1),
    pod("mixed", "on-t4", 0.5, T4, queue="science", size="dual", used=noisy(5 * GIB, GIB, seed=3)),
    pod("mixed", "on-a100", 0.5, A100, queue="science", size="dual", used=noisy(20 * GIB, GIB, seed=4)),
    # KAI charges 10,000 MiB as 0.13 of an H100.
    pod("mixed", "in-mib", queue="science", share=always(10_000 * MIB)),
    pod("blind", "partly", size="small", used=lambda hour: None if 10 < hour <= 22 else 8 * GIB),
    pod("blind", "never", 0.5, size="large", used=lambda _: None),
    # Above its share for six hours; the agent's restarts reset the counter.
    pod("over", "greedy", 0.1, used=lambda hour: (12 if 6 < hour <= 12 else 4) * GIB, over=True, restarts=(9.0, 20.0)),
    # Another queue from hour 12 on: the pod is two series.
    pod("moved", "pod", 0.1, hours=(0, 12), used=lambda hour: (12 if hour > 8 else 4) * GIB, over=True),
    pod("moved", "pod", 0.1, hours=(12, HOURS), used=lambda hour: (12 if hour <= 15 else 4) * GIB, over=True, queue="science", restarts=(12.0,)),
    # A framework that takes what it is given, a model that holds its weights, and a pod that reached its share once.
    pod("llm", "vllm", 0.5, size="serve", used=always(round(share_of(0.5) * 0.97)), kind="StatefulSet"),
    pod("llm", "weights", 0.3, size="weights", used=always(round(share_of(0.3) * 0.5))),
    pod("llm", "grows", 0.5, size="grow", used=lambda hour: share_of(0.5) if hour > 35 else 10 * GIB),
    pod("idle", "notebook", share=WHOLE, used=always(12 * GIB)),
    pod("whole", "train", share=WHOLE, gpus=2, kind="Job", workload="train"),
    # A cap in MiB, and a size whose need no label covers.
    pod("mib", "small-mib", used=lambda hour: (6 if hour > 18 else 4) * GIB, share=always(8192 * MIB)),
    pod("capped", "large", 0.5, size="small", used=always(45 * GIB)),
    pod("vcluster-red", "web-x-default-x-red", size="small", used=always(6 * GIB), **RED),
    # Names that act in a shell, a spreadsheet or a terminal.
    pod("vision", "lies", size="=cmd()"),
    pod("vision", "spaces", workload="a;$(reboot)"),
    pod("=cmd()", "p3"),
    pod("shell", "p4", kind="\x1b[31mJob"),
    pod("vcluster-red", "p5", vcluster="red", virtual_namespace="a b"),
)  # fmt: skip
OWN = [each for each in PODS if each.job == JOB]
QUEUE = {"kai.scheduler/queue": "team"}
LABELS = {
    "vision": {**QUEUE, "size.kaishare.dev/small": "0.25"},
    "rebound": {**QUEUE, "size.kaishare.dev/small": "0.20"},
    "mixed": {**QUEUE, "size.kaishare.dev/dual": "0.5"},
    "blind": {**QUEUE, "size.kaishare.dev/small": "0.25", "size.kaishare.dev/large": "0.5"},
    "over": {**QUEUE, "kaishare.dev/gpu-fraction": "0.10"},
    "llm": {**QUEUE, "size.kaishare.dev/serve": "0.5", "size.kaishare.dev/grow": "0.5", "size.kaishare.dev/weights": "0.3"},
    "idle": QUEUE,
    "mib": {**QUEUE, "kaishare.dev/gpu-memory": "8192", "kaishare.dev/max-gpu-memory": "24000"},
    "capped": {**QUEUE, "kaishare.dev/max-gpu-fraction": "0.50", "size.kaishare.dev/small": "0.5"},
}  # fmt: skip


def known(labels: dict[str, str]) -> KnownNamespace:
    metadata = PolicyMetadata(labels)
    return KnownNamespace(metadata, metadata.policy("n"))


async def test_ten_minutes_are_ten_minutes(server: str) -> None:
    """Prometheus 2 includes both ends of a range."""
    async with Prometheus.open(PrometheusOptions(url=server)) as client:
        usage = await read_usage(client, Window(start=END - 600, end=END), quantile=0.99, namespace="mixed")
    assert [(use.seconds, use.known_seconds) for use in usage.uses] == [(600, 600)] * 3


async def test_commands_are_accepted_and_cover_the_need(server: str) -> None:
    async with Prometheus.open(PrometheusOptions(url=server)) as client:
        usage = await read_usage(client, Window(start=START, end=END), quantile=0.99)
    advice = Strategy().advise(usage.uses, {name: known(labels) for name, labels in LABELS.items()})
    assert advice.dropped == 5
    outputs = [as_json(advice), *as_text(advice, Strategy()), *advice.commands]
    assert not any(word in line for line in outputs for word in ("reboot", "cmd()", "\x1b", "a b"))
    assert len(advice.commands) >= 8
    for words in map(str.split, advice.commands):
        assert words[-1] == "--overwrite"
        if words[0] == "kubectl":
            assert words[:3] == ["kubectl", "label", "namespace"]
            key, value = words[4].split("=")
            before = LABELS[words[3]]
            problems = label_problems(PolicyMetadata({**before, key: value}), PolicyMetadata(before))
            assert problems.count == 0, (words, problems)
    for row in advice.rows:
        for use in row.uses if row.suggested is not None else ():
            if use.quantile_bytes is not None and use.gpu_bytes is not None:
                most = use.share_bytes if use.doubt is Doubt.GIVEN else 1e15
                assert row.suggested.bytes_on(use.gpu_bytes) >= min(use.quantile_bytes, most)


@cache
def reference() -> dict[str, dict[str, float]]:
    """Return the hours of each pod by UID, from every minute of its histories; a minute of two agents counts once."""
    minutes = defaultdict(list)
    for each in OWN:
        card = Card.from_mib(MODELS[each.model])
        for at, hour in each.times():
            share, used = each.share(hour), each.used(hour)
            charged = min(card.portion_of_memory(int(share / MIB)), 1.0)
            part = None if used is None else used / (card.units * card.unit_bytes)
            over = None if not each.over or used is None else float(used > share * 1.05)
            minutes[each.key] += [(at, charged, part, each.utilization(hour), over)] * each.gpus
    pods = {}
    for uid, own in minutes.items():
        times = [at for at, *_ in own]
        figures: dict[str, list[float | None]] = {
            "promised": [charged for _, charged, *_ in own],
            "whole": [1.0] * len(own),
            "used": [used for _, _, used, _, _ in own],
            "used_known": [None if used is None else 1.0 for _, _, used, _, _ in own],
            "active": [active for *_, active, _ in own],
            "active_known": [None if active is None else 1.0 for *_, active, _ in own],
            "idle": [None if active is None else charged * (not active) for _, charged, _, active, _ in own],
            "over": [over for *_, over in own],
            "expected": [(max(times) - min(times) + 60) / 60 * len(own) / len(set(times))],
        }
        known = {figure: values for figure, values in figures.items() if set(values) != {None}}
        pods[uid] = {figure: sum(value or 0.0 for value in values) / 60 for figure, values in known.items()}
    return pods


def of_pods(*uids: str) -> Row:
    """Return the reference of some pods as one row."""
    sums = {
        figure: [({}, own[figure]) for uid, own in reference().items() if uid in uids and figure in own]
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


async def test_rows_equal_the_reference(server: str) -> None:
    report = await report_of(server, "namespace")
    own = [each for each in OWN if not each.vcluster and each.namespace != "=cmd()"]
    for namespace, model in {(each.namespace, each.model) for each in own}:
        uids = [each.key for each in OWN if (each.namespace, each.model) == (namespace, model)]
        assert_equal(hours_of(report, model, namespace=namespace), of_pods(*uids))
    assert_equal(report.total, of_pods(*reference()))
    assert len(report.dropped) == 2
    assert report.remarks == ()


@pytest.mark.parametrize("by", [["queue"], ["size"], ["queue", "size"]], ids=" and ".join)
async def test_groupings_have_one_total(server: str, by: list[str]) -> None:
    report = await report_of(server, *by)
    rows = {(*(getattr(each, label) for label in row_labels(by)), each.model) for each in OWN}
    hostile = {row for row in rows if "=cmd()" in row}
    assert {tuple(row[name] or "" for name in report.names) for row in report.rows} == rows - hostile
    assert_equal(report.total, of_pods(*reference()))
    assert len(report.dropped) == len(hostile) == ("size" in by)


async def test_totals_are_those_of_the_dashboard(server: str) -> None:
    board = grafana.load("fleet")
    report = await report_of(server, "namespace")
    titles = {f"GPU-hours {figure}": figure for figure in ("promised", "used", "idle", "saved")}
    for title, figure in (titles | {"Time with known use": "coverage"}).items():
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
    assert_equal(report.total, of_pods(*reference()))
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
