"""Values for vCluster's chart, checked against its schemas."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.helm_chart import ROOT, helm

VALUES = ROOT / "deploy" / "vcluster" / "values.yaml"
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


def test_vcluster_accepts_the_values(chart: Path) -> None:
    done = helm("template", "a", str(chart), "--values", str(VALUES))
    assert done.returncode == 0, done.stderr


def test_vcluster_refuses_other_values(chart: Path) -> None:
    done = helm(
        "template", "a", str(chart), "--values", str(VALUES), "--set", "sync.fromHost.event.enabled=true"
    )
    assert done.returncode != 0
    assert "event" in done.stderr


def test_the_oldest_release_that_is_named_is_among_those_tried() -> None:
    if not schemas():
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder beside which vCluster's schemas are")
    assert OLDEST in schemas()[0].name
    assert "0.26 or later" in VALUES.read_text()


def test_the_values_that_shares_need_are_set() -> None:
    values = yaml.safe_load(VALUES.read_text())
    assert values["experimental"]["syncSettings"]["setOwner"] is False
    assert values["sync"]["fromHost"]["events"]["enabled"] is True
    assert values["sync"]["toHost"]["pods"]["useSecretsForSATokens"] is True


def test_a_tenants_budgets_do_not_reach_the_host() -> None:
    # There they would hold up the drain of a node, for ever where they count in maxUnavailable or per cent.
    assert "podDisruptionBudgets" not in yaml.safe_load(VALUES.read_text())["sync"]["toHost"]
