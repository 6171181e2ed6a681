"""Runs programs of Prometheus."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "alerts"


def needed(program: str) -> str:
    """Return the path of a program; skip the test without it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is needed: apt-get install prometheus")
    return path


def promtool(*arguments: str | Path) -> str:
    """Run promtool; return its output."""
    done = subprocess.run(
        [needed("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
