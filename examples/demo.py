"""`make demo`: runs the webhook and the agent on the examples, without a cluster.

The demo sends a review to the webhook for every pod of the workloads, as kube-apiserver does, applies the
returned patch, and prints the pod's queue and share. Then an agent monitors some of these pods on a simulated
node. Both programs are the real ones. The demo ends on its own, except with `--keep`.
"""

import argparse
import asyncio
import base64
import json
import signal
import ssl
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from examples.services import Service, start
from examples.watching import start_agent, watch
from kai import keys
from service.documents import flatten_lists, load_path
from webhook.explain.manifests import FoundPod, find_pods
from webhook.policy.patch import apply_to_document

FOLDER = Path(__file__).parent
POLICIES = FOLDER / "namespaces.yaml"
WORKLOADS = FOLDER / "workloads"


async def start_webhook(folder: Path) -> Service:
    """Start `kaishare-webhook serve` on free ports."""
    return await start(
        folder / "webhook.log",
        f"webhook serve --policies {POLICIES} --certs {folder}/tls --drain 0s"
        " --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0",
    )


def review_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Build the review that kube-apiserver sends for the creation of a pod."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": pod["metadata"]["namespace"],
            "userInfo": {"username": "demo"},
            "object": pod,
        },
    }


def in_words(pod: Mapping[str, Any]) -> str:
    """Describe how a pod will be scheduled, on one line."""
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if spec.get("schedulerName", keys.DEFAULT_SCHEDULER) == keys.DEFAULT_SCHEDULER:
        return "stays with the default scheduler"
    parts = [f"queue {labels.get(keys.QUEUE_LABEL)}"]
    if keys.PRIORITY_LABEL in labels:
        parts.append(f"priority {labels[keys.PRIORITY_LABEL]}")
    whole = sum(
        int((container.get("resources") or {}).get("limits", {}).get(keys.GPU_RESOURCE, 0))
        for container in spec["containers"]
    )
    if keys.GPU_FRACTION in annotations:
        parts.append(f"{annotations[keys.GPU_FRACTION]} of a GPU")
    elif keys.GPU_MEMORY in annotations:
        parts.append(f"{annotations[keys.GPU_MEMORY]} MiB of a GPU")
    else:
        parts.append(f"{whole} whole GPU" if whole else "no GPU")
    if any(toleration.get("key") == keys.GPU_TAINT for toleration in spec.get("tolerations") or ()):
        parts.append("tolerates nvidia.com/gpu")
    return ", ".join(parts)


async def admit(session: aiohttp.ClientSession, url: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Send a pod to the webhook; return the changed pod.

    Raises:
        SystemExit: the webhook refused the pod.
    """
    async with session.post(f"{url}/mutate?timeout=2s", json=review_of(pod)) as response:
        answer = (await response.json())["response"]
    if not answer["allowed"]:
        raise SystemExit(f"defect: the mutating webhook refused pod {pod['metadata']['name']}")
    patch = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
    return apply_to_document(patch, pod)


def workloads() -> list[FoundPod]:
    """Return every pod that the example workloads create."""
    return [pod for document in flatten_lists(load_path(WORKLOADS)) for pod in find_pods(document)]


async def admit_all(session: aiohttp.ClientSession, webhook: Service) -> None:
    """Print the queue and share of each pod, and the webhook's counts."""
    admission, ops = webhook.serving["admission"], webhook.serving["ops"]
    print(f"kaishare-webhook serves {POLICIES.relative_to(FOLDER.parent)} at {admission}\n")
    for pod in workloads():
        changed = await admit(session, admission, pod.as_created(pod.namespace))
        print(f"{pod.kind + ' ' + pod.name:24} in {pod.namespace:10}  {in_words(changed)}")
    async with session.get(f"{ops}/metrics") as response:
        metrics = await response.text()
    print("\nReviews, by the webhook's metrics:")
    for line in metrics.splitlines():
        if line.startswith("kaishare_webhook_requests_total{"):
            print(f"  {line}")
    print()


async def demo(*, keep: bool) -> None:
    """Run the webhook and the agent, and print their results; with `keep`, wait for Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="kaishare-demo-") as name:
        folder = Path(name)
        async with AsyncExitStack() as started:
            webhook = await start_webhook(folder)
            started.push_async_callback(webhook.stop)
            trust = ssl.create_default_context(cafile=folder / "tls" / "ca.crt")
            connector = aiohttp.TCPConnector(ssl=trust)
            session = await started.enter_async_context(aiohttp.ClientSession(connector=connector))
            await admit_all(session, webhook)
            agent = await start_agent(folder)
            started.push_async_callback(agent.stop)
            await watch(session, agent.serving["url"])
            if keep:
                ops, url = webhook.serving["ops"], agent.serving["url"]
                print("\nBoth programs are running; press Ctrl-C to end them.")
                print(f"  webhook  {ops}/policies  {ops}/metrics  CA {folder}/tls/ca.crt")
                print(f"  agent    {url}/ (the page)  {url}/api/v1/shares  {url}/metrics")
                print(f"  logs     {webhook.log}  {agent.log}", flush=True)
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
