"""The configuration for Alertmanager: valid, with the routes that the document promises, and real notifications."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import known_metrics
from tests.support.alertmanager_server import Alertmanager, Inbox, alertmanager, inbox
from tests.support.promtool import ALERTS, needed

FOLDER = ALERTS / "alertmanager"
CONFIGURATION = FOLDER / "alertmanager.yml"
SECRETS = "/etc/alertmanager/secrets"
SEVERITIES = {rule["alert"]: rule["labels"]["severity"] for rule in known_metrics.rules() if "alert" in rule}


RECEIVERS = {"critical": "gpu-oncall", "warning": "gpu-platform", "info": "gpu-platform-info"}


def amtool(*arguments: str | Path) -> str:
    """Run amtool; return its output."""
    command = [needed("amtool", "prometheus-alertmanager"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_amtool_accepts_the_configuration_and_its_templates() -> None:
    output = amtool("check-config", CONFIGURATION)
    assert "SUCCESS" in output
    assert "1 templates" in output


def test_secrets_come_from_files() -> None:
    text = CONFIGURATION.read_text()
    assert re.findall(r"(\w+)_file: (.+)", text) == [
        ("slack_api_url", f"{SECRETS}/slack-url"),
        ("routing_key", f"{SECRETS}/pagerduty-routing-key"),
    ]
    assert not re.search(
        r"\b(slack_api_url|api_url|routing_key|service_key|\w*(token|password|secret)):", text
    )


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=Unrelated severity=critical", "none"),
        ("alertname=KaishareGPUMemoryAtRisk severity=warning node=n gpu_uuid=GPU-1", "gpu-platform"),
        ("alertname=KaishareGPUMemoryAtRisk severity=critical node=n gpu_uuid=GPU-1", "gpu-oncall"),
        ("alertname=KaisharePodOverShare severity=warning namespace=team-b", "gpu-platform"),
        ("alertname=KaisharePodOverShare severity=warning namespace=team-a", "team-a"),
        ("alertname=KaisharePolicyInvalid severity=warning namespace=team-a-dev", "team-a"),
        ("alertname=KaisharePodOverShare severity=warning namespace=team-ab", "gpu-platform"),
        *((f"alertname={name} severity={severity}", RECEIVERS[severity]) for name, severity in SEVERITIES.items()),
    ],
)  # fmt: skip
def test_an_alert_reaches_its_receiver(labels: str, receiver: str) -> None:
    command = ("config", "routes", "test", f"--config.file={CONFIGURATION}")
    amtool(*command, f"--verify.receivers={receiver}", *labels.split())


def test_inhibitions_name_alerts_that_exist() -> None:
    for rule in yaml.safe_load(CONFIGURATION.read_text())["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            if names := re.fullmatch(r'alertname=~?"(.+)"', matcher):
                # Name(A|B) stands for two names.
                for part in re.findall(r"\w+\([\w|]+\)|[^|()]+", names[1]):
                    head, _, ends = part.rstrip(")").partition("(")
                    for end in ends.split("|"):
                        assert any(re.fullmatch(head + end, alert) for alert in SEVERITIES), part


# A real Alertmanager.

ON_NODE = {"severity": "warning", "node": "gpu 1&x"}
AT_RISK = {**ON_NODE, "alertname": "KaishareGPUMemoryAtRisk", "gpu": "0", "gpu_uuid": "GPU-1"}
FLAG = {**ON_NODE, "alertname": "KaisharePodOverShare", "uid": "u", "pod": "train"}
RUNBOOKS = "https://git.example.com/docs/runbooks.md#"
POSTED = [
    AT_RISK,
    {**FLAG, "namespace": "team-b", "gpu_uuid": "GPU-1"},
    {**FLAG, "namespace": "team-c", "gpu_uuid": "GPU-2"},
    {**FLAG, "namespace": "team-a", "gpu_uuid": "GPU-1"},
    {**FLAG, "namespace": "team-d", "gpu_uuid": "GPU-1", "cluster": "east"},
    {"alertname": "KaishareWebhookDown", "severity": "critical", "namespace": "kaishare"},
    {"alertname": "KaishareFailedOpen", "severity": "warning", "name": "pods.mutate.kaishare.dev"},
    {"alertname": "KaishareWorkloadOverShare", "severity": "warning", "namespace": "team-b", "workload_kind": "Job", "workload": "<!channel>"},
    {"alertname": "KaishareEventsLost", "severity": "info"},
    {"alertname": "KaishareAgentDown", "severity": "warning", "node": "gpu-9", "instance": "a"},
    {"alertname": "KaishareNodeUnwatched", "severity": "warning", "node": "gpu-9"},
]  # fmt: skip


@dataclass(frozen=True)
class Notified:
    """A running Alertmanager that has sent what it had to send."""

    server: Alertmanager
    inbox: Inbox

    def slack(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Return channel and attachment of each message whose title has a text."""
        messages = [document for path, document in self.inbox.received if path == "/slack"]
        return [
            (message["channel"], attachment)
            for message in messages
            for attachment in message["attachments"]
            if name in attachment["title"]
        ]


@pytest.fixture(scope="module")
def notified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notified]:
    """Run Alertmanager with the configuration, sending to loopback and without delay."""
    folder = tmp_path_factory.mktemp("alertmanager")
    shutil.copy(FOLDER / "kaishare.tmpl", folder)
    with inbox() as received:
        (folder / "slack-url").write_text(f"{received.address}/slack")
        (folder / "pagerduty-routing-key").write_text("0" * 32)
        configuration = yaml.safe_load(CONFIGURATION.read_text().replace(SECRETS, str(folder)))
        configuration["global"]["pagerduty_url"] = f"{received.address}/pagerduty"
        configuration["route"]["routes"][0]["group_wait"] = "2s"  # after all alerts have come
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
        with alertmanager(folder, folder / "alertmanager.yml") as server:
            server.post(
                [
                    {
                        "labels": labels,
                        "annotations": {
                            "summary": "",
                            "description": f"{labels.get('workload', 'a pod')} & more",
                            "first_act": "Do & see.",
                            "runbook_url": RUNBOOKS + labels["alertname"].lower(),
                        },
                        "startsAt": datetime.now(UTC).isoformat(),
                    }
                    for labels in POSTED
                ]
            )
            result = Notified(server, received)
            server.until(lambda: len(received.received) >= 10)
            yield result


def test_an_alert_about_a_gpu_silences_no_flag(notified: Notified) -> None:
    inhibited = {
        alert["labels"]["alertname"] for alert in notified.server.alerts() if alert["status"]["inhibitedBy"]
    }
    assert inhibited == {"KaishareFailedOpen", "KaishareNodeUnwatched"}
    title = "[FIRING:1] KaisharePodOverShare on gpu 1&x in "
    messages = notified.slack("KaisharePodOverShare")
    assert {(channel, attachment["title"].removeprefix(title)) for channel, attachment in messages} == {
        ("#gpu-platform", "team-b"),
        ("#gpu-platform", "team-c"),
        ("#team-a", "team-a"),
        ("#gpu-platform", "team-d of cluster east"),
    }


def test_a_message_links_the_runbook_and_the_dashboard(notified: Notified) -> None:
    ((channel, message),) = notified.slack("KaishareGPUMemoryAtRisk")
    assert channel == "#gpu-platform"
    assert message["color"] == "warning"
    assert message["title_link"] == RUNBOOKS + "kaisharegpumemoryatrisk"
    assert message["text"] == (
        "a pod &amp; more Do &amp; see. <https://grafana.example.com/d/kaishare-node?var-node=gpu+1%26x|dashboard>\n"
        f"<{RUNBOOKS}kaisharegpumemoryatrisk|Runbook>"
    )
    ((_, of_cluster),) = notified.slack("of cluster east")
    assert "/d/kaishare-node?var-node=gpu+1%26x&var-cluster=east|" in of_cluster["text"]


def test_the_name_of_a_workload_mentions_no_channel(notified: Notified) -> None:
    ((_, message),) = notified.slack("KaishareWorkloadOverShare")
    assert message["text"].startswith(
        "&lt;!channel&gt; &amp; more Do &amp; see. <https://grafana.example.com/d/kaishare-namespace?var-namespace=team-b|"
    )


def test_a_critical_alert_pages(notified: Notified) -> None:
    pages = [document for path, document in notified.inbox.received if path == "/pagerduty"]
    (page,) = pages
    assert page["routing_key"] == "0" * 32
    assert page["payload"]["severity"] == "critical"
    assert page["payload"]["summary"] == "[FIRING:1] KaishareWebhookDown in kaishare"
    assert page["client_url"] == "https://grafana.example.com/d/kaishare-webhook?"
    assert page["payload"]["custom_details"]["runbook"].endswith("#kaisharewebhookdown")
    ((channel, message),) = notified.slack("KaishareWebhookDown")
    assert (channel, message["color"]) == ("#gpu-platform", "danger")


def test_infos_have_a_channel_of_their_own(notified: Notified) -> None:
    ((channel, _),) = notified.slack("KaishareEventsLost")
    assert channel == "#gpu-platform-info"
