"""Runs a real Alertmanager on loopback, and a server that records the notifications that it sends."""

import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.free_ports import free_port
from tests.support.prometheus_server import answers
from tests.support.promtool import needed
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 30
_NAMES = ("prometheus-alertmanager", "alertmanager")
"""The program as Debian and as others name it."""


@dataclass(frozen=True)
class Inbox:
    """Notifications as pairs of a path and a JSON document."""

    address: str
    received: list[tuple[str, Any]] = field(default_factory=list)


@contextmanager
def inbox() -> Iterator[Inbox]:
    """Serve an address that accepts and records notifications."""
    received: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(body)))
            self.send_response(202)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Inbox(f"http://127.0.0.1:{server.server_address[1]}", received)
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Alertmanager:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, alerts: list[dict[str, Any]]) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass

    def alerts(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as response:
            alerts: list[dict[str, Any]] = json.load(response)
        return alerts

    def until(self, holds: Callable[[], Any]) -> None:
        def is_so() -> Any:
            assert self.process.poll() is None, self.log.read_text()
            return holds()

        wait_until(is_so, self.log.read_text, PATIENCE_SECONDS, pause=0.1)


@contextmanager
def alertmanager(folder: Path, configuration: Path) -> Iterator[Alertmanager]:
    """Start Alertmanager with a configuration; skip the test without the program."""
    program = next(filter(None, map(shutil.which, _NAMES)), None) or needed(_NAMES[0], _NAMES[0])
    address = f"127.0.0.1:{free_port()}"
    log = folder / "alertmanager.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                program, f"--config.file={configuration}", f"--storage.path={folder}/data",
                f"--web.listen-address={address}", "--cluster.listen-address=",
            ],
            stdout=stream,
            stderr=stream,
        )  # fmt: skip
    try:
        running = Alertmanager(f"http://{address}", process, log)
        running.until(lambda: answers(f"http://{address}/-/ready"))
        yield running
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
