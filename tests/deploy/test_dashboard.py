"""Every query of the dashboards on a real Prometheus, which scrapes real agents and a real webhook."""

import json
import math
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import grafana, known_metrics
from tests.support.agent_process import Agent, agent
from tests.support.grafana import NAMES, Dashboard
from tests.support.kube_state_metrics import failing, waiting_and_placed
from tests.support.pods import gpu_container, pod
from tests.support.prometheus_server import Prometheus, page, prometheus
from tests.support.promtool import ROOT, needed
from tests.support.waiting import wait_until
from tests.support.webhook_server import POLICIES, review_of
from webhook.certificates import create_if_missing

BOARDS = {name: grafana.load(name) for name in NAMES}

A10_UNITS, T4_UNITS = 23000, 16300
"""KAI counts in hundreds of MiB."""


def gpu(uuid: str, model: str, mebibytes: int, reserved: int) -> dict[str, str]:
    return {"uuid": uuid, "model": model, "memory": f"{mebibytes}Mi", "reserved": f"{reserved}Mi"}


# The node in cluster east. On the A10s are 0.25 and 0.3 free: in sum enough for a pod with 0.5, which fits on neither.
# The pod train exceeds its share by so much that less is free than classify was promised.
EAST: dict[str, Any] = {
    "node": {"name": "east-1", "labels": {"nvidia.com/gpu.memory": "23028"}},
    "gpus": [gpu(f"GPU-east-{index}", "NVIDIA A10", 23028, 531) for index in (0, 1)],
    "pods": [
        {"name": "training/train", "queue": "vision", "fraction": "0.5", "gpu": 0},
        {"name": "inference/classify", "queue": "vision", "fraction": "0.25", "gpu": 0, "annotations": {"kaishare.dev/size": "small"}},
        {
            "name": "tenant-a/llm-x-models-x-team", "queue": "llm", "fraction": "0.7", "gpu": 1,
            "labels": {"vcluster.loft.sh/managed-by": "team-a"},
            "annotations": {
                "kaishare.dev/size": "large",
                "vcluster.loft.sh/object-name": "llm",
                "vcluster.loft.sh/object-namespace": "models",
                "vcluster.loft.sh/object-host-name": "llm-x-models-x-team",
                "vcluster.loft.sh/object-host-namespace": "tenant-a",
            },
        },
    ],
    "objects": [{"kind": "Namespace", "metadata": {"name": "tenant-a", "labels": {"kaishare.dev/vcluster": "true"}}}],
    "processes": [
        {"pid": 4001, "gpu": 0, "pod": "training/train", "memory": {0: "9Gi", 2: "17Gi"}, "utilization": 50},
        {"pid": 4002, "gpu": 0, "pod": "inference/classify", "memory": "4500Mi", "utilization": 50},
        {"pid": 4003, "gpu": 1, "pod": "tenant-a/llm-x-models-x-team", "memory": "15500Mi", "utilization": 50},
        {"pid": 812, "gpu": 1, "name": "nv-hostengine", "memory": "90Mi"},
    ],
}  # fmt: skip

# The node of a cluster whose Prometheus sets no label `cluster`. It has the names of a GPU, of a namespace and of a pod of
# the other cluster. One GPU is free, one has 0.75 free. The pod exceeds its share every other four seconds.
PLAIN: dict[str, Any] = {
    "node": {"name": "plain-1", "labels": {"nvidia.com/gpu.memory": "16384"}},
    "gpus": [gpu(uuid, "Tesla T4", 16384, 300) for uuid in ("GPU-east-0", "GPU-plain-1")],
    "pods": [EAST["pods"][1]],
    "processes": [
        {"pid": 4001, "gpu": 0, "pod": "inference/classify", "utilization": 50, "memory": {4 * step: ("1Gi", "6Gi")[step % 2] for step in range(200)}}
    ],
}  # fmt: skip

EMPTY = {
    "there are no 6 hours of samples; test_dashboard_queries.py has them": ["fleet First GPU full in", "fleet GPUs that run out next"],
    "no pod is 7 days old; test_dashboard_queries.py has such pods": ["fleet Unused for 7 days", "fleet Idle pods", "namespace Unused for 7 days"],
    "no pod has one": ["fleet Shares and whole GPUs, by namespace/pods with whole GPUs"],
    "no enforcer": ["fleet Pods by used memory of their share/limit", "namespace Pods and their shares/limit", "node Pods/limit"],
    "the agents have none": ["fleet Attribution problems", "fleet Failed driver calls", "node Problems", "node Failed driver calls", "node Failed driver calls since the start"],
    "all nodes are watched": ["fleet Nodes that no agent watches any more"],
    "eviction is off": ["fleet Evictions since the agents started", "node Evictions since the agent started"],
    "the pods of a simulated node are in no cluster": ["fleet Events about pods", "node Events since the agent started"],
    "no GPU of the node is at risk; one of the other node is": ["node Pods on GPUs at risk", "node Neighbours that restarted or failed in the last hour"],
    "pods and policies come from files": [
        "node Oldest contact with the API server", "webhook Called before KAI", "webhook Oldest contact with the API server",
        "webhook Time since the last contact, by watch", "webhook Watch restarts, by cause",
    ],
    "certificates are given": ["webhook Changes of certificates since the start"],
}  # fmt: skip
"""Panels and columns without data here, and why. Their queries must be right all the same."""

MAY_BE_EMPTY = {place for places in EMPTY.values() for place in places}

SELECTED: dict[str, Any] = {
    "fleet": {"size": "small"},
    "namespace": {"namespace": ["inference", "tenant-a", "training", "broken"]},
    "node": {"node": "plain-1"},
    "webhook": {},
}
"""Values of variables that have no default."""

OTHERS = """\
kai_queue_allocated_gpus{{queue_name="vision"}} 1
kai_queue_deserved_gpus{{queue_name="vision"}} 2
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-plain-1"}} 40
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-plain-1"}} 18000
kube_node_status_allocatable{{node="unwatched",resource="nvidia_com_gpu"}} 4
kube_node_status_allocatable{{node="plain-1",resource="nvidia_com_gpu"}} 2
process_start_time_seconds {started}
kai_task_scheduling_latency_milliseconds_sum {scrape}000
kai_task_scheduling_latency_milliseconds_count {scrape}
apiserver_admission_webhook_fail_open_count{{name="pods.mutate.kaishare.dev",type="admit"}} {scrape}
apiserver_admission_webhook_rejection_count{{name="pods.validate.kaishare.dev",type="validating",error_type="no_error",rejection_code="403",operation="CREATE"}} {scrape}
apiserver_mutating_admission_policy_check_total{{policy="kaishare",policy_binding="kaishare",error_type="invalid_error"}} {scrape}
apiserver_admission_webhook_admission_duration_seconds_bucket{{name="pods.mutate.kaishare.dev",le="0.005"}} {scrape}
apiserver_admission_webhook_admission_duration_seconds_bucket{{name="pods.mutate.kaishare.dev",le="+Inf"}} {scrape}
"""
"""What KAI, dcgm-exporter, kube-state-metrics and the API server would say; of them the names and labels count."""

OTHERS_EAST = """\
kai_queue_allocated_gpus{queue_name="vision"} 1
kai_queue_deserved_gpus{queue_name="vision"} 1
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-east-0"} 25
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run two agents, a webhook under load, and a Prometheus that scrapes them.

    One agent's series have the label `cluster`, as from a scrape configuration for several clusters.
    """
    needed("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    for name, scenario in (("east", EAST), ("plain", PLAIN)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(scenario))
    options = ("--interval", "200ms", "--grace", "1s")
    started = time.time()
    with (
        agent(folder / "east.log", "--gpus", f"simulated:{folder}/east.yaml", *options) as east,
        agent(folder / "plain.log", "--gpus", f"simulated:{folder}/plain.yaml", *options) as plain,
        webhook(folder) as ops,
        page(
            lambda scrape: OTHERS.format(scrape=scrape, started=started) + waiting_and_placed(started)
        ) as others,
        page(
            lambda _: OTHERS_EAST + waiting_and_placed(started) + failing(uid_of("classify", east), started)
        ) as east_others,
        prometheus(
            folder,
            {"kaishare-webhook": ops, "others": others},
            {
                "job_name": "kaishare-agent/kaishare-agent",
                "honor_labels": True,
                "static_configs": [
                    {"targets": [plain.url.removeprefix("http://").rstrip("/")]},
                    {
                        "targets": [east.url.removeprefix("http://").rstrip("/")],
                        "labels": {"cluster": "east"},
                    },
                ],
            },
            {
                "job_name": "others-east",
                "honor_labels": True,
                "static_configs": [{"targets": [east_others], "labels": {"cluster": "east"}}],
            },
        ) as running,
    ):
        yield running


def uid_of(name: str, of: Agent) -> str:
    """Return the UID of a pod, as its agent reports it; empty before the first sample."""
    match = re.search(rf'pod="{name}",uid="([^"]+)"', of.get("/metrics")[1])
    return match[1] if match else ""


@contextmanager
def webhook(folder: Path) -> Iterator[str]:
    """Run a webhook under a steady load of reviews; yield the address of its metrics."""
    (folder / "policies.yaml").write_text(POLICIES)
    create_if_missing(folder / "tls", ["localhost", "127.0.0.1"])
    files = (
        f"--policies {folder}/policies.yaml --tls-cert {folder}/tls/tls.crt --tls-key {folder}/tls/tls.key"
    )
    command = f"-m webhook serve {files} --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0"
    log = folder / "webhook.log"
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, *command.split()], cwd=ROOT, stderr=stream)
    trust = ssl.create_default_context(cafile=str(folder / "tls" / "ca.crt"))
    # The mode of the namespace `watched` is observe.
    reviews = [json.dumps(review_of(pod(gpu_container()), name)).encode() for name in ("team-a", "watched")]
    done = threading.Event()

    def ask(url: str) -> None:
        while not done.wait(0.3):
            for review in reviews:
                assert post(url, review, trust) == 200

    try:
        addresses = re.compile(r'"admission":"([^"]+)","ops":"http://([^"]+)"')
        announced = wait_until(lambda: addresses.search(log.read_text()), log.read_text, pause=0.05)
        url = f"{announced[1]}/mutate"
        assert post(url, b"no review", trust) == 400
        asking = threading.Thread(target=ask, args=(url,))
        asking.start()
        yield str(announced[2])
        done.set()
        asking.join()
    finally:
        done.set()
        process.kill()
        process.wait()


def post(url: str, body: bytes, trust: ssl.SSLContext) -> int:
    """Post without a look at the proxies of the environment, which pytest changes in another thread."""
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    try:
        with urllib.request.build_opener(*handlers).open(url, data=body, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# Every query of every panel.

PANELS = [
    pytest.param(board, panel, id=f"{name} {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board.panels()
]


def place_of(board: Dashboard, panel: dict[str, Any], target: dict[str, Any]) -> str:
    """Return how `EMPTY` names a column of a table."""
    names: dict[str, str] = {}
    for item in panel.get("transformations", ()):
        names |= item["options"].get("renameByName", {})
    return f"{board.name} {panel['title']}/{names.get('Value #' + target['refId'], names.get('Value'))}"


@pytest.mark.slow
@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_has_data_joins_its_columns_and_mixes_no_clusters(
    watched: Prometheus, board: Dashboard, panel: dict[str, Any]
) -> None:
    settled(watched)
    kept = [
        target
        for target in panel["targets"]
        if MAY_BE_EMPTY.isdisjoint({f"{board.name} {panel['title']}", place_of(board, panel, target)})
    ]

    def series(
        target: dict[str, Any], at: float | None = None, **selection: Any
    ) -> dict[frozenset[tuple[str, str]], str]:
        """Return the last values of a query by labels."""
        query = board.interpolated(target["expr"], {**SELECTED[board.name], **selection})
        if target["instant"]:
            return {
                frozenset(item["metric"].items()): item["value"][1] for item in watched.instant(query, at)
            }
        samples = {frozenset(item["metric"].items()): item["values"] for item in watched.lately(query)}
        return {
            key: value
            for key, values in samples.items()
            for _, value in values
            if math.isfinite(float(value))
        }

    def has_data(target: dict[str, Any]) -> bool:
        return any(math.isfinite(float(value)) for value in series(target).values())

    assert not [target["expr"] for target in panel["targets"] if target not in kept and has_data(target)]
    watched.until(
        lambda: all(has_data(target) for target in kept), lambda: [target["expr"] for target in kept]
    )
    # Grafana merges rows whose labels are all the same; a metric's name would be one of them.
    if panel["type"] == "table" and len(panel["targets"]) > 1:
        columns = [set(series(target)) for target in kept]
        names = [{key for row in column for key, _ in row} for column in columns]
        assert all(columns[0] & column for column in columns)
        assert all(name == names[0] and "__name__" not in name for name in names)
    # All clusters give the series of cluster east and the series without the label, and no further ones.
    at = time.time() - 1
    for target in (target for target in panel["targets"] if target["instant"]):
        every, east, plain = (series(target, at, cluster=cluster) for cluster in ("$__all", ["east"], [""]))
        assert all(("cluster", "east") in labels for labels in east)
        assert all("cluster" not in dict(labels) for labels in plain)
        assert every == east | plain


def test_every_panel_and_column_that_may_be_empty_exists() -> None:
    existing = {
        place
        for board in BOARDS.values()
        for panel in board.panels()
        for target in panel["targets"]
        for place in (f"{board.name} {panel['title']}", place_of(board, panel, target))
    }
    assert existing >= MAY_BE_EMPTY


def settled(running: Prometheus) -> None:
    """Wait until the flag is raised and both clusters' agents have been scraped for some seconds."""
    ready = "count_over_time(kaishare_gpu_memory_promised_bytes[1m]) >= 3"
    running.until(lambda: len(running.instant(ready)) == 4)
    running.until(lambda: running.instant('kaishare_pod_flagged{pod="train", reason="over-share"} == 1'))
    running.until(lambda: len(running.instant("kaishare_pod_gpu_utilization_ratio")) == 4)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_offers_values(watched: Prometheus, name: str) -> None:
    settled(watched)
    board = BOARDS[name]
    offered = {
        variable: board.options(watched, variable, SELECTED[name])
        for variable, about in board.variables.items()
        if about["type"] == "query"
    }
    expected = {
        "fleet": {"cluster": ["east"], "vcluster": ["team-a"], "queue": ["llm", "vision"], "size": ["large", "small"]},
        "namespace": {
            "cluster": ["east"],
            "namespace": ["inference", "tenant-a", "training"],
            "vcluster": ["team-a"],
            "virtual_namespace": ["models"],
        },
        "node": {"cluster": ["east"], "node": ["east-1", "plain-1"], "vcluster": []},
        "webhook": {"cluster": ["east"]},
    }  # fmt: skip
    assert offered == expected[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_queries_of_annotations_are_right(watched: Prometheus, name: str) -> None:
    """Flags are raised here. The other annotations are about evictions, and about versions that replace others."""
    settled(watched)
    for annotation in BOARDS[name].model["annotations"]["list"]:
        query = BOARDS[name].interpolated(annotation["expr"], SELECTED[name])
        expected = {"over-share"} if annotation["name"] == "Flags raised" else set[str]()
        watched.until(
            lambda query=query, expected=expected: (
                {item["metric"].get("reason", "") for item in watched.instant(query)} == expected
            )
        )


# The figures of named panels.

MIB = 1 << 20
HALF, QUARTER = int(0.5 * A10_UNITS), int(0.25 * A10_UNITS)
PROMISED = {"east": HALF + QUARTER + int(0.7 * A10_UNITS), "": int(0.25 * T4_UNITS)}
ROOM, PIECES = "Room for ${share:text} of a GPU", "Fragmentation for ${share:text}"
IN_EAST: dict[str, Any] = {"cluster": ["east"]}
SIZES: dict[str, Any] = {**IN_EAST, "namespace": SELECTED["namespace"]["namespace"]}
PODS_TABLE = "Pods by used memory of their share"

FIGURES: list[tuple[str, str, str, dict[str, Any], dict[str, float]]] = [
    # GPUs of east have 25 and 30 hundredths free, those of the other cluster 75 and 100: pieces count, and not their sum.
    ("fleet", ROOM, "cluster", {"share": "5"}, {"east": 5 + 6, "": 15 + 20}),
    ("fleet", ROOM, "cluster", {"share": "10"}, {"east": 2 + 3, "": 7 + 10}),
    ("fleet", ROOM, "cluster", {"share": "25"}, {"east": 1 + 1, "": 3 + 4}),
    ("fleet", ROOM, "cluster", {"share": "30"}, {"east": 0 + 1, "": 2 + 3}),
    ("fleet", ROOM, "cluster", {"share": "50"}, {"east": 0 + 0, "": 1 + 2}),
    ("fleet", ROOM, "cluster", {"share": "100"}, {"east": 0, "": 1}),
    ("fleet", PIECES, "cluster", {"share": "25"}, {"east": 0, "": 0}),
    ("fleet", PIECES, "cluster", {"share": "30"}, {"east": 25 / 55, "": 0}),
    ("fleet", PIECES, "cluster", {"share": "50"}, {"east": 1, "": 0}),
    ("fleet", PIECES, "cluster", {"share": "100"}, {"east": 1, "": 75 / 175}),
    ("fleet", "GPUs by free share/free share", "gpu_uuid", IN_EAST, {"GPU-east-0": 0.25, "GPU-east-1": 0.3}),
    # A named size counts on the models on which it runs; without a size as where no pod has one.
    ("fleet", "More pods of size $size", "model", {"size": "small"}, {"NVIDIA A10": 1 + 1, "Tesla T4": 3 + 4}),
    ("fleet", "More pods of size $size", "model", {"size": "large"}, {"NVIDIA A10": 0}),
    *(("fleet", "More pods of size $size", "model", {"size": size}, {}) for size in ("none-such", "")),
    ("fleet", "Sizes in use/largest share", "size", IN_EAST, {"small": 0.25, "large": 0.7}),
    ("fleet", "Nodes with GPUs", "cluster", {}, {"east": 1, "": 1}),
    ("fleet", "GPUs", "cluster", {}, {"east": 2, "": 2}),
    ("fleet", "GPUs", "cluster", {"cluster": ["east", "w.st"]}, {"east": 2}),
    ("fleet", "GPUs", "cluster", {"cluster": ["e.st"]}, {}),
    ("fleet", "Flagged pods", "cluster", IN_EAST, {"east": 1}),
    ("fleet", "Nodes with attribution problems", "cluster", {}, {"east": 0, "": 0}),
    ("fleet", "Agents that do not answer", "cluster", {}, {"east": 0, "": 0}),
    ("fleet", "Agents that do not answer", "cluster", {"agent_job": "none"}, {}),
    # A figure without evidence is absent, and not 0.
    *(
        ("fleet", title, "cluster", {"cluster": ["nowhere"]}, {})
        for title in ("Flagged pods", "Agents that do not answer", "Unused for 7 days", "Nodes with attribution problems")
    ),
    # Pods of vClusters and of the host can be selected.
    ("fleet", f"{PODS_TABLE}/flagged", "pod", IN_EAST, {"train": 1, "classify": 0, "llm-x-models-x-team": 0}),
    ("fleet", f"{PODS_TABLE}/flagged", "pod", {**IN_EAST, "vcluster": ["team-a"]}, {"llm-x-models-x-team": 0}),
    ("fleet", f"{PODS_TABLE}/flagged", "pod", {**IN_EAST, "origin": "^$"}, {"train": 1, "classify": 0}),
    ("fleet", f"{PODS_TABLE}/flagged", "pod", {**IN_EAST, "origin": ".+"}, {"llm-x-models-x-team": 0}),
    ("fleet", f"{PODS_TABLE}/flagged", "pod", {**IN_EAST, "queue": ["vision"]}, {"train": 1, "classify": 0}),
    # One node, one namespace, the webhook.
    ("node", "Attribution", "cluster", {}, {"": 1}),
    ("node", "Attribution", "cluster", {"node": "none"}, {}),
    ("node", "Held by no pod", "cluster", {"node": "east-1"}, {"east": 90 * MIB}),
    ("node", "GPUs of the node/free share", "gpu_uuid", {}, {"GPU-east-0": 0.75, "GPU-plain-1": 1}),
    ("namespace", "Sizes in use/use of share", "size", {**SIZES, "namespace": ["inference"]}, {"small": 4500 / QUARTER}),
    ("namespace", "Sizes in use/pods", "size", SIZES, {"small": 1, "large": 1, "": 1}),
    ("namespace", "Used of promised", "cluster", {**SIZES, "namespace": ["inference"]}, {"east": 4500 / QUARTER}),
    ("namespace", "Pods", "cluster", {**SIZES, "virtual_namespace": ["models"]}, {"east": 1}),
    ("namespace", "Pods", "cluster", {**SIZES, "namespace": ["training"]}, {"east": 1}),
    ("namespace", "Flagged pods", "cluster", {**SIZES, "namespace": ["training"]}, {"east": 1}),
    ("namespace", "Flagged pods", "cluster", {**SIZES, "namespace": ["inference"]}, {"east": 0}),
    ("webhook", "Answered without a failure", "cluster", {}, {"": 1}),
    ("webhook", "Ignored labels", "cluster", {}, {"": 1}),
    ("webhook", "Replicas that answer", "cluster", {}, {"": 1}),
    ("webhook", "Shed in the last hour", "cluster", {}, {"": 0}),
]  # fmt: skip
"""Dashboard, panel with its column, label of the figures, selection, figures."""


@pytest.mark.parametrize(
    ("name", "place", "label", "selection", "expected"),
    FIGURES,
    ids=[f"{row[0]} {row[1]} {row[3]}"[:90] for row in FIGURES],
)
def test_a_panel_has_the_figures_of_the_nodes(
    watched: Prometheus,
    name: str,
    place: str,
    label: str,
    selection: dict[str, Any],
    expected: dict[str, float],
) -> None:
    settled(watched)
    title, _, column = place.partition("/")
    query = BOARDS[name].interpolated(BOARDS[name].expression(title, column), {**SELECTED[name], **selection})

    def figures() -> dict[str, float]:
        series = watched.instant(query)
        values = {item["metric"].get(label, ""): float(item["value"][1]) for item in series}
        assert len(values) == len(series), series
        return values

    watched.until(lambda: figures() == pytest.approx(expected), figures)


def test_the_page_of_the_agent_is_at_the_address_that_prometheus_scrapes(watched: Prometheus) -> None:
    settled(watched)
    node = BOARDS["node"]
    (page_of_agent,) = watched.instant(
        node.interpolated(node.expression("Page of the agent", "agents"), {"node": "plain-1"})
    )
    (agent_up,) = watched.instant('up{job="kaishare-agent/kaishare-agent", cluster=""}')
    assert page_of_agent["metric"]["instance"] == agent_up["metric"]["instance"]


def test_alerts_link_to_runbooks_only_with_an_address(watched: Prometheus) -> None:
    watched.until(lambda: "KaisharePodOverShare" in watched.alerts())
    fleet = BOARDS["fleet"]
    expression = fleet.expression("Alerts", "active")

    def runbooks(address: str) -> set[str]:
        rows = watched.instant(fleet.interpolated(expression, {"runbooks": address}))
        return {row["metric"].get("runbook", "") for row in rows}

    assert runbooks("") == {""}
    assert runbooks("https://in.house/kaishare/") == {"https://in.house/kaishare/docs/runbooks.md"}


def test_every_rule_is_evaluated_and_only_faults_raise_alerts(watched: Prometheus) -> None:
    # The example's pod over its share on a simulated node, the bad label among the policies, and what the page of others says. Free memory is left there
    # for what the neighbours were promised, so that none is at risk.
    expected = {
        "KaisharePodOverShare", "KaishareAgentSimulated", "KaisharePolicyInvalid", "KaishareFailedOpen",
        "KaishareAdmissionPolicyFailed",
    }  # fmt: skip
    watched.until(lambda: watched.alerts() == expected, watched.alerts)
    rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(list(known_metrics.rules()))
    assert {(rule["health"], rule.get("lastError")) for rule in rules} == {("ok", None)}


def test_series_keep_the_namespace_and_the_pod_they_are_about(watched: Prometheus) -> None:
    watched.until(lambda: watched.instant("kaishare_pod_gpu_memory_used_bytes"))
    series = watched.instant('kaishare_pod_gpu_memory_used_bytes{namespace="training", pod="train"}')
    assert len(series) == 1
    assert watched.instant('{exported_pod=~".+"} or {exported_namespace=~".+"}') == []
