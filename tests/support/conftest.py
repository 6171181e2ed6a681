"""A hostile API server in front of a well-behaved one on loopback."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from certs.authority import Authority
from tests.kube.api_server import ApiServer
from tests.kube.fixtures import authority, served, server
from tests.support.api_faults import Upstream
from tests.support.hostile_api_server import HostileApiServer, hostile_api_server

__all__ = ["authority", "served", "server"]


@pytest.fixture
def upstream(server: ApiServer, authority: Authority) -> Upstream:
    trust = ssl.create_default_context(cadata=authority.pair.certificate_pem.decode())
    return Upstream(url=f"https://127.0.0.1:{server.port}", trust=trust)


@pytest.fixture
async def hostile(upstream: Upstream, tmp_path: Path) -> AsyncIterator[HostileApiServer]:
    async with hostile_api_server(upstream, tmp_path) as hostile:
        yield hostile


@pytest.fixture
async def session(hostile: HostileApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=hostile.access("a-token").trust())
    async with aiohttp.ClientSession(
        base_url=hostile.url, connector=connector, auto_decompress=False
    ) as session:
        yield session
