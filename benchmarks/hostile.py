"""CPU cost of hostile reviews, and the latency of other clients meanwhile.

A real webhook process serves over TLS. One client sends each kind of hostile pod, namespace and review (see
tests/support/hostile_reviews.py) with 1.25 and with 2.5 MiB. A second client sends regular reviews over its
own connection, and a third requests /healthz. The benchmark prints the server's CPU time per MiB, the growth
of the cost for twice the size, and the longest latency of the other clients. Limits: 50 ms per MiB, three
times the cost for twice the size, and 250 ms. The CPU time includes the regular reviews, so the costs are
upper bounds. Exits with 1 if a limit is exceeded. Run: `python -m benchmarks.hostile`, optionally with a part
of a kind's name; about two minutes.
"""

import argparse
import asyncio
import socket
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from benchmarks.review_client import Client
from benchmarks.webhook import cpu_seconds, start
from tests.support.hostile_reviews import Asked, all_requests

MIB: Final = 1 << 20
SIZES: Final = (5 * MIB // 4, 5 * MIB // 2)
MAX_MS_PER_MIB: Final = 50.0
MAX_GROWTH: Final = 3.0
MAX_WAIT_SECONDS: Final = 0.25
TIMES: Final = 4
"""Reviews of each kind and size. The kernel counts CPU time in steps of 10 ms, so several are added up."""

_GROWS_FROM_MS: Final = 20.0
"""Smallest cost for which growth is evaluated; below it the steps of 10 ms dominate."""

SHARE: Final = {
    "kai.scheduler/queue": "queue-a",
    "kaishare.dev/gpu-fraction": "0.5",
    "kaishare.dev/share-for": "all",
}
LABELS: Final = {
    "team-0500": SHARE,  # of the regular reviews
    "team-a": {**SHARE, "kaishare.dev/max-gpu-fraction": "0.9", "kaishare.dev/priority": "train"},
    "guarded": {**SHARE, "kaishare.dev/mode": "enforce", "kaishare.dev/max-gpu-fraction": "0.9"},
}


class Sender:
    """Sends hostile requests, each over a new connection."""

    def __init__(self, address: str, ca: Path) -> None:
        host, port = address.removeprefix("https://").split(":")
        self._address = host, int(port)
        self._trust = ssl.create_default_context(cafile=str(ca))

    def send(self, request: Asked) -> None:
        """Send one request, and wait for the head of the answer or the end of the connection."""
        plain = socket.create_connection(self._address, timeout=30)
        with self._trust.wrap_socket(plain, server_hostname="localhost") as connection:
            line = f"POST {request.path}?timeout=30s HTTP/1.1"
            head = f"{line}\r\nHost: x\r\nContent-Length: {len(request.body)}\r\n\r\n"
            connection.sendall(head.encode() + request.body)
            connection.recv(65536)


@dataclass
class Others:
    """Longest time of a regular review and of a probe since the last reset."""

    review_seconds: float = 0.0
    probe_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def reset(self) -> None:
        """Reset the longest times."""
        self.review_seconds = self.probe_seconds = 0.0


class Background:
    """Two threads that send regular reviews and probes until stopped."""

    def __init__(self, address: str, ops: str, ca: Path) -> None:
        self.others = Others()
        self._stop = threading.Event()
        self._client = Client(address, ca)
        self._health = f"{ops}/healthz"
        self._threads = [threading.Thread(target=self._review), threading.Thread(target=self._probe)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop both threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _review(self) -> None:
        while not self._stop.wait(0.005):
            took, _ = self._client.review()
            self.others.review_seconds = max(self.others.review_seconds, took)

    def _probe(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self._stop.wait(0.02):
            began = time.perf_counter()
            with opener.open(self._health, timeout=30) as answer:
                if answer.status != 200:
                    self.others.failures.append(f"/healthz {answer.status}")
            self.others.probe_seconds = max(self.others.probe_seconds, time.perf_counter() - began)


async def measure(part: str) -> int:
    """Measure every kind whose name contains a text; return 1 if a kind exceeds a limit."""
    broken = 0
    with tempfile.TemporaryDirectory(prefix="kaishare-hostile-") as name:
        folder = Path(name)
        items = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            for name, labels in LABELS.items()
        ]
        (folder / "policies.yaml").write_text(yaml.safe_dump_all(items))
        process, address = await start(
            f"webhook serve --policies {folder}/policies.yaml --certs {folder}/tls --drain 0s"
            " --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0",
            folder / "log",
        )
        ops = (folder / "log").read_text().partition('"ops":"')[2].partition('"')[0]
        ca = folder / "tls" / "ca.crt"
        sender, background = Sender(address, ca), Background(address, ops, ca)
        try:
            print(f"{'':64} ms/MiB   growth   longest latency: review, probe (ms)")
            for kind, make in all_requests().items():
                if part not in kind:
                    continue
                costs = []
                background.others.reset()
                for size in SIZES:
                    request = make(size)
                    before = cpu_seconds(process)
                    for _ in range(TIMES):
                        await asyncio.to_thread(sender.send, request)
                    costs.append((cpu_seconds(process) - before) * 1000 / TIMES)
                others = background.others
                per_mib = costs[1] / max(
                    len(request.body) / MIB, 1
                )  # a smaller one is mostly TLS and the others
                growth = costs[1] / costs[0] if costs[0] >= _GROWS_FROM_MS else 0.0
                waits = others.review_seconds, others.probe_seconds
                is_broken = per_mib > MAX_MS_PER_MIB or growth > MAX_GROWTH or max(waits) > MAX_WAIT_SECONDS
                broken += is_broken
                growth_text = f"{growth:8.1f}" if growth else f"{'-':>8}"
                print(
                    f"{kind:62} {per_mib:8.1f} {growth_text} {waits[0] * 1000:8.0f} {waits[1] * 1000:8.0f}"
                    f"{'  OVER' if is_broken else ''}",
                    flush=True,
                )
        finally:
            background.stop()
            process.terminate()
            await process.wait()
        failures = "; ".join(background.others.failures) or "every probe was answered 200"
        print(f"{broken} kinds exceed a limit; {failures}")
    return int(bool(broken or background.others.failures))


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="part of the names of kinds to measure")
    sys.exit(asyncio.run(measure(parser.parse_args().part)))


if __name__ == "__main__":
    main()
