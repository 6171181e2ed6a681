"""Latency of reviews under abuse by another client: 10,000 connections, slow request heads, large bodies.

One client sends reviews one after another over one connection, as an API server does, and regularly opens a
new connection. The phases are: the client alone, the client during each abuse, and the client alone again.
The abuse runs in its own process. The benchmark prints latencies, the number of the abuser's connections that
are still open, and the server's memory. It exits with 1 if a review is not answered with 200. Run: `python -m
benchmarks.abuse`; about three minutes.
"""

import argparse
import asyncio
import contextlib
import functools
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.endurance import memory_of
from benchmarks.review_client import Client, namespaces, write
from benchmarks.webhook import start
from service.http.limits import raise_descriptor_limit

NEW_CONNECTION_EVERY = 100
MAX_REVIEW_BODY = 8 * 1024 * 1024
HEAD = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\n"
DEEP = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"object":' + b"[" * 1_000_000


class Abuser:
    """Opens connections and misuses them."""

    def __init__(self, host: str, port: int, ca: Path) -> None:
        self._address = host, port
        self._trust = ssl.create_default_context(cafile=str(ca))
        self._sockets: list[socket.socket] = []

    def connect(self, *, tls: bool = True) -> socket.socket | None:
        """Open a connection; return None if the server refuses it."""
        made = socket.create_connection(self._address, timeout=10)
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


ABUSES: dict[str, tuple[Callable[[Abuser, int], Iterator[None]], int]] = {
    "half-open": (Abuser.half_open, 10_000),
    "idle": (Abuser.idle, 10_000),
    "used-and-idle": (Abuser.used_and_idle, 10_000),
    "slow-heads": (Abuser.slow_heads, 2_000),
    "slow-bodies": (Abuser.slow_bodies, 1_000),
    "large-bodies": (Abuser.large_bodies, 200),
    "deep-bodies": (Abuser.deep_bodies, 200),
}
"""Kinds of abuse by name, with the number of repetitions."""


def abuse(kind: str, address: str, ca: str, seconds: float) -> None:
    """Run one kind of abuse in this process; print the number of open connections at the end."""
    raise_descriptor_limit()
    host, port = address.split(":")
    abuser = Abuser(host, int(port), Path(ca))
    does, count = ABUSES[kind]
    until = time.monotonic() + seconds
    made = 0
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

    def send(self, until: Callable[[], bool]) -> tuple[list[float], list[float]]:
        """Send until stopped; return seconds of reviews on the kept connection, and on new connections."""
        kept: list[float] = []
        new: list[float] = []
        while not until():
            kept.append(self._kept.review()[0])
            if len(kept) % NEW_CONNECTION_EVERY == 0:
                began = time.perf_counter()
                client = self._make()
                client.review()
                new.append(time.perf_counter() - began)
                client.close()
        return kept, new

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


async def run(kinds: list[str], seconds: float) -> None:
    """Start the server, measure every phase, and print the latencies."""
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
            for kind in kinds:
                until = time.monotonic() + 2
                kept, new = await asyncio.to_thread(reviewer.send, functools.partial(_is_past, until))
                report("alone", kept, new)
                command = [sys.executable, "-m", "benchmarks.abuse", "--be", kind, "--seconds", str(seconds)]
                abuser = await asyncio.create_subprocess_exec(
                    *command, "--address", address.removeprefix("https://"), "--ca", str(ca), stdout=-1
                )
                waiting = asyncio.create_task(abuser.communicate())
                report(kind, *await asyncio.to_thread(reviewer.send, waiting.done))
                output = (await waiting)[0].decode().strip()
                print(f"{'':16} {output}; server {memory_of(process) / 1024:.0f} MiB")
            reviewer.close()
        finally:
            process.terminate()
            await process.wait()


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(ABUSES), help=", ".join(ABUSES))
    parser.add_argument("--seconds", type=float, default=20, help="longest duration of each abuse")
    for hidden in ("--be", "--address", "--ca"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        abuse(options.be, options.address, options.ca, options.seconds)
    else:
        asyncio.run(run(options.kinds, options.seconds))


if __name__ == "__main__":
    main()
