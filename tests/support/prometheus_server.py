"""Runs a real Prometheus that scrapes the programs of a test, and serves pages for it."""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.support.free_ports import free_port
from tests.support.promtool import default_rules, needed
from tests.support.waiting import wait_until


def answers(url: str) -> bool:
    """Return whether an address answers with success; an error's connection is closed, as Python 3.14 demands."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Prometheus:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def alerts(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"]}

    def instant(self, query: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the series of a query now, or at a time in Unix seconds."""
        when = {} if at is None else {"time": str(at)}
        samples: list[dict[str, Any]] = self.get("query", query=query, **when)["result"]
        return samples

    def lately(self, query: str, seconds: int = 30) -> list[dict[str, Any]]:
        end = time.time()
        samples: list[dict[str, Any]] = self.get(
            "query_range", query=query, start=str(end - seconds), end=str(end), step="1"
        )["result"]
        return samples

    def until(self, holds: Callable[[], Any], what: Callable[[], object] = lambda: "") -> None:
        def is_so() -> Any:
            assert self.process.poll() is None, self.log.read_text()
            return holds()

        wait_until(is_so, what, PATIENCE_SECONDS, pause=0.2)


@contextmanager
def prometheus(
    folder: Path,
    jobs: Mapping[str, str],
    *others: Mapping[str, Any],
    lookback: str = "5m",
    interval: str = "1s",
    rules: dict[str, Any] | None = None,
) -> Iterator[Prometheus]:
    """Start Prometheus; `jobs` maps names to addresses, `others` are scrape configurations.
    An instant query finds samples within `lookback`. Blocks in the folder's `tsdb` are part of its data. Scrapes
    and evaluations of kaishare's rules, or of `rules`, come each `interval`; nothing is evaluated if nothing is
    scraped, since all data is in the past then."""
    program = needed("prometheus")
    configuration = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [address]}]}
            for job, address in jobs.items()
        ]
        + [dict(other) for other in others],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    given, rules = rules, rules or default_rules()
    if not configuration["scrape_configs"]:
        rules["groups"] = []
    for group in [] if given else rules["groups"]:
        group.pop("interval", None)  # a test does not wait for the first minutes of a group
        for rule in group["rules"]:  # nor for the minutes of alerts on pods and GPUs, which are seconds here
            if rule.get("alert", "").startswith(("KaisharePod", "KaishareGPU")):
                rule["expr"] = rule["expr"].replace(":1m]", ":1s]")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    address = f"127.0.0.1:{free_port()}"
    log = folder / "prometheus.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yaml",
                f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address={address}",
                f"--query.lookback-delta={lookback}",
                "--storage.tsdb.retention.time=400d",  # from the newest sample; 15 days by default
            ],
            stdout=stream,
            stderr=stream,
        )
    try:
        running = Prometheus(f"http://{address}", process, log)
        running.until(lambda: answers(f"http://{address}/-/ready"), log.read_text)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def page(text: Callable[[int], str]) -> Iterator[str]:
    """Serve a page of metrics and yield its address; `text` receives the number of requests."""
    requests = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal requests
            requests += 1
            body = text(requests).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
