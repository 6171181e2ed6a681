"""Panels about memory at risk, restarted neighbours, waiting pods and saved GPUs, evaluated by promtool."""

from pathlib import Path

import pytest

from tests.support import grafana
from tests.support.promtool import assert_samples

FLEET, _, NODE, _ = (grafana.load(name) for name in grafana.NAMES)
RESTARTED = "Neighbours that restarted or failed in the last hour"
AT_RISK = "Pods on GPUs at risk"


def on_gpu(pod: str, gpu: str = "GPU-1", **others: str) -> str:
    labels = {"namespace": "team", "pod": pod, "uid": pod, "gpu_uuid": gpu, "node": "n", **others}
    return "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def listed(metric: str, pod: str, *, instance: str = "ksm", **others: str) -> str:
    """Return a series as a Prometheus has it that scrapes kube-state-metrics without honor_labels."""
    labels = {
        "namespace": "monitoring",
        "pod": "ksm-0",
        "exported_pod": pod,
        "uid": pod,
        "instance": instance,
        **others,
    }
    return metric + "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def restarts(pod: str, **others: str) -> str:
    return listed("kube_pod_container_status_restarts_total", pod, container="main", **others)


def expression(board: grafana.Dashboard, title: str, column: str = "") -> str:
    return board.interpolated(board.expression(title, column), {"node": "n"} if board is NODE else {})


# On GPU-1 the pod train was over its share from minute 60 to 70. GPU-2 was never in trouble.
BESIDE = {
    f"kaishare_pod_flagged{on_gpu('train', reason='over-share')}": "0+0x59 1+0x10 0+0x40",
    'kaishare_gpu_at_risk_bytes{gpu_uuid="GPU-1", gpu="0", node="n", model="A10"}': "0+0x59 9+0x10 0+0x40",
    "kaishare_gpu_at_risk_bytes" + '{gpu_uuid="GPU-2", gpu="1", node="n", model="A10"}': "0+0x100",
    "kaishare_gpu_memory_total_bytes" + '{gpu_uuid="GPU-1", gpu="0", node="n", model="A10"}': "99+0x100",
    **{
        f"kaishare_pod_gpu_memory_share_bytes{on_gpu(pod)}": "10+0x100"
        for pod in ("train", "serve", "steady", "young", "late")
    },
    f"kaishare_pod_gpu_memory_share_bytes{on_gpu('batch')}": "10+0x80 stale",
    f"kaishare_pod_gpu_memory_share_bytes{on_gpu('elsewhere', 'GPU-2')}": "10+0x100",
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
    listed(
        "kube_pod_container_status_last_terminated_reason", "serve", container="main", reason="Error"
    ): "1+0x100",
    listed(
        "kube_pod_container_status_last_terminated_reason", "steady", container="main", reason="Error"
    ): "1+0x100",
}


@pytest.mark.parametrize("board", [FLEET, NODE], ids=["fleet", "node"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("restarts", {"serve": 2, "young": 1, "batch": 0}),
        ("ended with Error", {"serve": 1}),
        ("ended with OOMKilled", {}),
        ("failed", {"batch": 1}),
    ],
    ids=["restarts", "error", "oom", "failed"],
)
def test_a_neighbour_is_listed_if_it_restarted_or_failed_since_its_gpu_was_in_trouble(
    board: grafana.Dashboard, column: str, values: dict[str, int], tmp_path: Path
) -> None:
    """The offender, a pod of another GPU, and a pod whose count an hour ago is unknown are left out."""
    samples = [{"labels": on_gpu(pod), "value": values[pod]} for pod in values]
    assert_samples(tmp_path, expression(board, RESTARTED, column), {**BESIDE, **LISTED}, samples)


@pytest.mark.parametrize(
    ("series", "value"),
    [
        pytest.param({**BESIDE, **LISTED}, 3, id="restarts"),
        pytest.param({**BESIDE, restarts("steady"): "7+0x100"}, 0, id="none restarted"),
        pytest.param(BESIDE, None, id="kube-state-metrics is not scraped"),
        pytest.param(LISTED, None, id="no agent"),
    ],
)
def test_the_number_of_restarted_neighbours_is_unknown_without_kube_state_metrics(
    series: dict[str, str], value: int | None, tmp_path: Path
) -> None:
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    assert_samples(tmp_path, expression(FLEET, "Neighbours that restarted, last hour"), series, samples)


@pytest.mark.parametrize("board", [FLEET, NODE], ids=["fleet", "node"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("above share", {"train": 4, "stray": 3}),
        ("promised and not used", {"serve": 5}),
        ("used", {"train": 14, "serve": 5, "stray": 3}),
    ],
    ids=["above", "left", "used"],
)
def test_pods_of_a_gpu_at_risk_hold_too_much_or_lack_what_they_were_promised(
    board: grafana.Dashboard, column: str, values: dict[str, int], tmp_path: Path
) -> None:
    """The pods of GPU-2 differ from their shares, too, and nothing is at risk there. The use of the pod dark is unknown."""
    series = {
        "kaishare_gpu_at_risk_bytes" + '{gpu_uuid="GPU-1", node="n"}': "3+0x100",
        "kaishare_gpu_at_risk_bytes" + '{gpu_uuid="GPU-2", node="n"}': "0+0x100",
        f"kaishare_pod_gpu_memory_used_bytes{on_gpu('stray')}": "3+0x100",
        f"kaishare_pod_gpu_memory_share_bytes{on_gpu('dark')}": "9+0x100",
    }
    for gpu, pods in {"GPU-1": ("train", "serve"), "GPU-2": ("loud", "calm")}.items():
        for pod, used in zip(pods, (14, 5), strict=True):
            series[f"kaishare_pod_gpu_memory_used_bytes{on_gpu(pod, gpu)}"] = f"{used}+0x100"
            series[f"kaishare_pod_gpu_memory_share_bytes{on_gpu(pod, gpu)}"] = "10+0x100"
    samples = [{"labels": on_gpu(pod), "value": values[pod]} for pod in values]
    assert_samples(tmp_path, expression(board, AT_RISK, column), series, samples)


GPU = '{gpu_uuid="GPU-1", gpu="0", node="n", model="A10"}'


@pytest.mark.parametrize(
    ("title", "samples"),
    [
        ("GPUs at risk now", [{"labels": "{}", "value": 1}]),
        ("Memory at risk", [{"labels": "{}", "value": 3}]),
    ],
)
def test_an_agent_that_replaces_another_doubles_no_risk(
    title: str, samples: list[dict[str, object]], tmp_path: Path
) -> None:
    series = {f'kaishare_gpu_at_risk_bytes{GPU[:-1]}, instance="{agent}"}}': "3+0x100" for agent in "ab"}
    assert_samples(tmp_path, expression(FLEET, title), series, samples)


@pytest.mark.parametrize("title", ["GPUs at risk now", "Memory at risk"])
def test_without_the_figure_the_risk_is_unknown(title: str, tmp_path: Path) -> None:
    series = {f"kaishare_gpu_memory_total_bytes{GPU}": "99+0x100"}
    assert_samples(tmp_path, expression(FLEET, title), series, [])


@pytest.mark.parametrize(("reserved", "free"), [({}, 60), ({"reserved": 7}, 53)], ids=["unknown", "known"])
def test_free_memory_is_less_what_the_driver_reserves(
    reserved: dict[str, int], free: int, tmp_path: Path
) -> None:
    figures = {"total": 100, "used": 40, **reserved}
    series = {f"kaishare_gpu_memory_{name}_bytes{GPU}": f"{value}+0x100" for name, value in figures.items()}
    query = expression(FLEET, "GPUs with the least free memory", "free")
    assert_samples(tmp_path, query, series, [{"labels": GPU, "value": free}])


# In seconds: it is minute 100. The last three pods are not waiting for KAI; the node of the first of them pulls images.
WAITS = {
    ("a", "vision"): {"created": 3000},
    ("b", "vision"): {"created": 5400},
    ("c", ""): {"created": 5940},
    ("placed", "vision"): {"created": 5000, "scheduled_time": 5300},
    ("placed-early", "vision"): {"created": 60, "scheduled_time": 120},
    ("other", "vision"): {"created": 60},
}


def waiting() -> dict[str, str]:
    series = {}
    for (pod, queue), times in WAITS.items():
        name = "default-scheduler" if pod == "other" else "kai-scheduler"
        labels = {"namespace": "team", "uid": pod, "pod": pod}
        text = ", ".join(f'{key}="{value}"' for key, value in labels.items())
        series[f'kube_pod_scheduler{{{text}, name="{name}"}}'] = "1+0x100"
        series[f"kube_pod_created{{{text}}}"] = f"{times['created']}+0x100"
        phase = "Running" if pod == "placed-early" else "Pending"
        series[f'kube_pod_status_phase{{{text}, phase="{phase}"}}'] = "1+0x100"
        if queue:
            series[f'kube_pod_labels{{{text}, label_kai_scheduler_queue="{queue}"}}'] = "1+0x100"
        if "scheduled_time" in times:
            series[f"kube_pod_status_scheduled_time{{{text}}}"] = f"{times['scheduled_time']}+0x100"
    return series


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("waiting", {"vision": 2, "": 1}),
        ("longest wait", {"vision": 3000, "": 60}),
        ("placed in the last hour", {"vision": 1}),
        ("their mean wait", {"vision": 300}),
        ("their longest wait", {"vision": 300}),
    ],
)
def test_pods_wait_by_queue_where_their_labels_are_listed(
    column: str, values: dict[str, int], tmp_path: Path
) -> None:
    samples = [
        {
            "labels": f'{{namespace="team"{f", queue={chr(34)}{queue}{chr(34)}" if queue else ""}}}',
            "value": value,
        }
        for queue, value in values.items()
    ]
    query = expression(FLEET, "Pods waiting for KAI, by namespace and queue", column)
    assert_samples(tmp_path, query, waiting(), samples)


@pytest.mark.parametrize(
    ("series", "value"),
    [
        pytest.param(waiting(), 3, id="three wait"),
        pytest.param({'kube_pod_scheduler{uid="x", name="kai-scheduler"}': "1+0x100"}, 0, id="none"),
        pytest.param({'kube_pod_info{uid="x"}': "1+0x100"}, None, id="an old kube-state-metrics"),
    ],
)
def test_the_number_of_waiting_pods_is_unknown_without_their_schedulers(
    series: dict[str, str], value: int | None, tmp_path: Path
) -> None:
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    assert_samples(tmp_path, expression(FLEET, "Pods waiting for KAI"), series, samples)


def test_sharing_saves_what_whole_gpus_would_take_in_addition(tmp_path: Path) -> None:
    """Shares count in hundredths as KAI charges them, a whole GPU saves nothing, and MIG devices do not count."""
    total = 23028 << 20
    shares = {"quarter": (23000 << 20) // 4, "half": (23000 << 20) // 2, "whole": total}
    series = {f"kaishare_gpu_memory_total_bytes{GPU}": f"{total}+0x100"}
    for pod, share in shares.items():
        source = "whole-gpu" if pod == "whole" else "bind-request"
        series[f"kaishare_pod_gpu_memory_share_bytes{on_gpu(pod, source=source)}"] = f"{share}+0x100"
    series[f"kaishare_pod_gpu_memory_share_bytes{on_gpu('mig', 'MIG-1', source='whole-gpu')}"] = "1+0x100"
    assert_samples(
        tmp_path, expression(FLEET, "GPUs saved by sharing"), series, [{"labels": "{}", "value": 1.25}]
    )
    title = "Shares and whole GPUs, by namespace"
    for column, value in (("pods with a share", 2), ("pods with whole GPUs", 2), ("saved", 1.25)):
        samples = [{"labels": '{namespace="team"}', "value": value}]
        assert_samples(tmp_path, expression(FLEET, title, column), series, samples)
