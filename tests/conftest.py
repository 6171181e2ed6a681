"""Fixtures of all tests, and markers by folder. The helpers behind them are in tests/support."""

import pytest

from tests.support.markers import marker_of

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
