"""The command line `kaishare`: names, exit statuses, completion, colour."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from console.cli import main, program_name
from service.version import version

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/bin/kaishare", "kaishare"),
        ("/root/.krew/bin/kubectl-kaishare", "kubectl kaishare"),
        ("C:/kubectl-kaishare.exe", "kubectl kaishare"),
        ("console/__main__.py", "kaishare"),
    ],
)
def test_the_name_under_which_the_program_was_started(path: str, name: str) -> None:
    assert program_name(path) == name


def test_the_version_has_the_name_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"kaishare {version()}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "kaishare: the following arguments are required: COMMAND (see kaishare --help)"),
        (["policies", "-n", "No;Name"], '"No;Name" is not the name of a namespace; allowed: a-z, 0-9 and -'),
        (["policies", "-n", "a/../b"], '"a/../b" is not the name of a namespace'),
        (["policies", "-n", "\x1b[2J"], "is not the name of a namespace"),
        (["doctor", "--agent-namespace", "a.b"], '"a.b" is not the name of a namespace'),
        (["doctor", "--wait", "soon"], '"soon" is not a duration'),
        (["completion", "fish"], "invalid choice"),
        (["policies", "--kubeconfig", "/nowhere"], "kaishare: /nowhere: no such kubeconfig"),
        (["doctor", "--kubeconfig", "/nowhere"], "kaishare: no cluster: /nowhere: no such kubeconfig"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1
    assert line in written.err
    assert "\x1b" not in written.err


def test_a_pod_has_no_own_rights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The service account of a pod belongs to a service and not to the caller."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    for command in (["policies"], ["doctor"], ["explain", "--policies", "cluster", "-f", "-"]):
        assert main(command) == 2
        assert "/nowhere: no such kubeconfig" in capsys.readouterr().err


CONFIG = (
    "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
    "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
    "users: [{name: a, user: {token: t}}]\ncurrent-context: a\n"
)


def test_an_unreachable_cluster_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").write_text(CONFIG)
    for more, problem in (((), "Connection refused"), (("--context", "b"), "b")):
        assert main(["policies", "--kubeconfig", str(tmp_path / "config"), *more]) == 2
        written = capsys.readouterr()
        assert (written.out, written.err.count("\n")) == ("", 1)
        assert problem in written.err


def test_bash_completes_commands_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "manifest.yaml").touch()

    def completed(*words: str) -> list[str]:
        last = words[-1]
        code = (
            f"source {tmp_path}/script; cd {tmp_path}; COMP_WORDS=({' '.join(words)});"
            f" COMP_CWORD={len(words) - 1}; _shtab_kaishare kaishare '{last}';"
            " printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
        return done.stdout.split()

    assert completed("kaishare", "pol") == ["policies"]
    assert "--agent-namespace" in completed("kaishare", "doctor", "--a")
    assert completed("kaishare", "policies", "-o", "y") == ["yaml"]
    assert "manifest.yaml" in completed("kaishare", "explain", "-f", "mani")


def test_completion_needs_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "kaishare: completion needs the Python package shtab\n"


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "term", "is_coloured"),
    [(True, "", "xterm", True), (True, "1", "xterm", False), (True, "", "dumb", False), (False, "", "xterm", False)],
)  # fmt: skip
def test_colour_on_a_terminal_unless_no_color_is_set(
    is_terminal: bool, no_color: str, term: str, is_coloured: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    folder = f"{ROOT}/examples"
    main(
        f"explain --policies {folder}/namespaces.yaml -f {folder}/workloads/classify.yaml -n inference".split()
    )
    assert ("\x1b[32m" in capsys.readouterr().out) is is_coloured


def test_a_command_imports_what_it_needs_alone() -> None:
    """`--version` and `--help` take no second."""
    script = (
        "import sys; from console.cli import parser; parser(chosen=()).format_help();"
        " print([m for m in ('aiohttp', 'asyncio', 'ssl', 'cryptography', 'yaml', 'webhook', 'gpuagent', 'kube')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "console", "--version"], cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.15
