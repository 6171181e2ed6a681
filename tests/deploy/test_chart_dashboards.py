"""The chart's ConfigMaps with dashboards for Grafana."""

import json

import pytest

from tests.support.helm_chart import (
    CHART,
    NAMESPACE,
    Object,
    find_object,
    rendered,
)

DASHBOARDS = ("fleet", "namespace", "node", "webhook")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_dashboard_is_one_config_map_for_grafanas_sidecar(name: str) -> None:
    objects = rendered({"dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    text = dashboard["data"][f"kaishare-{name}.json"]
    assert json.loads(text) == json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text())
    assert fits_an_annotation(dashboard)
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["metadata"]["annotations"] == {"grafana_folder": "kaishare"}


def fits_an_annotation(item: Object) -> bool:
    """Whether `kubectl apply` can keep a copy of an object in an annotation, of at most 256 KiB."""
    return len(json.dumps(item).encode()) < 250 << 10


def test_the_dashboards_take_labels_and_annotations() -> None:
    objects = rendered(
        {"dashboard": {"enabled": True, "labels": {"board": "yes"}, "annotations": {"folder": "GPU"}}}
    )
    metadata = find_object(objects, "ConfigMap", "kaishare-dashboard-fleet")["metadata"]
    assert metadata["labels"]["board"] == "yes"
    assert metadata["annotations"]["folder"] == "GPU"


@pytest.mark.parametrize("name", ["fleet", "webhook"])
def test_dashboards_link_to_runbooks_where_the_chart_knows_their_address(name: str) -> None:
    address = "https://in.house/"
    objects = rendered({"alerts": {"runbooks": address}, "dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    assert fits_an_annotation(dashboard)
    linked = json.loads(dashboard["data"][f"kaishare-{name}.json"])
    expected = json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text())
    (variable,) = (item for item in expected["templating"]["list"] if item["name"] == "runbooks")
    assert (variable["query"], variable["current"]["value"]) == ("", "")
    variable["query"] = address
    variable["current"] = {"selected": True, "text": address, "value": address}
    assert linked == expected


@pytest.mark.parametrize("name", ["fleet", "node"])
def test_dashboards_link_to_agents_with_tls_by_https(name: str) -> None:
    objects = rendered({"agent": {"tlsSecret": "agent-tls"}, "dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    assert fits_an_annotation(dashboard)
    linked = json.loads(dashboard["data"][f"kaishare-{name}.json"])
    expected = json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text())
    (variable,) = (item for item in expected["templating"]["list"] if item["name"] == "agent_scheme")
    assert variable["current"]["value"] == "http"
    variable["current"] = {"selected": True, "text": "https", "value": "https"}
    for option in variable["options"]:
        option["selected"] = option["value"] == "https"
    assert linked == expected


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_find_the_jobs_of_the_releases_namespaces(name: str) -> None:
    """A tenant may have a PodMonitor of the same name in another namespace."""
    objects = rendered({"agent": {"namespace": "gpu-agents"}, "dashboard": {"enabled": True}})
    dashboard = find_object(objects, "ConfigMap", f"kaishare-dashboard-{name}")
    variables = json.loads(dashboard["data"][f"kaishare-{name}.json"])["templating"]["list"]
    expected = {
        "agent_job": "(gpu-agents/)?kaishare-agent",
        "webhook_job": f"({NAMESPACE}/)?kaishare-webhook",
    }
    jobs = [item for item in variables if item["name"] in expected]
    assert jobs
    for job in jobs:
        assert (job["query"], job["current"]["value"]) == (expected[job["name"]],) * 2
