"""Latency of reviews under abuse by another client: 10,000 connections, slow heads, floods of reviews.

One client sends reviews one after another over one connection, as an API server does, and regularly opens a
new connection. The phases are: the client alone, the client during each abuse, and the client alone again.
The abuse runs in its own process, from other addresses of the loopback network. The benchmark prints
latencies, the number of reviews that got no patch within 5 s, the result of the abuse, and the server's
memory. It exits with 1 if a review got no patch. Run: `python -m benchmarks.abuse`; about four minutes.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.processes import resident_mib
from benchmarks.review_client import WATCHED, Client, namespaces, write
from benchmarks.reviews import pod_review
from benchmarks.webhook import start
from service.http.limits import raise_descriptor_limit

NEW_CONNECTION_EVERY = 100
MAX_REVIEW_BODY = 8 * 1024 * 1024
HEAD = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\n"
DEEP = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"object":' + b"[" * 1_000_000


FLOOD_BYTES = 266_000
FLOOD_CONNECTIONS = 255
API_SERVER_WAITS = 5.0
"""The chart's timeoutSeconds."""


def source(number: int) -> tuple[str, int]:
    """Return one of the abuser's addresses; each is a peer of its own to the server."""
    return f"127.0.{number // 250}.{2 + number % 250}", 0


class Abuser:
    """Opens connections and misuses them."""

    def __init__(self, host: str, port: int, ca: Path, addresses: int) -> None:
        self._address = host, port
        self._addresses = addresses
        self._trust = ssl.create_default_context(cafile=str(ca))
        self._sockets: list[socket.socket] = []

    def connect(self, *, tls: bool = True) -> socket.socket | None:
        """Open a connection; return None if the server refuses it."""
        own = source(len(self._sockets) % self._addresses)
        made = socket.create_connection(self._address, timeout=10, source_address=own)
        try:
            if tls:
                made = self._trust.wrap_socket(made, server_hostname="localhost")
        except OSError:
            made.close()
            return None
        self._sockets.append(made)
        return made

    def send(self, to: socket.socket | None, data: bytes) -> None:
        """Send as much data as the server accepts."""
        if to is not None:
            with contextlib.suppress(OSError):
                to.sendall(data)

    def left(self) -> int:
        """Return the number of connections that the server has not closed."""
        count = 0
        for each in self._sockets:
            each.settimeout(0)
            try:
                while each.recv(1 << 20):
                    pass
            except (BlockingIOError, ssl.SSLWantReadError):
                count += 1
            except OSError:
                continue
        return count

    def half_open(self, count: int) -> Iterator[None]:
        """Open connections that never start TLS."""
        for _ in range(count):
            self.connect(tls=False)
            yield

    def idle(self, count: int) -> Iterator[None]:
        """Open connections that never send a request."""
        for _ in range(count):
            self.connect()
            yield

    def used_and_idle(self, count: int) -> Iterator[None]:
        """Open connections that send one request and then nothing."""
        for _ in range(count):
            self.send(self.connect(), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            yield

    def slow_heads(self, count: int) -> Iterator[None]:
        """Send request heads line by line without an end."""
        for _ in range(count):
            self.send(self.connect(), HEAD)
            yield
        while True:
            for each in self._sockets:
                self.send(each, b"X-More: x\r\n")
                yield

    def slow_bodies(self, count: int) -> Iterator[None]:
        """Send bodies with a Content-Length of 8 MiB byte by byte."""
        for _ in range(count):
            self.send(self.connect(), HEAD + b"Content-Length: %d\r\n\r\n{" % MAX_REVIEW_BODY)
            yield
        while True:
            for each in self._sockets:
                self.send(each, b" ")
                yield

    def large_bodies(self, count: int) -> Iterator[None]:
        """Send bodies of 8 MiB of blanks, one after another."""
        return self._bodies(count, b" " * MAX_REVIEW_BODY)

    def deep_bodies(self, count: int) -> Iterator[None]:
        """Send bodies nested a million levels deep, one after another."""
        return self._bodies(count, DEEP)

    def _bodies(self, count: int, body: bytes) -> Iterator[None]:
        for _ in range(count):
            connection = self.connect()
            self.send(connection, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.recv(65536)
            yield

    def handshakes(self, count: int) -> Iterator[None]:
        """Open connections with TLS and close them, as fast as the server takes them."""
        for _ in range(count):
            made = self.connect()
            if made is not None:
                self._sockets.remove(made)
                made.close()
            yield


class Flood:
    """Sends reviews over many connections at the same time, without a pause, and counts the answers."""

    def __init__(self, host: str, port: int, ca: Path, addresses: int) -> None:
        self._address = host, port
        self._trust = ssl.create_default_context(cafile=str(ca))
        self._addresses = addresses
        self.answers: Counter[str] = Counter()

    async def run(self, connections: int, size: int, seconds: float) -> None:
        """Send reviews of about a size until the time is over."""
        review = pod_review(f"team-{WATCHED:04}")
        review["request"]["object"]["spec"]["containers"][0]["env"] = [
            {"name": f"N{number}", "value": "x"} for number in range(max(0, size - 6000) // 30)
        ]
        body = json.dumps(review, separators=(",", ":")).encode()
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        async with asyncio.TaskGroup() as group:
            for number in range(connections):
                group.create_task(self._send(request, number, seconds))

    async def _send(self, request: bytes, number: int, seconds: float) -> None:
        own = source(number % self._addresses)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        await self._keep_sending(request, own)
                    except (OSError, EOFError):
                        self.answers["connection closed"] += 1

    async def _keep_sending(self, request: bytes, own: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(
            *self._address, ssl=self._trust, server_hostname="localhost", local_addr=own
        )
        try:
            while True:
                writer.write(request)
                await writer.drain()
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length: ")[2].split("\r\n")[0]))
                if not self.answers:
                    print("begins", flush=True)
                self.answers[head.split()[1]] += 1
        finally:
            writer.transport.abort()


FLOODS: dict[str, tuple[int, int]] = {
    "flood": (FLOOD_CONNECTIONS, FLOOD_BYTES),
    "small-flood": (FLOOD_CONNECTIONS, 6000),
}
"""Number of connections and size of the reviews by name."""

ABUSES: dict[str, tuple[Callable[[Abuser, int], Iterator[None]], int]] = {
    "half-open": (Abuser.half_open, 10_000),
    "idle": (Abuser.idle, 10_000),
    "used-and-idle": (Abuser.used_and_idle, 10_000),
    "slow-heads": (Abuser.slow_heads, 2_000),
    "slow-bodies": (Abuser.slow_bodies, 1_000),
    "large-bodies": (Abuser.large_bodies, 200),
    "deep-bodies": (Abuser.deep_bodies, 200),
    "handshakes": (Abuser.handshakes, 1_000_000),
}
"""Kinds of abuse by name, with the number of repetitions."""


def abuse(kind: str, address: str, ca: Path, options: argparse.Namespace) -> None:
    """Run one kind of abuse in this process; print the result."""
    raise_descriptor_limit()
    host, port = address.split(":")
    if kind in FLOODS:
        flood = Flood(host, int(port), ca, options.addresses)
        asyncio.run(flood.run(*FLOODS[kind], options.seconds))
        print(f"{FLOODS[kind][0]} connections, answers: {dict(flood.answers)}")
        return
    abuser = Abuser(host, int(port), ca, options.addresses)
    does, count = ABUSES[kind]
    until = time.monotonic() + options.seconds
    made = 0
    print("begins", flush=True)
    for _ in does(abuser, count):
        made += 1
        if time.monotonic() > until:
            break
    time.sleep(max(0.0, until - time.monotonic()))
    print(f"{made} abusive connections, {abuser.left()} still open")


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


class Reviewer:
    """Sends reviews and measures their latencies."""

    def __init__(self, address: str, ca: Path) -> None:
        self._make: Callable[[], Client] = functools.partial(Client, address, ca)
        self._kept = self._make()
        self.unmutated = 0
        """Reviews without a patch in the time of an API server."""

    def send(self, until: Callable[[], bool]) -> tuple[list[float], list[float]]:
        """Send until stopped; return seconds of reviews on the kept connection, and on new connections."""
        kept: list[float] = []
        new: list[float] = []
        while not until():
            kept.append(self._review(self._kept))
            if len(kept) % NEW_CONNECTION_EVERY == 0:
                began = time.perf_counter()
                client = self._make()
                self._review(client)
                new.append(time.perf_counter() - began)
                client.close()
        return kept, new

    def _review(self, client: Client) -> float:
        seconds, answer = client.review()
        if seconds > API_SERVER_WAITS or b'"patch"' not in answer:
            self.unmutated += 1
        return seconds

    def close(self) -> None:
        """Close the connection."""
        self._kept.close()


def report(title: str, kept: list[float], new: list[float]) -> None:
    """Print the latencies of one phase."""
    for name, values in (("kept", sorted(kept)), ("new", sorted(new))):
        if values:
            at = [values[int(len(values) * part)] * 1000 for part in (0.5, 0.99)]
            print(
                f"{title:16} {name:5} {len(values):6} reviews  p50 {at[0]:7.2f}  p99 {at[1]:7.2f}"
                f"  longest {values[-1] * 1000:8.2f} ms",
                flush=True,
            )
            title = ""


async def run(options: argparse.Namespace) -> int:
    """Start the server, measure every phase, and print the latencies; return 1 if a review got no patch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "policies.yaml", namespaces(1000, lambda _: "0.50", labels=0), "documents")
        process, address = await start(
            f"webhook serve --policies {folder}/policies.yaml --certs {folder}/tls --drain 0s"
            " --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0",
            folder / "log",
        )
        ca = folder / "tls" / "ca.crt"
        try:
            reviewer = await asyncio.to_thread(Reviewer, address, ca)
            for kind in options.kinds:
                until = time.monotonic() + 2
                kept, new = await asyncio.to_thread(reviewer.send, functools.partial(_is_past, until))
                report("alone", kept, new)
                command = [sys.executable, "-m", "benchmarks.abuse", "--be", kind, "--ca", str(ca)]
                abuser = await asyncio.create_subprocess_exec(
                    *command,
                    f"--address={address.removeprefix('https://')}",
                    f"--addresses={options.addresses}",
                    f"--seconds={options.seconds}",
                    stdout=-1,
                )
                assert abuser.stdout is not None
                await abuser.stdout.readline()
                waiting = asyncio.create_task(abuser.communicate())
                report(kind, *await asyncio.to_thread(reviewer.send, waiting.done))
                output = (await waiting)[0].decode().strip()
                print(f"{'':16} {output}; server {resident_mib(process.pid):.0f} MiB")
            reviewer.close()
            print(f"{reviewer.unmutated} reviews without a patch within {API_SERVER_WAITS:.0f} s")
        finally:
            process.terminate()
            await process.wait()
    return int(reviewer.unmutated > 0)


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*ABUSES, *FLOODS]
    parser.add_argument("kinds", nargs="*", default=names, help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=20, help="longest duration of each abuse")
    parser.add_argument("--addresses", type=int, default=1, help="addresses of the abuser (default 1)")
    for hidden in ("--be", "--address", "--ca"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        abuse(options.be, options.address, Path(options.ca), options)
    else:
        sys.exit(asyncio.run(run(options)))


if __name__ == "__main__":
    main()
