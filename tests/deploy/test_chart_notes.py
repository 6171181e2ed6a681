"""What helm prints after an installation: the chart's NOTES.txt."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import yaml_text
from tests.support.helm_chart import CHART, helm, options

SYSTEM_NAMESPACES: list[str] = yaml_text.load((CHART / "values.yaml").read_text())["excludedNamespaces"]
REGISTRIES = {
    part: {"image": {"repository": f"registry.example.com/kaishare-{part}"}} for part in ("webhook", "agent")
}
PRIVILEGED = "pod-security.kubernetes.io/enforce=privileged"
ANY_REGISTRY = "docs/install.md#images"
TOKENS = {"authentication": {"enabled": True}}
LABEL = "\n  kubectl label namespace NAME {}\n"
USUAL = LABEL.format("kai.scheduler/queue=QUEUE kaishare.dev/gpu-fraction=0.5")
NOTES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, [USUAL, "\nNext, check the installation", "\n  helm test kaishare --namespace default --logs\n"], ["WARNING", PRIVILEGED]),
    ({"excludedNamespaces": [*SYSTEM_NAMESPACES, "other"]}, [USUAL], ["WARNING"]),
    *(
        ({"excludedNamespaces": excluded}, [f"list and lacks {', '.join(name for name in SYSTEM_NAMESPACES if name not in excluded)}. If such a namespace"], [])
        for excluded in ([], ["mine"], ["kube-system", "kai-scheduler"])
    ),
    (
        {"agent": {"simulated": True}},
        ["WARNING: agent.simulated=true: every figure of the agent is synthetic", "Check a node:\n\n  kaishare doctor\n"],
        [],
    ),
    # Tokens on ports without TLS.
    (TOKENS, ["set webhook.opsTlsSecret and agent.tlsSecret."], []),
    ({**TOKENS, "agent": {"tlsSecret": "tls"}}, ["set webhook.opsTlsSecret."], []),
    ({**TOKENS, "agent": {"tlsSecret": "tls"}, "webhook": {"opsTlsSecret": "tls"}}, [], ["WARNING"]),
    # The profile that the release's namespace needs; helm's own default is `default`.
    ({"webhook": {"hostNetwork": True}}, [PRIVILEGED], []),
    ({"agent": {"namespace": "default"}}, [PRIVILEGED], []),
    ({"agent": {"namespace": "default", "simulated": True}}, [], [PRIVILEGED]),
    # The nodes of the agent.
    ({}, ["runs on nodes with nvidia.com/gpu.present=true. Check"], []),
    ({"agent": {"nodeSelector": {"nvidia.com/gpu.present": None}}}, ["runs on all nodes. Check"], []),
    # The mode and the next command.
    ({"webhook": {"defaultMode": ""}}, ["is default (webhook.defaultMode)", USUAL], []),
    ({"webhook": {"defaultMode": "default"}}, ["the webhook changes\npods", USUAL], []),
    (
        {"webhook": {"defaultMode": "observe"}},
        ["counts\nand logs what it would change, and changes nothing", LABEL.format("kaishare.dev/mode=default")],
        [],
    ),
    ({"webhook": {"defaultMode": "off"}}, ["leaves\nall pods alone", LABEL.format("kaishare.dev/mode=observe")], []),
    # Images without a registry.
    (
        {},
        ["The image of the webhook and of the agent names no registry", ANY_REGISTRY, *(f"\n  --set {part}.image.repository=REGISTRY/kaishare-{part}\n" for part in REGISTRIES)],
        [],
    ),
    ({"agent": REGISTRIES["agent"]}, ["The image of the webhook names no registry"], ["agent.image.repository"]),
    (REGISTRIES, [], ["registry,", "no registry", ANY_REGISTRY]),
    ({**REGISTRIES, "agent": {"enabled": False}}, [], ["registry,", "no registry", ANY_REGISTRY]),
]  # fmt: skip
"""Values, texts of the notes, and texts that the notes do not have."""


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


@pytest.mark.parametrize(("values", "present", "absent"), NOTES)
def test_the_notes_fit_the_values(
    chart_with_notes: Path, values: dict[str, Any], present: list[str], absent: list[str]
) -> None:
    done = helm("template", "kaishare", str(chart_with_notes), "--kube-version", "1.30.0", *options(values))
    assert done.returncode == 0, done.stderr
    text = yaml_text.load(done.stdout)["notes"]
    assert [part for part in present if part not in text] == [], text
    assert [part for part in absent if part in text] == [], text
