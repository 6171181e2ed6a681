"""Builds the Go programs of the benchmarks."""

import shutil
import subprocess
from pathlib import Path


def build(name: str, folder: Path) -> Path:
    """Build the program in the folder `name` beside this file; return it.

    Raises:
        SystemExit: there is no go.
    """
    go = shutil.which("go")
    if go is None:
        raise SystemExit(f"there is no go, which builds benchmarks/{name}")
    program = folder / name
    subprocess.run([go, "build", "-o", program, "."], cwd=Path(__file__).parent / name, check=True)
    return program
