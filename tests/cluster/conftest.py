"""Fixtures for tests on a real API server; a module with a fixture `plane` of its own has them there."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from kube.client import KubeClient
from tests.support.control_plane import ControlPlane
from tests.support.guard import guard_on
from tests.support.guarded_objects import every_pod, stored
from tests.support.kube_user import Asker


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """An administrator's client."""
    async with KubeClient(plane.access()) as connected:
        yield connected


@pytest.fixture
async def asker(plane: ControlPlane) -> AsyncIterator[Asker]:
    """Requests as any user."""
    async with Asker(plane) as asking:
        yield asking


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The guard on deny."""
    with guard_on(plane):
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pods(guarded: ControlPlane) -> AsyncIterator[None]:
    """A pod with all keys of KAI and one without them, for an enforced namespace and for a vCluster."""
    async with stored(guarded, every_pod()):
        yield
