"""The chart's alerts: those of the mixin, with the numbers, severities and labels of the values."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.alerts.rendering import CHART_RULES
from tests.support import yaml_text
from tests.support.helm_chart import (
    CHART,
    NAMESPACE,
    Object,
    find_object,
    helm,
    helm_program,
    options,
    rendered,
)
from tests.support.promtool import ALERTS, assert_samples, default_rules, promtool

GROUPS = default_rules()["groups"]
NUMBERS: dict[str, float] = yaml_text.load(CHART_RULES.read_text(encoding="utf-8"))["numbers"]
OWN = {name: default for name, default in NUMBERS.items() if name.startswith("Kaishare")}
"""Numbers of single alerts."""
NO_SERVICE = {"webhook": {"enabled": False}, "agent": {"enabled": False}}
"""Values that install neither service, so that none is expected to be scraped."""


def rule_object(alerts: dict[str, Any], **others: Any) -> Object:
    values = {"alerts": {"enabled": True, **alerts}, **others}
    return find_object(rendered(values), "PrometheusRule", "kaishare")


def rules(alerts: dict[str, Any], **others: Any) -> dict[str, Object]:
    """Return the rules of the chart by name."""
    groups = rule_object(alerts, **others)["spec"]["groups"]
    return {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}


def refusal(alerts: dict[str, Any], *arguments: str) -> str:
    """Return helm's message about values that the chart refuses."""
    done = helm(
        "template",
        "kaishare",
        str(CHART),
        "--kube-version",
        "1.30.0",
        *arguments,
        *options({"alerts": alerts}),
    )
    assert done.returncode != 0
    return done.stderr


def test_the_rules_without_settings_are_those_of_the_mixin() -> None:
    item = rule_object({"labels": {"release": "prometheus"}}, **NO_SERVICE)
    assert item["spec"]["groups"] == GROUPS
    assert item["metadata"]["labels"]["release"] == "prometheus"


def test_the_readmes_command_writes_the_rules_for_plain_prometheus(tmp_path: Path) -> None:
    readme = (ALERTS / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (helm template (?:.*\\\n)*.*> rules\.yaml)$", readme, re.MULTILINE)
    command = command.replace("deploy/helm/kaishare", str(CHART)).replace("helm", str(helm_program()), 1)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True, timeout=60)
    assert "SUCCESS" in promtool("check", "rules", tmp_path / "rules.yaml")
    assert yaml_text.load((tmp_path / "rules.yaml").read_text()) == rule_object({})["spec"]


@pytest.mark.parametrize("part", ["agent", "webhook"])
def test_an_installed_service_is_expected_to_be_scraped(part: str) -> None:
    names = {"agent": "KaishareAgentNotScraped", "webhook": "KaishareWebhookNotScraped"}
    by_name = rules({}, **{**NO_SERVICE, part: {"enabled": True}})
    for other, name in names.items():
        assert by_name[name]["expr"].rstrip().endswith("== 1" if other == part else "== 0")


@pytest.mark.parametrize(
    ("alert", "metric", "namespace"),
    [
        (
            "KaishareAgentNotScraped",
            "kube_daemonset_status_desired_number_scheduled{daemonset=",
            "kaishare-agent",
        ),
        ("KaishareWebhookNotScraped", "kube_deployment_spec_replicas{deployment=", NAMESPACE),
    ],
)
@pytest.mark.parametrize("pods", [None, 0, 3])
def test_an_expected_service_without_pods_has_no_target_to_miss(
    pods: int | None, alert: str, metric: str, namespace: str, tmp_path: Path
) -> None:
    name = "kaishare-agent" if alert == "KaishareAgentNotScraped" else "kaishare-webhook"
    series = {'up{job="node-exporter"}': "1+0x200"}
    if pods is not None:
        series[f'{metric}"{name}", namespace="{namespace}"}}'] = f"{pods}+0x200"
    missed: dict[int | None, list[dict[str, Any]]] = {
        None: [{"labels": "{}", "value": 1}],
        0: [],
        3: [{"labels": f'{{namespace="{namespace}"}}', "value": 3}],
    }
    assert_samples(tmp_path, rules({})[alert]["expr"], series, missed[pods])


def test_the_services_are_looked_up_in_their_own_namespaces() -> None:
    by_name = rules({}, agent={"namespace": "gpu-agents"})
    assert (
        '{namespace="gpu-agents", daemonset="kaishare-agent"}' in by_name["KaishareAgentNotScraped"]["expr"]
    )
    assert (
        '{namespace="gpu-agents", daemonset="kaishare-agent"}'
        in by_name["node:kaishare_watched:bool"]["expr"]
    )
    assert f'{{namespace="{NAMESPACE}", deployment=' in by_name["KaishareWebhookNotScraped"]["expr"]
    assert 'up{job=~"(gpu-agents/)?kaishare-agent"}' in by_name["KaishareAgentDown"]["expr"]
    assert f'up{{job=~"({NAMESPACE}/)?kaishare-webhook"}}' in by_name["KaishareWebhookDown"]["expr"]


def test_settings_of_an_alert_replace_its_own() -> None:
    overrides = {
        "KaishareGPUMemoryOutsidePods": {"gibibytes": 4.5, "for": "1h30m", "severity": "page"},
        "KaisharePodOverShare": {"keepFiringFor": "10m"},
        "KaishareWatchStale": {"enabled": False},
        "KaishareAgentDown": {"enabled": True},
    }
    by_name = rules({"overrides": overrides, "alertLabels": {"team": "gpu"}})
    changed = by_name["KaishareGPUMemoryOutsidePods"]
    assert "> 4.5 * 2^30" in changed["expr"]
    assert "4.5 GiB" in changed["annotations"]["summary"]
    assert (changed["for"], changed["labels"]) == ("1h30m", {"severity": "page", "team": "gpu"})
    assert by_name["KaisharePodOverShare"]["keep_firing_for"] == "10m"
    assert by_name["KaishareAgentDown"]["labels"] == {"severity": "warning", "team": "gpu"}
    # The only alert of its group takes the group with it: an empty group is valid, and says nothing.
    assert "KaishareWatchStale" not in by_name
    groups = rule_object({"overrides": overrides})["spec"]["groups"]
    assert "kaishare-watches" not in {group["name"] for group in groups}
    assert all("labels" not in rule for name, rule in by_name.items() if ":" in name)


def test_every_number_reaches_its_expression(tmp_path: Path) -> None:
    overrides: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(OWN):
        alert, _, key = name.partition(".")
        overrides.setdefault(alert, {})[key] = 70001.5 + index
    slo = {"answeredPercent": 98.75, "fastPercent": 97.75, "fastSeconds": 0.025}
    item = rule_object({"overrides": overrides, "slo": slo})
    by_name = {rule.get("alert"): rule for group in item["spec"]["groups"] for rule in group["rules"]}
    for index, name in enumerate(OWN):
        assert f"{70001.5 + index}" in by_name[name.partition(".")[0]]["expr"], name
    text = json.dumps(item)
    for figure in ("1 - 98.75 / 100", "1 - 97.75 / 100", 'le=\\"0.025\\"', "longer than 0.025 s"):
        assert figure in text
    assert "${" not in text
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(item["spec"]))
    assert "SUCCESS" in promtool("check", "rules", path)


@pytest.mark.parametrize(
    ("mode", "renew_before", "days", "bound"),
    [
        ("cert-manager", "720h", None, "2"),
        ("cert-manager", "96h", None, "2"),
        ("cert-manager", "24h", None, "0.5"),
        ("cert-manager", "90m", None, "0.03125"),
        ("cert-manager", "24h", 0.25, "0.25"),
        ("cert-manager", "24h", 3, "3"),
        ("self", "24h", None, "2"),
    ],
)
def test_a_certificate_that_cert_manager_renews_in_time_raises_no_alert(
    mode: str, renew_before: str, days: float | None, bound: str
) -> None:
    certificates = {"mode": mode, "certManager": {"duration": "720h", "renewBefore": renew_before}}
    overrides = {} if days is None else {"KaishareServingCertificateEnding": {"days": days}}
    by_name = rules({"overrides": overrides}, webhook={"certificates": certificates})
    assert f"< {bound} * 24 * 3600" in by_name["KaishareServingCertificateEnding"]["expr"]
    assert "< 14 * 24 * 3600" in by_name["KaishareCAEnding"]["expr"]


def test_the_schema_has_every_number() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    settings = schema["properties"]["alerts"]["properties"]["overrides"]["additionalProperties"]["properties"]
    figures = {key for key, value in settings.items() if value == {"$ref": "#/definitions/figure"}}
    assert figures == {name.partition(".")[2] for name in OWN}
    defaults = yaml_text.load((CHART / "values.yaml").read_text())["alerts"]["slo"]
    assert defaults == {key.partition(".")[2]: NUMBERS[key] for key in NUMBERS if key.startswith("slo.")}


def test_a_runbook_is_absolute_or_absent() -> None:
    base = "https://in.house/main/"
    for name, rule in rules({"runbooks": base}).items():
        if "alert" in rule:
            assert rule["annotations"]["runbook_url"] == f"{base}docs/runbooks.md#{name.lower()}"
    assert "runbook_url" not in json.dumps(rule_object({}))
    for relative in ("docs/", "../", "https://in.house/main", "/docs/"):
        assert "/alerts/runbooks" in refusal({"runbooks": relative})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"KaisharePodOvershare": {"for": "1h"}}, "alerts.overrides.KaisharePodOvershare: there is no such alert"),
        (
            {"KaishareCAEnding": {"dais": 3}},
            "KaishareCAEnding.dais: there is no such setting; this alert has enabled, for, keepFiringFor, severity, days",
        ),
        (  # a number of another alert
            {"KaishareCAEnding": {"gibibytes": 3}},
            "alerts.overrides.KaishareCAEnding.gibibytes: there is no such setting",
        ),
        ({"KaishareCAEnding": {"servity": "info"}}, "alerts.overrides.KaishareCAEnding.servity: there is no such"),
        ({"KaishareCAEnding": {"days": "14 or vector(1)"}}, "KaishareCAEnding/days': got string, want number"),
        ({"KaishareCAEnding": {"days": -1}}, "KaishareCAEnding/days': minimum"),
        ({"KaishareCAEnding": {"for": "2 weeks"}}, "KaishareCAEnding/for': '2 weeks' does not match"),
        ({"KaishareCAEnding": {"severity": "a b"}}, "KaishareCAEnding/severity': 'a b' does not match"),
        ({"KaishareCAEnding": {"enabled": "no"}}, "KaishareCAEnding/enabled': got string, want boolean"),
        ({"KaishareCAEnding": 3}, "KaishareCAEnding': got number, want object"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_sentence(overrides: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal({"overrides": overrides})


def test_wrong_settings_are_refused_while_alerts_are_off() -> None:
    assert "there is no such alert" in refusal({"enabled": False, "overrides": {"Kaishare": {}}})


@pytest.mark.parametrize("label", ["severity", "alertname"])
def test_labels_of_all_alerts_are_none_that_an_alert_has(label: str) -> None:
    assert f"alerts.alertLabels.{label}: each alert has this label" in refusal({"alertLabels": {label: "x"}})


def test_a_text_reaches_no_expression_even_unchecked() -> None:
    overrides = {"KaishareCAEnding": {"days": "14 or vector(1)"}}
    message = refusal({"enabled": True, "overrides": overrides}, "--skip-schema-validation")
    assert "alerts: KaishareCAEnding.days is not a number" in message
    message = refusal(
        {"enabled": True, "slo": {"fastSeconds": '0.1"}) or vector(1) #'}}, "--skip-schema-validation"
    )
    assert "alerts: slo.fastSeconds is not a number" in message
    agent = json.dumps({"namespace": 'x"} or vector(1) #'})
    message = refusal({"enabled": True}, "--skip-schema-validation", "--set-json", f"agent={agent}")
    assert "is not the name of a namespace" in message
