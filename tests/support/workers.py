"""Distribution of the tests between pytest's workers (`pytest -n 2`)."""

from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_CLUSTER: Final = "tests/cluster/"


class ScheduleByFile(LoadScopeScheduling):
    """Gives each file to one worker, and all of tests/cluster to one worker.

    A file's fixtures of scope `module` are built once. One control plane serves all cluster tests, so that etcd and
    kube-apiserver run once and no cluster test waits for another worker's. The largest group starts first, which is
    tests/cluster; the other worker runs the remaining files meanwhile.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _CLUSTER if nodeid.startswith(_CLUSTER) else nodeid.partition("::")[0]


def scheduler(config: pytest.Config, log: object) -> ScheduleByFile | None:
    """Return the scheduler of `pytest -n`; None if the command line names another mode with --dist."""
    return ScheduleByFile(config, log) if config.getoption("dist") == "load" else None
