"""Values for vCluster's chart, checked against its schemas."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import yaml_text
from tests.support.helm_chart import ROOT, find_object, helm, kinds, rendered

FOLDER = ROOT / "deploy" / "vcluster"
VALUES = FOLDER / "values.yaml"
KAI_INSIDE = FOLDER / "values-kai-inside.yaml"
DEFAULT_SCHEDULER = FOLDER / "values-default-scheduler.yaml"
TEAMS = {
    "KAI on the host": (VALUES,),
    "KAI inside": (VALUES, KAI_INSIDE),
    "default scheduler": (DEFAULT_SCHEDULER,),
}
"""Values files of each kind of team, in the order of the command line."""
OLDEST = "v0.26.0"


def schemas() -> list[Path]:
    folder = os.environ.get("KAISHARE_FIXTURES")
    return sorted((Path(folder).parent / "schemas").glob("vcluster-*.values.schema.json")) if folder else []


@pytest.fixture(params=[schema.name.split(".values")[0] for schema in schemas()] or ["none"])
def chart(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a chart that consists of vCluster's schema."""
    schema_by_release = {schema.name.split(".values")[0]: schema for schema in schemas()}
    if not schema_by_release:
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder beside which vCluster's schemas are")
    shutil.copyfile(schema_by_release[request.param], tmp_path / "values.schema.json")
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: vcluster\nversion: 0.0.0\n")
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
def test_vcluster_accepts_the_values(chart: Path, team: str) -> None:
    options = [option for file in TEAMS[team] for option in ("--values", str(file))]
    done = helm("template", "a", str(chart), *options)
    assert done.returncode == 0, done.stderr


def test_vcluster_refuses_other_values(chart: Path) -> None:
    done = helm(
        "template", "a", str(chart), "--values", str(VALUES), "--set", "sync.fromHost.event.enabled=true"
    )
    assert done.returncode != 0
    assert "event" in done.stderr


def test_vcluster_refuses_the_sync_of_labels_of_old_releases(chart: Path) -> None:
    done = helm(
        "template",
        "a",
        str(chart),
        "--values",
        str(VALUES),
        "--set",
        "experimental.syncSettings.syncLabels={x}",
    )
    assert done.returncode != 0
    assert "syncLabels" in done.stderr


def test_the_oldest_release_that_is_named_is_among_those_tried() -> None:
    if not schemas():
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder beside which vCluster's schemas are")
    assert OLDEST in schemas()[0].name
    assert "0.26 or later" in VALUES.read_text()


def test_the_readme_names_the_releases_that_are_tried() -> None:
    if not schemas():
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder beside which vCluster's schemas are")
    text = (FOLDER / "README.md").read_text()
    for schema in schemas():
        assert schema.name.removeprefix("vcluster-v").split(".values")[0] in text


def test_the_values_that_shares_need_are_set() -> None:
    values = yaml_text.load(VALUES.read_text())
    assert values["experimental"]["syncSettings"]["setOwner"] is False


@pytest.mark.parametrize("team", TEAMS)
def test_every_team_sees_events_and_leaves_no_token_on_the_host(team: str) -> None:
    values = merged(TEAMS[team])
    assert values["sync"]["fromHost"]["events"]["enabled"] is True
    assert values["sync"]["toHost"]["pods"]["useSecretsForSATokens"] is True
    assert values["policies"]["podSecurityStandard"] == "baseline"


@pytest.mark.parametrize("team", TEAMS)
def test_only_the_team_with_its_own_kai_has_a_scheduler(team: str) -> None:
    scheduler = (
        merged(TEAMS[team]).get("controlPlane", {}).get("distro", {}).get("k8s", {}).get("scheduler", {})
    )
    assert scheduler.get("enabled", False) is (team == "KAI inside")


def test_a_team_with_its_own_kai_sees_its_real_nodes_and_the_runtime_class() -> None:
    host = merged(TEAMS["KAI inside"])["sync"]["fromHost"]
    assert host["nodes"]["enabled"] is True
    assert host["nodes"]["selector"]["labels"]
    assert "all" not in host["nodes"]["selector"]
    assert host["runtimeClasses"]["enabled"] is True


def test_a_tenants_budgets_do_not_reach_the_host() -> None:
    # There they would hold up the drain of a node, for ever where they count in maxUnavailable or per cent.
    for files in TEAMS.values():
        assert "podDisruptionBudgets" not in merged(files)["sync"]["toHost"]


def test_the_guard_excludes_the_host_namespaces_of_teams_with_their_own_kai() -> None:
    objects = rendered(
        {
            "webhook": {"enabled": False},
            "guard": {"enabled": True, "unguardedNamespaces": ["vcluster-red", "vcluster-blue"]},
        }
    )
    excluded = []
    for kind, name in sorted(kinds(objects)):
        if kind == "ValidatingAdmissionPolicyBinding":
            text = yaml.safe_dump(find_object(objects, kind, name))
            if "vcluster-red" in text and "vcluster-blue" in text:
                excluded.append(name)
    assert excluded == [
        *(f"kaishare-guard-{name}-vclusters" for name in ("gpus", "objects")),
        "kaishare-guard-podgroups",
        "kaishare-guard-pods-vclusters",
    ]
