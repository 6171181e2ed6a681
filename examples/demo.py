"""`make demo`: runs the webhook and the agent on the examples, without a cluster.

The demo sends a review to the webhook for every pod of the workloads, as kube-apiserver does, applies the
returned patch, and prints the pod's queue and share. Then an agent monitors some of these pods on a simulated
node. Both programs are the real ones. The demo ends on its own, except with `--keep`.
"""

import argparse
import asyncio
import signal
import ssl
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from examples.reviews import admit, fetch_policies, in_words, pods_in, start_webhook
from examples.services import Service
from examples.shared_gpu import scene_lines, scenes
from examples.terminal import Style
from examples.watching import start_agent, watch

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
POLICIES = FOLDER / "namespaces.yaml"
WORKLOADS = FOLDER / "workloads"


async def admit_workloads(session: aiohttp.ClientSession, webhook: Service, style: Style) -> None:
    """Print the queue and the share of each pod of the workloads."""
    print(style.heading("The webhook adds queue and share to pods, by the labels of their namespaces"))
    print(style.paint(f"  examples/namespaces.yaml, served at {webhook.serving['admission']}", "dim"))
    for pod in pods_in(WORKLOADS):
        admitted = await admit(session, webhook, pod)
        line = f"{admitted.title:22} in {pod.namespace:10} {in_words(admitted.document)}"
        print(style.folded(line, "green", indent=" " * 37))
    print()


async def admit_scenes(session: aiohttp.ClientSession, webhook: Service, style: Style) -> None:
    """Print the scenes: two workloads in one namespace that fit on one GPU."""
    policies = await fetch_policies(session, webhook)
    for scene in scenes():
        pods = [await admit(session, webhook, pod) for pod in scene.pods()]
        for line in scene_lines(scene, policies, pods, style):
            print(line)
        print()


def print_next_steps(style: Style, *, is_kept: bool) -> None:
    """Print commands to try and pages to read."""
    command = Path(sys.executable).with_name("kaishare")
    shortest = command.relative_to(ROOT) if command.is_relative_to(ROOT) else command
    scene = scenes()[0]
    policies, files = scene.namespace_file.relative_to(ROOT), scene.workloads_file.relative_to(ROOT)
    print(f"\n{style.heading('Try next')}")
    print("  the changes to each pod of an example, or of your own manifest:")
    print(style.paint(f"    {shortest} explain \\", "cyan"))
    print(style.paint(f"      --policies {policies} \\", "cyan"))
    print(style.paint(f"      -f {files}", "cyan"))
    print("  on a cluster: the same with its policies, why a pod waits, and all its GPUs:")
    for words in ("explain -f FILE", "why POD", "top"):
        print(style.paint(f"    {shortest} {words}", "cyan"))
    if not is_kept:
        print("  keep both programs running, and open the agent's page in a browser:")
        print(style.paint("    make demo KEEP=1", "cyan"))
    print("  README.md, docs/concepts.md for the terms, docs/policy.md for all labels")


async def demo(*, keep: bool) -> None:
    """Run the webhook and the agent, and print their results; with `keep`, wait for Ctrl-C."""
    style = Style.of_output()
    with tempfile.TemporaryDirectory(prefix="kaishare-demo-") as name:
        folder = Path(name)
        async with AsyncExitStack() as started:
            webhook = await start_webhook(folder, [POLICIES, *(scene.namespace_file for scene in scenes())])
            started.push_async_callback(webhook.stop)
            trust = ssl.create_default_context(cafile=folder / "tls" / "ca.crt")
            connector = aiohttp.TCPConnector(ssl=trust)
            session = await started.enter_async_context(aiohttp.ClientSession(connector=connector))
            await admit_workloads(session, webhook, style)
            await admit_scenes(session, webhook, style)
            agent = await start_agent(folder)
            started.push_async_callback(agent.stop)
            await watch(session, agent.serving["url"], style)
            print_next_steps(style, is_kept=keep)
            if keep:
                ops, url = webhook.serving["ops"], agent.serving["url"]
                print(f"\nBoth programs are running. Open {style.paint(f'{url}/', 'cyan')} in a browser.")
                print(f"  agent    {url}/api/v1/shares  {url}/metrics")
                print(f"  webhook  {ops}/policies  {ops}/metrics  CA {folder}/tls/ca.crt")
                print(f"  logs     {webhook.log}  {agent.log}")
                print("Press Ctrl-C to end them.", flush=True)
                await _interrupted()


async def _interrupted() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def main() -> None:
    """Parse the options and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep both programs running")
    asyncio.run(demo(keep=parser.parse_args().keep))


if __name__ == "__main__":
    main()
