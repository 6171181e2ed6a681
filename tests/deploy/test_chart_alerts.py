"""The chart's alerts: those of the mixin, with the numbers, severities and labels of the values."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import CHART_RULES
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
from tests.support.promtool import ALERTS, assert_cases, case_of, default_rules, promtool

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
    values = options({"alerts": alerts})
    done = helm("template", "kaishare", str(CHART), "--kube-version", "1.30.0", *arguments, *values)
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


LISTED = {
    "agent": ("KaishareAgentNotScraped", 'kube_daemonset_status_desired_number_scheduled{daemonset="kaishare-agent", namespace="kaishare-agent"}'),
    "webhook": ("KaishareWebhookNotScraped", f'kube_deployment_spec_replicas{{deployment="kaishare-webhook", namespace="{NAMESPACE}"}}'),
}  # fmt: skip
"""The alert about each service, and the series of its pods in kube-state-metrics."""


@pytest.mark.parametrize("part", LISTED)
def test_an_installed_service_is_expected_to_be_scraped(part: str) -> None:
    by_name = rules({}, **{**NO_SERVICE, part: {"enabled": True}})
    for other, (name, _) in LISTED.items():
        assert by_name[name]["expr"].rstrip().endswith("== 1" if other == part else "== 0")


@pytest.mark.parametrize("part", LISTED)
@pytest.mark.parametrize("pods", [None, 0, 3])
def test_an_expected_service_without_pods_has_no_target_to_miss(
    pods: int | None, part: str, tmp_path: Path
) -> None:
    alert, listed = LISTED[part]
    series = {'up{job="node-exporter"}': "1+0x200"} | ({} if pods is None else {listed: f"{pods}+0x200"})
    namespace = NAMESPACE if part == "webhook" else "kaishare-agent"
    missed = {None: [("{}", 1)], 0: [], 3: [(f'{{namespace="{namespace}"}}', 3)]}[pods]
    samples = [{"labels": labels, "value": value} for labels, value in missed]
    assert_cases(tmp_path, case_of(rules({})[alert]["expr"], series, samples))


def test_the_services_are_looked_up_in_their_own_namespaces() -> None:
    by_name = rules({}, agent={"namespace": "gpu-agents"})
    for name, text in (
        ("KaishareAgentNotScraped", '{namespace="gpu-agents", daemonset="kaishare-agent"}'),
        ("node:kaishare_watched:bool", '{namespace="gpu-agents", daemonset="kaishare-agent"}'),
        ("KaishareWebhookNotScraped", f'{{namespace="{NAMESPACE}", deployment='),
        ("KaishareAgentDown", 'up{job=~"(gpu-agents/)?kaishare-agent"}'),
        ("KaishareWebhookDown", f'up{{job=~"({NAMESPACE}/)?kaishare-webhook"}}'),
    ):
        assert text in by_name[name]["expr"]


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


NO_SUCH, CA = "there is no such", "KaishareCAEnding"


@pytest.mark.parametrize(
    ("alerts", "sentence"),
    [
        ({"runbooks": "docs/"}, "/alerts/runbooks"),
        ({"runbooks": "../"}, "/alerts/runbooks"),
        ({"runbooks": "/docs/"}, "/alerts/runbooks"),
        ({"runbooks": "https://in.house/main"}, "/alerts/runbooks"),
        ({"enabled": False, "overrides": {"Kaishare": {}}}, f"{NO_SUCH} alert"),
        ({"overrides": {"KaisharePodOvershare": {"for": "1h"}}}, f"alerts.overrides.KaisharePodOvershare: {NO_SUCH} alert"),
        ({"overrides": {CA: {"dais": 3}}}, f"{CA}.dais: {NO_SUCH} setting; this alert has enabled, for, keepFiringFor, severity, days"),
        ({"overrides": {CA: {"gibibytes": 3}}}, f"alerts.overrides.{CA}.gibibytes: {NO_SUCH} setting"),  # a number of another alert
        ({"overrides": {CA: {"servity": "info"}}}, f"alerts.overrides.{CA}.servity: {NO_SUCH}"),
        ({"overrides": {CA: {"days": "14 or vector(1)"}}}, f"{CA}/days': got string, want number"),
        ({"overrides": {CA: {"days": -1}}}, f"{CA}/days': minimum"),
        ({"overrides": {CA: {"for": "2 weeks"}}}, f"{CA}/for': '2 weeks' does not match"),
        ({"overrides": {CA: {"severity": "a b"}}}, f"{CA}/severity': 'a b' does not match"),
        ({"overrides": {CA: {"enabled": "no"}}}, f"{CA}/enabled': got string, want boolean"),
        ({"overrides": {CA: 3}}, f"{CA}': got number, want object"),
        *(({"alertLabels": {label: "x"}}, f"alerts.alertLabels.{label}: each alert has this label") for label in ("severity", "alertname")),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_sentence(alerts: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(alerts)


@pytest.mark.parametrize(
    ("alerts", "agent", "sentence"),
    [
        ({"overrides": {CA: {"days": "14 or vector(1)"}}}, {}, f"alerts: {CA}.days is not a number"),
        ({"slo": {"fastSeconds": '0.1"}) or vector(1) #'}}, {}, "alerts: slo.fastSeconds is not a number"),
        ({}, {"namespace": 'x"} or vector(1) #'}, "is not the name of a namespace"),
    ],
)
def test_a_text_reaches_no_expression_even_unchecked(
    alerts: dict[str, Any], agent: dict[str, Any], sentence: str
) -> None:
    unchecked = ("--skip-schema-validation", *options({"agent": agent} if agent else {}))
    assert sentence in refusal({"enabled": True, **alerts}, *unchecked)
