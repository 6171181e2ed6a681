"""The mode of KAI's object kai-config, and the options that the webhook sets by it, on a real API server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kube.answers import ApiError
from kube.client import KubeClient
from kube.kinds import KAI_CONFIGS
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import Serving, bare_pod, installed, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.kinds import definition, list_path, made
from tests.support.waiting import until

NAMESPACE = managed_namespace("frameworks", gpu_fraction="0.5", framework_memory="set")
PODS = "/api/v1/namespaces/frameworks/pods"
CONFIG = made("Config", "kai-config", spec={"global": {"gpuSharingMode": "NonMemoryEnforced"}})
OPTION = "--gpu-memory-utilization=0.49"
ENV = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Run the webhook, which finds KAI's mode in kai-config."""
    folder: Path = tmp_path_factory.mktemp("webhook")
    crd = definition("kai.scheduler/v1", "Config", is_namespaced=False)
    async with KubeClient(plane.access()) as client:
        await client.request("POST", list_path(crd["kind"]), body=json.dumps(crd).encode())
        try:

            async def is_created() -> bool:
                path = KAI_CONFIGS.path()
                try:
                    await client.request("POST", path, body=json.dumps(CONFIG).encode())
                except ApiError as error:  # a new CRD is served after a short delay
                    return error.status == 409
                return True

            await until(is_created, "kai-config is created")
            async with installed(plane, client, folder, NAMESPACE) as webhook:
                yield webhook
        finally:
            await client.request("DELETE", f"{list_path(crd['kind'])}/{crd['metadata']['name']}")


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({"command": ["vllm", "serve", "M"]}, {"args": [OPTION]}),
        ({"command": ["vllm"], "args": ["serve", "M"]}, {"args": ["serve", "M", OPTION]}),
        ({"command": ["sh", "-c", "vllm serve M"]}, {"command": ["sh", "-c", f"vllm serve M {OPTION}"]}),
        (
            {"command": ["text-generation-launcher"], "env": [ENV]},
            {"env": [ENV, {"name": "CUDA_MEMORY_FRACTION", "value": "0.49"}]},
        ),
    ],
    ids=["no arguments", "arguments", "a shell", "variables"],
)
async def test_the_api_server_stores_the_option_and_nothing_else(
    admin: Administrator, ours: Serving, fields: dict[str, Any], added: dict[str, Any]
) -> None:
    async def created(container: dict[str, Any]) -> dict[str, Any]:
        pod = bare_pod("server")
        pod["spec"]["containers"][0] |= container
        stored: dict[str, Any] = await admin.post(PODS, pod, dryRun="All")
        return stored

    async def mode_is_known() -> bool:
        return OPTION in json.dumps(await created({"command": ["vllm", "serve", "M"]}))

    await until(mode_is_known, "the webhook knows KAI's mode")
    stored = await created(fields)
    (container,) = stored["spec"]["containers"]
    want = fields | added
    if "env" in want:  # the API server adds a default
        for variable in container["env"]:
            variable.get("valueFrom", {}).get("fieldRef", {}).pop("apiVersion", None)
    assert {key: container[key] for key in want} == want
    assert ("args" in container) is ("args" in want)
    assert stored["metadata"]["annotations"]["kaishare.dev/framework-memory"]
