"""A release: notes, versions, and the chart that names the published images."""

import base64
import re
import shutil
from pathlib import Path

import pytest
import yaml

from deploy import release
from tests.support.helm_chart import helm

ROOT = Path(__file__).parents[2]
VERSION = release.versions(ROOT)["pyproject.toml"]
SOURCE = "https://git.example.com/team/kaishare"
DIGESTS = {"webhook": f"sha256:{'a' * 64}", "agent": f"sha256:{'b' * 64}"}
CHANGELOG = """# Changes

## Unreleased

- later

## 0.2.0 (2026-12-01)

- **new**: a thing
  - with a part

### Old

- removed

## 0.2.0rc1

- early

## 0.1.0
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the files that a release reads."""
    root = tmp_path / "repository"
    shutil.copytree(ROOT / release.CHART, root / release.CHART)
    for name in ("pyproject.toml", *release.DOCKERFILES):
        shutil.copy(ROOT / name, root / name)
    (root / "CHANGELOG.md").write_text(CHANGELOG.replace("0.2.0 (", f"{VERSION} (").replace("## 0.1.0\n", ""))
    return root


def test_all_files_name_one_version() -> None:
    assert set(release.versions(ROOT).values()) == {VERSION}


def test_the_notes_are_the_section_of_the_version() -> None:
    notes = "- **new**: a thing\n  - with a part\n\n### Old\n\n- removed\n"
    assert release.release_notes(CHANGELOG, "0.2.0") == notes
    assert release.release_notes(CHANGELOG, "0.2.0rc1") == "- early\n"
    for version, problem in (
        ("0.3.0", "CHANGELOG.md has no section ## 0.3.0"),
        ("0.1.0", "the section 0.1.0 of CHANGELOG.md is empty"),
    ):
        with pytest.raises(ValueError, match=re.escape(problem)):
            release.release_notes(CHANGELOG, version)


def test_the_command_prints_the_notes(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["notes", VERSION], repository) == 0
    assert capsys.readouterr().out.startswith("- **new**: a thing\n")


@pytest.mark.parametrize("name", ["pyproject.toml", str(release.CHART / "Chart.yaml"), *release.DOCKERFILES])
def test_a_file_with_another_version_is_named(
    repository: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = repository / name
    file.write_text(file.read_text().replace(VERSION, "9.8.7", 1))
    assert release.main(["notes", VERSION], repository) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"release: the release is {VERSION}, but {name}")
    assert "has 9.8.7" in printed.err


def test_the_released_chart_needs_no_value_for_its_images(tmp_path: Path) -> None:
    command = ["chart", str(tmp_path), "--registry", "registry.example.com/team", "--source", SOURCE]
    assert release.main([*command, "--webhook", DIGESTS["webhook"], "--agent", DIGESTS["agent"]]) == 0
    linted = helm("lint", "--strict", str(tmp_path / "kaishare"))
    assert linted.returncode == 0, linted.stdout
    about = yaml.safe_load((tmp_path / "kaishare" / "Chart.yaml").read_text())
    assert (about["home"], about["sources"]) == (SOURCE, [SOURCE])
    listed = yaml.safe_load(about["annotations"]["artifacthub.io/images"])
    done = helm("template", "kaishare", str(tmp_path / "kaishare"), "--kube-version", "1.30.0")
    assert (done.returncode, done.stderr) == (0, "")
    images = {
        container["image"]
        for item in yaml.safe_load_all(done.stdout)
        if item and item["kind"] in {"Deployment", "DaemonSet", "Pod"}
        for container in item["spec"].get("template", item)["spec"]["containers"]
    }
    assert images == {
        f"registry.example.com/team/kaishare-{name}@{digest}" for name, digest in DIGESTS.items()
    }
    assert {image["image"] for image in listed} == images


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"registry": "registry.example.com/Team"}, "in lower case: 'registry.example.com/Team'"),
        ({"registry": 'x/"y'}, "expected a registry"),
        ({"webhook": "sha256:1"}, "expected a digest sha256:… of the webhook's image: 'sha256:1'"),
        ({"webhook": ""}, "expected a digest"),
        ({"source": "git@git.example.com:team"}, "expected an address https://… of the repository"),
    ],
)
def test_malformed_names_are_refused(
    tmp_path: Path, changed: dict[str, str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {"registry": "registry.example.com", "source": SOURCE, "webhook": DIGESTS["webhook"]}
    command = ["chart", str(tmp_path / "new")]
    command += [word for name, value in (usual | changed).items() for word in (f"--{name}", value)]
    assert release.main([*command, "--agent", DIGESTS["agent"]]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_no_page_names_another_version() -> None:
    """Image tags and names of archives in the commands of the documentation."""
    others = {
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
        for match in re.finditer(r"kaishare(?:-webhook|-agent)?(?::|_v|/v)(\d+\.\d+\.\d+)", page.read_text())
        if match[1] != VERSION
    }
    assert others == set()


def test_the_chart_has_an_icon_and_what_artifact_hub_reads() -> None:
    about = yaml.safe_load((ROOT / release.CHART / "Chart.yaml").read_text())
    kind, _, encoded = about["icon"].partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert base64.b64decode(encoded) == (ROOT / "docs" / "icon.svg").read_bytes()
    # The names of internal/hub/package.go of Artifact Hub.
    categories = ("ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking")  # fmt: skip
    assert about["annotations"]["artifacthub.io/category"] in categories
    assert about["annotations"]["artifacthub.io/license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text().split()[:2] == ["Apache", "License"]
