"""Distribution of the tests between pytest's workers (`pytest -n 2`)."""

from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_CLUSTER: Final = "tests/cluster/"


def unit_of(nodeid: str) -> str:
    """Return the name of the unit that a test belongs to; one worker runs all tests of a unit."""
    return _CLUSTER if nodeid.startswith(_CLUSTER) else nodeid.partition("::")[0]


class ScheduleByFile(LoadScopeScheduling):
    """Gives each file to one worker, and all of tests/cluster to one worker.

    A file's fixtures of scope `module` are built once. One control plane serves all cluster tests, so that etcd and
    kube-apiserver run once and no cluster test waits for another worker's. Each worker meets its files in the order of
    collection, so that no test runs after a file that comes later in a run without workers.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def scheduler(config: pytest.Config, log: object) -> ScheduleByFile | None:
    """Return the scheduler of `pytest -n`; None if the command line names another mode with --dist."""
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return ScheduleByFile(config, log)
