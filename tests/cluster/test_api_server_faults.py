"""The webhook and the agent while two API servers have faults: the short form of tests/faults/api_server.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.api_server import CASES, SHORT, run_cases, two_api_servers
from tests.support import tls_connections
from tests.support.control_plane import ControlPlane
from tests.support.control_plane_fixtures import needed_assets


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    needed_assets()
    with two_api_servers(tmp_path_factory.mktemp("two-api-servers")) as servers:
        yield servers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "seconds", "awaits_eviction"),
    [
        pytest.param(SHORT, 3.0, False, id="short"),
        pytest.param([*CASES], 8.0, True, id="all", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
async def test_no_fault_loses_a_change_makes_a_storm_or_flags_an_innocent_pod(
    planes: tuple[ControlPlane, ControlPlane],
    tmp_path: Path,
    names: list[str],
    seconds: float,
    awaits_eviction: bool,
) -> None:
    run = run_cases(*planes, tmp_path, names, seconds, awaits_eviction=awaits_eviction)
    all_figures = [figures async for figures in run]
    assert [figures.wrong for figures in all_figures] == [[]] * (len(names) + 1)
    assert all(figures.scrapes and figures.reviews for figures in all_figures[:-1])
    await tls_connections.until_ended()
