"""Runs a real `kaishare-agent serve` in its own process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.forked_python import ForkedPython
from tests.support.scenarios import PROGRAM
from tests.support.service_log import log_lines, series_of
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Agent:
    process: subprocess.Popen[bytes] | ForkedPython
    log: Path
    url: str

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def series(self) -> dict[str, float]:
        status, text = self.get("/metrics")
        assert status == 200
        return {name: value for name, value in series_of(text).items() if name.startswith("kaishare_")}

    def shares(self) -> dict[str, Any]:
        status, text = self.get("/api/v1/shares")
        assert status == 200
        answer: dict[str, Any] = json.loads(text)
        return answer

    def log_lines(self, message: str) -> list[dict[str, Any]]:
        return log_lines(self.log, message)

    def until(self, holds: Callable[[], Any]) -> None:
        def is_so() -> Any:
            assert self.process.poll() is None, self.log.read_text()
            return holds()

        wait_until(is_so, self.log.read_text, pause=0.05)

    def stop(self, number: int = signal.SIGTERM, within: float = PATIENCE_SECONDS) -> int:
        self.process.send_signal(number)
        return self.process.wait(within)


@contextmanager
def agent(
    log: Path,
    *options: str,
    program: Sequence[str] = ("-m", "gpuagent"),
    is_forked: bool = False,
    **environment: str,
) -> Iterator[Agent]:
    """Start `python -m gpuagent serve` or another program on a free port; stop it at the end of the test.
    With `--gpus simulated:FILE` it runs on a scenario (tests/support/scenarios). A fork is cheap, and ignores
    LD_LIBRARY_PATH."""
    if program == ("-m", "gpuagent") and any("simulated:" in option for option in options):
        program = PROGRAM
    command = [*program, "serve", "--listen", "127.0.0.1:0", *options]
    variables = {**os.environ, **environment}
    process = (
        ForkedPython(command, err=log, environment=variables)
        if is_forked
        else _start(log, command, variables)
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (url := re.search(r'"url":"([^"]+)"', log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield Agent(process, log, url[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _start(log: Path, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, stderr=stream, env=environment)
