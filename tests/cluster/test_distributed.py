"""Pods of distributed jobs on the real API server: it, `/mutate` and `explain` give the same answers."""

import asyncio
import base64
import json
import os
import ssl
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import jsonpatch

from tests.support.administrator import Administrator
from tests.support.cluster_webhook import ensure_namespaces, installed, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.forked_python import run_forked
from tests.support.operator_jobs import generated_pods
from tests.support.webhook_server import review_of

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", "400"))
"""Number of generated pods; a larger one takes longer and finds more."""
AT_ONCE = 16
PLAIN = "distributed-plain"
POLICIES = {
    "distributed-half": {"gpu_fraction": "0.5"},
    "distributed-share": {"gpu_fraction": "0.5", "distributed": "share"},
    "distributed-capped": {"gpu_fraction": "0.5", "max_gpu_fraction": "0.5", "gpu_toleration": "inject"},
    "distributed-all": {"gpu_fraction": "0.5", "share_for": "all"},
}


def namespaces() -> list[dict[str, Any]]:
    made = [managed_namespace(name, **labels) for name, labels in POLICIES.items()]
    for namespace in made:
        namespace["metadata"]["labels"]["size.kaishare.dev/train"] = "0.25"
    return made


async def dry_run(admin: Administrator, namespace: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the API server would store it, without what differs between two creations."""
    document = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
    kept = await admin.post(f"/api/v1/namespaces/{namespace}/pods", document, dryRun="All")
    for key in ("uid", "creationTimestamp", "managedFields", "generation"):
        kept["metadata"].pop(key, None)
    spec = kept["spec"]
    spec.pop("volumes", None)  # the token's volume has a random name
    for container in spec["containers"]:
        container.pop("volumeMounts", None)
    kept.pop("status", None)
    return kept


def without_empty_amounts(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod without empty limits and requests, which the API server drops."""
    for container in pod["spec"]["containers"]:
        amounts = container.get("resources", {})
        container["resources"] = {kind: amount for kind, amount in amounts.items() if amount}
    return pod


def previewed(plane: ControlPlane, pods: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Return the lines of `explain -o patch` with the policies of the cluster."""
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    command = f"explain --policies cluster --kubeconfig {plane.kubeconfig()} -f {folder}/pods.json -o patch"
    done = run_forked("-m", "console", *command.split())
    assert done.status == 0, done.err
    return done.out.splitlines()


async def test_the_same_answers_everywhere(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    names = list(POLICIES)
    given = [(names[number % len(names)], pod) for number, pod in enumerate(generated_pods(28, PODS))]

    async def stored(namespace: str, pod: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        async with gate:
            plain = await dry_run(admin, PLAIN, pod)
            return plain | {"metadata": plain["metadata"] | {"namespace": namespace}}, await dry_run(
                admin, namespace, pod
            )

    await ensure_namespaces(admin.client, {"kind": "Namespace", "metadata": {"name": PLAIN}})
    async with installed(plane, admin.client, tmp_path, *namespaces()) as webhook:
        pairs = await asyncio.gather(*(stored(*item) for item in given))
        lines = await asyncio.to_thread(previewed, plane, [before for before, _ in pairs], tmp_path)
        trust = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        seen = Counter[str]()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust), trust_env=False
        ) as session:
            for (before, after), line in zip(pairs, lines, strict=True):
                namespace = before["metadata"]["namespace"]
                body = json.dumps(review_of(before, namespace)).encode()
                async with session.post(f"{webhook.target.url}/mutate", data=body) as response:
                    answer = (await response.json())["response"]
                sent = json.loads(base64.b64decode(answer.get("patch", "W10=")))
                assert json.dumps(sent, ensure_ascii=False) == line
                assert without_empty_amounts(jsonpatch.apply_patch(before, sent)) == after
                seen[after["metadata"].get("annotations", {}).get("kaishare.dev/reason", "unchanged")] += 1
    assert {"distributed", "whole-gpu-converted", "own-share", "several-gpus", "unchanged"} <= seen.keys()
    assert min(seen["distributed"], seen["whole-gpu-converted"]) > PODS / 12
