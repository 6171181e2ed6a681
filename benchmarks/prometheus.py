"""What many agents give a Prometheus: `python -m benchmarks.prometheus`.

A real agent with 8 GPUs and 10 pods is scraped once (needs gcc). A stand-in then serves this page for 500
nodes, each under its own name, to a real Prometheus with all rules of kaishare, every 30 s. Prints series and
bytes of a scrape, and the memory, CPU and time of the rules that Prometheus itself reports; then the same for
5,000 nodes, computed. Needs `prometheus`.
"""

import argparse
import asyncio
import gzip
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from benchmarks.agent import UTILIZATION_INTERVAL_MS, Load, agent, machine, samples_so_far, with_pods_file
from tests.support.nvml_stub.build import built_library
from tests.support.prometheus_server import Prometheus, prometheus

JOB: Final = "kaishare-agent"
NODES: Final = 5000
INTERVAL: Final = 30
"""Seconds between two scrapes, and between two evaluations of each rule."""


async def one_page(load: Load) -> str:
    """Return `/metrics` of a real agent."""
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        library = built_library(Path(name))
        async with (
            with_pods_file(load) as start,
            agent(start, library, UTILIZATION_INTERVAL_MS) as (_, url),
            aiohttp.ClientSession() as session,
        ):
            await asyncio.sleep(2.5 * UTILIZATION_INTERVAL_MS / 1000)
            return (await samples_so_far(session, url))[1]


def own_figure(running: Prometheus, query: str) -> float:
    """Return a figure that Prometheus has about itself."""
    samples = running.instant(query)
    return float(samples[0]["value"][1]) if samples else 0.0


async def measure(count: int, seconds: float) -> int:
    """Measure, and print."""
    page = await one_page(Load(8, 10, 10, interval_ms=UTILIZATION_INTERVAL_MS))
    series = sum(not line.startswith("#") for line in page.splitlines())
    print(machine())
    print(f"a node with 8 GPUs and 10 pods: {series} series, {len(page) / 1000:.1f} kB,", end=" ")
    print(f"{len(gzip.compress(page.encode())) / 1000:.1f} kB compressed")

    async def answer(request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        text = page.replace('"node-1"', f'"node-{number}"').replace('uid="', f'uid="{number}-')
        text = text.replace('"GPU-00000000-', f'"GPU-{number:08x}-').replace('"train-', f'"train-{number}-')
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics/{number}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    targets: list[dict[str, Any]] = [
        {
            "targets": [address],
            "labels": {"__metrics_path__": f"/metrics/{number}", "instance": f"node-{number}"},
        }
        for number in range(count)
    ]
    agents = {"job_name": JOB, "honor_labels": True, "static_configs": targets}
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        await asyncio.to_thread(scraped, Path(name), agents, count, series, seconds)
    await runner.cleanup()
    return 0


def scraped(folder: Path, agents: dict[str, Any], count: int, series: int, seconds: float) -> None:
    """Let Prometheus scrape the agents and itself for some time, and print what it took."""
    with prometheus(folder, {}, agents, interval=f"{INTERVAL}s") as running:
        metrics = "127.0.0.1:" + running.url.rpartition(":")[2]
        config = (folder / "prometheus.yaml").read_text()
        own = f"- job_name: itself\n  static_configs:\n  - targets: ['{metrics}']\n"
        (folder / "prometheus.yaml").write_text(
            re.sub(r"scrape_configs:\n", f"scrape_configs:\n{own}", config)
        )
        running.process.send_signal(1)  # SIGHUP: reads its configuration again
        running.until(lambda: own_figure(running, f'count(up{{job="{JOB}"}} == 1)') == count)
        time.sleep(seconds)
        head = own_figure(running, "prometheus_tsdb_head_series")
        memory = own_figure(running, 'process_resident_memory_bytes{job="itself"}')
        cpu = own_figure(running, f'rate(process_cpu_seconds_total{{job="itself"}}[{seconds / 2:.0f}s])')
        rules = own_figure(running, "sum(prometheus_rule_group_last_duration_seconds)")
        slowest = running.instant("topk(3, prometheus_rule_group_last_duration_seconds)")
        failures = own_figure(running, "sum(prometheus_rule_evaluation_failures_total)")
    factor = NODES / count
    print(f"{count} nodes: {head:.0f} series with those of the rules, {memory / 2**20:.0f} MiB,", end=" ")
    print(f"{memory / head / 1024:.1f} KiB a series, {cpu * 100:.0f} % of a core")
    print(f"all rules once: {rules:.2f} s, {failures:.0f} failures; the slowest groups:")
    for sample in slowest:
        name = sample["metric"]["rule_group"].rpartition(";")[2]
        print(f"  {float(sample['value'][1]):.2f} s {name}")
    print(
        f"{NODES} nodes, computed: {NODES * series} series of agents, {head * factor:.0f} in all,"
        f" {memory * factor / 2**30:.1f} GiB, {NODES * series / INTERVAL:.0f} samples a second"
        f" with a scrape every {INTERVAL} s, {cpu * factor:.1f} cores"
    )


def main() -> int:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prometheus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=500, help="agents (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="seconds of scrapes (default %(default)s)")
    options = parser.parse_args()
    return asyncio.run(measure(options.nodes, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
