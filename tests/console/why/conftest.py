"""Fixtures: a simulated API server that holds objects."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from certs.authority import Authority
from tests.support.api_server import ObjectServer, object_server


@pytest.fixture
async def server(tmp_path: Path, authority: Authority, served: ssl.SSLContext) -> AsyncIterator[ObjectServer]:
    async with object_server(tmp_path, authority, served) as running:
        yield running
