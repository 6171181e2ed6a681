"""GitHub's workflows: actionlint and zizmor find nothing, such as an action that is pinned to no commit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHECKS = {
    "actionlint": ["-no-color"],
    "zizmor": ["--offline", "--no-progress", "--persona=pedantic", ".github"],
}


def documents() -> dict[str, dict[str, Any]]:
    return {file.name: yaml.safe_load(file.read_text()) for file in WORKFLOWS}


def runs(item: Any) -> list[str]:
    if isinstance(item, list):
        return [script for part in item for script in runs(part)]
    if not isinstance(item, dict):
        return []
    own = [item["run"]] if isinstance(item.get("run"), str) else []
    return own + [script for part in item.values() for script in runs(part)]


@pytest.mark.parametrize("program", CHECKS)
def test_the_checker_finds_nothing(program: str) -> None:
    # actionlint calls shellcheck for the scripts, if it is in PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    executable = shutil.which(program, path=path)
    if executable is None:
        pytest.skip(f"NOT VERIFIED: {program} is not in PATH, so it does not check the workflows")
    done = subprocess.run(
        [executable, *CHECKS[program]], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_action_has_one_pin() -> None:
    text = "".join(file.read_text() for file in WORKFLOWS)
    pins = set(re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40})", text))
    assert len(pins) == len({name for name, _ in pins})


def test_the_tests_run_on_every_supported_python() -> None:
    supported = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    matrix = documents()["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert matrix == supported


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        target
        for workflow in documents().values()
        for script in runs(workflow)
        for target in re.findall(r"\bmake ([\w-]+)", script)
    }
    matrix = documents()["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]
    called |= {*matrix["target"], *(row["target"] for row in matrix["include"])}
    assert {"lint", "site", "test", "test-oldest"} <= called
    assert called <= targets
