"""Merges the process lists of one device: which lists to read, how to merge them, and when to reject them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from gpuagent.gpus.driver import (
    MOST_DEVICE_BYTES,
    MOST_LISTED,
    REFUSALS,
    CallFailed,
    FigureFailed,
    Handle,
    ListedProcess,
    NotOffered,
    ProcessList,
)
from gpuagent.gpus.gpu_reading import GpuProcess
from gpuagent.gpus.nvml import NvmlDriver
from gpuagent.problems import Cause
from service.backoff import Backoff

_MOST_PID: Final = 1 << 22
"""The kernel's limit (PID_MAX_LIMIT)."""
_EXPLAINED_WITHIN: Final = 1 << 20
_READS_PER_FULL_ONE: Final = 6
_OTHERS: Final = (ProcessList.MPS, ProcessList.GRAPHICS)


@dataclass(frozen=True, slots=True)
class Merged:
    """All processes of a device, or the reason why there is no list."""

    processes: tuple[GpuProcess, ...] | None
    cause: Cause | None = None
    """Problem of the list. `processes` is None, unless the list is only truncated (TRUNCATED)."""
    detail: str = ""
    failure: CallFailed | None = None
    """The call that failed; None if the driver responded, even with an implausible list."""
    entries: Sequence[ListedProcess] = ()
    """Entries that were merged into `processes`."""


class ProcessLists:
    """Reads the process lists of one device.

    The compute list is read every time: processes can exchange memory without a change of any other figure,
    so no cheaper call shows that the list is still valid. The other lists are empty on most GPUs. Each of
    them is read every time while it has entries that the compute list lacks, else every sixth time. It is
    also read when the device's used memory changes by more than 1 MiB that the compute list does not explain,
    when the compute list has a new process, and every time if the used memory is unknown.
    """

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self.mps_clients: frozenset[int] | None = frozenset()
        """PIDs of the MPS list at its last reading; None if the driver does not have the list."""
        self._pids: set[int] = set()
        """PIDs of the last compute list."""
        self._tells_more = dict.fromkeys(_OTHERS, True)
        self._not_offered = {which: Backoff(first=60, most=600) for which in _OTHERS}
        self._refusal = Merged(())
        self._retry = Backoff()
        self._unexplained = 0
        self._reads_since_full = 0

    def read(
        self,
        device: Handle,
        *,
        used: int | None,
        total: int | None,
        now: float,
        is_elsewhere: Callable[[ListedProcess], bool] | None = None,
    ) -> Merged:
        """Read and merge the lists that are needed.

        `used` and `total` are the device's bytes. `is_elsewhere` tells which entries to skip, since a MIG
        device of the GPU lists them.

        Raises:
            GpuLost, DriverGone, DriverReplaced: more than the lists failed.
        """
        if not self._retry.is_due(now):
            return self._refusal
        try:
            lists = self._ask(device, used=used, now=now)
        except REFUSALS as refused:
            self._retry.back_off(now)
            why = (
                "this driver lists no processes; virtual GPUs and WSL never do"
                if isinstance(refused, NotOffered)
                else "no permission to read the process list"
            )
            self._refusal = Merged(None, Cause.NVML, f"{refused}: {why}", refused.with_traceback(None))
            return self._refusal
        except FigureFailed as failed:
            detail = f"{failed}: the process list could not be read"
            return Merged(None, Cause.NVML, detail, failed.with_traceback(None))
        self._retry.reset()
        if ProcessList.MPS in lists:
            self.mps_clients = frozenset(entry.pid for entry in lists[ProcessList.MPS])
        for which, entries in lists.items():
            if not _are_credible(entries, total):
                self._driver.errors.add(which.value, "Garbage")
                return Merged(
                    None,
                    Cause.GARBAGE,
                    "the driver lists an impossible PID, or a process with more memory than the device has:"
                    " the list is ignored (a known bug of drivers 535.54 to 535.86; use another version)",
                )
        own_entries = list(chain.from_iterable(lists.values()))
        if is_elsewhere is not None:
            own_entries = [entry for entry in own_entries if not is_elsewhere(entry)]
        processes = merge(own_entries)
        if max(len(processes), *map(len, lists.values())) >= MOST_LISTED:
            return Merged(
                processes,
                Cause.TRUNCATED,
                f"the driver lists at most {MOST_LISTED} processes of a GPU, so some may be missing",
                entries=own_entries,
            )
        return Merged(processes, entries=own_entries)

    def _ask(self, device: Handle, *, used: int | None, now: float) -> dict[ProcessList, list[ListedProcess]]:
        compute = self._driver.processes(device, ProcessList.COMPUTE)
        lists = {ProcessList.COMPUTE: compute}
        unexplained = (used or 0) - sum([entry.used_bytes or 0 for entry in compute])
        self._reads_since_full += 1
        pids = {entry.pid for entry in compute}
        is_full = (
            used is None
            or self._reads_since_full >= _READS_PER_FULL_ONE
            or abs(unexplained - self._unexplained) > _EXPLAINED_WITHIN
            or not pids <= self._pids
        )
        self._pids = pids
        if is_full:
            self._reads_since_full = 0
            self._unexplained = unexplained
        for which in _OTHERS:
            if (is_full or self._tells_more[which]) and self._not_offered[which].is_due(now):
                try:
                    lists[which] = self._driver.processes(device, which)
                except NotOffered:
                    self._not_offered[which].back_off(now)
                    self._tells_more[which] = False
                    if which is ProcessList.MPS:
                        self.mps_clients = None
                else:
                    self._not_offered[which].reset()
                    self._tells_more[which] = bool(lists[which]) and not set(lists[which]) <= set(compute)
        return lists


def merge(entries: Iterable[ListedProcess]) -> tuple[GpuProcess, ...]:
    """Merge the entries of each process.

    Entries with the same PID and MIG instance describe the same memory, whether in several lists or in one
    (nested PID namespaces repeat a PID). The largest known figure counts. Entries of different instances are
    different memory; their sum is unknown if one of them is.
    """
    by_instance: dict[tuple[int, int, int], int | None] = {}
    for entry in entries:
        key = entry.pid, entry.gpu_instance, entry.compute_instance
        used, before = entry.used_bytes, by_instance.get(key)
        if before is None or (used is not None and used > before):
            by_instance[key] = used
    by_pid: dict[int, int | None] = {}
    for (pid, _, _), used in by_instance.items():
        other = by_pid.get(pid, 0)
        by_pid[pid] = None if used is None or other is None else other + used
    return tuple([GpuProcess(pid, used) for pid, used in by_pid.items()])


def _are_credible(entries: Iterable[ListedProcess], total: int | None) -> bool:
    most = MOST_DEVICE_BYTES if total is None else total
    for entry in entries:
        used = entry.used_bytes
        if not 0 < entry.pid <= _MOST_PID or (used is not None and used > most):
            return False
    return True
