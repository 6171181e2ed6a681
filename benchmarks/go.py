"""Builds the programs in Go that benchmarks run."""

import shutil
import subprocess
import sys
from pathlib import Path


def go_program(name: str, folder: Path) -> Path:
    """Build the program in the folder `name` beside this module; return its file, which is put into `folder`.

    Raises:
        SystemExit: there is no go.
    """
    go = shutil.which("go")
    if go is None:
        sys.exit(f"there is no go, which builds benchmarks/{name}")
    program = folder / name
    subprocess.run([go, "build", "-o", program, "."], cwd=Path(__file__).parent / name, check=True)
    return program
