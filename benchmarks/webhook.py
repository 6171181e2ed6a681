"""CPU time per review of the webhook, compared with a bare aiohttp + orjson echo server, both over TLS.

One client sends the same body to both server processes. Rounds alternate between the servers, and the ratio
is computed per round, so that changes in the machine's speed affect both alike. CPU is user and system time
of the server's process, as the kernel counts it. Run: `python -m benchmarks.webhook`.
"""

import argparse
import asyncio
import json
import os
import ssl
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from benchmarks.reviews import pod_review_body

TICKS = os.sysconf("SC_CLK_TCK")
POLICIES = """
apiVersion: v1
kind: Namespace
metadata:
  name: training
  labels: {kai.scheduler/queue: vision, kaishare.dev/gpu-fraction: "0.5", kaishare.dev/priority: train}
"""


async def echo_server(folder: Path) -> None:
    """The reference server: parses the body and sends it back."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(
            body=orjson.dumps(orjson.loads(await request.read())), content_type="application/json"
        )

    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/mutate", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    host, port = runner.addresses[0][:2]
    sys.stderr.write(json.dumps({"message": "serving", "admission": f"https://{host}:{port}"}) + "\n")
    sys.stderr.flush()
    await asyncio.Event().wait()


async def start(module: str, log: Path) -> tuple[Process, str]:
    """Start a server with its log in a file, as in production; return process and address."""
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *module.split(), stderr=stream, stdout=PIPE
        )
    for _ in range(200):
        await asyncio.sleep(0.05)
        for line in log.read_text().splitlines():
            if '"serving"' in line:
                return process, json.loads(line)["admission"]
    raise SystemExit(f"the server did not start: {log.read_text()}")


def cpu_seconds(process: Process) -> float:
    """Return user and system time of a process in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def round_of(
    session: aiohttp.ClientSession, url: str, body: bytes, *, count: int, connections: int
) -> None:
    """Send `count` reviews over `connections` connections."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            async with session.post(url, data=body) as response:
                await response.read()
                if response.status != 200:
                    raise SystemExit(f"{url} answered {response.status}")

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())


async def measure(rounds: int, count: int, connections: int) -> None:
    """Start both servers, measure them in alternation, and print the results."""
    body = pod_review_body()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policies.yaml").write_text(POLICIES)
        ours, our_url = await start(
            f"webhook serve --policies {folder}/policies.yaml --certs {folder}/tls"
            " --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0",
            folder / "ours.log",
        )
        echo, echo_url = await start(f"benchmarks.webhook --echo {folder}/tls", folder / "echo.log")
        trust = ssl.create_default_context(cafile=folder / "tls" / "ca.crt")
        try:
            connector = aiohttp.TCPConnector(ssl=trust, limit=connections)
            async with aiohttp.ClientSession(connector=connector) as session:
                rows = []
                for index in range(rounds + 1):
                    figures = []
                    for process, url in ((ours, our_url), (echo, echo_url)):
                        before = cpu_seconds(process)
                        await round_of(session, f"{url}/mutate", body, count=count, connections=connections)
                        figures.append((cpu_seconds(process) - before) / count * 1e6)
                    if index:  # the first round warms up
                        rows.append((figures[0], figures[1], figures[0] / figures[1]))
        finally:
            for process in (ours, echo):
                process.terminate()
                await process.wait()
    print(
        f"{len(body)} byte review, {connections} connections, {rounds} rounds of {count}, CPU µs per review"
    )
    print("round   kaishare   bare echo   ratio")
    for number, (our, bare, ratio) in enumerate(rows, 1):
        print(f"{number:5}   {our:8.0f}   {bare:9.0f}   {ratio:5.2f}")
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    print(f"median  {medians[0]:8.0f}   {medians[1]:9.0f}   {medians[2]:5.2f}")


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds per server")
    parser.add_argument("--count", type=int, default=3000, help="reviews per round")
    parser.add_argument("--connections", type=int, default=8, help="concurrent connections")
    parser.add_argument("--echo", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        asyncio.run(echo_server(options.echo))
    else:
        asyncio.run(measure(options.rounds, options.count, options.connections))


if __name__ == "__main__":
    main()
