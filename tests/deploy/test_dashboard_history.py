"""The panels about waste and capacity on a real Prometheus with eight days of made-up history."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import grafana
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.promtool import needed, promtool

FLEET, NAMESPACE = grafana.load("fleet"), grafana.load("namespace")
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


def by_pod(
    running: Prometheus,
    title: str,
    column: str = "",
    *,
    label: str = "pod",
    board: grafana.Dashboard = FLEET,
    **selection: str | list[str],
) -> dict[str, float]:
    namespaces = sorted({pod.namespace for pod in PODS.values()})
    query = board.interpolated(board.expression(title, column), {"namespace": namespaces, **selection})
    return {item["metric"].get(label, ""): float(item["value"][1]) for item in running.instant(query, NOW)}


@pytest.mark.parametrize("board", [FLEET, NAMESPACE], ids=["fleet", "namespace"])
def test_memory_unused_for_7_days_is_of_pods_that_were_seen_for_7_days(
    history: Prometheus, board: grafana.Dashboard
) -> None:
    unused = by_pod(history, "Unused for 7 days", label="cluster", board=board)
    assert unused == {"": (8 + 1) * GIB, "east": 6 * GIB}


@pytest.mark.parametrize("board", [FLEET, NAMESPACE], ids=["fleet", "namespace"])
def test_each_pod_has_its_unused_part_and_how_much_was_seen(
    history: Prometheus, board: grafana.Dashboard
) -> None:
    title = "Promised and never used"
    assert by_pod(history, title, "unused", board=board) == {
        "idle": 8 * GIB,
        "spike": GIB,
        "hidden": 9 * GIB,
        "young": 9 * GIB,
        "fresh": 10 * GIB,
        "east": 6 * GIB,
        "away": 9 * GIB,
    }
    assert by_pod(history, title, "highest use", board=board) == {
        "idle": 2 * GIB,
        "spike": 9 * GIB,
        "hidden": GIB,
        "young": GIB,
        "fresh": 0,
        "east": 4 * GIB,
        "away": GIB,
    }
    assert by_pod(history, title, "seen for at least", board=board) == {
        "idle": 7 * DAY,
        "spike": 7 * DAY,
        "hidden": 7 * DAY,
        "young": HOUR,
        "fresh": 0,
        "east": 7 * DAY,
        "away": 7 * DAY,
    }
    known = by_pod(history, title, "use known", board=board)
    assert known.pop("hidden") == pytest.approx(1 / 7, abs=0.01)
    assert set(known.values()) == {1}


def test_a_pod_whose_use_was_unknown_for_most_of_the_time_is_not_called_unused(history: Prometheus) -> None:
    def unused(namespace: str) -> dict[str, float]:
        return by_pod(history, "Unused for 7 days", label="cluster", board=NAMESPACE, namespace=[namespace])

    assert unused("hidden-team") == {}
    assert unused("away-team") == {}
    assert unused("east-team") == {"east": 6 * GIB}


def test_the_longest_history_and_the_unused_part(history: Prometheus) -> None:
    assert by_pod(history, "Longest history", label="cluster") == {
        "": 7 * DAY,
        "east": 7 * DAY,
        "away": 7 * DAY,
    }
    part = by_pod(history, "Unused since the pods started, of their shares", label="cluster")
    assert part == pytest.approx({"": (8 + 1 + 9 + 9 + 10) / 50, "east": 0.6, "away": 0.9})


def test_idle_pods_are_old_and_ran_no_kernel(history: Prometheus) -> None:
    assert by_pod(history, "Idle pods", label="cluster") == {"": 1}
    utilization = by_pod(history, "Promised and never used", "highest utilisation")
    assert utilization == {"idle": 0, "spike": 0.5, "young": 0, "away": 0}


def test_namespaces_use_the_recorded_ratio(history: Prometheus) -> None:
    title = "Highest use of each namespace's shares in 7 days"
    assert by_pod(history, title, "highest use of shares", label="namespace") == {"team": 0.4}
    assert by_pod(history, title, "use now", label="namespace") == {"team": 0.2}
    assert by_pod(history, title, "seen for at least", label="namespace") == {"team": 3 * DAY}


def test_before_a_pod_is_7_days_old_the_unused_memory_is_unknown(history: Prometheus) -> None:
    query = FLEET.interpolated(FLEET.expression("Unused for 7 days"))
    assert history.instant(query, NOW - 2 * DAY) == []
    assert history.instant(FLEET.interpolated(FLEET.expression("Longest history")), NOW - 2 * DAY)


def test_free_share_is_known_only_with_the_promise_and_never_below_0(history: Prometheus) -> None:
    free = by_pod(history, "GPUs by free share", "free share", label="gpu_uuid")
    assert free == {"GPU-0": 0.75, "GPU-3": 0, "GPU-4": 0.1}
    assert by_pod(history, "GPUs without a known free share", label="cluster") == {"": 1}
    assert by_pod(history, "Room for ${share:text} of a GPU", label="cluster", share="75") == {"": 1}
    assert by_pod(history, "Fragmentation for ${share:text}", label="cluster", share="100") == {"": 1}


def test_an_agent_that_replaces_another_doubles_nothing(history: Prometheus) -> None:
    assert by_pod(history, "GPUs", label="cluster") == {"": 5}
    promised = 4075 + 0 + 17000 + 7290
    assert by_pod(history, "Memory promised", label="cluster") == pytest.approx(
        {"": promised / (3 * 16300 + 8100)}
    )


def test_the_next_full_gpus_are_those_of_the_agents_records(history: Prometheus) -> None:
    title = "GPUs that run out next"
    assert by_pod(history, title, "hours left", label="gpu") == {"0": 5, "2": 30}
    assert by_pod(history, title, "free", label="gpu") == {"0": 10 * GIB, "2": 15 * GIB}
    slopes = by_pod(history, title, "fills by, an hour", label="gpu")
    assert slopes == pytest.approx({"0": 2 * GIB, "2": GIB / 2})
    assert by_pod(history, "First GPU full in", label="cluster") == {"": 5 * HOUR}
