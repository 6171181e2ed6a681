"""The files that are rendered from the chart are complete and up to date."""

import re
import shutil
from pathlib import Path

import pytest

from deploy import render
from tests.support import yaml_text
from tests.support.helm_chart import Object, helm_program, kinds, rendered


@pytest.fixture(autouse=True)
def _helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELM", str(helm_program()))


def test_manifests_copies_and_tables_are_up_to_date() -> None:
    assert [str(path.relative_to(render.ROOT)) for path in render.stale()] == []


def test_an_outdated_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A copy: other tests read the repository's own files at the same time.
    manifests = tmp_path / "manifests"
    shutil.copytree(render.MANIFESTS, manifests)
    monkeypatch.setattr(render, "ROOT", tmp_path)
    monkeypatch.setattr(render, "MANIFESTS", manifests)
    monkeypatch.setattr(render, "FILES", tmp_path / "none")
    monkeypatch.setattr(render, "copies", lambda: iter(()))
    assert render.main(["--check"]) == 0
    (manifests / "webhook" / "left-over.yaml").write_text("kind: List\n")
    (manifests / "agent" / "rbac.yaml").unlink()
    assert render.main(["--check"]) == 1
    assert [line.split(";")[0] for line in capsys.readouterr().out.splitlines()] == [
        "out of date: manifests/agent/rbac.yaml",
        "out of date: manifests/webhook/left-over.yaml",
    ]


def base(part: str) -> list[Object]:
    """The objects of a kustomize base without patches."""
    folder = render.MANIFESTS / part
    names = yaml_text.load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted([*names, "kustomization.yaml"]) == sorted(path.name for path in folder.iterdir())
    return [item for name in names for item in yaml_text.load_all((folder / name).read_text())]


def test_the_manifests_hold_every_object_of_the_chart_and_nothing_of_helm() -> None:
    every = kinds(rendered({"webhook": {"createNamespace": True}}))
    webhook, agent = base("webhook"), base("agent")
    assert kinds(webhook) | kinds(agent) == every
    assert not kinds(webhook) & kinds(agent)
    for item in (*webhook, *agent):
        assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "kaishare"
        assert "managed-by" not in str(item)
        assert "helm" not in str(item)


def test_a_missing_helm_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELM", "/nowhere/helm")
    with pytest.raises(
        SystemExit, match=r"^/nowhere/helm: No such file or directory; install helm or set \$HELM"
    ):
        render.rendered({})


def test_a_rule_without_a_reason_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    full = render.rendered(render.EVERY_RIGHT)
    cut = full.replace("# why: reads policies from", "# reads policies from")
    assert cut != full
    monkeypatch.setattr(render, "rendered", lambda values: cut)
    with pytest.raises(SystemExit, match="ClusterRole kaishare-webhook: a rule has no comment"):
        render.rights_table("kaishare-webhook")


def leaves(values: Object, path: str = "") -> list[str]:
    """Return the paths of all values that hold no further keys."""
    paths: list[str] = []
    for key, value in values.items():
        whole = f"{path}{key}"
        paths += leaves(value, f"{whole}.") if isinstance(value, dict) and value else [whole]
    return paths


def test_the_charts_readme_has_every_value_with_its_default() -> None:
    values = yaml_text.load((render.CHART / "values.yaml").read_text())
    rows = dict(re.findall(r"^\| `([\w./-]+)` \| (`.*?`|) \|", render.README.read_text(), re.MULTILINE))
    assert set(leaves(values)) <= set(rows)
    assert (rows["webhook.replicas"], rows["agent.interval"]) == ("`2`", '`"5s"`')
    # A block has a row only for its explanation.
    blocks = [path for path, default in rows.items() if not default]
    assert all(any(other.startswith(f"{path}.") for other in rows) for path in blocks)
