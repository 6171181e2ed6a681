"""Alerts: valid, proved one by one, explained in a runbook, about metrics that exist, and set through the mixin's `_config`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import rjsonnet
import yaml

from gpuagent.first_acts import FOR_PROBLEM
from gpuagent.problems import Cause
from tests.support import known_metrics, yaml_text
from tests.support.markers import nightly
from tests.support.promtool import ALERTS, ROOT, default_rules, promtool

PROOFS = sorted((ALERTS / "tests").glob("*.yaml"))
LONG = ("gaps", "hours", "restarts", "slo")
"""Proofs that promtool takes seconds for, since they evaluate all rules for hours."""
BY_NAME = {rule["alert"]: rule for rule in known_metrics.rules() if "alert" in rule}


def cases() -> list[dict[str, Any]]:
    """Every group of promtool's unit tests."""
    return [case for file in PROOFS for case in yaml_text.load(file.read_text(encoding="utf-8"))["tests"]]


def minutes(duration: str) -> int:
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", duration)
    assert parts, duration
    return int(parts[1] or 0) * 60 + int(parts[2] or 0)


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(default_rules()))
    count = len(list(known_metrics.rules()))
    assert f"{count} rules found" in promtool("check", "rules", tmp_path / "rules.yaml")


def groups_of(proof: str) -> list[dict[str, Any]]:
    """Return the groups of rules that a proof names, and those whose records they use; all with alerts for a query
    of any alert, and all for one of any name.

    The time of promtool grows with the number of rules.
    """
    groups = default_rules()["groups"]
    if re.search(r"expr:.*__name__", proof):
        return list(groups)
    has_alerts = re.search(r"expr:.*ALERTS", proof) is not None
    used = [group for group in groups if has_alerts and any("alert" in rule for rule in group["rules"])]
    text = " ".join([proof, *(rule["expr"] for group in used for rule in group["rules"])])
    while more := [group for group in groups if group not in used and names_a_rule(text, group)]:
        used += more
        text = " ".join(rule["expr"] for group in more for rule in group["rules"])
    return [group for group in groups if group in used]


def names_a_rule(text: str, group: dict[str, Any]) -> bool:
    names = set(re.split(r"[^\w:]", text))
    return any((rule.get("alert") or rule["record"]) in names for rule in group["rules"])


def follow_their_records(groups: list[dict[str, Any]], order: list[str]) -> bool:
    """Whether the order evaluates each group after those whose records it uses."""
    places = {name: place for place, name in enumerate(order)}
    return all(
        places.get(other["name"], len(order)) < places.get(group["name"], -1)
        for group in groups
        for other in groups
        if other is not group and names_a_rule(" ".join(rule["expr"] for rule in group["rules"]), other)
    )


@pytest.mark.parametrize(
    "proof",
    [nightly(proof) if proof.stem in LONG else proof for proof in PROOFS],
    ids=lambda proof: proof.stem,
)
def test_promtools_unit_tests_of_the_rules_pass(proof: Path, tmp_path: Path) -> None:
    text = proof.read_text(encoding="utf-8")
    groups = groups_of(text)
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        del rule["annotations"]["first_act"]
    order = yaml_text.load(text).get("group_eval_order", [])
    assert follow_their_records(groups, order), "promtool evaluates other groups in a random order"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / proof.name).write_text(text)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    promtool("test", "rules", tmp_path / "tests" / proof.name)


def test_every_alert_fires_and_then_clears_in_one_proof() -> None:
    proved = set()
    for case in cases():
        fired: dict[str, int] = {}
        for look in sorted(case.get("alert_rule_test", ()), key=lambda look: minutes(look["eval_time"])):
            if look.get("exp_alerts"):
                fired[look["alertname"]] = minutes(look["eval_time"])
            elif look["alertname"] in fired:
                proved.add(look["alertname"])
    assert proved == set(BY_NAME)


@pytest.mark.parametrize("what", ["no kaishare target is scraped", "an agent that knows little"])
def test_no_alert_fires_without_its_metrics(what: str) -> None:
    (case,) = (case for case in cases() if case["name"].startswith(what))
    assert not any(look.get("exp_alerts") for look in case["alert_rule_test"])
    assert [look["alertname"] for look in case["alert_rule_test"]] == list(BY_NAME)


def test_every_alert_has_a_severity_and_a_first_act() -> None:
    for name, rule in BY_NAME.items():
        assert re.fullmatch(r"Kaishare[A-Z][A-Za-z]+", name)
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        # A relative runbook_url leads nowhere.
        assert rule["annotations"].keys() == {"summary", "description", "first_act"}, name
        assert "{{" not in rule["annotations"]["summary"], name


def test_every_alert_has_a_whole_section_in_the_runbooks_and_no_section_lacks_its_alert() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert sections.keys() == BY_NAME.keys()
    for name, section in sections.items():
        parts = re.findall(r"^\*\*(.+?)\*\*", section, flags=re.MULTILINE)
        assert parts[:4] == ["First act.", "Meaning.", "Impact.", "Diagnosis."], name
        assert parts[4:] in ([], ["Mitigation."], ["Ignore when."], ["Mitigation.", "Ignore when."]), name
        act = BY_NAME[name]["annotations"]["first_act"]
        if "{{" not in act:  # by reason, as the generated table of the section has it
            assert section.startswith(f"\n**First act.** {act}\n"), name
        # Alerts link to the heading in lower case, tables of Grafana to the name: PromQL has no lower case.
        assert f'<a id="{name}"></a>\n\n## {name}\n' in text
    for anchor in re.findall(r"\]\(#([a-z]+)\)", text):
        assert anchor in {name.lower() for name in BY_NAME}


BLIND = """
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'kaishare_agent_attribution_ok{job="kaishare-agent", instance="a"}', values: '0+0x30'}
      - {series: 'kaishare_agent_attribution_problem{job="kaishare-agent", instance="a", reason="pid-namespace"}', values: '1+0x30'}
      - {series: 'kaishare_agent_attribution_problem{job="kaishare-agent", instance="a", reason="truncated", gpu_uuid="GPU-1"}', values: '1+0x30'}
      - {series: 'kaishare_agent_attribution_ok{job="kaishare-agent", instance="b"}', values: '0+0x30'}
      - {series: 'kaishare_agent_attribution_ok{job="kaishare-agent", instance="c"}', values: '1+0x30'}
      - {series: 'kaishare_agent_attribution_problem{job="kaishare-agent", instance="c", reason="truncated", gpu_uuid="GPU-1"}', values: '1+0x30'}
    alert_rule_test:
      - eval_time: 20m
        alertname: KaishareAgentBlind
        exp_alerts:
          - exp_labels: {severity: warning, job: kaishare-agent, instance: a}
            exp_annotations: {first_act: "PID-NAMESPACE TRUNCATED"}
          - exp_labels: {severity: warning, job: kaishare-agent, instance: b}
            exp_annotations: {first_act: "SAMPLE-STALE"}
      - eval_time: 20m
        alertname: KaishareAgentPartlyBlind
        exp_alerts:
          - exp_labels: {severity: warning, job: kaishare-agent, instance: c, reason: truncated, gpu_uuid: GPU-1}
            exp_annotations: {first_act: "TRUNCATED"}
"""


def test_the_first_act_of_an_alert_on_problems_is_that_of_each_problem(tmp_path: Path) -> None:
    proof = BLIND
    for cause in Cause:
        proof = proof.replace(cause.upper(), FOR_PROBLEM[cause].text)
    rules = [BY_NAME[name] for name in ("KaishareAgentBlind", "KaishareAgentPartlyBlind")]
    only = [{**rule, "annotations": {"first_act": rule["annotations"]["first_act"]}} for rule in rules]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "blind", "rules": only}]}))
    (tmp_path / "blind.yaml").write_text(proof)
    promtool("test", "rules", tmp_path / "blind.yaml")


def test_rules_name_only_metrics_that_exist() -> None:
    assert known_metrics.unknown(rule["expr"] for rule in known_metrics.rules()) == set()
    texts = [text for rule in BY_NAME.values() for text in rule["annotations"].values()]
    assert known_metrics.unknown(re.findall(r'printf "([^{]*){', "\n".join(texts))) == set()


def test_the_table_of_recording_rules_is_complete() -> None:
    text = (ALERTS / "README.md").read_text(encoding="utf-8")
    assert "each also as `…:rate30m`, `…:rate1h`, `…:rate6h`" in text
    named = set(re.findall(r"`([a-z]+:\w+:\w+)`", text))
    for name in set(named):
        if name.startswith("queue:") and f"`{name}`, `namespace:…`" in text:
            named.add("namespace" + name.removeprefix("queue"))
        if name.endswith(":rate5m"):
            named |= {f"{name.removesuffix('5m')}{window}" for window in ("30m", "1h", "6h")}
    assert named == known_metrics.recorded()


def test_the_readmes_scrape_configuration_is_valid(tmp_path: Path) -> None:
    text = (ALERTS / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", text, flags=re.DOTALL)
    configuration = yaml_text.load(block)
    for job in configuration["scrape_configs"]:
        assert job["honor_labels"]
        assert job.pop("kubernetes_sd_configs")  # Debian's Prometheus is built without
        job["static_configs"] = [{"targets": ["127.0.0.1:9"]}]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(default_rules()))
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yaml")


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
    (example,) = re.findall(r"```jsonnet\n(.*?)```", (ALERTS / "README.md").read_text(), re.DOTALL)
    config = re.fullmatch(
        r"\(import 'mixin\.libsonnet'\) \+ \{\n  _config\+:: (\{.*\}),\n\}\n", example, re.DOTALL
    )
    assert config is not None
    assert "SUCCESS" in checked(tmp_path, config[1])
    by_name = alerts(config[1])
    text = json.dumps(evaluated(config[1]))
    assert not re.search(r"\bcluster\b", " ".join(re.findall(r'"expr": "(.*?[^\\])"', text)))
    assert "by (k8s_cluster, " in text
    assert 'le=\\"0.5\\"' in text
    for name, part in (
        ("KaishareAgentDown", 'up{job="gpu-agents"} == 0'),
        ("KaishareWebhookDown", 'up{job="admission", team="platform"}'),
        ("KaishareWebhookFailureBurnFast", "99.5 / 100"),
        ("KaishareGPUMemoryOutsidePods", "> 4 * 2^30"),
    ):
        assert part in by_name[name]["expr"]
    assert "$labels.k8s_cluster" in by_name["KaishareAgentBlind"]["annotations"]["description"]
    assert by_name["KaishareAgentNotScraped"]["expr"].endswith("== 1")
    assert by_name["KaishareWebhookNotScraped"]["expr"].endswith("== 0")
    base = "https://git.example.com/kaishare/blob/main/docs/runbooks.md#"
    urls = {rule["annotations"]["runbook_url"] for rule in by_name.values()}
    assert urls == {base + name.lower() for name in by_name}
    assert {rule["labels"]["team"] for rule in by_name.values()} == {"gpu"}
    changed = by_name["KaishareGPUMemoryOutsidePods"]
    assert (changed["for"], changed["labels"]["severity"]) == ("1h", "info")
    assert "KaisharePodWithoutShare" not in by_name


def test_every_setting_is_in_the_readme() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ALERTS / "README.md").read_text(), re.MULTILINE)
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


@pytest.mark.parametrize(
    ("alert", "lasts"), [("KaishareAgentNotScraped", False), ("KaishareWebhookNotScraped", True)]
)
def test_a_service_that_is_expected_and_never_scraped_raises_its_alert(
    alert: str, lasts: bool, tmp_path: Path
) -> None:
    """The agents are scraped from the thirtieth minute on."""
    groups = evaluated("{ expected: { agent: true, webhook: true }, clusterLabel: 'k8s' }")["groups"]
    own = [group for group in groups if names_a_rule(alert, group)]  # promtool's time grows with the rules
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": own}))
    is_agent = "Agent" in alert
    what, about = ("agents", "about GPUs and their pods") if is_agent else ("webhook", "on its metrics")
    job = "(kaishare-agent/)?kaishare-agent" if is_agent else "(kaishare/)?kaishare-webhook"
    fired = {
        "exp_labels": {"severity": "warning"},
        "exp_annotations": {
            "summary": f"Prometheus does not scrape the {what}",
            "first_act": f"Look for the {what} among Prometheus' targets, also under the name of another job.",
            "description": f'Prometheus has had no target with job=~"{job}" for an hour: alerts {about} cannot fire.',
        },
    }
    series = {
        'up{job="node-exporter", instance="a"}': "1+0x60",
        'up{job="kaishare-agent", instance="a"}': "_x30 1+0x30",
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{at}m", "alertname": alert, "exp_alerts": alerts}
            for at, alerts in ((14, []), (20, [fired]), (31, [fired] * lasts))
        ],
    }
    (tmp_path / "expected.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    promtool("test", "rules", tmp_path / "expected.yaml")
