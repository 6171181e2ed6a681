"""The mixin: everything can be set through `_config`, and the result is valid."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import rjsonnet
import yaml

from tests.support.promtool import ROOT, promtool

MIXIN = ROOT / "deploy" / "mixin"
WHOLE = "{ groups: m.prometheusRules.groups + m.prometheusAlerts.groups }"


def evaluated(config: str = "{}", expression: str = WHOLE) -> Any:
    """Return the value of a jsonnet expression on the mixin `m` with settings."""
    snippet = f"local m = (import 'mixin.libsonnet') + {{ _config+:: {config} }}; {expression}"
    return json.loads(rjsonnet.evaluate_snippet("test", snippet, jpathdir=str(MIXIN)))


def alerts(config: str) -> dict[str, dict[str, Any]]:
    rules = (rule for group in evaluated(config)["groups"] for rule in group["rules"])
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def checked(folder: Path, config: str) -> str:
    """Write the rules with these settings to a folder; return promtool's output about them."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(evaluated(config)))
    return promtool("check", "rules", folder / "rules.yaml")


def test_the_mixin_has_the_usual_keys() -> None:
    keys = evaluated(expression="std.objectFieldsAll(m)")
    assert set(keys) == {"_config", "prometheusAlerts", "prometheusRules", "grafanaDashboards"}
    # Two mixins add up: `groups` of another one stay.
    other = "{ prometheusAlerts+:: { groups+: [{ name: 'other' }] } }"
    names = evaluated(expression=f"[group.name for group in ({other} + m + {other}).prometheusAlerts.groups]")
    assert names[0] == names[-1] == "other"
    assert len(names) > 2


def test_every_setting_of_the_readme_has_its_effect(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"```jsonnet\n(.*?)```", (ROOT / "deploy" / "alerts" / "README.md").read_text(), re.DOTALL
    )
    config = re.fullmatch(
        r"\(import 'mixin\.libsonnet'\) \+ \{\n  _config\+:: (\{.*\}),\n\}\n", example, re.DOTALL
    )
    assert config is not None
    assert "SUCCESS" in checked(tmp_path, config[1])
    by_name = alerts(config[1])
    assert 'up{job="gpu-agents"} == 0' in by_name["KaishareAgentDown"]["expr"]
    assert 'up{job="admission", team="platform"}' in by_name["KaishareWebhookDown"]["expr"]
    text = json.dumps(evaluated(config[1]))
    expressions = [rule["expr"] for group in evaluated(config[1])["groups"] for rule in group["rules"]]
    assert not [expr for expr in expressions if re.search(r"\bcluster\b", expr)]
    assert any("by (k8s_cluster, " in expr for expr in expressions)
    assert "$labels.k8s_cluster" in by_name["KaishareAgentBlind"]["annotations"]["description"]
    assert by_name["KaishareAgentNotScraped"]["expr"].endswith("== 1")
    assert by_name["KaishareWebhookNotScraped"]["expr"].endswith("== 0")
    base = "https://git.example.com/kaishare/blob/main/docs/runbooks.md#"
    assert {rule["annotations"]["runbook_url"] for rule in by_name.values()} == {
        base + name.lower() for name in by_name
    }
    assert {rule["labels"]["team"] for rule in by_name.values()} == {"gpu"}
    assert 'le=\\"0.5\\"' in text
    assert "99.5 / 100" in by_name["KaishareWebhookFailureBurnFast"]["expr"]
    changed = by_name["KaishareGPUMemoryOutsidePods"]
    assert "> 4 * 2^30" in changed["expr"]
    assert (changed["for"], changed["labels"]["severity"]) == ("1h", "info")
    assert "KaisharePodWithoutShare" not in by_name


def test_every_setting_is_in_the_readme() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "deploy" / "alerts" / "README.md").read_text(), re.MULTILINE)
    named = {name.partition(".")[0] for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert set(evaluated(expression="std.objectFields(m._config)")) <= named


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{ alerts+: { KaishareCAEnd: { severity: 'info' } } }", "_config.alerts: no alert is named KaishareCAEnd"),
        ("{ alerts+: { KaishareCAEnding+: { dais: 3 } } }", "_config.alerts.KaishareCAEnding: there is no setting dais"),
        (
            "{ alerts+: { KaishareCAEnding+: { days: '3 or vector(1)' } } }",
            '_config: KaishareCAEnding.days is "3 or vector(1)"; it must be a number',
        ),
        ("{ slo+: { fastSeconds: 0.2 } }", "_config.slo.fastSeconds must be one of"),
        ("{ slo+: { answeredPercent: '99' } }", "_config: slo.answeredPercent is"),
        ("{ runbooks: 'https://in.house' }", "_config.runbooks must end with a slash"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_an_error_that_names_it(config: str, problem: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(problem)):
        evaluated(config)


EXPECTED = """
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - name: neither service is scraped where both are expected; the agents are from the thirtieth minute on
    interval: 1m
    input_series:
      - {series: 'up{job="node-exporter", instance="a"}', values: '1+0x60'}
      - {series: 'up{job="kaishare-agent", instance="a"}', values: '_x30 1+0x30'}
    alert_rule_test:
      - {eval_time: 14m, alertname: KaishareAgentNotScraped}
      - eval_time: 20m
        alertname: KaishareAgentNotScraped
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: Prometheus does not scrape the agents
              first_act: Look for the agents among Prometheus' targets, also under the name of another job.
              description: >-
                Prometheus has had no target with job=~"(kaishare-agent/)?kaishare-agent" for an hour: alerts about GPUs and their pods
                cannot fire.
      - {eval_time: 31m, alertname: KaishareAgentNotScraped}
      - eval_time: 31m
        alertname: KaishareWebhookNotScraped
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: Prometheus does not scrape the webhook
              first_act: Look for the webhook among Prometheus' targets, also under the name of another job.
              description: >-
                Prometheus has had no target with job=~"(kaishare/)?kaishare-webhook" for an hour: alerts on its metrics cannot
                fire.

  - name: where kube-state-metrics lists the service, the alert names its cluster, and there is one
    interval: 1m
    input_series:
      - {series: 'kube_daemonset_status_desired_number_scheduled{daemonset="kaishare-agent", namespace="kaishare-agent", k8s="a"}', values: '3+0x60'}
    alert_rule_test:
      - eval_time: 20m
        alertname: KaishareAgentNotScraped
        exp_alerts:
          - exp_labels: {severity: warning, k8s: a, namespace: kaishare-agent}
            exp_annotations:
              summary: Prometheus does not scrape the agents
              first_act: Look for the agents among Prometheus' targets, also under the name of another job.
              description: >-
                Prometheus has had no target with job=~"(kaishare-agent/)?kaishare-agent" for an hour, and the DaemonSet kaishare-agent of
                namespace kaishare-agent has pods: alerts about GPUs and their pods cannot fire.
"""


def test_a_service_that_is_expected_and_never_scraped_raises_its_alert(tmp_path: Path) -> None:
    checked(tmp_path, "{ expected: { agent: true, webhook: true }, clusterLabel: 'k8s' }")
    (tmp_path / "expected.yaml").write_text(EXPECTED)
    promtool("test", "rules", tmp_path / "expected.yaml")
