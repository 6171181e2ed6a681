"""The wheel: its metadata names everything that the commands import, and each image keeps a list of its own."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from console.render.policy_manifests import text_of
from webhook.policy.decision_settings import DecisionSettings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
LEFT_OUT = {"webhook": (), "agent": ("webhook", "console")}
"""Each dependency group with the packages that its image leaves out."""
EXTRA = PROJECT["project"]["optional-dependencies"]["top"]
"""Draws the interactive view of `kaishare top`."""


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def imported(packages: list[str]) -> set[str]:
    modules = set()
    for file in (file for package in packages for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    others = modules - set(PACKAGES) - sys.stdlib_module_names
    distributions = packages_distributions()
    return {name_of(name) for module in others for name in set(distributions[module])}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_requires_what_the_commands_import(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        commands = archive.read(entry_points).decode()
    required = fields.get_all("Requires-Dist") or []
    extra = [requirement for requirement in required if "extra ==" in requirement]
    assert {name_of(requirement) for requirement in extra} == {name_of(requirement) for requirement in EXTRA}
    assert imported(PACKAGES) == {name_of(requirement) for requirement in required}
    assert "kaishare-agent = gpuagent.cli:main" in commands
    assert "kaishare-webhook = webhook.cli:main" in commands
    assert "kaishare = console.cli:main" in commands


def test_the_wheel_has_every_file_of_the_page(wheel: Path) -> None:
    files = [
        file for file in (ROOT / "service" / "page").iterdir() if file.suffix in (".css", ".html", ".js")
    ]
    assert {file.suffix for file in files} == {".css", ".html", ".js"}
    with zipfile.ZipFile(wheel) as archive:
        assert {file.relative_to(ROOT).as_posix() for file in files} <= set(archive.namelist())


@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_the_wheel_has_the_admission_policies(kind: str, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-m", "console", "render", "--as", f"{kind}admissionpolicy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == text_of(f"{kind}.yaml", DecisionSettings())


@pytest.mark.parametrize("group", LEFT_OUT)
def test_an_image_gets_what_its_service_imports(group: str) -> None:
    packages = [package for package in PACKAGES if package not in LEFT_OUT[group]]
    requirements = PROJECT["dependency-groups"][group]
    names = {name_of(requirement) for requirement in requirements}
    # certs is the webhook's; the agent's image contains it without cryptography.
    needed = imported([p for p in packages if p != "certs" or group == "webhook"])
    # The view of `kaishare top` and completion are for people's machines, and no doctor reads a GPU.
    console = {"rich", "textual", "shtab", "nvidia-ml-py"}
    assert names == needed - (console if group == "webhook" else set())
    assert set(requirements) <= set(PROJECT["project"]["dependencies"])
    pinned = (ROOT / "requirements" / f"{group}.txt").read_text()
    assert names <= {name_of(line) for line in pinned.splitlines() if "==" in line}


def test_nothing_is_required_that_no_command_uses() -> None:
    groups = PROJECT["dependency-groups"]
    required = {*groups["webhook"], *groups["agent"], *groups["console"]}
    assert {*PROJECT["project"]["dependencies"], *EXTRA} == required


def test_an_image_is_built_from_every_package() -> None:
    let_through = (ROOT / ".dockerignore").read_text().splitlines()
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {f"!{path}" for path in (*PACKAGES, *included)} <= set(let_through)
