"""Asks the driver for the limits of the containers that have a process on a GPU."""

import os
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from gpuagent.gpus.driver import CallFailed
from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.gpus.memory_limits import (
    NO_LIMITS,
    LimitAnswer,
    LimitAnswers,
    LimitKind,
    LimitsUnknown,
    NodeLimits,
    parent_of,
)
from gpuagent.gpus.supervised_call import SupervisedCall
from gpuagent.sampling.sample import Origin

_MOST_FOLDERS: Final = 20_000
"""Folders of one search. The kubelet's cgroups come before those that containers make below their own."""
_SAMPLES_BETWEEN_SEARCHES: Final = 6


class CgroupTree:
    """The host's cgroup tree below a folder, and where the cgroups of containers are in it.

    A path in /proc is relative to the reader's cgroup namespace. On cgroup v2 container runtimes give the
    agent a namespace of its own, and other containers then have paths such as
    `/../../kubepods-pod….slice/….scope`. Such a cgroup is found by its last part, once a container.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._found: dict[str, str] = {}
        self._since_search = _SAMPLES_BETWEEN_SEARCHES

    def locate(self, paths: Collection[str]) -> dict[str, str] | LimitsUnknown:
        """Return the folders of container paths, without unknown ones, or why none can be known."""
        if not os.path.exists(f"{self._root}/cgroup.controllers"):  # noqa: PTH110 - in each sample
            has_root = os.path.isdir(self._root)  # noqa: PTH112
            return LimitsUnknown.CGROUP_V1 if has_root else LimitsUnknown.NO_CGROUP_TREE
        self._found = {path: folder for path, folder in self._found.items() if path in paths}
        self._since_search += 1
        hidden = {path for path in paths if path.startswith("/..") and path not in self._found}
        if hidden and self._since_search > _SAMPLES_BETWEEN_SEARCHES:
            self._since_search = 0
            self._search(hidden)
        folders = {path: self._root + path for path in paths if not path.startswith("/..")} | self._found
        return folders or LimitsUnknown.NO_CGROUP_TREE

    def explain(self, group: str) -> LimitKind:
        """Return what it means that the driver does not find a cgroup."""
        if not os.path.isdir(group):  # noqa: PTH112
            return LimitKind.GONE
        has_dmem = os.path.exists(f"{self._root}/dmem.capacity")  # noqa: PTH110
        lacks_files = has_dmem and not os.path.exists(f"{group}/dmem.max")  # noqa: PTH110
        return LimitKind.NO_FILES if lacks_files else LimitKind.UNKNOWN

    def _search(self, paths: Collection[str]) -> None:
        """Look for container cgroups by their names, level by level, so that the outermost one counts."""
        wanted = {path.rpartition("/")[2]: path for path in paths}
        level, left = [self._root], _MOST_FOLDERS
        while level and wanted and left > 0:
            below: list[str] = []
            for folder in level:
                names = _folders_in(folder, left)
                left -= len(names)
                for name in names:
                    if (path := wanted.pop(name, None)) is not None:
                        self._found[path] = f"{folder}/{name}"
                    below.append(f"{folder}/{name}")
            level = below


def _folders_in(folder: str, most: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return list(islice(folders, max(most, 0)))
    except OSError:  # the cgroup is gone
        return []


class ContainerLimits:
    """Asks for each container's cgroup and for the one above it, once a GPU and sample.

    The one above tells an inherited limit from the container's own. Looking for cgroups may wait for the
    kernel's locks, so it has a deadline; the limits are unknown while it is unanswered.
    """

    def __init__(
        self, root: Path, ask: Callable[[Mapping[str, Collection[str]]], LimitAnswers], *, deadline: float
    ) -> None:
        """Set the root of the cgroup tree, how the driver is asked, and the deadline in seconds."""
        self._tree = CgroupTree(root)
        self._ask = ask
        self._call: SupervisedCall[Any] = SupervisedCall("cgroups", deadline=deadline)
        self._is_too_old = False
        """Whether the library lacks the call. Another library needs another process."""

    def read(self, reading: GpuReading, origins: Mapping[int, Origin]) -> NodeLimits:
        """Return the limits of the containers with a process on a GPU that is not in MIG mode."""
        by_gpu: dict[str, set[str]] = {}
        for gpu in reading.gpus:
            if not gpu.mig and gpu.processes:
                found = [origins.get(process.pid) for process in gpu.processes]
                own = {each.container_path for each in found if each is not None and each.pod_uids}
                by_gpu[gpu.uuid] = own - {""}
        paths = set().union(*by_gpu.values())
        if not paths or self._is_too_old:
            return NodeLimits(unknown=LimitsUnknown.TOO_OLD) if self._is_too_old else NO_LIMITS
        try:
            groups = self._call.result(lambda: self._tree.locate(paths))
        except CallFailed:
            groups = LimitsUnknown.NO_ANSWER
        if isinstance(groups, LimitsUnknown):
            return NodeLimits(unknown=groups)
        leaves = {gpu: {groups[path] for path in own if path in groups} for gpu, own in by_gpu.items()}
        wanted = {gpu: own | {parent_of(group) for group in own} for gpu, own in leaves.items()}
        answers = self._ask(wanted)
        self._is_too_old = any(answer.kind is LimitKind.TOO_OLD for answer in answers.values())
        if self._is_too_old:
            return NodeLimits(unknown=LimitsUnknown.TOO_OLD)
        missing = {group for (_, group), answer in answers.items() if answer.kind is LimitKind.NOT_FOUND}
        return NodeLimits(groups=groups, answers=self._explained(answers, missing) if missing else answers)

    def _explained(self, answers: LimitAnswers, missing: Collection[str]) -> LimitAnswers:
        try:
            kinds = self._call.result(lambda: {group: self._tree.explain(group) for group in missing})
        except CallFailed:
            return answers
        return {
            place: LimitAnswer(kinds[place[1]]) if answer.kind is LimitKind.NOT_FOUND else answer
            for place, answer in answers.items()
        }

    def close(self) -> None:
        """End the thread after its last call."""
        self._call.stop()
