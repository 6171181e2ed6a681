"""Latency of requests while the webhook reloads its policies.

A real server has 1,000 namespaces with a policy. One client sends reviews one after another over one
connection, while the policies on disk change: one namespace, then all namespaces, in several rounds. A change
is active when an answer shows it. The benchmark compares latencies between the write and that moment (plus a
short time for the server's cleanup) with those directly before the write. A second line excludes the time in
which the client or the server's main thread waited for a processor core, since that time depends on the
machine's other load. Run: `python -m benchmarks.reload`; about one minute.
"""

import argparse
import asyncio
import base64
import gc
import json
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.reviews import pod_review_body
from benchmarks.webhook import start

WATCHED = 500
SETTLE_SECONDS = 0.3
ALLOWED_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds of one review."""

    seconds: float
    for_a_core: float
    """Part of the seconds in which the client or the server waited for a processor core."""


@dataclass(kw_only=True)
class Latencies:
    """Latencies of reviews before and during a reload."""

    before: list[Took] = field(default_factory=list)
    during: list[Took] = field(default_factory=list)


class Cores:
    """Measures how long two threads, this one and the server's main thread, wait for a processor core."""

    def __init__(self, process: int) -> None:
        self._files = [Path("/proc/thread-self/schedstat"), Path(f"/proc/{process}/task/{process}/schedstat")]

    def waited(self) -> float:
        """Return the total waiting time so far, in seconds."""
        return sum(int(file.read_text().split()[1]) for file in self._files) / 1e9


class Client:
    """A kept connection; a blocking socket, so that the client adds little to the measured time."""

    def __init__(self, address: str, ca: Path) -> None:
        host, port = address.removeprefix("https://").split(":")
        context = ssl.create_default_context(cafile=str(ca))
        plain = socket.create_connection((host, int(port)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, server_hostname="localhost")
        body = pod_review_body(f"team-{WATCHED:04}")
        head = f"POST /mutate?timeout=5s HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    def review(self) -> tuple[float, bytes]:
        """Send one review; return seconds and the answer's body."""
        began = time.perf_counter()
        self._socket.sendall(self._request)
        answer = self._socket.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += self._socket.recv(65536)
        took = time.perf_counter() - began
        if b" 200 " not in head[:15]:
            raise SystemExit(f"answered {head[:80]!r}")
        return took, body

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def namespaces(count: int, fraction: Callable[[int], str], *, labels: int) -> list[dict[str, object]]:
    """Build namespaces with policies and a number of other labels."""
    others = {f"example.invalid/label-{number}": f"value-{number}" for number in range(labels)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": f"team-{number:04}",
                "labels": {
                    "kai.scheduler/queue": f"queue-{number % 50}",
                    "kaishare.dev/gpu-fraction": fraction(number),
                    "kaishare.dev/priority": "train",
                    "kaishare.dev/max-gpu-fraction": "1",
                    **others,
                },
            },
        }
        for number in range(count)
    ]


def write(path: Path, documents: list[dict[str, object]], form: str) -> None:
    """Write policies to disk atomically, in one of several forms."""
    temporary = path.with_name(f".{path.name}.new")
    if form == "documents":
        temporary.write_text(yaml.dump_all(documents, Dumper=yaml.CSafeDumper))
    elif form == "list":
        temporary.write_text(yaml.dump({"kind": "List", "items": documents}, Dumper=yaml.CSafeDumper))
    else:
        temporary.write_text(json.dumps({"kind": "List", "items": documents}))
    temporary.replace(path)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The policies on disk."""

    file: Path
    form: str
    count: int
    labels: int

    def write(self, fraction: Callable[[int], str]) -> None:
        """Write the policies atomically."""
        write(self.file, namespaces(self.count, fraction, labels=self.labels), self.form)


def measure(client: Client, cores: Cores, setting: Setting, fraction: Callable[[int], str]) -> Latencies:
    """Send reviews before and after a change of the file, until answers show the new share."""
    gc.collect()
    gc.disable()  # pauses of this process would count as latency of the server
    latencies = Latencies()
    until = time.perf_counter() + 1.0
    while time.perf_counter() < until:
        latencies.before.append(timed(client, cores)[0])
    setting.write(fraction)
    limit = time.perf_counter() + 20
    settled = None
    while settled is None or time.perf_counter() < settled:
        took, body = timed(client, cores)
        latencies.during.append(took)
        if settled is None and fraction_in(body) == fraction(WATCHED):
            settled = time.perf_counter() + SETTLE_SECONDS
        if time.perf_counter() > limit:
            raise SystemExit("the server did not load the change within 20 s")
    gc.enable()
    return latencies


def timed(client: Client, cores: Cores) -> tuple[Took, bytes]:
    """Send one review; return its latency and the answer's body."""
    before = cores.waited()
    seconds, body = client.review()
    return Took(seconds=seconds, for_a_core=cores.waited() - before), body


def fraction_in(body: bytes) -> str:
    """Return the share that an answer injects."""
    patch = json.loads(base64.b64decode(json.loads(body)["response"]["patch"]))
    for operation in patch:
        if operation["path"] == "/metadata/annotations":
            return str(operation["value"]["gpu-fraction"])
    raise SystemExit(f"no share in {patch}")


def report(title: str, rounds: list[Latencies]) -> None:
    """Print the latencies of one kind of change."""
    print(f"{title}, {len(rounds)} changes")
    for kind, part in (("as it was", 0), ("with a core", 1)):
        before = sorted(
            took.seconds - part * took.for_a_core for latencies in rounds for took in latencies.before
        )
        during = sorted(
            took.seconds - part * took.for_a_core for latencies in rounds for took in latencies.during
        )
        late = statistics.median(before) + ALLOWED_SECONDS
        for name, values in (("before", before), ("during", during)):
            figures = [values[int(len(values) * at)] for at in (0.5, 0.99, 0.999)] + [values[-1]]
            p50, p99, p999, longest = (figure * 1000 for figure in figures)
            print(
                f"  {kind:11} {name} {len(values):6}  p50 {p50:5.2f}  p99 {p99:5.2f}  p99.9 {p999:5.2f}"
                f"  longest {longest:6.2f} ms;"
                f" {sum(took > late for took in values)} paid more than {ALLOWED_SECONDS * 1000:.0f} ms"
            )


async def run(rounds: int, form: str, count: int, labels: int) -> None:
    """Start the server, change policies, and print the latencies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / ("policies.json" if form == "json" else "policies.yaml")
        setting = Setting(file=file, form=form, count=count, labels=labels)
        setting.write(lambda _: "0.50")
        process, address = await start(
            f"webhook serve --policies {file} --certs {folder}/tls --drain 0s"
            " --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0",
            folder / "log",
        )
        client = await asyncio.to_thread(Client, address, folder / "tls" / "ca.crt")
        try:
            single, everything = await asyncio.to_thread(changes, client, process.pid, setting, rounds)
        finally:
            client.close()
            process.terminate()
            await process.wait()
        print(f"{count} namespaces, {file.stat().st_size // 1024} KiB as {form}, one client")
        report("one namespace", single)
        report("all namespaces", everything)


def changes(
    client: Client, server: int, setting: Setting, rounds: int
) -> tuple[list[Latencies], list[Latencies]]:
    """Change one namespace, then all namespaces, in several rounds."""
    single, everything, cores = [], [], Cores(server)
    for number in range(rounds):

        def only(n: int, number: int = number) -> str:
            return f"0.{20 + number}" if n == WATCHED else f"0.{50 + number}"

        def new(_: int, number: int = number) -> str:
            return f"0.{51 + number}"

        single.append(measure(client, cores, setting, only))
        everything.append(measure(client, cores, setting, new))
    return single, everything


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespaces", type=int, default=1000, help="managed namespaces")
    parser.add_argument("--rounds", type=int, default=10, help="changes of each kind")
    parser.add_argument(
        "--form", choices=("documents", "list", "json"), default="documents", help="form of the file"
    )
    parser.add_argument("--labels", type=int, default=4, help="other labels on each namespace")
    options = parser.parse_args()
    asyncio.run(run(options.rounds, options.form, options.namespaces, options.labels))


if __name__ == "__main__":
    main()
