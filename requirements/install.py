"""Installs the pinned requirements and this checkout with pip, and shows the progress on standard error.

    PYTHON install.py REQUIREMENTS

On a terminal one line shows the progress. Otherwise a line appears at most every ten seconds.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

# Python stores the bytecode of a module when a program imports it first, and most modules are never imported.
_PIP = (
    sys.executable,
    "-m",
    "pip",
    "install",
    "--no-compile",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
)
_COLLECTING = re.compile(r"Collecting ([A-Za-z0-9._-]+)")
_PIN = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)
_TICK_SECONDS = 0.5
_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """The progress of an installation, written by a thread until `close` is called."""

    def __init__(self, stream: IO[str], step: str) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._step = step
        self._began = self._last_line = time.monotonic()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def set_step(self, step: str) -> None:
        """Set the text that describes the present step."""
        self._step = step

    def print(self, text: str) -> None:
        """Print an error or warning of pip."""
        with self._lock:
            self._clear()
            self._stream.write(text)
            self._stream.flush()

    def close(self) -> float:
        """Remove the progress line; return the elapsed time in seconds."""
        self._end.set()
        self._thread.join()
        self._clear()
        return time.monotonic() - self._began

    def _run(self) -> None:
        while not self._end.wait(_TICK_SECONDS):
            now = time.monotonic()
            text = f"  {now - self._began:3.0f} s  {self._step}"
            with self._lock:
                if self._is_terminal:
                    self._clear()
                    self._stream.write(text)
                    self._stream.flush()
                elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
                    self._last_line = now
                    self._stream.write(f"{text}\n")
                    self._stream.flush()

    def _clear(self) -> None:
        if self._is_terminal:
            self._stream.write("\r\033[K")


def step_of(line: str, collected: int, count: int) -> str | None:
    """Describe the step that a line of pip's output announces; None for other lines.

    Args:
        line: the line.
        collected: number of packages that were announced before it.
        count: number of pinned packages.
    """
    match = _COLLECTING.match(line)
    if match:
        return f"downloading package {collected + 1} of at most {count}: {match[1]}"
    if line.startswith("Installing collected packages"):
        return "unpacking the packages"
    return None


def run_pip(arguments: Sequence[str], progress: Progress, count: int) -> int:
    """Run `pip install`, show its steps and errors; return its exit status."""
    with subprocess.Popen(
        [*_PIP, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=_print_errors, args=(process.stderr, progress))
        errors.start()
        collected = 0
        for line in process.stdout:
            step = step_of(line, collected, count)
            if step is not None:
                collected += 1
                progress.set_step(step)
        errors.join()
    return process.returncode


def _print_errors(stream: IO[str], progress: Progress) -> None:
    for line in stream:
        progress.print(line)


def main(requirements: str) -> int:
    """Install everything; return the first exit status of pip that is not 0."""
    pins = len(_PIN.findall(Path(requirements).read_text()))
    print("Installing Python packages (about a minute):", file=sys.stderr)
    progress = Progress(sys.stderr, "starting pip")
    try:
        status = run_pip(["--require-hashes", "-r", requirements], progress, pins)
        if status == 0:
            progress.set_step("installing kaishare")
            status = run_pip(["--no-deps", "--no-build-isolation", "-e", "."], progress, pins)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        seconds = progress.close()
    if status == 0:
        print(f"Installed in {seconds:.0f} s.\n", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
