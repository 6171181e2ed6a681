"""Distribution of the tests between pytest's workers (`pytest -n 4`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

EntryT = TypeVar("EntryT")
_CLUSTER: Final = "tests/cluster/"
_AT_ONE_WORKER: Final = "tests/kai_programs/"
"""Its tests share a cluster."""


def file_of(nodeid: str) -> str:
    """Return the file of a test, or the folder whose files one worker runs."""
    return _AT_ONE_WORKER if nodeid.startswith(_AT_ONE_WORKER) else nodeid.partition("::")[0]


def next_file(files: Iterable[str], *, prefers_cluster: bool) -> str:
    """Return the first file of the kind that a worker prefers, or else the first one."""
    waiting = list(files)
    return next((file for file in waiting if file.startswith(_CLUSTER) is prefers_cluster), waiting[0])


def begin_elsewhere(entries: Sequence[EntryT], worker: Mapping[str, Any]) -> list[EntryT]:
    """Return the entries of a folder in the order in which one of several workers collects them.
    Each worker collects all tests. A module without stored bytecode is compiled by the first worker that reaches
    it; the others load the result."""
    first = int(worker["workerid"].removeprefix("gw")) * len(entries) // worker["workercount"]
    return [*entries[first:], *entries[:first]]


class ScheduleByFile(LoadScopeScheduling):
    """Gives each file to one worker, and the files of tests/cluster to every other worker first.
    A file's fixtures of scope `module` are built once, and KAI's programs are started once. Each worker with cluster tests runs a control plane for all
    of them. Cluster tests mostly wait, so that other workers use the processors meanwhile."""

    def _split_scope(self, nodeid: str) -> str:
        return file_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        self.workqueue.move_to_end(next_file(self.workqueue, prefers_cluster=number % 2 == 0), last=False)
        super()._assign_work_unit(node)


def scheduler(config: pytest.Config, log: object) -> ScheduleByFile | None:
    """Return the scheduler of `pytest -n`; None if the command line names another mode with --dist."""
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return ScheduleByFile(config, log)
