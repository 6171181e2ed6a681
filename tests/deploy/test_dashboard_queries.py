"""Panels on series that begin, start again, end, or are absent, and on eight days of made-up history, evaluated by promtool."""

from pathlib import Path
from typing import Any

from tests.support import grafana
from tests.support.promtool import assert_cases, case_of

BOARDS = {name: grafana.load(name) for name in grafana.NAMES}
SELECTED: dict[str, grafana.Selection] = {"node": {"node": "n"}, "namespace": {"namespace": ["team", "one", "two"]}}  # fmt: skip
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
RESTARTED = {f"up{TARGET}": "1+0x80 0 1+0x20", f"process_start_time_seconds{TARGET}": "-90000+0x80 stale 4860+0x20"}  # fmt: skip
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
        listed("kube_pod_container_status_last_terminated_reason", pod, container="main", reason="Error"): "1+0x100"
        for pod in ("serve", "steady")
    },
}  # fmt: skip
HIT, HIT_COUNT = ("Neighbours that restarted or failed in the last hour", "Neighbours that restarted, last hour")  # fmt: skip

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
FREE = {f"kaishare_gpu_memory_{name}_bytes{GPU}": f"{value}+0x100" for name, value in (("total", 100), ("used", 40))}  # fmt: skip


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


def t4(gpu: int, **others: str) -> str:
    return labels(gpu=f"{gpu}", gpu_uuid=f"GPU-{gpu}", model="T4", node="gpus", **others)


# GPU 0 has two agents, the promise of GPU 1 is unknown, GPU 2 has pods on MIG devices, GPU 3 is promised more than there is, and
# GPU 4 0.9 of the 8100 MiB that KAI counts.
CAPACITY = {
    "kaishare_pod_gpu_memory_used_bytes" + labels(namespace="mig", pod="m", gpu_uuid="MIG-1", gpu="2", node="gpus"): "5+0x100",
    **{
        f"kaishare_gpu_memory_{figure}_bytes{t4(gpu, instance=instance)}": f"{mebibytes << 20}+0x100"
        for figure, sizes in (("total", {0: 16300, 1: 16300, 2: 16300, 3: 16300, 4: 8192}), ("promised", {0: 4075, 2: 0, 3: 17000, 4: 7290}))
        for gpu, mebibytes in sizes.items()
        for instance in ("a", "b")[: 2 - min(gpu, 1)]
    },
}  # fmt: skip
FORECASTS = {
    f"gpu:kaishare_gpu_memory_{record}{t4(gpu, job=job)}": f"{value * factor}+0x100"
    for record, values in (("full:seconds", {0: 18000, 2: 108000}), ("free_bytes:min", {0: 10, 2: 15, 3: 1}), ("free_bytes:deriv1d", {0: -2, 2: -1, 3: 1}))
    for job, factor in (("kaishare-agent", 1), ("team/tenant", 1e-3))
    for gpu, value in values.items()
}  # fmt: skip

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
    # The free share is known only with the promise, and never below 0; an agent that replaces another doubles nothing.
    "free shares": ("fleet GPUs by free share/free share", CAPACITY, {t4(0): 0.75, t4(3): 0, t4(4): 0.1}),
    "no known free share": ("fleet GPUs without a known free share", CAPACITY, {"{}": 1}),
    "GPUs of two agents": ("fleet GPUs", CAPACITY, {"{}": 5}),
    "memory promised": ("fleet Memory promised", CAPACITY, {"{}": (4075 + 0 + 17000 + 7290) / (3 * 16300 + 8100)}),
    # The next full GPUs are those of the agents' records, and not of another target's.
    "hours left": ("fleet GPUs that run out next/hours left", FORECASTS, {t4(0): 5, t4(2): 30}),
    "free next": ("fleet GPUs that run out next/free", FORECASTS, {t4(0): 10, t4(2): 15}),
    "fills by": ("fleet GPUs that run out next/fills by, an hour", FORECASTS, {t4(0): 7200, t4(2): 3600}),
    "first GPU full": ("fleet First GPU full in", FORECASTS, {"{}": 5 * 3600}),
}  # fmt: skip
"""Dashboard, panel and column; series; samples by labels."""


def test_a_panel_shows_what_the_series_say(tmp_path: Path) -> None:
    cases = []
    for title, (place, series, samples) in CASES.items():
        name, _, panel = place.partition(" ")
        board = BOARDS[name]
        query = board.interpolated(board.expression(*panel.split("/")), SELECTED.get(name, {}))
        for short, hour in (("[30s]", "[1h]"), ("offset 30s", "offset 1h"), ("< 30)", "< 3600)")):
            query = query.replace(short, hour)
        expected = [{"labels": key, "value": value} for key, value in samples.items()]
        cases.append(case_of(query, series, expected, name=title))
    assert_cases(tmp_path, *cases)


# Waste and capacity of pods with a value an hour, in hour 192: eight days. GiB as ones.

DAY, HOUR = 86_400, 3600


def history() -> Series:
    """Return the pods' use, share of 10, and utilisation, by hour."""
    series = {}
    for pod, cluster, namespace, use, share_of_pod, utilization in (
        # Never above 2.
        ("idle", "", "team", "2x192", "10x192", "0x192"),
        # One sample six days ago needed most of the share.
        ("spike", "", "team", "1x47 9 1x143", "10x192", "0.5x192"),
        # Its use is known only since yesterday: what it needed before is unknown.
        ("hidden", "", "hidden-team", "_x169 1x23", "10x192", ""),
        # Two hours old.
        ("young", "", "team", "_x190 1x2", "_x190 10x2", "_x190 0x2"),
        # Just started.
        ("fresh", "", "team", "_x192 0", "_x192 10", ""),
        # Of another cluster.
        ("east", "east", "east-team", "4x192", "10x192", ""),
        # Not watched for five of the seven days.
        ("away", "away", "away-team", "1x48 _x119 1x24", "10x48 _x119 10x24", "0x48 _x119 0x24"),
        # Ended two days ago.
        ("gone", "", "team", "1x143 stale", "10x143 stale", ""),
    ):
        text = labels(
            cluster=cluster, namespace=namespace, pod=pod, uid=pod, gpu_uuid="GPU-1", gpu="0", node="n"
        )
        series[f"kaishare_pod_gpu_memory_used_bytes{text}"] = use
        series[f"kaishare_pod_gpu_memory_share_bytes{text}"] = share_of_pod
        if utilization:
            series[f"kaishare_pod_gpu_utilization_ratio{text}"] = utilization
    series['namespace:kaishare_pod_gpu_memory_used_share:ratio{namespace="team"}'] = "_x119 0.2x24 0.4 0.2x47"
    return series


UNUSED, NEVER_USED = "Unused for 7 days", "Promised and never used"
OF_NAMESPACES = "Highest use of each namespace's shares in 7 days"
EAST, AWAY, TEAM = labels(cluster="east"), labels(cluster="away"), labels(namespace="team")
OF_PODS: dict[str, dict[str, float]] = {
    "unused": {"idle": 8, "spike": 1, "hidden": 9, "young": 9, "fresh": 10, "east": 6, "away": 9},
    "highest use": {"idle": 2, "spike": 9, "hidden": 1, "young": 1, "fresh": 0, "east": 4, "away": 1},
    "seen for at least": {"idle": 7 * DAY, "spike": 7 * DAY, "hidden": 7 * DAY, "young": HOUR, "fresh": 0, "east": 7 * DAY, "away": 7 * DAY},
    "use known": {"idle": 1, "spike": 1, "hidden": 0.14, "young": 1, "fresh": 1, "east": 1, "away": 1},
    "highest utilisation": {"idle": 0, "spike": 0.5, "young": 0, "away": 0},
}  # fmt: skip
OVER_DAYS: list[tuple[str, str, dict[str, float]]] = [
    # Memory unused for 7 days is that of pods that were seen, with their use known, for 7 days.
    *((f"{board} {UNUSED}", "192h", {"{}": 8 + 1, EAST: 6}) for board in ("fleet", "namespace")),
    (f"fleet {UNUSED}", "144h", {}),
    *((f"{board} {NEVER_USED}/{column}", "192h", values) for board in ("fleet", "namespace") for column, values in OF_PODS.items() if board == "fleet" or column != "highest utilisation"),
    ("fleet Longest history", "192h", {"{}": 7 * DAY, EAST: 7 * DAY, AWAY: 7 * DAY}),
    # Idle pods are old, and ran no kernel.
    ("fleet Idle pods", "192h", {"{}": 1}),
    (f"fleet {OF_NAMESPACES}/highest use of shares", "192h", {TEAM: 0.4}),
    (f"fleet {OF_NAMESPACES}/use now", "192h", {TEAM: 0.2}),
    (f"fleet {OF_NAMESPACES}/seen for at least", "192h", {TEAM: 3 * DAY}),
]  # fmt: skip


def test_a_panel_shows_what_eight_days_say(tmp_path: Path) -> None:
    whole = case_of("", history(), [], interval="1h")
    whole["promql_expr_test"] = []
    for place, at, figures in OVER_DAYS:
        name, _, panel = place.partition(" ")
        query = BOARDS[name].interpolated(
            BOARDS[name].expression(*panel.split("/")),
            {"namespace": ["team", "hidden-team", "east-team", "away-team"]},
        )
        if place.endswith("use known"):
            query = f"round({query}, 0.01)"
        of_pods = {
            pod: labels(cluster=pod if pod in ("east", "away") else "", namespace=f"{pod}-team" if pod in ("east", "away", "hidden") else "team", pod=pod, uid=pod, gpu_uuid="GPU-1", gpu="0", node="n")
            for pod in figures
        }  # fmt: skip
        samples = [
            {"labels": of_pods[key] if key.isalpha() else key, "value": value}
            for key, value in figures.items()
        ]
        whole["promql_expr_test"] += [{"expr": query, "eval_time": at, "exp_samples": samples}]
    assert_cases(tmp_path, whole)
