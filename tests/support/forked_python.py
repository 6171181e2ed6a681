"""Runs Python programs as forks of a server process, in a fraction of the processor time of a new Python.

The server process imports kaishare's modules once and forks for each program (`multiprocessing`, forkserver). A fork
shares memory and loaded modules with the server, so tests of memory, of imports and of the dynamic linker's variables
start a new Python instead.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SECONDS = 60.0
_PRELOADED = [
    "tests.support.forked_python", "console.cli", "console.doctor.command", "console.policies", "console.why.command",
    "gpuagent.cli", "gpuagent.serve", "kube.client", "webhook.cli", "console.explain.cluster_facts",
    "console.explain.live_workloads", "console.explain.server_dry_runs", "webhook.serve",
]  # fmt: skip


class ForkedPython:
    """A running program, with the methods of `subprocess.Popen` that tests of services use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        err: Path,
        out: Path | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        self.args = list(arguments)
        self._lock = threading.Lock()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        variables = dict(os.environ if environment is None else environment)
        self._process = context.Process(
            target=_run, args=(self.args, folder, variables, out, err), daemon=True
        )
        for file in (out, err):
            if file is not None:
                file.write_bytes(b"")  # a reader sees no lines of an earlier program
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, which is negative after a signal; None while the program runs."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class EndedProgram:
    status: int
    out: str
    err: str


def run_forked(
    *arguments: str, environment: Mapping[str, str] | None = None, folder: Path = ROOT
) -> EndedProgram:
    """Run a program without a terminal and wait for its end; the arguments are those of `ForkedPython`."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place) / "out", Path(place) / "err"
        program = ForkedPython(arguments, out=out, err=err, environment=environment, folder=folder)
        try:
            status = program.wait(_SECONDS)
        finally:
            program.kill()
        return EndedProgram(status, out.read_text(), err.read_text())


def without_cluster(**settings: str) -> dict[str, str]:
    """Return this process' environment without the variables whose names begin with KUBE, with others set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    return {**kept, **settings}


def _run(
    arguments: list[str], folder: Path, environment: dict[str, str], out: Path | None, err: Path
) -> None:
    option, program, *rest = arguments
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # so that TMPDIR is read again
    for path, descriptor in ((out, 1), (err, 2)):
        if path is not None:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.dup2(file, descriptor)
            os.close(file)
    if option == "-m":
        sys.argv = [program, *rest]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *rest]
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(program, names)
