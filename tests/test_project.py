"""The first steps of a new user: the environment's script, the requirement files, the README."""

import importlib.util
import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda file: file.name)
def test_requirements_are_pinned_hashed_and_name_no_index(file: Path) -> None:
    text = file.read_text()
    assert "://" not in text
    assert "--index" not in text
    pins = re.split(r"\n(?=\S)", text.strip())
    assert len(pins) > 5
    for pin in pins:
        assert re.match(r"[A-Za-z0-9_.-]+==\S+", pin), pin
        assert "--hash=sha256:" in pin, pin


PYTHON = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) exit 0;; esac\n'
OLD_PYTHON = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n'


@pytest.mark.parametrize(
    ("python", "out", "error"),
    [
        (PYTHON, "apt-get install -y python3-venv\n", ""),
        (None, "apt-get install -y python3 python3-venv\n", ""),
        (OLD_PYTHON, "", "Python 3.9.2 is too old"),
    ],
    ids=["without venv", "without Python", "old"],
)
def test_without_a_fitting_python_one_line_says_so(
    tmp_path: Path, python: str | None, out: str, error: str
) -> None:
    program = tmp_path / "python3"
    if python:
        program.write_text(python)
        program.chmod(0o755)
    script = ROOT / "requirements" / "make-venv.sh"
    command = ["/bin/sh", script, program, tmp_path / "venv", "none.txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, error in done.stderr) == (1, out, True)
    assert error or not done.stderr


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return requirements/install.py with a pip that reads its output from the file `output`."""
    spec = importlib.util.spec_from_file_location("installer", ROOT / "requirements" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pip = tmp_path / "pip.py"
    pip.write_text(
        "import sys, time\n"
        "for line in open('output'):\n"
        "    print(line, end='', file=sys.stderr if line.startswith('ERROR') else sys.stdout)\n"
        "    time.sleep(0.3)\n"
        "sys.exit('ERROR' in open('output').read())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_PIP", (sys.executable, str(pip)))
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.02)
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.1)
    (tmp_path / "dev.txt").write_text("alpha==1 \\\n    --hash=sha256:0\nbeta==2 \\\n    --hash=sha256:1\n")
    return module


PIP_OUTPUT = """Collecting alpha==1 (from -r dev.txt (line 1))
  Downloading alpha-1.whl (1 kB)
Collecting beta==2 (from -r dev.txt (line 3))
Installing collected packages: beta, alpha
Successfully installed alpha-1 beta-2
"""


def test_the_installation_prints_its_steps(
    installer: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output").write_text(PIP_OUTPUT)
    assert installer.main("dev.txt") == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    steps = re.findall(r"^ +\d+ s  (.*)$", printed.err, flags=re.MULTILINE)
    in_order = [step for step in dict.fromkeys(steps) if step != "starting pip"]
    assert in_order[:3] == [
        "downloading package 1 of at most 2: alpha",
        "downloading package 2 of at most 2: beta",
        "unpacking the packages",
    ]
    assert re.search(r"^Installed in \d+ s\.$", printed.err, flags=re.MULTILINE)
    assert "\033" not in printed.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line(installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "output").write_text("Collecting alpha==1\nERROR: refused\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert installer.main("dev.txt") == 1
    text = terminal.getvalue()
    assert "\r\033[K" in text
    first, error, rest = text.split("\n")
    assert first == "Installing Python packages (about a minute):"
    assert error.endswith("\r\033[KERROR: refused"), "the error does not follow the progress on its line"
    assert rest.endswith("\r\033[K")
    assert "Installed" not in text
