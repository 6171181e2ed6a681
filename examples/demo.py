"""`make demo`: the real server over HTTPS, the examples' workloads, and what each pod became.

It plays the API server: it asks the webhook about every pod the workloads would create, as kube-apiserver
does, applies the patch it gets, and prints the pod's part in KAI. Ends by itself, unless `--keep` is given.
"""

import argparse
import asyncio
import base64
import json
import signal
import ssl
import sys
import tempfile
import uuid
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from kai import keys
from service.documents import load_path, unlisted
from webhook.manifests import FoundPod, find_pods
from webhook.patch import apply_to_document

FOLDER = Path(__file__).parent
POLICIES = FOLDER / "namespaces.yaml"
WORKLOADS = FOLDER / "workloads"


async def start_server(folder: Path) -> tuple[Process, str, str]:
    """Start `kaishare-webhook serve` on free ports; return it and its two addresses.

    It gets a session of its own, so that Ctrl-C reaches the demo alone, and its log goes to a file.
    """
    command = f"webhook serve --policies {POLICIES} --tls-dir {folder}/tls"
    ports = "--listen 127.0.0.1:0 --ops-listen 127.0.0.1:0"
    log = folder / "webhook.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command.split(), *ports.split(), stderr=stream, start_new_session=True
        )
    for _ in range(400):
        for line in log.read_text().splitlines():
            if '"serving"' in line:
                event = json.loads(line)
                return process, event["admission"], event["ops"]
        if process.returncode is not None:
            break
        await asyncio.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def review_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Ask as kube-apiserver asks about the creation of a pod."""
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
    """Say how a pod will be scheduled, on one line."""
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
    """Send a pod through the webhook; return what comes out."""
    async with session.post(f"{url}/mutate?timeout=2s", json=review_of(pod)) as response:
        answer = (await response.json())["response"]
    if not answer["allowed"]:
        raise SystemExit(f"the webhook refused {pod['metadata']['name']}: it must never do that")
    patch = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
    return apply_to_document(patch, pod)


def workloads() -> list[FoundPod]:
    """Every pod the examples' workloads would create."""
    return [pod for document in unlisted(load_path(WORKLOADS)) for pod in find_pods(document)]


async def demo(*, keep: bool) -> None:
    """Run it."""
    with tempfile.TemporaryDirectory(prefix="kaishare-demo-") as folder:
        process, admission, ops = await start_server(Path(folder))
        try:
            trust = ssl.create_default_context(cafile=f"{folder}/tls/ca.crt")
            print(f"kaishare-webhook serves {POLICIES.relative_to(FOLDER.parent)} at {admission}\n")
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
                for found in workloads():
                    after = await admit(session, admission, found.as_created(found.namespace))
                    print(f"{found.kind + ' ' + found.name:24} in {found.namespace:10}  {in_words(after)}")
                async with session.get(f"{ops}/metrics") as response:
                    metrics = await response.text()
            print("\nWhat the webhook counted:")
            for line in metrics.splitlines():
                if line.startswith("kaishare_webhook_requests_total{"):
                    print(f"  {line}")
            if keep:
                print("\nLeft running; Ctrl-C ends it.")
                print(f"  policies  {ops}/policies\n  metrics   {ops}/metrics")
                print(f"  CA        {folder}/tls/ca.crt\n  log       {folder}/webhook.log", flush=True)
                await _interrupted()
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 15)
    if process.returncode != 0:
        raise SystemExit(f"the server ended with status {process.returncode}")


async def _interrupted() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def main() -> None:
    """Read the option and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server running")
    asyncio.run(demo(keep=parser.parse_args().keep))


if __name__ == "__main__":
    main()
