"""Panels on series that begin, start again, end, or are absent, by promtool; waste and capacity on eight days of made-up history."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import grafana
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.promtool import assert_samples, needed, promtool

BOARDS = {name: grafana.load(name) for name in grafana.NAMES}
SELECTED: dict[str, grafana.Selection] = {
    "node": {"node": "n"},
    "namespace": {"namespace": ["team", "one", "two"]},
}
Series = dict[str, str]


def labels(**pairs: str) -> str:
    return "{" + ", ".join(f'{key}="{value}"' for key, value in pairs.items() if value) + "}"


def on_gpu(pod: str, gpu: str = "GPU-1", **others: str) -> str:
    return labels(namespace="team", pod=pod, uid=pod, gpu_uuid=gpu, node="n", **others)


def used(pod: str, gpu: str = "GPU-1") -> str:
    return f"kaishare_pod_gpu_memory_used_bytes{on_gpu(pod, gpu)}"


def share(pod: str, gpu: str = "GPU-1", **others: str) -> str:
    return f"kaishare_pod_gpu_memory_share_bytes{on_gpu(pod, gpu, **others)}"


def listed(metric: str, pod: str, *, instance: str = "ksm", **others: str) -> str:
    """Return a series as a Prometheus has it that scrapes kube-state-metrics without honor_labels."""
    own = {"namespace": "monitoring", "pod": "ksm-0", "exported_pod": pod, "uid": pod, "instance": instance}
    return metric + labels(**own, **others)


def restarts(pod: str, **others: str) -> str:
    return listed("kube_pod_container_status_restarts_total", pod, container="main", **others)


# The webhook's API server, with an hour of samples; `windowed` makes the queries read an hour.
TARGET = '{job="api", instance="i"}'
API_SERVER = {f"up{TARGET}": "1+0x100", f"process_start_time_seconds{TARGET}": "-90000+0x100"}
RESTARTED = {
    f"up{TARGET}": "1+0x80 0 1+0x20",
    f"process_start_time_seconds{TARGET}": "-90000+0x80 stale 4860+0x20",
}
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count" + labels(
    name="pods.mutate.kaishare.dev", job="api", instance="i"
)
ANSWERED = {
    **API_SERVER,
    "kaishare_webhook_requests_total" + labels(action="injected", job="api", instance="i"): "0+4.5x100",
    f"kaishare_webhook_shed_total{TARGET}": "0+0x100",
}
UNKNOWN_POLICY = "kaishare_webhook_errors_total" + labels(stage="policies", job="api", instance="i")
FAILED_OPEN, WITHOUT_FAILURE = "Admitted without the webhook, last hour", "Answered without a failure"

# The use of pod b is unknown, and pod c has no share.
KNOWN_IN_PART = {used("a"): "5+0x100", share("a"): "10+0x100", share("b"): "20+0x100", used("c"): "7+0x100"}

# The node gb10 has a GPU with unified memory, which has no total; the node n has two ordinary ones.
UNIFIED: Series = {
    f"kaishare_gpu_memory_{figure}_bytes" + labels(node=node, gpu=gpu, gpu_uuid=f"{node}-{gpu}"): "1+0x100"
    for node, gpu in (("n", "0"), ("n", "1"), ("gb10", "0"))
    for figure in ("promised", "host", "total")
    if figure != "total" or node == "n"
} | {
    "kube_node_status_allocatable" + labels(resource="nvidia_com_gpu", node=node): "1+0x100"
    for node in ("n", "gb10")
}

# Pod a is over its share for the whole hour; another agent counts from minute 51 on. Pod b has ended.
OVER = "kaishare_pod_over_share_seconds_total"
SUCCESSOR = {
    OVER + on_gpu("a", instance="old"): "0+60x50 stale",
    OVER + on_gpu("a", instance="new"): "_x51 0+60x49",
    OVER + on_gpu("b", instance="old"): "0+60x50 stale",
    share("a"): "10+0x100",
    used("a"): "20+0x100",
}
OVER_TIME = {on_gpu("a"): 630 + 2940}  # increase() extrapolates by half a minute

# Workloads of one name in two namespaces, which are two rows.
WORKLOADS = {
    metric + labels(namespace=namespace, pod="api-1", uid=namespace, **others): value
    for namespace, size in (("one", 10), ("two", 20))
    for metric, others, value in (
        ("kaishare_pod_info", {"workload_kind": "Deployment", "workload": "api"}, "1+0x100"),
        ("kaishare_pod_gpu_memory_share_bytes", {"gpu_uuid": "GPU-1"}, f"{size}+0x100"),
    )
}

GONE = {
    "kaishare_gpu_memory_total_bytes"
    + labels(node="gone", gpu=f"{gpu}", gpu_uuid=f"GPU-{gpu}"): "80+0x50 stale"
    for gpu in range(8)
}
OFFERS = {
    "kube_node_status_allocatable" + labels(resource=f"nvidia_com_{resource}", node=node, instance=instance): f"{count}+0x100"
    for resource, node, count, instance in (
        ("gpu", "whole", 2, ""), ("gpu", "whole", 2, "second"), ("gpu_shared", "sliced", 16, ""), ("mig_1g_10gb", "mig", 7, ""),
        ("gpu", "mig", 0, ""), ("rdma", "cpu", 1, ""),
    )
}  # fmt: skip

# On GPU-1 the pod train was over its share from minute 60 to 70. GPU-2 was never in trouble. The offender, a pod of another GPU,
# and a pod whose count an hour ago is unknown are no neighbours that restarted.
GPU = labels(gpu_uuid="GPU-1", gpu="0", node="n", model="A10")
BESIDE = {
    f"kaishare_pod_flagged{on_gpu('train', reason='over-share')}": "0+0x59 1+0x10 0+0x40",
    f"kaishare_gpu_at_risk_bytes{GPU}": "0+0x59 9+0x10 0+0x40",
    "kaishare_gpu_at_risk_bytes" + labels(gpu_uuid="GPU-2", gpu="1", node="n", model="A10"): "0+0x100",
    f"kaishare_gpu_memory_total_bytes{GPU}": "99+0x100",
    **{share(pod): "10+0x100" for pod in ("train", "serve", "steady", "young", "late")},
    share("batch"): "10+0x80 stale",
    share("elsewhere", "GPU-2"): "10+0x100",
}
LISTED = {
    restarts("train"): "0+0x80 5+0x20",
    restarts("serve"): "3+0x80 5+0x20",
    restarts("serve", instance="second"): "3+0x80 5+0x20",
    restarts("steady"): "7+0x100",
    restarts("young"): "_x50 0+0x20 1+0x30",
    listed("kube_pod_created", "young"): "_x50 3000+0x50",
    restarts("late"): "_x80 4+0x20",
    listed("kube_pod_created", "late"): "_x80 60+0x20",
    restarts("elsewhere"): "0+0x80 2+0x20",
    restarts("batch"): "0+0x100",
    listed("kube_pod_status_phase", "batch", phase="Failed"): "0+0x80 1+0x20",
    listed("kube_pod_status_phase", "serve", phase="Failed"): "0+0x100",
    **{
        listed(
            "kube_pod_container_status_last_terminated_reason", pod, container="main", reason="Error"
        ): "1+0x100"
        for pod in ("serve", "steady")
    },
}
HIT, HIT_COUNT = (
    "Neighbours that restarted or failed in the last hour",
    "Neighbours that restarted, last hour",
)

# Nothing is at risk on GPU-2, whose pods differ from their shares, too. The use of the pod dark is unknown.
AT_RISK = {
    "kaishare_gpu_at_risk_bytes" + labels(gpu_uuid="GPU-1", node="n"): "3+0x100",
    "kaishare_gpu_at_risk_bytes" + labels(gpu_uuid="GPU-2", node="n"): "0+0x100",
    used("stray"): "3+0x100",
    share("dark"): "9+0x100",
    **{used(pod, gpu): f"{size}+0x100" for gpu, pods in (("GPU-1", ("train", "serve")), ("GPU-2", ("loud", "calm"))) for pod, size in zip(pods, (14, 5), strict=True)},
    **{share(pod, gpu): "10+0x100" for gpu, pods in (("GPU-1", ("train", "serve")), ("GPU-2", ("loud", "calm"))) for pod in pods},
}  # fmt: skip
TWO_AGENTS = {f'kaishare_gpu_at_risk_bytes{GPU[:-1]}, instance="{agent}"}}': "3+0x100" for agent in "ab"}
NO_RISK = {f"kaishare_gpu_memory_total_bytes{GPU}": "99+0x100"}
FREE = {
    f"kaishare_gpu_memory_{name}_bytes{GPU}": f"{value}+0x100"
    for name, value in (("total", 100), ("used", 40))
}


def waiting() -> Series:
    """Return pods at their times in seconds; it is 6000. The last three do not wait for KAI: the first of them pulls images."""
    series = {}
    for pod, queue, created, scheduled in (
        ("a", "vision", 3000, 0), ("b", "vision", 5400, 0), ("c", "", 5940, 0),
        ("placed", "vision", 5000, 5300), ("placed-early", "vision", 60, 120), ("other", "vision", 60, 0),
    ):  # fmt: skip
        own = {"namespace": "team", "uid": pod, "pod": pod}
        scheduler = "default-scheduler" if pod == "other" else "kai-scheduler"
        phase = "Running" if pod == "placed-early" else "Pending"
        series["kube_pod_scheduler" + labels(**own, name=scheduler)] = "1+0x100"
        series["kube_pod_created" + labels(**own)] = f"{created}+0x100"
        series["kube_pod_status_phase" + labels(**own, phase=phase)] = "1+0x100"
        if queue:
            series["kube_pod_labels" + labels(**own, label_kai_scheduler_queue=queue)] = "1+0x100"
        if scheduled:
            series["kube_pod_status_scheduled_time" + labels(**own)] = f"{scheduled}+0x100"
    return series


WAITS, WAITING = "Pods waiting for KAI, by namespace and queue", "Pods waiting for KAI"
VISION, NO_QUEUE = labels(namespace="team", queue="vision"), labels(namespace="team")

# Shares count in hundredths as KAI charges them, a whole GPU saves nothing, and MIG devices do not count.
TOTAL, COUNTED = 23028 << 20, 23000 << 20
SAVED = {
    f"kaishare_gpu_memory_total_bytes{GPU}": f"{TOTAL}+0x100",
    share("quarter", source="bind-request"): f"{COUNTED // 4}+0x100",
    share("half", source="bind-request"): f"{COUNTED // 2}+0x100",
    share("whole", source="whole-gpu"): f"{TOTAL}+0x100",
    share("mig", "MIG-1", source="whole-gpu"): "1+0x100",
}
BY_NAMESPACE = "Shares and whole GPUs, by namespace"

CASES: dict[str, tuple[str, Series, dict[str, Any]]] = {
    # Requests that passed without the webhook in the last hour: `increase()` alone would miss the first ones.
    "40 requests between two scrapes": (f"webhook {FAILED_OPEN}", {**API_SERVER, FAIL_OPEN: "_x80 40+0x20"}, {"{}": 40}),
    "as many as before a restart": (f"webhook {FAILED_OPEN}", {**RESTARTED, FAIL_OPEN: "3+0x80 stale 3+0x20"}, {"{}": 3}),
    "long ago": (f"webhook {FAILED_OPEN}", {**API_SERVER, FAIL_OPEN: "3+0x100"}, {"{}": 0}),
    "before Prometheus started": (f"webhook {FAILED_OPEN}", {f"up{TARGET}": "_x90 1+0x10", FAIL_OPEN: "_x90 3+0x10"}, {}),
    "never": (f"webhook {FAILED_OPEN}", API_SERVER, {}),
    "the first failures of a stage": (f"webhook {WITHOUT_FAILURE}", {**ANSWERED, UNKNOWN_POLICY: "_x80 30+0x20"}, {"{}": 0.9}),
    "failures of long ago": (f"webhook {WITHOUT_FAILURE}", {**ANSWERED, UNKNOWN_POLICY: "30+0x100"}, {"{}": 1}),
    "no failure": (f"webhook {WITHOUT_FAILURE}", ANSWERED, {"{}": 1}),
    **{
        f"{place}: {column} of pods of which a figure is unknown": (f"{place}/{column}", KNOWN_IN_PART, {on_gpu(pod): value for pod, value in values.items()})
        for place in ("fleet Pods by used memory of their share", "namespace Pods and their shares")
        for column, values in (("use of share", {"a": 0.5}), ("used", {"a": 5, "c": 7}), ("share", {"a": 10, "b": 20}))
    },
    "nodes with a GPU of unified memory": ("fleet Nodes with GPUs", UNIFIED, {"{}": 2}),
    "GPUs with unified memory": ("fleet GPUs", UNIFIED, {"{}": 3}),
    "no free share of unified memory": ("fleet GPUs without a known free share", UNIFIED, {"{}": 1}),
    "unified memory has an agent": ("fleet Nodes with GPUs and without an agent", UNIFIED, {}),
    "unified memory is watched": ("fleet Nodes that no agent watches any more", UNIFIED, {}),
    "GPUs of a node": ("node GPUs", UNIFIED, {"{}": 2}),
    "time over the share, fleet": ("fleet Time over the share in the selected time/time over share", SUCCESSOR, {**OVER_TIME, on_gpu("b"): 630}),
    "time over the share, node": ("node Pods/time over share", SUCCESSOR, OVER_TIME),
    "time over the share, namespace": ("namespace Pods and their shares/time over share", SUCCESSOR, OVER_TIME),
    "workloads of one name": ("namespace Workloads/share", WORKLOADS, {
        labels(namespace=name, workload_kind="Deployment", workload="api"): size for name, size in (("one", 10), ("two", 20))
    }),
    "GPUs of a node that is gone": ("fleet Nodes that no agent watches any more", GONE, {labels(node="gone"): 8}),
    "devices of any kind": ("fleet Nodes with GPUs and without an agent", OFFERS, {
        labels(node=node): count for node, count in (("mig", 7), ("sliced", 16), ("whole", 2))
    }),
    # A neighbour is listed if it restarted or failed since its GPU was in trouble.
    **{
        f"neighbours, {board}: {column}": (f"{board} {HIT}/{column}", {**BESIDE, **LISTED}, {on_gpu(pod): value for pod, value in values.items()})
        for board in ("fleet", "node")
        for column, values in (
            ("restarts", {"serve": 2, "young": 1, "batch": 0}), ("ended with Error", {"serve": 1}), ("ended with OOMKilled", {}), ("failed", {"batch": 1}),
        )
    },
    "neighbours": (f"fleet {HIT_COUNT}", {**BESIDE, **LISTED}, {"{}": 3}),
    "no neighbour restarted": (f"fleet {HIT_COUNT}", {**BESIDE, restarts("steady"): "7+0x100"}, {"{}": 0}),
    "kube-state-metrics is not scraped": (f"fleet {HIT_COUNT}", BESIDE, {}),
    "neighbours without an agent": (f"fleet {HIT_COUNT}", LISTED, {}),
    # Pods of a GPU at risk hold too much, or lack what they were promised.
    **{
        f"at risk, {board}: {column}": (f"{board} Pods on GPUs at risk/{column}", AT_RISK, {on_gpu(pod): value for pod, value in values.items()})
        for board in ("fleet", "node")
        for column, values in (
            ("above share", {"train": 4, "stray": 3}), ("promised and not used", {"serve": 5}), ("used", {"train": 14, "serve": 5, "stray": 3}),
        )
    },
    "an agent that replaces another doubles no GPU": ("fleet GPUs at risk now", TWO_AGENTS, {"{}": 1}),
    "an agent that replaces another doubles no risk": ("fleet Memory at risk", TWO_AGENTS, {"{}": 3}),
    "GPUs at risk are unknown": ("fleet GPUs at risk now", NO_RISK, {}),
    "memory at risk is unknown": ("fleet Memory at risk", NO_RISK, {}),
    "free memory": ("fleet GPUs with the least free memory/free", FREE, {GPU: 60}),
    "free memory without what the driver reserves": (
        "fleet GPUs with the least free memory/free", {**FREE, f"kaishare_gpu_memory_reserved_bytes{GPU}": "7+0x100"}, {GPU: 53}
    ),
    # Pods wait by queue where their labels are listed.
    **{
        f"waits: {column}": (f"fleet {WAITS}/{column}", waiting(), values)
        for column, values in (
            ("waiting", {VISION: 2, NO_QUEUE: 1}), ("longest wait", {VISION: 3000, NO_QUEUE: 60}), ("placed in the last hour", {VISION: 1}),
            ("their mean wait", {VISION: 300}), ("their longest wait", {VISION: 300}),
        )
    },
    "three wait": (f"fleet {WAITING}", waiting(), {"{}": 3}),
    "none waits": (f"fleet {WAITING}", {'kube_pod_scheduler{uid="x", name="kai-scheduler"}': "1+0x100"}, {"{}": 0}),
    "an old kube-state-metrics": (f"fleet {WAITING}", {'kube_pod_info{uid="x"}': "1+0x100"}, {}),
    "sharing saves": ("fleet GPUs saved by sharing", SAVED, {"{}": 1.25}),
    **{
        f"sharing by namespace: {column}": (f"fleet {BY_NAMESPACE}/{column}", SAVED, {labels(namespace="team"): value})
        for column, value in (("pods with a share", 2), ("pods with whole GPUs", 2), ("saved", 1.25))
    },
}  # fmt: skip
"""Dashboard, panel and column; series; samples by labels."""


@pytest.mark.parametrize("title", CASES)
def test_a_panel_shows_what_the_series_say(title: str, tmp_path: Path) -> None:
    place, series, samples = CASES[title]
    name, _, panel = place.partition(" ")
    board = BOARDS[name]
    query = board.interpolated(board.expression(*panel.split("/")), SELECTED.get(name, {}))
    for short, hour in (("[30s]", "[1h]"), ("offset 30s", "offset 1h"), ("< 30)", "< 3600)")):
        query = query.replace(short, hour)
    assert_samples(
        tmp_path, query, series, [{"labels": key, "value": value} for key, value in samples.items()]
    )


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
