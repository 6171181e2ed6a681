"""Fixtures: a control plane for the whole session, and an administrator of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane, assets_folder, control_plane, controller_manager
from tests.support.hostile_api_server import HostileApiServer, hostile_api_server
from tests.support.pod_network import egress_option

EGRESS_SOCKET = "egress.sock"
HOW = "needs KUBEBUILDER_ASSETS (see CONTRIBUTING.md)"


def needed_assets() -> Path:
    """Return the folder of the API server's programs; skip the test without one."""
    assets = assets_folder()
    if assets is None:
        pytest.skip(HOW)
    for program in ("etcd", "kube-apiserver"):
        if not (assets / program).is_file():
            pytest.fail(f"KUBEBUILDER_ASSETS={assets} holds no {program}")
    return assets


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(needed_assets(), tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of the module, for objects that hold for every namespace, such as admission policies."""
    with control_plane(needed_assets(), tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture(scope="module")
def own_proxied_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of the module that reaches pods through the socket `egress.sock` in its folder; see pod_network.py.

    A controller fills in the rules of `view` and `edit`.
    """
    assets = needed_assets()
    folder = tmp_path_factory.mktemp("own-proxied")
    with (
        control_plane(assets, folder, egress_option(folder, folder / EGRESS_SOCKET)) as running,
        controller_manager(assets, running, ["clusterrole-aggregation-controller"]),
    ):
        yield running


@pytest.fixture(scope="session")
def controllers(plane: ControlPlane) -> Iterator[None]:
    assets = needed_assets()
    if not (assets / "kube-controller-manager").is_file():
        pytest.skip("needs kube-controller-manager in KUBEBUILDER_ASSETS (see CONTRIBUTING.md)")
    with controller_manager(assets, plane):
        yield


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Administrator]:
    async with KubeClient(plane.access()) as client:
        administrator = Administrator(client)
        await administrator.prepare()
        yield administrator
        await administrator.clean_up()


@pytest.fixture
async def hostile(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[HostileApiServer]:
    """A proxy in front of the control plane, initially without faults."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    async with hostile_api_server(plane.upstream, folder) as server:
        yield server
