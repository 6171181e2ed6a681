"""Fixtures of all tests, and markers by folder. The helpers behind them are in tests/support."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support import workers
from tests.support.kubernetes_release import skip_on_older
from tests.support.markers import (
    NIGHTLY,
    OLDEST,
    is_deselected,
    marker_of,
    runs_on_the_oldest,
    skips_by_reason,
)

# Hardly anything is freed until all tests are collected, and each pass looks at all of them.
gc.disable()

# Many tests start Python. Without stored bytecode each process would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# API servers, etcd, Prometheus and helm spend a fifth of their time on collecting garbage otherwise, and another fifth
# on passing work from thread to thread; most end soon, and the processors are busy.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMAXPROCS", "1")

# A background job of a shell (`make test &`) ignores SIGINT, and the programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Python reads this file for each TLS context, and aiohttp creates two at its import. No test connects to a public server.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)

# Hypothesis's deadline counts wall time, which depends on what else the machine runs.
settings.register_profile("kaishare", deadline=None, max_examples=50)
settings.register_profile(NIGHTLY, deadline=None, max_examples=500)
settings.load_profile("kaishare")

pytest.register_assert_rewrite("tests.support.pod_invariants")

pytest_plugins = (
    "tests.support.api_server_fixtures", "tests.support.control_plane_fixtures", "tests.support.machine_files",
    "tests.support.nvml_fixtures", "tests.support.webhook_server",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Dir) and hasattr(collector.config, "workerinput"):
        report.result = workers.begin_elsewhere(report.result, collector.config.workerinput)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by place, leave nightly ones out, and begin with the files that have slow or many tests.
    The other files fill the time of the workers evenly at the end. The order is the same in all workers."""
    for item in items:
        marker = marker_of(item.path)
        if marker:
            item.add_marker(marker)
        if runs_on_the_oldest(item.path):
            item.add_marker(OLDEST)
    left_out = [item for item in items if is_deselected(item, config.option.markexpr)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_deselected(item, config.option.markexpr)]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -counts[item.path], item.path))


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_on_older(item)


def pytest_collection_finish() -> None:
    """Exempt what exists so far from garbage collection: a pass over the objects of all tests takes 0.15 s."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> workers.ScheduleByFile | None:
    return workers.scheduler(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    for line in skips_by_reason(report.longrepr[2].removeprefix("Skipped: ") for report in reports):
        terminalreporter.write_line(line, yellow=True)
