"""What helm prints after an installation: the chart's NOTES.txt."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import yaml_text
from tests.support.helm_chart import CHART, helm, options

REGISTRIES = {
    part: {"image": {"repository": f"registry.example.com/kaishare-{part}"}} for part in ("webhook", "agent")
}


@pytest.fixture(scope="module")
def chart_with_notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the chart whose only object holds the notes: `helm template` prints no notes."""
    chart = tmp_path_factory.mktemp("notes") / "kaishare"
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("templates"))
    (chart / "templates").mkdir()
    for name, place in (("_helpers.tpl", "templates"), ("NOTES.txt", ".")):
        shutil.copy(CHART / "templates" / name, chart / place)
    (chart / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n')
    return chart


def notes(chart: Path, values: dict[str, Any]) -> str:
    done = helm("template", "kaishare", str(chart), "--kube-version", "1.30.0", *options(values))
    assert done.returncode == 0, done.stderr
    text: str = yaml_text.load(done.stdout)["notes"]
    return text


SYSTEM_NAMESPACES: list[str] = yaml_text.load((CHART / "values.yaml").read_text())["excludedNamespaces"]


def test_the_notes_warn_of_no_namespace_that_the_chart_excludes(chart_with_notes: Path) -> None:
    text = notes(chart_with_notes, {})
    assert "kubectl label namespace" in text
    assert "WARNING" not in text
    assert notes(chart_with_notes, {"excludedNamespaces": [*SYSTEM_NAMESPACES, "other"]}) == text


def test_the_notes_of_a_simulated_agent_warn_of_its_figures(chart_with_notes: Path) -> None:
    text = notes(chart_with_notes, {"agent": {"simulated": True}})
    assert "WARNING: agent.simulated=true: every figure of the agent is synthetic" in text
    assert "Check a node:\n\n  kaishare doctor\n" in text


@pytest.mark.parametrize("excluded", [[], ["mine"], ["kube-system", "kai-scheduler"]], ids=str)
def test_the_notes_name_every_system_namespace_that_is_not_excluded(
    excluded: list[str], chart_with_notes: Path
) -> None:
    missing = ", ".join(name for name in SYSTEM_NAMESPACES if name not in excluded)
    assert f"list and lacks {missing}. If such a namespace" in notes(
        chart_with_notes, {"excludedNamespaces": excluded}
    )


def test_the_notes_warn_of_tokens_on_ports_without_tls(chart_with_notes: Path) -> None:
    on = {"authentication": {"enabled": True}}
    assert "set webhook.opsTlsSecret and agent.tlsSecret." in notes(chart_with_notes, on)
    assert "set webhook.opsTlsSecret." in notes(chart_with_notes, {**on, "agent": {"tlsSecret": "tls"}})
    tls = {"agent": {"tlsSecret": "tls"}, "webhook": {"opsTlsSecret": "tls"}}
    assert "WARNING" not in notes(chart_with_notes, {**on, **tls})


def test_the_notes_name_the_profile_that_the_release_needs(chart_with_notes: Path) -> None:
    label = "pod-security.kubernetes.io/enforce=privileged"
    assert label not in notes(chart_with_notes, {})
    assert label in notes(chart_with_notes, {"webhook": {"hostNetwork": True}})
    assert label in notes(chart_with_notes, {"agent": {"namespace": "default"}})  # helm's own default
    assert label not in notes(chart_with_notes, {"agent": {"namespace": "default", "simulated": True}})


def test_the_notes_say_on_which_nodes_the_agent_runs(chart_with_notes: Path) -> None:
    assert "runs on nodes with nvidia.com/gpu.present=true. Check" in notes(chart_with_notes, {})
    anywhere = {"agent": {"nodeSelector": {"nvidia.com/gpu.present": None}}}
    assert "runs on all nodes. Check" in notes(chart_with_notes, anywhere)


@pytest.mark.parametrize(
    ("mode", "effect", "command"),
    [
        ("", "is default (webhook.defaultMode)", "label namespace NAME kai.scheduler/queue=QUEUE kaishare.dev/gpu-fraction=0.5"),
        ("default", "the webhook changes\npods", "label namespace NAME kai.scheduler/queue=QUEUE kaishare.dev/gpu-fraction=0.5"),
        ("observe", "counts\nand logs what it would change, and changes nothing", "label namespace NAME kaishare.dev/mode=default"),
        ("off", "leaves\nall pods alone", "label namespace NAME kaishare.dev/mode=observe"),
    ],
)  # fmt: skip
def test_the_notes_name_the_mode_and_the_next_commands(
    chart_with_notes: Path, mode: str, effect: str, command: str
) -> None:
    text = notes(chart_with_notes, {"webhook": {"defaultMode": mode}})
    assert effect in text
    assert f"\n  kubectl {command}\n" in text
    assert "\nNext, check the installation" in text
    assert "\n  helm test kaishare --namespace default --logs\n" in text


def test_the_notes_name_images_without_a_registry(chart_with_notes: Path) -> None:
    text = notes(chart_with_notes, {})
    assert "The image of the webhook and of the agent names no registry" in text
    assert "docs/install.md#images" in text
    for part in REGISTRIES:
        assert f"\n  --set {part}.image.repository=REGISTRY/kaishare-{part}\n" in text
    webhook_only = notes(chart_with_notes, {"agent": REGISTRIES["agent"]})
    assert "The image of the webhook names no registry" in webhook_only
    assert "agent.image.repository" not in webhook_only
    for values in (REGISTRIES, {**REGISTRIES, "agent": {"enabled": False}}):
        assert "registry" not in notes(chart_with_notes, values).replace("registry.example.com", "")
