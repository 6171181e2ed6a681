"""Moves the wall clock of processes that a test starts."""

import shutil
import subprocess
from pathlib import Path

import pytest


class WallClock:
    """A wall clock that differs from the true one, for processes with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Build the library that the processes load; its files are in the folder."""
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("gcc is needed: apt-get install gcc")
        self._file = folder / "wall-clock"
        library = folder / "wall_clock.so"
        source = Path(__file__).with_suffix(".c")
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)]
        subprocess.run([*command, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let the clock be ahead of the true one."""
        self.seconds = seconds
        making = self._file.with_suffix(".making")
        making.write_text(str(seconds))
        making.replace(self._file)
