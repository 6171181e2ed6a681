"""The second part of the demo: runs an agent on a simulated node and prints the flags of pods."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from examples.services import Service, start

FOLDER = Path(__file__).parent
NODE = FOLDER / "agent" / "node.yaml"
INTERVAL, GRACE = "250ms", "1s"
PATIENCE_SECONDS = 30
SHOWN = (
    'reason="over-share"',
    "kaishare_gpu_memory_promised",
    "kaishare_gpu_memory_unattr",
    "_attribution_ok",
)

Flag = tuple[str, str]
"""Pod and reason."""

HAPPENS = {
    ("notebooks/notebook", "flagged"),
    ("training/train-resnet", "flagged"),
    ("notebooks/notebook", "cleared"),
}


async def start_agent(folder: Path) -> Service:
    """Start `kaishare-agent serve` on the simulated node, on a free port."""
    return await start(
        folder / "agent.log",
        f"gpuagent serve --gpus simulated:{NODE} --listen 127.0.0.1:0 --interval {INTERVAL} --grace {GRACE}",
    )


async def watch(session: aiohttp.ClientSession, url: str) -> None:
    """Print pods as they are flagged and cleared, then the memory of all pods and some metrics.

    Raises:
        SystemExit: an expected change did not happen within 30 s.
    """
    print(f"kaishare-agent samples the simulated node of {NODE.relative_to(FOLDER.parent)} every {INTERVAL}")
    print(f"and flags pods that exceed their share for {GRACE}: {url}\n")
    began = time.monotonic()
    shares: dict[str, Any] = {}
    flagged: set[Flag] = set()
    happened: set[tuple[str, str]] = set()
    while happened != HAPPENS:
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise SystemExit(f"the agent did not report {sorted(HAPPENS - happened)}")
        await asyncio.sleep(0.1)
        shares = await _json(session, f"{url}/api/v1/shares")
        for pod in shares["pods"]:
            name = f"{pod['namespace']}/{pod['name']}"
            for verdict in pod["verdicts"]:
                flag = name, verdict["reason"]
                if verdict["flagged"] != (flag in flagged):
                    change = "cleared" if flag in flagged else "flagged"
                    flagged ^= {flag}
                    happened.add((name, change))
                    print(
                        f"{time.monotonic() - began:5.1f} s  {name:22} {change} {_why(verdict)}", flush=True
                    )
    print()
    for pod in shares["pods"]:
        print(_line(pod))
    async with session.get(f"{url}/metrics") as response:
        metrics = await response.text()
    print("\nSome metrics of the agent (with fewer labels):")
    for line in metrics.splitlines():
        if not line.startswith("#") and any(part in line for part in SHOWN):
            print(f"  {_shortened(line)}")


async def _json(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        document: dict[str, Any] = await response.json()
        return document


def _why(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['reason']}: uses {_mib(verdict['usedBytes'])}, share {_mib(verdict['allowedBytes'])}"


def _line(pod: Mapping[str, Any]) -> str:
    (gpu,) = pod["gpus"]
    share = pod["shares"][gpu["gpuUuid"]]
    flags = [verdict["reason"] for verdict in pod["verdicts"] if verdict["flagged"]]
    name = f"{pod['namespace']}/{pod['name']}"
    figures = f"{_mib(gpu['usedBytes']):>10} of {_mib(share['bytes']):>10} ({share['source']})"
    return f"{name:22} GPU {gpu['gpu']}  {figures}  {', '.join(flags) or 'fine'}"


def _mib(amount: int) -> str:
    return f"{amount / (1 << 20):.0f} MiB"


def _shortened(series: str) -> str:
    name, brace, rest = series.partition("{")
    if not brace:
        return series
    labels, _, value = rest.rpartition("}")
    kept = [
        label
        for label in labels.split(",")
        if label.partition("=")[0] in ("namespace", "pod", "gpu", "reason")
    ]
    return f"{name}{{{','.join(kept)}}}{value}"
