"""Sends 100,000 generated or damaged reviews to a real server process over TLS.

Exits with 1 if a review is answered with a 5xx status, is not answered, or is answered with a patch that does
not apply to the sent object (checked with the package `jsonpatch`). Prints the number of answers by kind, and
the server's memory during the run. Stops after `--minutes` and reports that. Run: `python -m
benchmarks.endurance`.
"""

import argparse
import asyncio
import base64
import json
import ssl
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import jsonpatch

from benchmarks.generated import POLICIES, Reviews, Sent
from benchmarks.webhook import start

MARKS = (20, 60, 100)
"""Percentages of the reviews at which memory is measured."""


@dataclass(kw_only=True)
class Run:
    """Results of a run."""

    count: int
    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of answers by path and status."""
    patched: int = 0
    denied: int = 0
    unusable: int = 0
    """Number of patches that do not apply."""
    wrong: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    """Resident memory of the server in KiB, by percentage of the reviews."""

    def check(self, sent: Sent, status: int, body: bytes) -> None:
        """Check and count one answer."""
        self.answered[sent.path, status] += 1
        if status not in (200, 400):
            self.wrong.append(f"{sent.path} answered {status} {body[:200]!r} to {sent.body[:500]!r}")
        elif status == 200:
            response = json.loads(body)["response"]
            self.denied += not response["allowed"]
            if "patch" in response:
                self.patched += 1
                problem = problem_of(response["patch"], sent.body)
                if problem:
                    self.unusable += 1
                    self.wrong.append(f"{problem}: {response['patch']} for {sent.body!r}")
            elif sent.path == "/mutate" and response["allowed"] is not True:
                self.wrong.append(f"/mutate refused {sent.body[:500]!r}")


def problem_of(patch: str, body: bytes) -> str | None:
    """Return why a patch does not apply to the object of a review; None if it applies."""
    try:
        # Fields that the server ignores may contain control characters and bytes that are not UTF-8.
        review: Any = json.loads(body.decode(errors="replace"), strict=False)
        jsonpatch.apply_patch(review["request"]["object"], json.loads(base64.b64decode(patch)))
    except (ValueError, TypeError, KeyError, jsonpatch.JsonPatchException) as error:
        return f"{type(error).__name__}: {error}"
    return None


def memory_of(process: Process) -> int:
    """Return the resident memory of a process in KiB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit("the server has ended")


async def send(
    session: aiohttp.ClientSession, url: str, reviews: Iterator[Sent], run: Run, process: Process
) -> None:
    """Send reviews one after another, as one client."""
    for sent in reviews:
        try:
            async with session.post(f"{url}{sent.path}?timeout=10s", data=sent.body) as response:
                run.check(sent, response.status, await response.read())
        except aiohttp.ClientError as error:
            run.wrong.append(f"not answered: {error!r} for {sent.body[:500]!r}")
        percent, rest = divmod(run.answered.total() * 100, run.count)
        if percent in MARKS and not rest:
            run.memory[percent] = memory_of(process)


async def endure(count: int, seed: int, connections: int, minutes: float) -> Run:
    """Start the server, send all reviews, and stop the server."""
    run = Run(count=count)
    reviews = islice(iter(Reviews(seed)), count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policies.yaml").write_text(POLICIES)
        process, url = await start(
            f"webhook serve --policies {folder}/policies.yaml --certs {folder}/tls --drain 0s"
            " --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0",
            folder / "log",
        )
        run.memory[0] = memory_of(process)
        trust = ssl.create_default_context(cafile=str(folder / "tls" / "ca.crt"))
        connector = aiohttp.TCPConnector(ssl=trust, limit=connections)
        try:
            async with asyncio.timeout(minutes * 60), aiohttp.ClientSession(connector=connector) as session:
                await asyncio.gather(*(send(session, url, reviews, run, process) for _ in range(connections)))
        except TimeoutError:
            run.wrong.append(f"stopped after {minutes:g} minutes and {run.answered.total()} reviews")
        finally:
            process.terminate()
            if await process.wait():
                run.wrong.append(f"the server ended with status {process.returncode}")
    return run


def main() -> None:
    """Parse the options, run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="reviews to send")
    parser.add_argument("--seed", type=int, default=1, help="seed of the generator")
    parser.add_argument("--connections", type=int, default=8, help="concurrent connections")
    parser.add_argument("--minutes", type=float, default=15, help="longest duration of the run")
    options = parser.parse_args()
    began = time.perf_counter()
    run = asyncio.run(endure(options.count, options.seed, options.connections, options.minutes))
    took = time.perf_counter() - began
    print(f"{run.answered.total()} reviews, seed {options.seed}, in {took:.0f} s")
    for (path, status), number in sorted(run.answered.items()):
        print(f"  {path:22} {status}  {number:7}")
    errors = sum(number for (_, status), number in run.answered.items() if status >= 500)
    print(f"  5xx {errors}, denied {run.denied}")
    print(f"  patched {run.patched}, patches that do not apply {run.unusable}")
    memory = ", ".join(f"{kib / 1024:.1f} at {at} %" for at, kib in run.memory.items())
    print(f"  memory of the server, MiB: {memory}")
    for text in run.wrong[:20]:
        print(text)
    sys.exit(1 if run.wrong else 0)


if __name__ == "__main__":
    main()
