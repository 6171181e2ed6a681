"""The agent's port through a real API server's proxy to pods, whose kubelet is missing and not needed.

The API server refuses to proxy to loopback, so its egress selector sends the pod's made-up address to the
agent on loopback.
"""

import asyncio
import contextlib
import http.client
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuagent.evaluation.status import Evaluation
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.exposition import Metrics
from kube.client import KubeClient
from service.http.authentication import Authentication
from service.http.limits import Address
from service.http.page_server import PortSecurity
from service.log import JsonLog
from tests.support.administrator import Administrator
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.control_plane_fixtures import EGRESS_SOCKET
from tests.support.kube_objects import NODE, pod
from tests.support.pod_network import pod_network

POD_IP = "10.77.0.7"


@contextlib.asynccontextmanager
async def agent(authentication: Authentication | None = None) -> AsyncIterator[Address]:
    status = Evaluation(snapshot=None, attribution_ok=None)
    metrics = Metrics(node=NODE, is_simulated=True)
    port = HttpServer(
        status=lambda: status, unhealthy_reason=str, metrics=metrics, node=NODE, is_simulated=True,
        log=JsonLog(io.BytesIO()),
    )  # fmt: skip
    address = await port.start(Address("127.0.0.1", 0), security=PortSecurity(authentication=authentication))
    try:
        yield address
    finally:
        await port.stop()


def get_through_proxy(plane: ControlPlane, path: str, host: str, **headers: str) -> tuple[int, bytes]:
    """Request a path of the pod's port from the API server under a given host name."""
    connection = http.client.HTTPSConnection("127.0.0.1", plane.port, timeout=20, context=plane.trust)
    where = f"/api/v1/namespaces/research/pods/half:9445/proxy{path}"
    try:
        connection.request(
            "GET", where, headers={"Host": host, "Authorization": f"Bearer {ADMIN_TOKEN}", **headers}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def proxying(proxied_plane: ControlPlane) -> tuple[ControlPlane, Path]:
    """A control plane that reaches pods through a socket."""
    return proxied_plane, proxied_plane.folder / EGRESS_SOCKET


@contextlib.asynccontextmanager
async def pod_at(address: Address, socket: Path, client: KubeClient) -> AsyncIterator[Administrator]:
    """Make a pod whose address leads to the agent."""
    async with pod_network(socket, {f"{POD_IP}:9445": address}):
        admin = Administrator(client)
        await admin.prepare()
        await admin.create(pod())
        address_of_pod = {"podIP": POD_IP, "podIPs": [{"ip": POD_IP}]}
        await admin.merge("/api/v1/namespaces/research/pods/half/status", {"status": address_of_pod})
        yield admin
        await admin.clean_up()


async def test_the_proxy_of_the_api_server(proxying: tuple[ControlPlane, Path]) -> None:
    plane, socket = proxying
    async with KubeClient(plane.access()) as client, agent() as address, pod_at(address, socket, client):

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
