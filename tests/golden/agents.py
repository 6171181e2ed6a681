"""Records of the agent: /metrics, its API, Events and log on every example, and evictions of generated histories."""

import contextlib
import json
import os
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.generated import POLICIES
from tests.golden import product, reviews
from tests.golden.records import changed_lines, lines_of

_POINTS: Final[Mapping[str, tuple[int, ...]]] = {
    "node": (0, 5, 20, 60),
    "incident": (0, 30, 60, 90, 110, 140, 170, 190, 200, 210),
    "out-of-memory": (0, 45, 60, 105, 125, 185, 240),
}
_HISTORIES: Final = 150
_OF_THE_PROCESS: Final = ("process_", "# HELP process_", "# TYPE process_")
_MEASURED: Final = re.compile(r"(kaishare_\w*(?:seconds\w*|timestamp\w*)(?:{.*})?) \S+$")


def scenario_cases(_folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the answers of the agent at fixed times; after the first time, the lines that have changed."""
    for path in sorted((product.ROOT / "tests" / "support" / "scenarios").glob("*.yaml")):
        points = _POINTS.get(path.stem, (0, 30, 60, 120))
        node = product.SimulatedNode(path)
        with contextlib.closing(node):
            before: dict[str, Sequence[str]] = {"metrics": [], "shares": []}
            for seconds in range(0, points[-1] + 1, 5):
                node.sample(seconds)
                if seconds not in points:
                    continue
                text = product.hidden(node.metrics, {}).splitlines()
                now = {
                    "metrics": [line for line in text if not line.startswith(_OF_THE_PROCESS)],
                    "shares": product.hidden("\n".join(lines_of(node.shares)), {}).splitlines(),
                }
                for name, lines in now.items():
                    yield (
                        f"{path.stem} {seconds:3} s {name}",
                        changed_lines(before[name], lines) if seconds else lines,
                    )
                before = dict(now)
            yield f"{path.stem} Events", node.events
            yield f"{path.stem} log", node.log


def eviction_cases(_folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield what the evictor did in generated histories."""
    for seed in range(_HISTORIES):
        results, sent = product.eviction_history(seed)
        if results:
            yield f"seed {seed}", {"results": results, "sent": sent}


def served_cases(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield answers of the two services as processes, over their ports."""
    policies = folder / "policies.yaml"
    policies.write_text(POLICIES)
    log = folder / "webhook.log"
    options = ("--policies", str(policies), "--certs", str(folder / "tls"), "--drain", "1s")
    with _process(
        log, *product.WEBHOOK, *options, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"
    ) as urls:
        admission, ops = urls(2)
        for name, path, body in reviews.few():
            status, answer = _request(admission + path, body)
            yield (
                f"webhook {name}",
                [
                    str(status),
                    *(reviews.short(answer, {}) if status == 200 else answer.decode().splitlines()),
                ],
            )
        yield "webhook /nowhere", _text(admission + "/nowhere")
        for path in ("/policies", "/metrics", "/healthz", "/readyz", "/nowhere"):
            yield f"webhook ops {path}", _text(ops + path)
    log = folder / "agent.log"
    scenario = product.ROOT / "tests" / "support" / "scenarios" / "node.yaml"
    with _process(
        log, *product.AGENT, "--gpus", f"simulated:{scenario}", "--interval", "30s", "--listen", "127.0.0.1:0"
    ) as urls:
        (url,) = urls(1)
        _wait(lambda: _request(f"{url}/readyz")[0] == 200)
        for path in ("/healthz", "/readyz", "/nowhere"):
            yield f"agent {path}", _text(url + path)
        names = sorted(
            {
                line.partition("{")[0].partition(" ")[0]
                for line in _text(f"{url}/metrics")
                if line.startswith("kaishare")
            }
        )
        yield "agent names of /metrics", names
        yield (
            "agent pods of /api/v1/shares",
            sorted(each["name"] for each in json.loads(_request(f"{url}/api/v1/shares")[1])["pods"]),
        )
        command = ("top", "--url", url)
        yield (
            "kaishare top of an agent",
            _figures(product.run(*command, "--once", home=folder, hide={url: "URL"}).lines),
        )


def _figures(lines: Sequence[str]) -> list[str]:
    """Hide figures that depend on the moment, and the width that they take."""
    return [re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "N", line)) for line in lines]


def _text(url: str) -> list[str]:
    status, body = _request(url)
    lines = product.hidden(body.decode(), {}).splitlines()
    lines = [line for line in lines if not line.startswith((*_OF_THE_PROCESS, "python_"))]
    return [
        f"status {status}",
        *(
            _MEASURED.sub(r"\1 …", line)
            for line in lines
            if not any(each in line for each in ("_bucket{", "_created"))
        ),
    ]


def _request(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    context = ssl._create_unverified_context() if url.startswith("https") else None
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@contextlib.contextmanager
def _process(log: Path, *command: str) -> Iterator[Any]:
    """Run a service; yield a function that waits for its addresses in the log."""
    variables = {
        **os.environ,
        "KUBECONFIG": str(log.parent / "none"),
        "HOME": str(log.parent),
        "TMPDIR": str(log.parent),
    }

    def urls(count: int) -> list[str]:
        def addresses() -> list[str]:
            assert process.poll() is None, log.read_text()
            return re.findall(r'"(https?://127\.0\.0\.1:\d+)"', log.read_text())

        _wait(lambda: len(addresses()) >= count)
        return addresses()

    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=product.ROOT, stderr=stream, env=variables)
    try:
        yield urls
    finally:
        process.terminate()
        process.wait(30)


def _wait(holds: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "no answer in time"
        time.sleep(0.05)
