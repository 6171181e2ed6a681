"""Reading the use of pods from a Prometheus that answers with fixed series."""

import re
from array import array
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from console.caller import default_kubeconfig
from console.cli import main, parser
from console.cluster.prometheus import InstantSeries, PrometheusError, RangeSeries
from console.usage.advise import as_text, parse_target_cluster
from console.usage.pod_use import Peaks, PodNames, PodUse, Window
from console.usage.suggestions import Strategy
from console.usage.usage_reader import Usage, read_usage

MIB = 1 << 20
WINDOW = Window(start=1.8e9 - 14 * 86400, end=1.8e9)
SHARE = "pod:kaishare_gpu_share:ratio"
LABELS = {"uid": "a", "gpu_uuid": "GPU-1", "namespace": "team", "pod": "a", "size": "small"}
GPU = InstantSeries({"gpu_uuid": "GPU-1", "model": "Tesla T4"}, 15360.0 * MIB)


class Standin:
    """Answers the queries on the records about some pods of half a GPU."""

    address = "http://prometheus"
    selector = 'job="kaishare-agent"'

    def __init__(
        self, counts: list[RangeSeries], *, current: tuple[str, ...] = (), over: bool = True
    ) -> None:
        self._counts = counts
        self._current = current
        self._over = over

    async def instant(self, query: str, at: float) -> list[InstantSeries]:
        if "usage:" in query:
            return [InstantSeries({"job": "kaishare-agent"}, 1.0)]
        if "kaishare_pod_gpu_memory_share_bytes" in query:
            return []  # no labels were replaced, and no origin is without records
        if "counted_bytes" in query:
            return [GPU]
        if "over:" in query:
            return [InstantSeries({"uid": each.labels["uid"]}, 0.5) for each in self._counts if self._over]
        if re.fullmatch(rf"max by \(.*\) \({SHARE}{{.*}}\)", query):
            return [InstantSeries(LABELS | {"uid": uid}, 0.5) for uid in self._current]
        return [InstantSeries(series.labels, 0.5) for series in self._counts]

    async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
        if query.startswith("group by (cluster, job)"):
            times = array("d", [end - look * step for look in reversed(range(100))])
            return [RangeSeries({"job": "kaishare-agent"}, times, array("d", [1.0] * 100))]
        return self._counts if "count_over_time" in query else []


def counts(uid: str, *values: tuple[float, float], **labels: str) -> RangeSeries:
    """Return the numbers of values of a pod by seconds before the end of the window."""
    times = array("d", [WINDOW.end - before for before, _ in values])
    return RangeSeries(LABELS | {"uid": uid} | labels, times, array("d", [count for _, count in values]))


async def uses_of(*series: RangeSeries, **answers: Any) -> dict[str, PodUse]:
    prometheus: Any = Standin(list(series), **answers)
    usage = await read_usage(prometheus, WINDOW, quantile=0.99)
    return {use.names.uid: use for use in usage.uses}


async def test_pods_that_exist_are_those_with_a_share_at_the_end() -> None:
    uses = await uses_of(
        counts("ended", (0, 5)),  # for five minutes, at the beginning of the last hour
        counts("gap", (3600, 60), (0, 44)),  # records were missing for 16 minutes
        current=("gap",),
    )
    assert not uses["ended"].is_current
    assert uses["gap"].is_current


async def test_series_without_a_value_are_no_error() -> None:
    class Empty(Standin):
        async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
            return [
                RangeSeries(each.labels, array("d"), array("d"))
                for each in await super().range(query, start, end, step)
            ]

    prometheus: Any = Empty([counts("a", (0, 60))])
    assert (await read_usage(prometheus, WINDOW, quantile=0.99)).uses == ()


async def test_time_outside_the_records_is_unknown() -> None:
    class HalfRecorded(Standin):
        async def instant(self, query: str, at: float) -> list[InstantSeries]:
            has_pods = query.startswith("group(")
            return [InstantSeries({}, 1.0)] if has_pods else await super().instant(query, at)

        async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
            series = await super().range(query, start, end, step)
            if not query.startswith("group by"):
                return series
            return [RangeSeries(each.labels, each.times[50:], each.values[50:]) for each in series]

    prometheus: Any = HalfRecorded([counts("a", (3600, 60), (0, 60))])
    usage = await read_usage(prometheus, WINDOW, quantile=0.99)
    (use,) = usage.uses
    assert use.expected_seconds == pytest.approx(2 * use.seconds, rel=0.06)
    assert usage.remarks[0].startswith("Recorded figures cover 5")
    (row,) = Strategy(min_hours=1).advise(usage.uses, None).rows
    assert any(note.startswith("use known in ") for note in row.notes)


@pytest.mark.parametrize("label", ["job", "cluster"])
async def test_series_of_several_origins_are_refused(label: str) -> None:
    series = [counts("a", (3600, 60), (0, 60), **{label: name}) for name in ("one", "two")]
    with pytest.raises(
        PrometheusError,
        match=f"several {label}s match --selector .*: one, two; select one, such as --selector 'job=",
    ):
        await uses_of(*series)


class Hostile(Standin):
    """Gives the series of one pod an impossible value in the queries with a word."""

    def __init__(self, word: str, value: float) -> None:
        super().__init__([counts("good", (3600, 60), (0, 60)), counts("bad", (3600, 60), (0, 60))])
        self._word = word
        self._value = value

    async def instant(self, query: str, at: float) -> list[InstantSeries]:
        return [
            InstantSeries(series.labels, self._value) if self._is_bad(query, series.labels) else series
            for series in await super().instant(query, at)
        ]

    async def range(self, query: str, start: float, end: float, step: float) -> list[RangeSeries]:
        series = self._counts if "max1m" in query else await super().range(query, start, end, step)
        return [
            RangeSeries(each.labels, each.times, array("d", [each.values[0], self._value]))
            if self._is_bad(query, each.labels)
            else each
            for each in series
        ]

    def _is_bad(self, query: str, labels: dict[str, str]) -> bool:
        return self._word in query and labels.get("uid") == "bad"


AMOUNTS = (
    "max_over_time(pod:kaishare_gpu_share",
    "max_over_time(pod:kaishare_gpu_used:max1m",
    "quantile_over_time(",
)
COUNTS = (
    "min_over_time(",
    "count_over_time(pod:kaishare_gpu_share",
    "count_over_time(pod:kaishare_gpu_used",
    "gpu_over:",
)


@pytest.mark.parametrize(
    ("word", "value"),
    [*product(AMOUNTS, (1e308, -1e308, -1.0, float(1 << 53))), *product(COUNTS, (1e308, -1e308, -1.0))],
)
async def test_pods_with_figures_that_no_gpu_has_are_dropped_and_counted(word: str, value: float) -> None:
    prometheus: Any = Hostile(word, value)
    usage = await read_usage(prometheus, WINDOW, quantile=0.99)
    assert [use.names.uid for use in usage.uses] == ["good"]
    assert usage.dropped == 1
    advice = Strategy().advise(usage.uses, None, dropped=usage.dropped)
    assert "Dropped: 1 pod with names" in " ".join(as_text(advice, Strategy()))


def of_a_constant_amount() -> PodUse:
    share = int(0.5 * 15300) * MIB
    peaks = Peaks(array("d", [3600.0 * hour for hour in (1, 2, 3)]), array("d", [0.3 * share] * 3))
    return PodUse(
        names=PodNames(uid="a", gpu_uuid="GPU-1", namespace="team", pod="a", size="small", vcluster="red", virtual_namespace="v"),
        gpu_bytes=15360 * MIB, share_bytes=share, seconds=2e5, known_seconds=2e5, expected_seconds=2e5, first=0.0, last=2e5,
        peak_bytes=0.3 * share, quantile_bytes=0.3 * share, low_bytes=0.3 * share, is_current=True, peaks=peaks,
    )  # fmt: skip


def test_commands_come_with_their_notes_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def usage(*_: Any, **__: Any) -> Usage:
        return Usage((of_a_constant_amount(),))

    monkeypatch.setattr("console.usage.advise.read_usage", usage)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert main(["advise", "--prometheus", "http://127.0.0.1:1", "-o", "kubectl"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (
        "vcluster connect red --namespace team -- kubectl label namespace v size.kaishare.dev/small=0.18 --overwrite\n"
    )
    notes = " ".join(captured.err.split())
    assert "red/v small 0.50: 1 pod of 1 held a constant amount" in notes
    assert "red/v small 0.50: labels and caps inside the vCluster are not known here" in notes


@pytest.mark.parametrize(("over", "seconds"), [(True, 0.5), (False, None)])
async def test_time_over_the_share_without_the_counter_is_unknown(over: bool, seconds: float | None) -> None:
    uses = await uses_of(counts("a", (0, 60)), over=over)
    assert uses["a"].over_seconds == seconds


@pytest.mark.parametrize("text", ["0001-01-02", "1999-12-31", "9999-12-31T23:59:59", "soon"])
def test_times_that_no_window_has_are_usage_errors(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--prometheus", "http://127.0.0.1:1", "--until", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f'"{text}" is not a time; allowed: the years 2000 to 2100' in line


@pytest.mark.parametrize(
    ("words", "kubectl"),
    [
        ([], "kubectl"),
        (["--context", "prod"], "kubectl --context=prod"),
        (["--kubeconfig", "/other/config"], "kubectl --kubeconfig=/other/config"),
        (["--kubeconfig", "/home/config"], "kubectl"),
    ],
)
def test_target_cluster_has_the_options_that_were_given(
    words: list[str], kubectl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/home/config")
    arguments = parser().parse_args(["advise", "--prometheus", "http://127.0.0.1:1", *words])
    arguments.kubeconfig = arguments.kubeconfig or default_kubeconfig()
    assert parse_target_cluster(arguments).kubectl() == kubectl


def test_commands_need_rows_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--prometheus", "http://127.0.0.1:1", "--by", "workload", "-o", "kubectl"]) == 2
    assert "-o kubectl needs --by size" in capsys.readouterr().err
