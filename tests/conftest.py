"""Fixtures of all tests. The helpers behind them are in tests/support."""

pytest_plugins = (
    "tests.support.api_server_fixtures",
    "tests.support.control_plane_fixtures",
    "tests.support.machine_files",
    "tests.support.nvml_fixtures",
    "tests.support.webhook_server",
)
