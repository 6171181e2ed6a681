"""The dashboard and the rules on a real Prometheus, which scrapes a real agent and a real webhook."""

import itertools
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

from certs.directory import ensure
from tests.support import known_metrics
from tests.support.agent_process import agent
from tests.support.pods import gpu_container, pod
from tests.support.prometheus_server import PATIENCE_SECONDS, Prometheus, page, prometheus
from tests.support.promtool import ROOT, needed
from tests.support.webhook_server import POLICIES, review_of

DASHBOARD = json.loads((ROOT / "deploy" / "dashboard" / "kaishare.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    pytest.param(panel, target, id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]

TABLES = [panel for panel in PANELS if panel["type"] == "table" and len(panel["targets"]) > 1]

EMPTY = {
    "Problems": "the agent has none",
    "Errors of the driver": "there are none",
    "Events about pods": "the pods of a simulated node are in no cluster",
    "Evictions": "the same",
    "Called before KAI": "policies come from a file",
    "Time since the last contact": "the same: there is no watch",
    "Watch restarts, by cause": "the same",
}
"""Panels without data here, and why. Their queries must be right all the same."""

OTHERS = """\
kai_queue_allocated_gpus{{queue_name="vision"}} 1
kai_queue_deserved_gpus{{queue_name="vision"}} 2
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-6a3c1f0e-58d2-4c1b-9d57-0b6f2c8e4a11"}} 40
DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-6a3c1f0e-58d2-4c1b-9d57-0b6f2c8e4a11"}} 18000
process_start_time_seconds {started}
apiserver_admission_webhook_fail_open_count{{name="pods.mutate.kaishare.dev",type="admit"}} 1
apiserver_admission_webhook_rejection_count{{name="pods.validate.kaishare.dev",type="validating",error_type="no_error",rejection_code="403",operation="CREATE"}} {scrape}
apiserver_admission_webhook_admission_duration_seconds_bucket{{name="pods.mutate.kaishare.dev",le="0.005"}} {scrape}
apiserver_admission_webhook_admission_duration_seconds_bucket{{name="pods.mutate.kaishare.dev",le="+Inf"}} {scrape}
"""
"""What KAI, dcgm-exporter and the API server would say; of them the names and labels count."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run an agent whose pod exceeds its share, a webhook under load, and a Prometheus that scrapes both."""
    needed("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    simulated = f"simulated:{ROOT / 'examples' / 'agent' / 'node.yaml'}"
    with (
        agent(folder / "agent.log", "--gpus", simulated, "--interval", "200ms", "--grace", "1s") as node,
        webhook(folder) as ops,
        page(lambda scrape: OTHERS.format(scrape=scrape, started=time.time())) as others,
        prometheus(
            folder,
            {
                "kaishare-agent": node.url.removeprefix("http://").rstrip("/"),
                "kaishare-webhook": ops,
                "others": others,
            },
        ) as running,
    ):
        yield running


@contextmanager
def webhook(folder: Path) -> Iterator[str]:
    """Run a webhook under a steady load of reviews; yield the address of its metrics."""
    (folder / "policies.yaml").write_text(POLICIES)
    files = ensure(folder / "tls", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
    command = f"-m webhook serve --policies {folder}/policies.yaml --tls-cert {files.certificate} --tls-key {files.key}"
    ports = "--listen 127.0.0.1:0 --ops-listen 127.0.0.1:0"
    log = folder / "webhook.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *command.split(), *ports.split()], cwd=ROOT, stderr=stream
        )
    trust = ssl.create_default_context(cafile=str(folder / "tls" / "ca.crt"))
    review = json.dumps(review_of(pod(gpu_container()))).encode()
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
    try:
        with urllib.request.urlopen(url, data=body, timeout=10, context=trust) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def substituted(query: str) -> str:
    """Return a query as Grafana sends it with every variable at All."""
    for variable in DASHBOARD["templating"]["list"]:
        query = query.replace(f"${variable['name']}", variable.get("allValue", ""))
    query = query.replace("$__rate_interval", "5s").replace("$__range", "30s")
    assert "$" not in query
    return query


def has_data(running: Prometheus, target: dict[str, Any]) -> bool:
    """Whether any series of a query has a number."""
    query = substituted(target["expr"])
    if target["instant"]:
        values = [series["value"][1] for series in running.instant(query)]
    else:
        values = [value for series in running.lately(query) for _, value in series["values"]]
    return any(math.isfinite(float(value)) for value in values)


@pytest.mark.slow
@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_a_query_has_data_unless_its_panel_may_be_empty(
    watched: Prometheus, panel: dict[str, Any], target: dict[str, Any]
) -> None:
    if panel["title"] in EMPTY:
        assert not has_data(watched, target)
    else:
        watched.until(lambda: has_data(watched, target), lambda: target["expr"])


@pytest.mark.parametrize("panel", TABLES, ids=lambda panel: panel["title"])
def test_the_columns_of_a_table_join_to_rows(watched: Prometheus, panel: dict[str, Any]) -> None:
    """Grafana merges rows whose labels are all the same; a metric's name would be one of them."""

    def rows() -> list[set[frozenset[tuple[str, str]]]]:
        columns = [watched.instant(substituted(target["expr"])) for target in panel["targets"]]
        return [{frozenset(series["metric"].items()) for series in column} for column in columns]

    watched.until(lambda: all(rows()), rows)
    first, *others = rows()
    for column in others:
        assert not first.isdisjoint(column)
        assert {key for row in first for key, _ in row} == {key for row in column for key, _ in row}
    assert "__name__" not in {key for row in first for key, _ in row}


def test_every_rule_is_evaluated_and_only_faults_raise_alerts(watched: Prometheus) -> None:
    # The example's pod over its share on a simulated node, the bad label among the policies, and what the page of
    # others says.
    expected = {
        "KaisharePodOverShare",
        "KaishareAgentSimulated",
        "KaisharePolicyInvalid",
        "KaishareFailedOpen",
    }
    watched.until(lambda: watched.alerts() == expected, watched.alerts)
    rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(list(known_metrics.rules()))
    assert {(rule["health"], rule.get("lastError")) for rule in rules} == {("ok", None)}


def test_series_keep_the_namespace_and_the_pod_they_are_about(watched: Prometheus) -> None:
    watched.until(lambda: watched.instant("kaishare_pod_gpu_memory_used_bytes"))
    series = watched.instant('kaishare_pod_gpu_memory_used_bytes{namespace="training", pod="train-resnet"}')
    assert len(series) == 1
    assert watched.instant('{exported_pod=~".+"} or {exported_namespace=~".+"}') == []


def test_every_panel_that_may_be_empty_exists() -> None:
    assert EMPTY.keys() <= {panel["title"] for panel in PANELS}


def test_the_dashboard_names_only_metrics_that_exist() -> None:
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions += [variable.get("definition", "") for variable in DASHBOARD["templating"]["list"]]
    assert known_metrics.unknown(expressions) == set()


def test_the_dashboard_shows_every_figure_about_gpus_and_pods() -> None:
    text = json.dumps([panel["targets"] for panel in PANELS])
    figures = {name for name in known_metrics.documented() if re.match(r"kaishare_(gpu|pod)_(?!info)", name)}
    assert {name for name in figures if name not in text} == {"kaishare_pod_gpu_memory_limit_bytes"}


def test_every_panel_has_its_own_id_place_and_data_source() -> None:
    panels = DASHBOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for first, second in itertools.combinations(panels, 2):
        a, b = first["gridPos"], second["gridPos"]
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (first["title"], second["title"])


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert DASHBOARD["schemaVersion"] == 42
    assert "id" not in DASHBOARD
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {
        "datasource",
        "node",
        "queue",
        "namespace",
    }
