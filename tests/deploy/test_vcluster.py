"""Values for vCluster's chart, checked against its schemas."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import yaml_text
from tests.support.helm_chart import ROOT, helm, rendered

FOLDER = ROOT / "deploy" / "vcluster"
VALUES = FOLDER / "values.yaml"
KAI_INSIDE = FOLDER / "values-kai-inside.yaml"
DEFAULT_SCHEDULER = FOLDER / "values-default-scheduler.yaml"
TEAMS = {"KAI on the host": (VALUES,), "KAI inside": (VALUES, KAI_INSIDE), "default scheduler": (DEFAULT_SCHEDULER,)}  # fmt: skip
"""Values files of each kind of team, in the order of the command line."""
REFUSED = ("sync.fromHost.event.enabled=true", "experimental.syncSettings.syncLabels={x}")
"""A misspelt value, and one of releases before the oldest."""


def schemas() -> list[Path]:
    folder = os.environ.get("KAISHARE_FIXTURES")
    return sorted((Path(folder).parent / "schemas").glob("vcluster-*.values.schema.json")) if folder else []


@pytest.fixture(
    params=schemas() or [None], ids=lambda path: path.name.split(".values")[0] if path else "none"
)
def chart(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a chart that consists of vCluster's schema."""
    if request.param is None:
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder beside which vCluster's schemas are")
    shutil.copyfile(request.param, tmp_path / "values.schema.json")
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: vcluster\nversion: 0.0.0\n")
    release = request.param.name.removeprefix("vcluster-v").split(".values")[0]
    assert release in (FOLDER / "README.md").read_text()
    return tmp_path


def merged(files: tuple[Path, ...]) -> dict[str, Any]:
    """Return the values as helm merges them: maps key by key, anything else replaced."""

    def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
        both = {key: below[key] for key in below if key not in above}
        for key, value in above.items():
            old = below.get(key)
            both[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        return both

    values: dict[str, Any] = {}
    for file in files:
        values = merge(values, yaml_text.load(file.read_text()))
    return values


def test_every_values_file_belongs_to_a_team() -> None:
    assert {file for files in TEAMS.values() for file in files} == set(FOLDER.glob("values*.yaml"))


@pytest.mark.parametrize("team", TEAMS)
def test_vcluster_accepts_the_values_and_refuses_others(chart: Path, team: str) -> None:
    files = [option for file in TEAMS[team] for option in ("--values", str(file))]
    done = helm("template", "a", str(chart), *files)
    assert done.returncode == 0, done.stderr
    for value in REFUSED:
        done = helm("template", "a", str(chart), *files, "--set", value)
        assert done.returncode != 0
        assert value.split("=")[0].split(".")[2] in done.stderr


def test_the_oldest_release_that_is_named_is_among_those_tried() -> None:
    assert "0.26 or later" in VALUES.read_text()
    assert not schemas() or "v0.26.0" in schemas()[0].name


@pytest.mark.parametrize("team", TEAMS)
def test_every_team_has_the_values_that_shares_need(team: str) -> None:
    values = merged(TEAMS[team])
    host = values["sync"]["fromHost"]
    assert host["events"]["enabled"] is True
    assert values["sync"]["toHost"]["pods"]["useSecretsForSATokens"] is True  # no token stays on the host
    assert values["policies"]["podSecurityStandard"] == "baseline"
    # On the host a tenant's budgets would hold up the drain of a node, for ever where they count in maxUnavailable or per cent.
    assert "podDisruptionBudgets" not in values["sync"]["toHost"]
    distro = values.get("controlPlane", {}).get("distro", {}).get("k8s", {})
    assert distro.get("scheduler", {}).get("enabled", False) is (team == "KAI inside")
    if VALUES in TEAMS[team]:
        assert values["experimental"]["syncSettings"]["setOwner"] is False
    if team == "KAI inside":  # it sees its real nodes and the runtime class
        assert (host["nodes"]["enabled"], host["runtimeClasses"]["enabled"]) == (True, True)
        assert host["nodes"]["selector"]["labels"]
        assert "all" not in host["nodes"]["selector"]


def test_the_guard_excludes_the_host_namespaces_of_teams_with_their_own_kai() -> None:
    teams = ["vcluster-red", "vcluster-blue"]
    objects = rendered(
        {"webhook": {"enabled": False}, "guard": {"enabled": True, "unguardedNamespaces": teams}}
    )
    excluded = {
        item["metadata"]["name"].removeprefix("kaishare-guard-")
        for item in objects
        if item["kind"] == "ValidatingAdmissionPolicyBinding" and all(team in str(item) for team in teams)
    }
    assert excluded == {"gpus-vclusters", "objects-vclusters", "podgroups", "pods-vclusters"}
