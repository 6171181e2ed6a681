"""Runs many commands of `kaishare`, each in a process of its own, in a fraction of the time of a new Python.

A server process imports the command's modules once and forks for each command (`multiprocessing`, forkserver).
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 60.0
_PRELOADED = [
    "tests.support.console_processes",
    "console.cli",
    "console.doctor.command",
    "console.policies.command",
    "console.top.cluster_reader",
    "console.why.command",
    "kube.client",
    "webhook.explain.cluster",
    "webhook.explain.live.workloads",
    "webhook.explain.server.dry_runs",
]


@dataclass(frozen=True, slots=True)
class EndedConsole:
    """The exit status of a command, its output and its errors."""

    status: int
    out: str
    err: str


def run_console(arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> EndedConsole:
    """Run a command without a terminal and wait for its end.

    Args:
        arguments: the arguments after `kaishare`.
        folder: the working directory.
        environment: variables to set; the other ones whose names begin with KUBE are removed.

    Raises:
        AssertionError: the command is still running after 60 s.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    out, err = folder / ".out", folder / ".err"
    process = context.Process(target=_run, args=(list(arguments), folder, dict(environment), out, err))
    process.start()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"still running after {_SECONDS} s: {arguments}")
    return EndedConsole(process.exitcode, out.read_text(), err.read_text())


def _run(arguments: list[str], folder: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    from console.cli import main

    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("KUBE")]:
        del os.environ[name]
    os.environ.update(environment)
    for path, descriptor in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ["kaishare", *arguments]
    sys.exit(main())
