"""The commands of `kaishare advise` in a shell, against a real Prometheus, API server and webhook."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from kai.share_bytes import Card
from kube.client import KubeClient
from tests.support import prometheus_server
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import Serving, installed, kubectl, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.known_metrics import recorded as names_of_records
from tests.support.promtool import needed
from tests.support.usage_history import END, GIB, MIB, MODELS, History, PodHistory, noisy, recorded

H100 = "NVIDIA H100 80GB HBM3"
CARD = Card.from_mib(MODELS[H100])
SIZE = "size.kaishare.dev/"


def share_of(fraction: float) -> int:
    return CARD.fraction_bytes(fraction)


def pod(namespace: str, share: int, gib: int, *, size: str = "") -> PodHistory:
    """Return a pod that uses up to some GiB, an eighth of them at times."""
    name = f"{namespace}-{size or 'default'}"
    used = noisy(gib * GIB // 8, gib * GIB * 7 // 8, seed=gib)
    return PodHistory(namespace=namespace, pod=name, size=size, share=lambda _: share, used=used)


NAMESPACES = (
    managed_namespace("advised-fractions", gpu_fraction="0.50", max_gpu_fraction="0.90"),
    managed_namespace("advised-memory", gpu_memory="8192", max_gpu_memory="40000"),
    managed_namespace("advised-other-unit", gpu_fraction="0.20", max_gpu_memory="40000"),
    managed_namespace("advised-whole"),
    managed_namespace("advised-capped", gpu_fraction="0.50", max_gpu_fraction="0.50"),
)
NAMESPACES[0]["metadata"]["labels"] |= {f"{SIZE}small": "0.25", f"{SIZE}grows": "0.80"}
NAMESPACES[1]["metadata"]["labels"] |= {f"{SIZE}big": "20Gi"}
NAMESPACES[3]["metadata"]["labels"] |= {f"{SIZE}large": "0.90"}
PODS = (
    pod("advised-fractions", share_of(0.5), 10),
    pod("advised-fractions", share_of(0.25), 5, size="small"),
    pod("advised-fractions", share_of(0.8), 61, size="grows"),
    pod("advised-memory", 8192 * MIB, 4),
    pod("advised-memory", 20480 * MIB, 9, size="big"),
    pod("advised-other-unit", share_of(0.2), 7),
    pod("advised-whole", MODELS[H100] * MIB, 12),
    pod("advised-whole", share_of(0.9), 69, size="large"),
    pod("advised-capped", share_of(0.5), 60),
)
NEEDS = {pod.pod: sorted(pod.used(hour) or 0 for _, hour in pod.times()) for pod in PODS}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Run the webhook with its configurations in the cluster."""
    folder = tmp_path_factory.mktemp("webhook")
    async with KubeClient(plane.access()) as client, installed(plane, client, folder, *NAMESPACES) as serving:
        yield serving


async def test_each_command_is_accepted_and_gives_the_need(
    plane: ControlPlane, webhook: Serving, admin: Administrator, tmp_path: Path
) -> None:
    needed("prometheus")
    if shutil.which("kubectl") is None:
        pytest.skip("NOT VERIFIED: there is no kubectl")
    History(PODS).write(tmp_path)
    recorded(tmp_path, *names_of_records())
    words = ["--since", "36h", "--until", datetime.fromtimestamp(END, UTC).isoformat(), "-o", "kubectl"]
    with prometheus_server.prometheus(tmp_path, {}) as running:
        advised = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "console", "advise", "--prometheus", running.url, *words],
            env=os.environ | {"KUBECONFIG": str(plane.kubeconfig())}, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    commands = advised.stdout.splitlines()
    assert len(commands) == len(PODS) - 1, advised  # all but that above the cap
    assert all(command.startswith("kubectl label namespace advised-") for command in commands)

    # The webhook answers such requests: it refuses a share above the cap.
    refused = await kubectl(plane, "label", "namespace", "advised-capped", f"{SIZE}x=0.60")
    assert "kaishare.dev/max-gpu-fraction" in refused.errors
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-eu"], input=advised.stdout, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"KUBECONFIG": str(plane.kubeconfig())},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" labeled\n") == len(commands)

    for each in PODS:
        labels = (await admin.read(f"/api/v1/namespaces/{each.namespace}"))["metadata"]["labels"]
        before = next(own for own in NAMESPACES if own["metadata"]["name"] == each.namespace)["metadata"][
            "labels"
        ]
        if each.namespace == "advised-capped":
            assert labels.items() >= before.items()
            continue
        assert labels != before
        given = given_bytes(labels, each.size)
        used = NEEDS[each.pod]
        assert given >= used[int(0.99 * (len(used) - 1))] * 1.15, (each.pod, json.dumps(labels))
        assert given <= used[-1] * 1.15 + 0.011 * MODELS[H100] * MIB
    assert (
        "kaishare.dev/gpu-fraction"
        not in (await admin.read("/api/v1/namespaces/advised-other-unit"))["metadata"]["labels"]
    )


def given_bytes(labels: dict[str, str], size: str) -> int:
    """Return the bytes that KAI gives for the labels."""
    value = labels[f"{SIZE}{size}"] if size else labels.get("kaishare.dev/gpu-fraction")
    if value is None:
        return CARD.memory_bytes(int(labels["kaishare.dev/gpu-memory"]))
    if value.endswith("Mi"):
        return CARD.memory_bytes(int(value.removesuffix("Mi")))
    return MODELS[H100] * MIB if value == "1" else CARD.fraction_bytes(float(value))
