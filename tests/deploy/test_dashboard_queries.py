"""Panels on series that begin, start again, or are absent, evaluated by promtool."""

from pathlib import Path

import pytest

from tests.support import grafana
from tests.support.promtool import assert_samples

FLEET, NAMESPACE, NODE, WEBHOOK = (grafana.load(name) for name in grafana.NAMES)

FAIL_OPEN = (
    'apiserver_admission_webhook_fail_open_count{name="pods.mutate.kaishare.dev", job="api", instance="i"}'
)
API_SERVER = {"up": "1+0x100", "process_start_time_seconds": "-90000+0x100"}
RESTARTED = {"up": "1+0x80 0 1+0x20", "process_start_time_seconds": "-90000+0x80 stale 4860+0x20"}
REQUESTS = 'kaishare_webhook_requests_total{action="injected", job="api", instance="i"}'
SHED = 'kaishare_webhook_shed_total{job="api", instance="i"}'
UNKNOWN_POLICY = 'kaishare_webhook_errors_total{stage="policies", job="api", instance="i"}'


def evaluated_for_an_hour(folder: Path, title: str, series: dict[str, str], value: float | None) -> None:
    """Assert the value of a panel of the webhook's dashboard; None for no series."""
    labelled = {
        name if "{" in name else f'{name}{{job="api", instance="i"}}': series[name] for name in series
    }
    query = WEBHOOK.interpolated(WEBHOOK.expression(title)).replace("[30s]", "[1h]")
    query = query.replace("offset 30s", "offset 1h").replace("< 30)", "< 3600)")
    assert_samples(folder, query, labelled, [] if value is None else [{"labels": "{}", "value": value}])


@pytest.mark.parametrize(
    ("series", "value"),
    [
        pytest.param({**API_SERVER, FAIL_OPEN: "_x80 40+0x20"}, 40, id="40 requests between two scrapes"),
        pytest.param({**RESTARTED, FAIL_OPEN: "3+0x80 stale 3+0x20"}, 3, id="as many as before a restart"),
        pytest.param({**API_SERVER, FAIL_OPEN: "3+0x100"}, 0, id="long ago"),
        pytest.param({"up": "_x90 1+0x10", FAIL_OPEN: "_x90 3+0x10"}, None, id="before Prometheus started"),
        pytest.param(API_SERVER, None, id="never"),
    ],
)
def test_requests_that_passed_without_the_webhook_in_the_last_hour(
    series: dict[str, str], value: float | None, tmp_path: Path
) -> None:
    evaluated_for_an_hour(tmp_path, "Admitted without the webhook, last hour", series, value)


@pytest.mark.parametrize(
    ("series", "value"),
    [
        pytest.param({UNKNOWN_POLICY: "_x80 30+0x20"}, 0.9, id="the first failures of a stage"),
        pytest.param({UNKNOWN_POLICY: "30+0x100"}, 1, id="failures of long ago"),
        pytest.param({}, 1, id="none"),
    ],
)
def test_the_first_failures_count_in_the_answered_reviews(
    series: dict[str, str], value: float, tmp_path: Path
) -> None:
    answered = {REQUESTS: "0+4.5x100", SHED: "0+0x100"}
    evaluated_for_an_hour(tmp_path, "Answered without a failure", {**API_SERVER, **answered, **series}, value)


@pytest.mark.parametrize(
    ("board", "title"),
    [(FLEET, "Pods by used memory of their share"), (NAMESPACE, "Pods and their shares")],
    ids=["fleet", "namespace"],
)
@pytest.mark.parametrize(
    ("column", "values"),
    [("use of share", {"a": 0.5}), ("used", {"a": 5, "c": 7}), ("share", {"a": 10, "b": 20})],
    ids=["use of share", "used", "share"],
)
def test_a_table_of_pods_has_pods_of_which_a_figure_is_unknown(
    board: grafana.Dashboard, title: str, column: str, values: dict[str, float], tmp_path: Path
) -> None:
    """The use of pod b is unknown, and pod c has no share."""

    def labels(pod: str) -> str:
        return f'{{namespace="team", pod="{pod}", uid="{pod}", gpu_uuid="GPU-1"}}'

    series = {
        f"kaishare_pod_gpu_memory_used_bytes{labels('a')}": "5+0x100",
        f"kaishare_pod_gpu_memory_share_bytes{labels('a')}": "10+0x100",
        f"kaishare_pod_gpu_memory_share_bytes{labels('b')}": "20+0x100",
        f"kaishare_pod_gpu_memory_used_bytes{labels('c')}": "7+0x100",
    }
    query = board.interpolated(board.expression(title, column), {"namespace": ["team"]})
    assert_samples(tmp_path, query, series, [{"labels": labels(pod), "value": values[pod]} for pod in values])


@pytest.mark.parametrize(
    ("board", "title", "value"),
    [
        (FLEET, "Nodes with GPUs", 2),
        (FLEET, "GPUs", 3),
        (FLEET, "GPUs without a known free share", 1),
        (FLEET, "Nodes with GPUs and without an agent", None),
        (FLEET, "Nodes that no agent watches any more", None),
        (NODE, "GPUs", 1),
    ],
)
def test_a_gpu_whose_memory_the_driver_does_not_report_is_watched(
    board: grafana.Dashboard, title: str, value: float | None, tmp_path: Path
) -> None:
    """The node gb10 has a GPU with unified memory, which has no total; the node a100 has two ordinary ones."""
    labels = {
        name: f'{{node="{name[:-2]}", gpu="{name[-1]}", gpu_uuid="{name}"}}'
        for name in ("a100-0", "a100-1", "gb10-0")
    }
    series = {
        f"kaishare_gpu_memory_{figure}_bytes{text}": "1+0x100"
        for figure in ("promised", "host")
        for text in labels.values()
    }
    series |= {f"kaishare_gpu_memory_total_bytes{labels[name]}": "1+0x100" for name in ("a100-0", "a100-1")}
    series |= {
        f'kube_node_status_allocatable{{resource="nvidia_com_gpu", node="{node}"}}': "1+0x100"
        for node in ("a100", "gb10")
    }
    query = board.interpolated(board.expression(title), {"node": "gb10"} if board is NODE else {})
    assert_samples(tmp_path, query, series, [] if value is None else [{"labels": "{}", "value": value}])


OVER = 'kaishare_pod_over_share_seconds_total{namespace="team", pod="%s", uid="%s", gpu_uuid="GPU-1", node="n", instance="%s"}'
POD = '{namespace="team", pod="%s", uid="%s", gpu_uuid="GPU-1", node="n"}'


@pytest.mark.parametrize(
    ("board", "title"),
    [
        (FLEET, "Time over the share in the selected time"),
        (NODE, "Pods"),
        (NAMESPACE, "Pods and their shares"),
    ],
    ids=["fleet", "node", "namespace"],
)
def test_time_over_the_share_is_the_sum_over_an_agent_and_its_successor(
    board: grafana.Dashboard, title: str, tmp_path: Path
) -> None:
    """Pod a is over its share for the whole hour; another agent counts from minute 51 on. Pod b has ended."""
    series = {
        OVER % ("a", "a", "old"): "0+60x50 stale",
        OVER % ("a", "a", "new"): "_x51 0+60x49",
        OVER % ("b", "b", "old"): "0+60x50 stale",
        f"kaishare_pod_gpu_memory_share_bytes{POD % ('a', 'a')}": "10+0x100",
        f"kaishare_pod_gpu_memory_used_bytes{POD % ('a', 'a')}": "20+0x100",
    }
    query = board.interpolated(
        board.expression(title, "time over share"), {"node": "n", "namespace": ["team"]}
    )
    query = query.replace("[30s]", "[1h]")
    expected = [{"labels": POD % ("a", "a"), "value": 630 + 2940}]  # increase() extrapolates by half a minute
    if board is FLEET:
        expected.append({"labels": POD % ("b", "b"), "value": 630})
    assert_samples(tmp_path, query, series, expected)


def test_workloads_of_one_name_in_two_namespaces_are_two_rows(tmp_path: Path) -> None:
    workload = 'workload_kind="Deployment", workload="api"'
    series = {}
    for namespace, share in (("one", 10), ("two", 20)):
        pod = f'namespace="{namespace}", pod="api-1", uid="{namespace}"'
        series[f"kaishare_pod_info{{{pod}, {workload}}}"] = "1+0x100"
        series[f'kaishare_pod_gpu_memory_share_bytes{{{pod}, gpu_uuid="GPU-1"}}'] = f"{share}+0x100"
    query = NAMESPACE.interpolated(NAMESPACE.expression("Workloads", "share"), {"namespace": ["one", "two"]})
    rows = {namespace: f'{{namespace="{namespace}", {workload}}}' for namespace in ("one", "two")}
    samples = [{"labels": rows["one"], "value": 10}, {"labels": rows["two"], "value": 20}]
    assert_samples(tmp_path, query, series, samples)


def test_nodes_that_are_no_longer_watched_have_the_number_of_their_gpus(tmp_path: Path) -> None:
    series = {
        f'kaishare_gpu_memory_total_bytes{{node="gone", gpu="{gpu}", gpu_uuid="GPU-{gpu}"}}': "80+0x50 stale"
        for gpu in range(8)
    }
    query = FLEET.interpolated(FLEET.expression("Nodes that no agent watches any more"))
    assert_samples(tmp_path, query, series, [{"labels": '{node="gone"}', "value": 8}])


def test_nodes_without_an_agent_have_devices_of_any_kind(tmp_path: Path) -> None:
    offers = {
        "whole": ("gpu", 2),
        "sliced": ("gpu_shared", 16),
        "mig": ("mig_1g_10gb", 7),
        "cpu": ("rdma", 1),
    }
    series = {
        f'kube_node_status_allocatable{{resource="nvidia_com_{resource}", node="{node}"}}': f"{count}+0x100"
        for node, (resource, count) in offers.items()
    }
    series['kube_node_status_allocatable{resource="nvidia_com_gpu", node="mig"}'] = "0+0x100"
    series['kube_node_status_allocatable{resource="nvidia_com_gpu", node="whole", instance="second"}'] = (
        "2+0x100"
    )
    query = FLEET.interpolated(FLEET.expression("Nodes with GPUs and without an agent"))
    expected = [
        {"labels": f'{{node="{node}"}}', "value": offers[node][1]} for node in ("mig", "sliced", "whole")
    ]
    assert_samples(tmp_path, query, series, expected)
