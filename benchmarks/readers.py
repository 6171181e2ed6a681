"""Readers of a large node's pages beside each other and beside clients that do not read.

A real `kaishare-agent serve` with the simulated driver library of the tests (needs gcc) serves 512 pods with
4,096 processes; the last phase has 64 pods. The clients are processes of their own. Phases:

- 100 readers of `/metrics`, without and with gzip, one scrape after another;
- a slow victim, 2 ms for 64 KiB, beside 8, 12, 20 and 40 other readers;
- a victim beside a client that opens 50 connections a second and reads nothing, and one that opens 200, which
  is more than the agent can hold: scrapes are refused then, and `/healthz` is not;
- 100 readers on 64 pods.

In every phase `/healthz` is requested 20 times a second on new connections. The benchmark prints the scrapes,
those that failed (cut, or another status than 200), the longest `/healthz` and the agent's peak memory. It
exits with 1 if a scrape of a reader or victim fails or `/healthz` takes 0.5 s. Run: `python -m
benchmarks.readers`; about a minute and a half.
"""

import argparse
import asyncio
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from benchmarks.agent import Load, Start, agent, resident_mib, write_node
from tests.support.nvml_stub.build import built_library

LONGEST_HEALTH = 0.5
INTERVAL_MS = 5000
READERS = 100
VICTIM_SECONDS_PER_PIECE = 0.002
FLOODS = {50: True, 200: False}
"""Connections a second that read nothing, and whether the victim's scrapes must succeed beside them."""
_PIECE = 65536
_OK = 200

Address = tuple[str, int]


@dataclass
class Scrapes:
    """Results of one group of clients."""

    sizes: list[int] = field(default_factory=list)
    """Bytes of each complete body."""
    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, other: "Scrapes") -> None:
        """Add the results of another group."""
        self.sizes += other.sizes
        self.failures += other.failures
        self.seconds += other.seconds

    def text(self) -> str:
        """Return number, failures, size and longest time."""
        seconds, size = max(self.seconds, default=0), max(self.sizes, default=0)
        kinds = ", ".join(sorted(set(self.failures)))
        failed = f"{len(self.failures)} failed" + (f" ({kinds})" if kinds else "")
        return f"{len(self.sizes):5} scrapes of {size / 1000:.0f} kB, {failed}, longest {seconds:.2f} s"


async def scrape(address: Address, path: str, *, gzip: bool = False, pause: float = 0) -> int:
    """Read one page; return the size of its body.

    Raises:
        OSError: the connection ends before the body does, or the status is not 200.
    """
    reader, writer = await asyncio.open_connection(*address)
    try:
        encoding = "Accept-Encoding: gzip\r\n" if gzip else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{encoding}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        read = 0
        while read < length:
            piece = await reader.read(_PIECE)
            if not piece:
                raise ConnectionError("cut")
            read += len(piece)
            if pause:
                await asyncio.sleep(pause * len(piece) / _PIECE)
    except asyncio.IncompleteReadError:
        raise ConnectionError("no answer") from None
    finally:
        writer.transport.abort()
    if status != _OK:
        raise ConnectionError(str(status))
    return length


async def _scrapes(address: Address, seconds: float, *, gzip: bool, pause: float, wait: float) -> Scrapes:
    result, end = Scrapes(), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            result.sizes.append(await scrape(address, "/metrics", gzip=gzip, pause=pause))
            result.seconds.append(time.monotonic() - began)
        except OSError as error:
            result.failures.append(str(error))
        await asyncio.sleep(wait)
    return result


def read_pages(
    address: Address, count: int, seconds: float, gzip: bool = False, pause: float = 0, wait: float = 0
) -> Scrapes:
    """Run clients that read `/metrics` one after another; call it in a process of its own.

    Args:
        address: the agent's port.
        count: number of clients.
        seconds: duration.
        gzip: whether they accept gzip.
        pause: seconds for each 64 KiB.
        wait: seconds between two scrapes of a client.
    """

    async def all_clients() -> Scrapes:
        clients = (_scrapes(address, seconds, gzip=gzip, pause=pause, wait=wait) for _ in range(count))
        result = Scrapes()
        for each in await asyncio.gather(*clients):
            result.add(each)
        return result

    return asyncio.run(all_clients())


def flood(address: Address, per_second: int, seconds: float) -> int:
    """Open connections that request `/metrics` and read nothing; return their number."""
    clients: list[socket.socket] = []
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if len(clients) < (now - began) * per_second:
            client = socket.create_connection(address, timeout=5)
            clients.append(client)
            with contextlib.suppress(OSError):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        else:
            time.sleep(0.002)
    for client in clients:
        client.close()
    return len(clients)


def probe(address: Address, seconds: float) -> tuple[float, int]:
    """Request `/healthz` 20 times a second; return the longest time and the number of failures."""

    async def probes() -> tuple[float, int]:
        longest, failures, end = 0.0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                await scrape(address, "/healthz")
            except OSError:
                failures += 1
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.05)
        return longest, failures

    return asyncio.run(probes())


@dataclass
class Phases:
    """Runs the phases against one agent, and keeps whether each was within the limits."""

    address: Address
    pool: ProcessPoolExecutor
    memory: Callable[[], float]
    seconds: float
    is_within: bool = True

    async def run(self, title: str, *jobs: tuple[object, ...], is_judged: bool = True) -> None:
        """Run jobs beside the probe of `/healthz`; if judged, the last job must have no failed scrape."""
        loop = asyncio.get_running_loop()
        tasks = [loop.run_in_executor(self.pool, job[0], self.address, *job[1:]) for job in jobs]  # type: ignore[arg-type, var-annotated]
        longest, failed = await loop.run_in_executor(self.pool, probe, self.address, self.seconds)
        results = await asyncio.gather(*tasks)
        result = results[-1]
        is_within = not is_judged or (not result.failures and bool(result.sizes))
        self.is_within = self.is_within and is_within
        print(f"{title:28} {result.text()}{'' if is_within else '  FAILED'}")
        is_healthy = longest < LONGEST_HEALTH and not failed
        self.is_within = self.is_within and is_healthy
        health = f"/healthz at most {longest:.3f} s, {failed} failed"
        print(
            f"{'':28} {health}; agent {self.memory():.0f} MiB{'' if is_healthy else '  FAILED'}", flush=True
        )


async def measure(library: Path, load: Load, pool: ProcessPoolExecutor, seconds: float) -> bool:
    """Run all phases for one node; return whether all were within the limits."""
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        folder = Path(name)
        write_node(load, folder)
        async with agent(Start(folder, f"{name}/pods.json"), library, INTERVAL_MS) as (process, url):
            host, _, port = url.removeprefix("http://").rpartition(":")
            phases = Phases((host, int(port)), pool, lambda: resident_mib(process), seconds)
            await asyncio.sleep(3)
            print(f"{load.pods} pods, {load.processes} processes: agent {phases.memory():.0f} MiB at first")
            await phases.run(f"{READERS} readers", (read_pages, READERS, seconds))
            await phases.run(f"{READERS} readers, gzip", (read_pages, READERS, seconds, True))
            if load.pods > READERS:
                pause = VICTIM_SECONDS_PER_PIECE
                for others in (8, 12, 20, 40):
                    victim: tuple[object, ...] = (read_pages, 1, seconds, False, pause)
                    await phases.run(f"a victim beside {others}", (read_pages, others, seconds), victim)
                victim = (read_pages, 1, 2 * seconds, False, pause, 0.5)
                for many, is_judged in FLOODS.items():
                    title = f"a victim beside {many} unread/s"
                    await phases.run(title, (flood, many, 2 * seconds), victim, is_judged=is_judged)
            return phases.is_within


async def run(seconds: float) -> int:
    """Run all phases for both nodes; return 1 if one was not within the limits."""
    with (
        tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name,
        ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool,
    ):
        library = built_library(Path(name))
        large = await measure(library, Load(8, 512, 4096), pool, seconds)
        small = await measure(library, Load(8, 64, 512), pool, seconds)
    return int(not (large and small))


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="duration of each phase")
    sys.exit(asyncio.run(run(parser.parse_args().seconds)))


if __name__ == "__main__":
    main()
