"""Fixtures: a simulated API server on loopback with real TLS, and an accepted service account."""

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.authority import Authority
from kube.access import InCluster
from kube.client import KubeClient
from tests.support.api_server import ApiServer
from tests.support.certificates import serving_context
from tests.support.credentials import write_service_account


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority.create(now=datetime.now(UTC))


@pytest.fixture(scope="session")
def served(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return serving_context(authority, tmp_path_factory.mktemp("served"))


@pytest.fixture
async def server(served: ssl.SSLContext) -> AsyncIterator[ApiServer]:
    server = ApiServer(trust=served)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def account(tmp_path: Path, authority: Authority) -> Path:
    return write_service_account(
        tmp_path / "serviceaccount", token="first-token\n", ca=authority.pair.certificate_pem
    )


@pytest.fixture
async def client(server: ApiServer, account: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(InCluster(folder=account, environment=server.environment)) as client:
        yield client
