"""The panels about waste and capacity on a real Prometheus with eight days of made-up history."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import grafana
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.promtool import needed, promtool

BOARDS = {name: grafana.load(name) for name in grafana.NAMES}
MIB, GIB = 1 << 20, 1 << 30
HOUR, DAY = 3600, 86_400
STEP = 240
"""Seconds between samples; Prometheus looks back 5 minutes."""
NOW = 1_767_225_600
"""2026-01-01; a multiple of STEP."""


@dataclass(frozen=True)
class History:
    """A pod's figures by age in seconds; None is a gap."""

    age: int
    used: Callable[[int], float | None]
    share: float = 10 * GIB
    utilization: float | None = None
    cluster: str = ""
    namespace: str = "team"
    gap: tuple[int, int] = (0, 0)
    """Ages between which there is no sample at all."""

    def ages(self) -> Iterator[int]:
        """Yield the ages of samples, the oldest first."""
        return (age for age in range(self.age, -1, -STEP) if not self.gap[0] < age < self.gap[1])

    def labels(self, name: str) -> str:
        cluster = f'cluster="{self.cluster}",' if self.cluster else ""
        return f'{{{cluster}namespace="{self.namespace}",pod="{name}",uid="{name}",gpu_uuid="GPU-1",gpu="0",node="n"}}'


PODS = {
    # Eight days old, never above 2 GiB.
    "idle": History(8 * DAY, lambda _: 2 * GIB, utilization=0),
    # One sample six days ago needed most of the share.
    "spike": History(8 * DAY, lambda age: 9 * GIB if age == 6 * DAY else GIB, utilization=0.5),
    # Its use is known only since yesterday: what it needed before is unknown.
    "hidden": History(8 * DAY, lambda age: GIB if age < DAY else None, namespace="hidden-team"),
    # Two hours old.
    "young": History(2 * HOUR, lambda _: 1 * GIB, utilization=0),
    # Just started.
    "fresh": History(4 * STEP, lambda _: 0),
    # Of another cluster, with the names of a pod here.
    "east": History(8 * DAY, lambda _: 4 * GIB, cluster="east", namespace="east-team"),
    # Not watched for five of the seven days.
    "away": History(
        8 * DAY, lambda age: GIB, utilization=0, cluster="away", namespace="away-team", gap=(DAY, 6 * DAY)
    ),
    # Ended two days ago.
    "gone": History(8 * DAY, lambda age: GIB if age > 2 * DAY else None),
}


def openmetrics() -> Iterator[str]:
    """Yield the histories as OpenMetrics, with the ratio that Prometheus would have recorded."""
    for metric in ("used_bytes", "share_bytes"):
        yield f"# TYPE kaishare_pod_gpu_memory_{metric} gauge"
        for name, history in PODS.items():
            for age in history.ages():
                value = history.used(age) if metric == "used_bytes" else history.share
                if value is None or (name == "gone" and age <= 2 * DAY):
                    continue
                yield f"kaishare_pod_gpu_memory_{metric}{history.labels(name)} {value:.0f} {NOW - age}"
        if metric == "used_bytes":
            mig = '{namespace="mig",pod="m",uid="m",gpu_uuid="MIG-1",gpu="2",node="gpus"}'
            yield f"kaishare_pod_gpu_memory_used_bytes{mig} 5 {NOW}"
    yield "# TYPE kaishare_pod_gpu_utilization_ratio gauge"
    for name, history in PODS.items():
        if history.utilization is not None:
            for age in history.ages():
                yield f"kaishare_pod_gpu_utilization_ratio{history.labels(name)} {history.utilization} {NOW - age}"
    yield "# TYPE namespace:kaishare_pod_gpu_memory_used_share:ratio gauge"
    for age in range(3 * DAY + HOUR, -1, -STEP):
        value = 0.4 if age == 2 * DAY else 0.2
        yield f'namespace:kaishare_pod_gpu_memory_used_share:ratio{{namespace="team"}} {value} {NOW - age}'
    yield from gpus()
    yield from forecasts()
    yield "# EOF"


def gpus() -> Iterator[str]:
    """Yield GPUs of the last minutes, one of them from two agents, as while one replaces the other."""

    def labels(gpu: int, instance: str) -> str:
        return f'{{gpu="{gpu}",gpu_uuid="GPU-{gpu}",model="T4",node="gpus",instance="{instance}"}}'

    series = {
        "kaishare_gpu_memory_total_bytes": [
            *((labels(gpu, "a"), 16300 * MIB) for gpu in range(4)),
            (labels(4, "a"), 8192 * MIB),
        ],
        "kaishare_gpu_memory_promised_bytes": [
            (labels(0, "a"), 4075 * MIB),  # 0.25
            # the promise of GPU 1 is unknown
            (labels(2, "a"), 0),  # has pods on MIG devices
            (labels(3, "a"), 17000 * MIB),  # more than there is
            (labels(4, "a"), 7290 * MIB),  # 0.9 of the 8100 MiB that KAI counts
        ],
    }
    for metric, values in series.items():
        yield f"# TYPE {metric} gauge"
        for text, value in [*values, (labels(0, "b"), values[0][1])]:
            yield f"{metric}{text} {value} {NOW - STEP}"
            yield f"{metric}{text} {value} {NOW}"


def forecasts() -> Iterator[str]:
    """Yield the recorded figures about full GPUs: of two agents for one GPU, and of a target that is no agent."""
    records = {
        "full:seconds": {"0": 5 * HOUR, "2": 30 * HOUR},
        "free_bytes:min": {"0": 10 * GIB, "2": 15 * GIB, "3": GIB},
        "free_bytes:deriv1d": {"0": -2 * GIB / HOUR, "2": -GIB / 2 / HOUR, "3": GIB / HOUR},
    }
    for record, values in records.items():
        yield f"# TYPE gpu:kaishare_gpu_memory_{record} gauge"
        for job, factor in (("kaishare-agent", 1), ("team/tenant", 1e-3)):
            for gpu, value in values.items():
                labels = f'job="{job}",gpu="{gpu}",gpu_uuid="GPU-{gpu}",model="T4",node="gpus"'
                yield f"gpu:kaishare_gpu_memory_{record}{{{labels}}} {value * factor} {NOW}"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run a Prometheus with the histories as its data."""
    needed("prometheus")
    folder: Path = tmp_path_factory.mktemp("history")
    text = folder / "history.om"
    text.write_text("\n".join(openmetrics()) + "\n")
    blocks = ("tsdb", "create-blocks-from", "--max-block-duration=240h")  # days instead of 97 blocks of 2 h
    promtool(*blocks, "openmetrics", text, folder / "tsdb")
    with prometheus(folder, {}) as running:
        yield running


UNUSED, NEVER_USED = "Unused for 7 days", "Promised and never used"
EVERY_PART = "Unused since the pods started, of their shares"
OF_NAMESPACES = "Highest use of each namespace's shares in 7 days"
FULL = "GPUs that run out next"
BOTH = ("fleet", "namespace")
NAMESPACES = sorted({pod.namespace for pod in PODS.values()})
PROMISED = 4075 + 0 + 17000 + 7290

FIGURES: list[tuple[str, str, dict[str, Any], dict[str, float]]] = [
    # Memory unused for 7 days is that of pods that were seen, with their use known, for 7 days.
    *((f"{board} {UNUSED}", "cluster", {}, {"": (8 + 1) * GIB, "east": 6 * GIB}) for board in BOTH),
    *((f"namespace {UNUSED}", "cluster", {"namespace": [name]}, {}) for name in ("hidden-team", "away-team")),
    (f"namespace {UNUSED}", "cluster", {"namespace": ["east-team"]}, {"east": 6 * GIB}),
    *(
        row
        for board in BOTH
        for row in (
            (f"{board} {NEVER_USED}/unused", "pod", {}, {"idle": 8 * GIB, "spike": GIB, "hidden": 9 * GIB, "young": 9 * GIB, "fresh": 10 * GIB, "east": 6 * GIB, "away": 9 * GIB}),
            (f"{board} {NEVER_USED}/highest use", "pod", {}, {"idle": 2 * GIB, "spike": 9 * GIB, "hidden": GIB, "young": GIB, "fresh": 0, "east": 4 * GIB, "away": GIB}),
            (f"{board} {NEVER_USED}/seen for at least", "pod", {}, {"idle": 7 * DAY, "spike": 7 * DAY, "hidden": 7 * DAY, "young": HOUR, "fresh": 0, "east": 7 * DAY, "away": 7 * DAY}),
            (f"{board} {NEVER_USED}/use known", "pod", {}, {"idle": 1, "spike": 1, "hidden": 1 / 7, "young": 1, "fresh": 1, "east": 1, "away": 1}),
        )
    ),
    ("fleet Longest history", "cluster", {}, {"": 7 * DAY, "east": 7 * DAY, "away": 7 * DAY}),
    (f"fleet {EVERY_PART}", "cluster", {}, {"": (8 + 1 + 9 + 9 + 10) / 50, "east": 0.6, "away": 0.9}),
    # Idle pods are old, and ran no kernel.
    ("fleet Idle pods", "cluster", {}, {"": 1}),
    (f"fleet {NEVER_USED}/highest utilisation", "pod", {}, {"idle": 0, "spike": 0.5, "young": 0, "away": 0}),
    (f"fleet {OF_NAMESPACES}/highest use of shares", "namespace", {}, {"team": 0.4}),
    (f"fleet {OF_NAMESPACES}/use now", "namespace", {}, {"team": 0.2}),
    (f"fleet {OF_NAMESPACES}/seen for at least", "namespace", {}, {"team": 3 * DAY}),
    # The free share is known only with the promise, and never below 0.
    ("fleet GPUs by free share/free share", "gpu_uuid", {}, {"GPU-0": 0.75, "GPU-3": 0, "GPU-4": 0.1}),
    ("fleet GPUs without a known free share", "cluster", {}, {"": 1}),
    ("fleet Room for ${share:text} of a GPU", "cluster", {"share": "75"}, {"": 1}),
    ("fleet Fragmentation for ${share:text}", "cluster", {"share": "100"}, {"": 1}),
    # An agent that replaces another doubles nothing.
    ("fleet GPUs", "cluster", {}, {"": 5}),
    ("fleet Memory promised", "cluster", {}, {"": PROMISED / (3 * 16300 + 8100)}),
    # The next full GPUs are those of the agents' records.
    (f"fleet {FULL}/hours left", "gpu", {}, {"0": 5, "2": 30}),
    (f"fleet {FULL}/free", "gpu", {}, {"0": 10 * GIB, "2": 15 * GIB}),
    (f"fleet {FULL}/fills by, an hour", "gpu", {}, {"0": 2 * GIB, "2": GIB / 2}),
    ("fleet First GPU full in", "cluster", {}, {"": 5 * HOUR}),
]  # fmt: skip
"""Dashboard, panel and column; label of the figures; selection; figures."""


@pytest.mark.parametrize(("place", "label", "selection", "expected"), FIGURES)
def test_a_panel_has_the_figures_of_the_history(
    history: Prometheus, place: str, label: str, selection: dict[str, Any], expected: dict[str, float]
) -> None:
    name, _, panel = place.partition(" ")
    board = BOARDS[name]
    query = board.interpolated(board.expression(*panel.split("/")), {"namespace": NAMESPACES, **selection})
    series = history.instant(query, NOW)
    figures = {item["metric"].get(label, ""): float(item["value"][1]) for item in series}
    assert figures == pytest.approx(expected, abs=0.01 if panel.endswith("use known") else None)


def test_before_a_pod_is_7_days_old_the_unused_memory_is_unknown(history: Prometheus) -> None:
    fleet = BOARDS["fleet"]
    assert history.instant(fleet.interpolated(fleet.expression(UNUSED)), NOW - 2 * DAY) == []
    assert history.instant(fleet.interpolated(fleet.expression("Longest history")), NOW - 2 * DAY)
