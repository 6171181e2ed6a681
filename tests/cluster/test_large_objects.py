"""Both services beside objects as large as an API server accepts: bounded memory, and /healthz goes on answering.

`python -m benchmarks.large_objects` does the same at full size, with the exact bounds of the contract.
"""

import asyncio
import json
from pathlib import Path

import pytest

from kube.client import KubeClient
from tests.cluster.test_agent import PROGRAM
from tests.support.administrator import Administrator
from tests.support.agent_process import agent
from tests.support.cluster_webhook import WEBHOOK_RIGHTS, serving
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import RIGHTS, TOTAL
from tests.support.kube_objects import GPU_0
from tests.support.large_objects import annotate, create_all, largest_pods, namespace_with_labels, probing
from tests.support.memory import memory_limit_mib, peak_resident_mib
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod

MAX_HEALTHZ_SECONDS = 3.0
"""The contract says 1 s; the rest is for a test machine that has much else to do."""

NODE = "node-of-large-pods"
COUNT = 48
PODS = "/api/v1/namespaces/large-pods/pods"


async def remove_pods(client: KubeClient) -> None:
    """Delete the pods one by one: the answer to a collective deletion would hold all of them."""
    for number in range(COUNT):
        path = f"{PODS}/large-{number}"
        await client.request("DELETE", path, params={"gracePeriodSeconds": "0"}, seconds=60)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_an_agent_lists_and_follows_pods_of_1_4_mb_in_bounded_memory_while_healthz_answers(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    await admin.ensure({"kind": "Namespace", "metadata": {"name": "large-pods"}})
    await create_all(admin.client, PODS, largest_pods(COUNT, namespace="large-pods", node=NODE))
    token = await admin.token("agent", *RIGHTS)
    plane.access(token)
    (tmp_path / "answers").write_text(f"driver 580.65.06\ngpu 0 {GPU_0} {TOTAL} 0 0 NVIDIA A10\n")
    ProcTree(tmp_path / "proc").add(2, "0::/", name="kthreadd")
    environment = {
        "LD_LIBRARY_PATH": str(built_library(tmp_path).parent),
        ANSWERS: str(tmp_path / "answers"),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.port),
    }
    program = ("-c", PROGRAM, str(plane.accounts[token]), str(tmp_path / "loaded"))
    options = f"--node {NODE} --proc-root {tmp_path}/proc --interval 200ms"
    try:
        with agent(tmp_path / "log", *options.split(), program=program, **environment) as running:
            async with probing(running.url) as probe:
                await until(lambda: running.log_lines("pods listed"), "the pods are listed")
                await annotate(admin.client, (f"{PODS}/large-{number}" for number in range(20)))
                assert peak_resident_mib(running.process.pid) < memory_limit_mib("agent")
                assert probe.slowest_seconds < MAX_HEALTHZ_SECONDS
                assert probe.answers
                assert not probe.failure
    finally:
        await remove_pods(admin.client)


@pytest.mark.nightly
async def test_a_webhook_reads_a_namespace_of_12_000_labels_while_healthz_answers(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    path = "/api/v1/namespaces"
    await create_all(admin.client, path, [namespace_with_labels("many-labels", 12_000)])
    pod = in_a_pod(plane, await admin.token("webhook", *WEBHOOK_RIGHTS), tmp_path)
    options = ("--policies", "cluster", "--certs", f"{tmp_path}/tls")
    log = tmp_path / "log"
    try:
        async with (
            serving(
                log, *options, program=pod.program, environment=pod.environment, is_forked=False
            ) as webhook,
            probing(f"http://{webhook.ops}") as probe,
        ):

            async def knows_the_namespace() -> bool:
                status, text = await webhook.get("/policies")
                return status == 200 and "many-labels" in {each["namespace"] for each in json.loads(text)}

            await until(knows_the_namespace, "the namespace is known")
            await annotate(admin.client, (f"{path}/many-labels" for _ in range(20)))
            await asyncio.sleep(0.2)  # the last change arrives
            assert peak_resident_mib(webhook.process.pid) < memory_limit_mib("webhook")
            assert probe.slowest_seconds < MAX_HEALTHZ_SECONDS
            assert not probe.failure
    finally:
        await admin.client.request("DELETE", f"{path}/many-labels")
