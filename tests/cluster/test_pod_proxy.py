"""The agent's port through a real API server's proxy to pods, whose kubelet is missing and not needed."""

import asyncio
import contextlib
import http.client
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuagent.server.metrics import Metrics
from gpuagent.server.server import HttpServer
from gpuagent.status import Status
from kube.client import KubeClient
from service.http.listeners import Address
from service.log import JsonLog
from tests.support.administrator import Administrator
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane, assets_folder, control_plane
from tests.support.control_plane_fixtures import HOW
from tests.support.kube_objects import NODE, pod
from tests.support.pod_network import egress_option, pod_network

POD_IP = "10.77.0.7"


@contextlib.asynccontextmanager
async def agent() -> AsyncIterator[Address]:
    status = Status(snapshot=None, attribution_ok=None)
    metrics = Metrics(lambda: status, node=NODE, is_simulated=True)
    port = HttpServer(
        status=lambda: status, unhealthy_reason=str, metrics=metrics, node=NODE, is_simulated=True,
        log=JsonLog(io.BytesIO()),
    )  # fmt: skip
    address = await port.start(Address("127.0.0.1", 0))
    try:
        yield address
    finally:
        await port.stop()


def get_through_proxy(plane: ControlPlane, path: str, host: str) -> tuple[int, bytes]:
    """Request a path of the pod's port from the API server under a given host name."""
    connection = http.client.HTTPSConnection("127.0.0.1", plane.port, timeout=20, context=plane.trust)
    where = f"/api/v1/namespaces/research/pods/half:9445/proxy{path}"
    try:
        connection.request("GET", where, headers={"Host": host, "Authorization": f"Bearer {ADMIN_TOKEN}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def test_the_proxy_of_the_api_server(tmp_path: Path) -> None:
    assets = assets_folder()
    if assets is None:
        pytest.skip(HOW)
    socket = tmp_path / "egress.sock"
    with control_plane(assets, tmp_path, egress_option(tmp_path, socket)) as plane:
        async with (
            KubeClient(plane.access()) as client,
            agent() as address,
            pod_network(socket, {f"{POD_IP}:9445": address}),
        ):
            admin = Administrator(client)
            await admin.prepare()
            await admin.create(pod())
            address_of_pod = {"podIP": POD_IP, "podIPs": [{"ip": POD_IP}]}
            await admin.merge("/api/v1/namespaces/research/pods/half/status", {"status": address_of_pod})

            async def get(path: str, host: str = "api.example.com:6443") -> tuple[int, bytes]:
                return await asyncio.to_thread(get_through_proxy, plane, path, host)

            status, body = await get("/api/v1/shares")
            assert status == 200, body
            assert json.loads(body)["node"] == NODE
            assert await get("/healthz") == (200, b"ok\n")
            assert await get("/readyz") == (200, b"ok\n")
            for path in ("/", "/metrics", "/page.js"):
                status, body = await get(path)
                assert status == 421
                assert b'unknown host "api.example.com:6443"' in body
            assert (await get("/metrics", f"127.0.0.1:{plane.port}"))[0] == 200
