"""Fixtures of all tests, and markers by folder. The helpers behind them are in tests/support."""

import gc

import pytest
from hypothesis import settings

from tests.support import workers
from tests.support.markers import marker_of

# Hypothesis's deadline counts wall time, which depends on what else the machine runs.
settings.register_profile("kaishare", deadline=None)
settings.load_profile("kaishare")

pytest_plugins = (
    "tests.support.api_server_fixtures",
    "tests.support.control_plane_fixtures",
    "tests.support.machine_files",
    "tests.support.nvml_fixtures",
    "tests.support.webhook_server",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a cluster, a browser or a GPU, so that `-m` can select them."""
    for item in items:
        marker = marker_of(item.path)
        if marker:
            item.add_marker(marker)


def pytest_collection_finish() -> None:
    """Exempt what exists so far from garbage collection: a pass over the objects of all tests takes 0.15 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> workers.ScheduleByFile | None:
    """Give each file, and tests/cluster as a whole, to one worker."""
    return workers.scheduler(config, log)
