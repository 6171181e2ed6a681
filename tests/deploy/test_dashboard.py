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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from certs.directory import create_if_missing
from tests.support import grafana, known_metrics
from tests.support.agent_process import Agent, agent
from tests.support.grafana import NAMES, Dashboard
from tests.support.kube_state_metrics import failing, waiting_and_placed
from tests.support.pods import gpu_container, pod
from tests.support.prometheus_server import PATIENCE_SECONDS, Prometheus, page, prometheus
from tests.support.promtool import ROOT, needed
from tests.support.webhook_server import POLICIES, review_of

BOARDS = {name: grafana.load(name) for name in NAMES}
FLEET, NAMESPACE, NODE, WEBHOOK = (BOARDS[name] for name in NAMES)

A10_UNITS, T4_UNITS = 23000, 16300
"""KAI counts in hundreds of MiB."""

# The node in cluster east. On the A10s are 0.25 and 0.3 free: in sum enough for a pod with 0.5, which fits on neither.
# The pod train exceeds its share by so much that less is free than classify was promised.
EAST: dict[str, Any] = {
    "node": {"name": "east-1", "labels": {"nvidia.com/gpu.memory": "23028"}},
    "gpus": [
        {"uuid": "GPU-east-0", "model": "NVIDIA A10", "memory": "23028Mi", "reserved": "531Mi"},
        {"uuid": "GPU-east-1", "model": "NVIDIA A10", "memory": "23028Mi", "reserved": "531Mi"},
    ],
    "pods": [
        {"name": "training/train", "queue": "vision", "fraction": "0.5", "gpu": 0},
        {
            "name": "inference/classify",
            "queue": "vision",
            "fraction": "0.25",
            "gpu": 0,
            "annotations": {"kaishare.dev/size": "small"},
        },
        {
            "name": "tenant-a/llm-x-models-x-team",
            "queue": "llm",
            "fraction": "0.7",
            "gpu": 1,
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
    "objects": [
        {"kind": "Namespace", "metadata": {"name": "tenant-a", "labels": {"kaishare.dev/vcluster": "true"}}}
    ],
    "processes": [
        {"pid": 4001, "gpu": 0, "pod": "training/train", "memory": {0: "9Gi", 2: "17Gi"}, "utilization": 50},
        {"pid": 4002, "gpu": 0, "pod": "inference/classify", "memory": "4500Mi", "utilization": 50},
        {
            "pid": 4003,
            "gpu": 1,
            "pod": "tenant-a/llm-x-models-x-team",
            "memory": "15500Mi",
            "utilization": 50,
        },
        {"pid": 812, "gpu": 1, "name": "nv-hostengine", "memory": "90Mi"},
    ],
}

# The node of a cluster whose Prometheus sets no label `cluster`. It has the names of a GPU, of a namespace and of a pod of
# the other cluster. One GPU is free, one has 0.75 free. The pod exceeds its share every other four seconds.
PLAIN: dict[str, Any] = {
    "node": {"name": "plain-1", "labels": {"nvidia.com/gpu.memory": "16384"}},
    "gpus": [
        {"uuid": "GPU-east-0", "model": "Tesla T4", "memory": "16384Mi", "reserved": "300Mi"},
        {"uuid": "GPU-plain-1", "model": "Tesla T4", "memory": "16384Mi", "reserved": "300Mi"},
    ],
    "pods": [
        {
            "name": "inference/classify",
            "queue": "vision",
            "fraction": "0.25",
            "gpu": 0,
            "annotations": {"kaishare.dev/size": "small"},
        }
    ],
    "processes": [
        {
            "pid": 4001,
            "gpu": 0,
            "pod": "inference/classify",
            "memory": {4 * step: ("1Gi", "6Gi")[step % 2] for step in range(200)},
            "utilization": 50,
        }
    ],
}

EMPTY = {
    ("fleet", "First GPU full in"): "there are no 6 hours of samples; test_dashboard_history.py has them",
    ("fleet", "GPUs that run out next"): "the same",
    ("fleet", "Shares and whole GPUs, by namespace", "pods with whole GPUs"): "no pod has one",
    ("fleet", "Attribution problems"): "the agents have none",
    ("fleet", "Nodes that no agent watches any more"): "all nodes are watched",
    ("fleet", "Evictions since the agents started"): "eviction is off",
    ("fleet", "Events about pods"): "the pods of a simulated node are in no cluster",
    ("fleet", "Failed driver calls"): "there are none",
    ("fleet", "Unused for 7 days"): "no pod is 7 days old; test_dashboard_history.py has such pods",
    ("fleet", "Idle pods"): "the same",
    ("fleet", "Pods by used memory of their share", "limit"): "no enforcer",
    ("namespace", "Unused for 7 days"): "no pod is 7 days old",
    ("namespace", "Pods and their shares", "limit"): "no enforcer",
    ("node", "Pods", "limit"): "no enforcer",
    ("node", "Pods on GPUs at risk"): "no GPU of the node is at risk; one of the other node is",
    ("node", "Neighbours that restarted or failed in the last hour"): "no pod of the node has a neighbour",
    ("node", "Problems"): "the agent has none",
    ("node", "Failed driver calls"): "there are none",
    ("node", "Failed driver calls since the start"): "there are none",
    ("node", "Evictions since the agent started"): "eviction is off",
    ("node", "Events since the agent started"): "the pods of a simulated node are in no cluster",
    ("node", "Oldest contact with the API server"): "pods come from a file",
    ("webhook", "Called before KAI"): "policies come from a file",
    ("webhook", "Oldest contact with the API server"): "the same: there is no watch",
    ("webhook", "Time since the last contact, by watch"): "the same",
    ("webhook", "Watch restarts, by cause"): "the same",
    ("webhook", "Changes of certificates since the start"): "certificates are given",
}
"""Panels and columns without data here, and why. Their queries must be right all the same."""

SELECTED = {
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
    scenarios = {"east": folder / "east.yaml", "plain": folder / "plain.yaml"}
    scenarios["east"].write_text(yaml.safe_dump(EAST))
    scenarios["plain"].write_text(yaml.safe_dump(PLAIN))
    options = ("--interval", "200ms", "--grace", "1s")
    started = time.time()
    with (
        agent(folder / "east.log", "--gpus", f"simulated:{scenarios['east']}", *options) as east,
        agent(folder / "plain.log", "--gpus", f"simulated:{scenarios['plain']}", *options) as plain,
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
                    {"targets": [address_of(plain.url)]},
                    {"targets": [address_of(east.url)], "labels": {"cluster": "east"}},
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


def address_of(url: str) -> str:
    return url.removeprefix("http://").rstrip("/")


@contextmanager
def webhook(folder: Path) -> Iterator[str]:
    """Run a webhook under a steady load of reviews; yield the address of its metrics."""
    (folder / "policies.yaml").write_text(POLICIES)
    create_if_missing(folder / "tls", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
    command = f"-m webhook serve --policies {folder}/policies.yaml --tls-cert {folder}/tls/tls.crt --tls-key {folder}/tls/tls.key"
    ports = "--listen 127.0.0.1:0 --ops-listen 127.0.0.1:0"
    log = folder / "webhook.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *command.split(), *ports.split()], cwd=ROOT, stderr=stream
        )
    trust = ssl.create_default_context(cafile=str(folder / "tls" / "ca.crt"))
    # The mode of the namespace `watched` is observe.
    reviews = [json.dumps(review_of(pod(gpu_container()), name)).encode() for name in ("team-a", "watched")]
    done = threading.Event()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (match := re.search(r'"admission":"([^"]+)","ops":"http://([^"]+)"', log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        admission, ops = match.groups()
        assert post(admission + "/mutate", b"no review", trust) == 400

        def ask() -> None:
            while not done.wait(0.3):
                for review in reviews:
                    assert post(admission + "/mutate", review, trust) == 200

        asking = threading.Thread(target=ask)
        asking.start()
        yield ops
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
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# Every query.


def targets() -> Iterator[Any]:
    for name, board in BOARDS.items():
        for panel in board.panels():
            for target in panel["targets"]:
                yield pytest.param(board, panel, target, id=f"{name} {panel['title']} {target['refId']}")


def expected_empty(board: Dashboard, panel: dict[str, Any], target: dict[str, Any]) -> bool:
    """Whether `EMPTY` lists the panel, or the column of this query."""
    keys = {(board.name, panel["title"]), (board.name, panel["title"], column_of(panel, target))}
    return not keys.isdisjoint(EMPTY)


def column_of(panel: dict[str, Any], target: dict[str, Any]) -> str:
    for item in panel.get("transformations", ()):
        if item["id"] == "organize":
            names: dict[str, str] = item["options"]["renameByName"]
            return names.get(f"Value #{target['refId']}", names.get("Value", ""))
    return ""


def has_data(running: Prometheus, board: Dashboard, target: dict[str, Any]) -> bool:
    """Whether any series of a query has a number."""
    query = board.interpolated(target["expr"], SELECTED[board.name])
    if target["instant"]:
        values = [series["value"][1] for series in running.instant(query)]
    else:
        values = [value for series in running.lately(query) for _, value in series["values"]]
    return any(math.isfinite(float(value)) for value in values)


@pytest.mark.slow
@pytest.mark.parametrize(("board", "panel", "target"), list(targets()))
def test_a_query_has_data_unless_its_panel_may_be_empty(
    watched: Prometheus, board: Dashboard, panel: dict[str, Any], target: dict[str, Any]
) -> None:
    if expected_empty(board, panel, target):
        assert not has_data(watched, board, target)
    else:
        watched.until(lambda: has_data(watched, board, target), lambda: target["expr"])


def test_every_panel_and_column_that_may_be_empty_exists() -> None:
    existing = {(name, panel["title"]) for name, board in BOARDS.items() for panel in board.panels()}
    existing |= {
        (name, panel["title"], column_of(panel, target))
        for name, board in BOARDS.items()
        for panel in board.panels()
        for target in panel["targets"]
    }
    assert EMPTY.keys() <= existing


def tables() -> Iterator[Any]:
    for name, board in BOARDS.items():
        for panel in board.panels():
            if panel["type"] == "table" and len(panel["targets"]) > 1 and (name, panel["title"]) not in EMPTY:
                yield pytest.param(board, panel, id=f"{name} {panel['title']}")


@pytest.mark.parametrize(("board", "panel"), list(tables()))
def test_the_columns_of_a_table_join_to_rows(
    watched: Prometheus, board: Dashboard, panel: dict[str, Any]
) -> None:
    """Grafana merges rows whose labels are all the same; a metric's name would be one of them."""
    settled(watched)
    kept = [target for target in panel["targets"] if not expected_empty(board, panel, target)]

    def rows() -> list[set[frozenset[tuple[str, str]]]]:
        queries = [board.interpolated(target["expr"], SELECTED[board.name]) for target in kept]
        columns = [watched.instant(query) for query in queries]
        return [{frozenset(series["metric"].items()) for series in column} for column in columns]

    watched.until(lambda: all(rows()), rows)
    first, *others = rows()
    for column in others:
        assert not first.isdisjoint(column)
        assert {key for row in first for key, _ in row} == {key for row in column for key, _ in row}
    assert "__name__" not in {key for row in first for key, _ in row}


@pytest.mark.parametrize(
    ("board", "panel", "target"), [target for target in targets() if target.values[2]["instant"]]
)
def test_no_panel_mixes_clusters(
    watched: Prometheus, board: Dashboard, panel: dict[str, Any], target: dict[str, Any]
) -> None:
    """All clusters give the series of cluster east and the series without the label, and no further ones."""
    settled(watched)
    at = time.time() - 1

    def values(cluster: str | list[str]) -> dict[frozenset[tuple[str, str]], str]:
        query = board.interpolated(target["expr"], {**SELECTED[board.name], "cluster": cluster})
        return {
            frozenset(series["metric"].items()): series["value"][1] for series in watched.instant(query, at)
        }

    every, east, plain = values("$__all"), values(["east"]), values([""])
    assert all(("cluster", "east") in labels for labels in east)
    assert all("cluster" not in dict(labels) for labels in plain)
    assert every == east | plain


def settled(running: Prometheus) -> None:
    """Wait until the flag is raised and both clusters' agents have been scraped for some seconds."""
    ready = "count_over_time(kaishare_gpu_memory_promised_bytes[1m]) >= 3"
    running.until(lambda: len(running.instant(ready)) == 4)
    running.until(lambda: running.instant('kaishare_pod_flagged{pod="train", reason="over-share"} == 1'))
    running.until(lambda: len(running.instant("kaishare_pod_gpu_utilization_ratio")) == 4)


def test_several_clusters_can_be_selected(watched: Prometheus) -> None:
    settled(watched)
    query = FLEET.expression("GPUs")
    assert figures(watched, query, cluster=["east", "w.st"]) == {"east": 2}
    assert figures(watched, query, cluster=["e.st"]) == {}


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
        "fleet": {
            "cluster": ["east"],
            "vcluster": ["team-a"],
            "queue": ["llm", "vision"],
            "size": ["large", "small"],
        },
        "namespace": {
            "cluster": ["east"],
            "namespace": ["inference", "tenant-a", "training"],
            "vcluster": ["team-a"],
            "virtual_namespace": ["models"],
        },
        "node": {"cluster": ["east"], "node": ["east-1", "plain-1"], "vcluster": []},
        "webhook": {"cluster": ["east"]},
    }
    assert offered == expected[name]


def annotations() -> Iterator[Any]:
    for name, board in BOARDS.items():
        for annotation in board.model["annotations"]["list"]:
            yield pytest.param(board, annotation, id=f"{name} {annotation['name']}")


@pytest.mark.parametrize(("board", "annotation"), list(annotations()))
def test_the_query_of_an_annotation_is_right(
    watched: Prometheus, board: Dashboard, annotation: dict[str, Any]
) -> None:
    settled(watched)
    query = board.interpolated(annotation["expr"], SELECTED[board.name])

    def reasons() -> set[str]:
        return {series["metric"].get("reason", "") for series in watched.instant(query)}

    # The other annotations are about evictions, and about versions that replace others.
    if annotation["name"] == "Flags raised":
        watched.until(lambda: reasons() == {"over-share"})
    else:
        assert reasons() == set()


# The figures of named panels.


def figures(
    running: Prometheus, query: str, label: str = "cluster", **selection: str | list[str]
) -> dict[str, float]:
    """Return the values of a query of the fleet's dashboard by one label."""
    series = running.instant(FLEET.interpolated(query, {**SELECTED["fleet"], **selection}))
    values = {item["metric"].get(label, ""): float(item["value"][1]) for item in series}
    assert len(values) == len(series), series
    return values


@pytest.mark.parametrize(
    ("share", "room"),
    [
        # GPUs of east have 25 and 30 hundredths free, those of the other cluster 75 and 100.
        ("5", {"east": 5 + 6, "": 15 + 20}),
        ("10", {"east": 2 + 3, "": 7 + 10}),
        ("25", {"east": 1 + 1, "": 3 + 4}),
        ("30", {"east": 0 + 1, "": 2 + 3}),
        ("50", {"east": 0 + 0, "": 1 + 2}),
        ("100", {"east": 0, "": 1}),
    ],
)
def test_capacity_counts_pieces_and_not_the_sum_of_what_is_free(
    watched: Prometheus, share: str, room: dict[str, float]
) -> None:
    settled(watched)
    assert figures(watched, FLEET.expression("Room for ${share:text} of a GPU"), share=share) == room
    bars = FLEET.panel("More pods that fit, by share of one GPU")["targets"]
    of_share = [target for target in bars if target["legendFormat"].startswith(f"{int(share) / 100:g} of")]
    for target in of_share:
        assert figures(watched, target["expr"]) == room


def test_the_free_share_of_a_gpu_is_what_kai_can_still_place(watched: Prometheus) -> None:
    settled(watched)
    query = FLEET.expression("GPUs by free share", "free share")
    assert figures(watched, query, "gpu_uuid", cluster=["east"]) == {"GPU-east-0": 0.25, "GPU-east-1": 0.3}
    assert figures(watched, query, "gpu_uuid", cluster=[""]) == {"GPU-east-0": 0.75, "GPU-plain-1": 1}


@pytest.mark.parametrize(
    ("share", "parts"),
    [
        ("25", {"east": 0, "": 0}),
        ("30", {"east": 25 / 55, "": 0}),
        ("50", {"east": 1, "": 0}),
        ("100", {"east": 1, "": 75 / 175}),
    ],
)
def test_fragmentation_is_the_part_of_the_free_share_in_too_small_pieces(
    watched: Prometheus, share: str, parts: dict[str, float]
) -> None:
    settled(watched)
    query = FLEET.expression("Fragmentation for ${share:text}")
    assert figures(watched, query, share=share) == pytest.approx(parts)


def test_room_for_a_named_size_counts_the_models_on_which_it_runs(watched: Prometheus) -> None:
    settled(watched)
    query = FLEET.expression("More pods of size $size")
    assert figures(watched, query, "model", size="small") == {"NVIDIA A10": 1 + 1, "Tesla T4": 3 + 4}
    assert figures(watched, query, "model", size="large") == {"NVIDIA A10": 0}
    assert figures(watched, query, "model", size="none-such") == {}
    assert figures(watched, query, "model", size="") == {}  # as where no pod has a size


def test_sizes_in_use_have_their_shares(watched: Prometheus) -> None:
    settled(watched)
    largest = FLEET.expression("Sizes in use", "largest share")
    assert figures(watched, largest, "size", cluster=["east"]) == {"small": 0.25, "large": 0.7}


def test_memory_and_flags_of_the_fleet(watched: Prometheus) -> None:
    settled(watched)
    promised = {"east": int(0.5 * A10_UNITS) + int(0.25 * A10_UNITS) + int(0.7 * A10_UNITS)}
    promised[""] = int(0.25 * T4_UNITS)
    expected = {"east": promised["east"] / (2 * A10_UNITS), "": promised[""] / (2 * T4_UNITS)}
    assert figures(watched, FLEET.expression("Memory promised")) == pytest.approx(expected)
    assert figures(watched, FLEET.expression("Nodes with GPUs")) == {"east": 1, "": 1}
    assert figures(watched, FLEET.expression("GPUs")) == {"east": 2, "": 2}
    assert figures(watched, FLEET.expression("Flagged pods"), cluster=["east"]) == {"east": 1}
    assert figures(watched, FLEET.expression("Nodes with attribution problems")) == {"east": 0, "": 0}
    assert figures(watched, FLEET.expression("Agents that do not answer")) == {"east": 0, "": 0}
    assert figures(watched, FLEET.expression("GPUs without a known free share")) == {"east": 0, "": 0}
    without_agent = FLEET.expression("Nodes with GPUs and without an agent", "devices")
    assert figures(watched, without_agent, "node") == {"unwatched": 4}


def test_a_gpu_at_risk_names_who_is_over_and_who_lacks_memory(watched: Prometheus) -> None:
    settled(watched)
    mib = 1 << 20

    def pods(column: str) -> dict[str, float]:
        return figures(watched, FLEET.expression("Pods on GPUs at risk", column), "pod")

    assert pods("above share") == {"train": 17408 * mib - int(0.5 * A10_UNITS) * mib}
    assert pods("promised and not used") == {"classify": int(0.25 * A10_UNITS) * mib - 4500 * mib}
    assert figures(watched, FLEET.expression("GPUs at risk now")) == {"east": 1, "": 0}
    # total - reserved - used of all processes, which the simulation adds nothing to
    free = (23028 - 531 - 17408 - 4500) * mib
    (lacking,) = pods("promised and not used").values()
    assert figures(watched, FLEET.expression("Memory at risk"), cluster=["east"]) == {"east": lacking - free}
    restarted = FLEET.expression("Neighbours that restarted or failed in the last hour", "restarts")
    watched.until(lambda: figures(watched, restarted, "pod") == {"classify": 2})
    assert figures(watched, FLEET.expression("Neighbours that restarted, last hour"), cluster=["east"]) == {
        "east": 1
    }
    saved = figures(watched, FLEET.expression("GPUs saved by sharing"))
    assert saved == pytest.approx({"east": 0.5 + 0.75 + 0.3, "": 0.75})


@pytest.mark.parametrize(
    ("selection", "pods"),
    [
        ({}, {"train", "classify", "llm-x-models-x-team"}),
        ({"vcluster": ["team-a"]}, {"llm-x-models-x-team"}),
        ({"origin": "^$"}, {"train", "classify"}),
        ({"origin": ".+"}, {"llm-x-models-x-team"}),
        ({"queue": ["vision"]}, {"train", "classify"}),
    ],
)
def test_pods_of_vclusters_and_of_the_host_can_be_selected(
    watched: Prometheus, selection: dict[str, str | list[str]], pods: set[str]
) -> None:
    settled(watched)
    query = FLEET.expression("Pods by used memory of their share", "share")
    assert figures(watched, query, "pod", cluster=["east"], **selection).keys() == pods


def test_a_figure_without_evidence_is_absent_and_not_0(watched: Prometheus) -> None:
    settled(watched)
    titles = (
        "Flagged pods",
        "Agents that do not answer",
        "Unused for 7 days",
        "Nodes with attribution problems",
    )
    for title in titles:
        assert figures(watched, FLEET.expression(title), cluster=["nowhere"]) == {}
    assert figures(watched, FLEET.expression("Agents that do not answer"), agent_job="none") == {}


def test_a_node_shows_its_pods_and_its_agent(watched: Prometheus) -> None:
    settled(watched)

    def of_node(node: str, title: str, column: str = "") -> list[dict[str, Any]]:
        return watched.instant(NODE.interpolated(NODE.expression(title, column), {"node": node}))

    assert {item["metric"]["pod"] for item in of_node("plain-1", "Pods", "used")} == {"classify"}
    (page_of_agent,) = of_node("plain-1", "Page of the agent", "agents")
    (agent_up,) = watched.instant('up{job="kaishare-agent/kaishare-agent", cluster=""}')
    assert page_of_agent["metric"]["instance"] == agent_up["metric"]["instance"]
    (attribution,) = of_node("plain-1", "Attribution")
    assert attribution["value"][1] == "1"
    assert of_node("none", "Attribution") == []
    host = {
        item["metric"].get("cluster", ""): item["value"][1] for item in of_node("east-1", "Held by no pod")
    }
    assert host == {"east": str(90 << 20)}


def test_a_namespace_shows_its_sizes_and_the_use_of_its_shares(watched: Prometheus) -> None:
    settled(watched)

    def of_namespace(title: str, column: str = "", **selection: str | list[str]) -> dict[str, float]:
        chosen = {**SELECTED["namespace"], "cluster": ["east"], **selection}
        query = NAMESPACE.interpolated(NAMESPACE.expression(title, column), chosen)
        series = watched.instant(query)
        return {item["metric"].get("size", ""): float(item["value"][1]) for item in series}

    use = 4500 / int(0.25 * A10_UNITS)
    assert of_namespace("Sizes in use", "use of share", namespace=["inference"]) == pytest.approx(
        {"small": use}
    )
    assert of_namespace("Sizes in use", "pods") == {"small": 1, "large": 1, "": 1}
    assert of_namespace("Used of promised", namespace=["inference"]) == pytest.approx({"": use})
    assert of_namespace("Pods", virtual_namespace=["models"]) == {"": 1}
    assert of_namespace("Pods", namespace=["training"]) == {"": 1}
    assert of_namespace("Flagged pods", namespace=["training"]) == {"": 1}
    assert of_namespace("Flagged pods", namespace=["inference"]) == {"": 0}


def test_the_webhook_answers_all_reviews(watched: Prometheus) -> None:
    def value(title: str) -> list[float]:
        return [
            float(item["value"][1])
            for item in watched.instant(WEBHOOK.interpolated(WEBHOOK.expression(title)))
        ]

    watched.until(lambda: value("Answered without a failure"))
    assert value("Answered without a failure") == [1]
    assert value("Ignored labels") == [1]
    assert value("Replicas that answer") == [1]
    (within,) = value("Answered within 100 ms")
    assert 0 <= within <= 1
    assert value("Shed in the last hour") == [0]


def test_alerts_link_to_runbooks_only_with_an_address(watched: Prometheus) -> None:
    watched.until(lambda: "KaisharePodOverShare" in watched.alerts())
    expression = FLEET.expression("Alerts", "active")

    def runbooks(address: str) -> set[str]:
        rows = watched.instant(FLEET.interpolated(expression, {"runbooks": address}))
        return {row["metric"].get("runbook", "") for row in rows}

    assert runbooks("") == {""}
    assert runbooks("https://in.house/kaishare/") == {"https://in.house/kaishare/docs/runbooks.md"}


def test_every_rule_is_evaluated_and_only_faults_raise_alerts(watched: Prometheus) -> None:
    # The example's pod over its share on a simulated node, which takes memory that its neighbour was promised, the bad label among the policies, and what the page of
    # others says.
    expected = {
        "KaisharePodOverShare",
        "KaishareGPUMemoryAtRisk",
        "KaishareAgentSimulated",
        "KaisharePolicyInvalid",
        "KaishareFailedOpen",
        "KaishareAdmissionPolicyFailed",
    }
    watched.until(lambda: watched.alerts() == expected, watched.alerts)
    rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(list(known_metrics.rules()))
    assert {(rule["health"], rule.get("lastError")) for rule in rules} == {("ok", None)}


def test_series_keep_the_namespace_and_the_pod_they_are_about(watched: Prometheus) -> None:
    watched.until(lambda: watched.instant("kaishare_pod_gpu_memory_used_bytes"))
    series = watched.instant('kaishare_pod_gpu_memory_used_bytes{namespace="training", pod="train"}')
    assert len(series) == 1
    assert watched.instant('{exported_pod=~".+"} or {exported_namespace=~".+"}') == []
