"""Moves the wall clock and the monotonic clock of processes that a test starts."""

import shutil
import subprocess
from pathlib import Path

import pytest


class MovedClocks:
    """Clocks that differ from the true ones, for processes with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Build the library that the processes load; its files are in the folder."""
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("gcc is needed: apt-get install gcc")
        self._file = folder / "moved-clocks"
        library = folder / "moved_clocks.so"
        source = Path(__file__).with_suffix(".c")
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)]
        subprocess.run([*command, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "MOVED_CLOCKS_FILE": str(self._file)}
        self.seconds = self.monotonic_seconds = 0
        self._write()

    def set(self, seconds: int) -> None:
        """Let the wall clock be ahead of the true one."""
        self.seconds = seconds
        self._write()

    def advance(self, seconds: int) -> None:
        """Let the monotonic clock jump forward, as after the suspension of a machine; it never goes back."""
        assert seconds >= 0
        self.monotonic_seconds += seconds
        self._write()

    def _write(self) -> None:
        making = self._file.with_suffix(".making")
        making.write_text(f"{self.seconds} {self.monotonic_seconds}")
        making.replace(self._file)
