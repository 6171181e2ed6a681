"""Completion of `kubectl kaishare`: the candidates, the program that kubectl runs, and a real kubectl."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from console.cli import parser
from console.completion import Directive, candidates

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "deploy" / "plugin" / "kubectl_complete-kaishare"
COMMANDS = ["explain", "why", "doctor", "policies", "top", "advise", "report", "completion"]


def complete(*words: str) -> tuple[list[str], Directive]:
    """Return the candidates without their descriptions."""
    matches, directive = candidates(parser("kubectl kaishare"), words)
    assert all("\n" not in candidate and candidate.count("\t") <= 1 for candidate in matches)
    return [candidate.partition("\t")[0] for candidate in matches], directive


@pytest.mark.parametrize(
    ("words", "matches"),
    [
        ([""], COMMANDS),
        (["po"], ["policies"]),
        (["nothing", ""], []),
        (["top", "--so"], ["--sort"]),
        (["top", "--sort", ""], ["flags", "used", "share", "over", "pod", "node"]),
        (["top", "--sort", "o"], ["over"]),
        (["top", "--sort=o"], ["over"]),
        (["top", "-o", ""], ["text", "json"]),
        (["top", "-n", ""], []),
        (["top", "-n", "a", "--onc"], ["--once"]),
        (["top", "--once", "--onc"], []),
        (["explain", "-f", "a", "--filename"], ["--filename"]),
        (["top", "--", ""], []),
        (["top", "--unknown=x", "--onc"], ["--once"]),
        (["doctor", "--wait", "--out"], ["--output"]),
        (["doctor", "--wait", "5m", "--out"], ["--output"]),
        (["completion", ""], ["bash", "zsh", "tcsh"]),
        (["completion", "bash", ""], []),
        (["--vers"], ["--version"]),
        ([], COMMANDS),
    ],
)
def test_candidates(words: list[str], matches: list[str]) -> None:
    assert complete(*words) == (matches, Directive.NO_FILES)


def test_a_command_has_its_whole_description() -> None:
    matches, _ = candidates(parser(), ["d"])
    assert matches == ["doctor\tcheck webhook, policies, KAI and agents for problems"]


@pytest.mark.parametrize(
    "words", [["top", "--kubeconfig", ""], ["explain", "-f", "a"], ["top", "--token-file="]]
)
def test_an_option_that_takes_a_path_completes_file_names(words: list[str]) -> None:
    assert complete(*words) == ([], Directive.DEFAULT)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_of_each_command_is_a_candidate_with_its_description(command: str) -> None:
    matches, _ = candidates(parser(), [command, "-"])
    help_of_command = subprocess.run(
        [sys.executable, "-m", "console", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert len(matches) >= 2
    for candidate in matches:
        name, _, description = candidate.partition("\t")
        assert name in help_of_command
        assert description
        assert "%(" not in description


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with the plugin and its program for completion, as the archive has them."""
    shutil.copy(PROGRAM, tmp_path)
    plugin = tmp_path / "kubectl-kaishare"
    plugin.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m console "$@"\n')
    plugin.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


def test_the_program_of_the_archive_answers_as_kubectl_calls_it(path: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [tmp_path / PROGRAM.name, "top", "--sort", "o"],
        env={"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "over\n:4\n", "")


def test_a_real_kubectl_completes_the_plugin(path: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("NOT VERIFIED: no kubectl on the PATH")
    ended = subprocess.run(
        [kubectl, "__complete", "kaishare", "pol"],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "policies\tlist the policies of managed namespaces\n:4\n"


def test_an_installed_wheel_has_the_program_too() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl_complete-kaishare"] == "console.cli:complete"
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from console.cli import complete; sys.exit(complete())", "pol"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1] == ":4"
    assert ended.stdout.startswith("policies\t")
