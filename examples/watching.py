"""The second part of the demo: runs an agent on a simulated node and prints the flags of pods."""

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from examples.services import Service, start
from examples.terminal import Style

FOLDER = Path(__file__).parent
NODE = FOLDER / "agent" / "node.yaml"
KAISHARE = (sys.executable, "-m", "console")
INTERVAL, GRACE = "250ms", "1s"
PATIENCE_SECONDS = 30

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
        *("gpuagent", "serve", "--gpus", "simulated", "--pods", str(NODE), "--node", "gpu-node-1"),
        *("--listen", "127.0.0.1:0"),
        *("--interval", INTERVAL, "--grace", GRACE),
    )


async def watch(session: aiohttp.ClientSession, url: str, style: Style) -> None:
    """Print pods as they are flagged and cleared, then the table of all pods.

    Raises:
        SystemExit: an expected change did not happen within 30 s.
    """
    print(
        style.heading(
            f"The agent samples GPU memory every {INTERVAL}; it flags a pod above its share for {GRACE}"
        )
    )
    print(style.folded(f"  the node of {NODE.relative_to(FOLDER.parent)}, served at {url}", "dim"))
    began = time.monotonic()
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
                    seconds = f"{time.monotonic() - began:5.1f} s"
                    colour = "red" if verdict["flagged"] else "green"
                    print(f"{seconds}  {name:22} {style.paint(change, colour)} {_why(verdict)}", flush=True)
    print(f"\n$ kaishare top --once --url {url}", flush=True)
    await (await asyncio.create_subprocess_exec(*KAISHARE, "top", "--once", "--url", url)).wait()


async def _json(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        document: dict[str, Any] = await response.json()
        return document


def _why(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['reason']}: {_mib(verdict['usedBytes'])} of {_mib(verdict['allowedBytes'])}"


def _mib(amount: int) -> str:
    return f"{amount / (1 << 20):.0f} MiB"
