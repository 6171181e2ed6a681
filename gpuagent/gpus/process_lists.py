"""One device's process lists as one: which to ask for, how they merge, and when they cannot be believed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpuagent.gpus.driver import (
    MOST_DEVICE_BYTES,
    REFUSALS,
    CallFailed,
    Driver,
    DriverGone,
    GpuLost,
    Handle,
    ListedProcess,
    NotOffered,
    ProcessList,
)
from gpuagent.gpus.reading import GpuProcess
from gpuagent.problems import Cause
from service.backoff import Backoff

MOST_LISTED: Final = 950
"""The driver lists no more, and does not say so (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT)."""
_MOST_PID: Final = 1 << 22
"""The kernel's own limit (PID_MAX_LIMIT)."""
_EXPLAINED_WITHIN: Final = 1 << 20
_READS_PER_FULL_ONE: Final = 6
_OTHERS: Final = (ProcessList.MPS, ProcessList.GRAPHICS)


EntryKey: TypeAlias = tuple[int, int, int]
"""PID, GPU instance and compute instance."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Every process of a device, or why there is no list."""

    processes: tuple[GpuProcess, ...] | None
    cause: Cause | None = None
    """What is wrong; with `processes` only if they are cut off (TRUNCATED)."""
    detail: str = ""
    failure: CallFailed | None = None
    """The call that failed; None if the driver answered, be it with a list that cannot be believed."""
    entries: frozenset[EntryKey] = frozenset()
    """What `processes` was made of."""


class ProcessLists:
    """Reads one device's lists.

    The compute list is asked for every time: two processes can trade memory without any other figure
    changing, so that no cheaper look tells that a list still holds. The others are empty on most GPUs. Each
    is asked for every time while it tells something the compute list does not, else every sixth time, and
    whenever the device's used memory moved by more than 1 MiB that the compute list does not explain. Where
    the used memory is unknown each is asked for every time.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tells_more = dict.fromkeys(_OTHERS, True)
        self._not_offered = {which: Backoff(first=60, most=600) for which in _OTHERS}
        self._lacks = Merged(())
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
        is_elsewhere: Callable[[ListedProcess], bool] = lambda _entry: False,
    ) -> Merged:
        """Read and merge what is needed.

        Args:
            device: a GPU or a MIG device.
            used: bytes in use on the device; None if unknown.
            total: bytes of the device; None if unknown.
            now: monotonic seconds.
            is_elsewhere: whether an entry is to be left out, since a MIG device of the GPU lists it.

        Raises:
            GpuLost, DriverGone, DriverReplaced: it is not about the lists.
        """
        if not self._retry.is_due(now):
            return self._lacks
        try:
            lists = self._ask(device, used=used, now=now)
        except (GpuLost, DriverGone):
            raise
        except REFUSALS as refused:
            self._retry.failed(now)
            why = (
                "this driver lists no processes; virtual GPUs and WSL never do"
                if isinstance(refused, NotOffered)
                else "no permission to read the process list"
            )
            self._lacks = Merged(None, Cause.NVML, f"{refused}: {why}", refused.with_traceback(None))
            return self._lacks
        except CallFailed as failed:
            detail = f"{failed}: the process list could not be read"
            return Merged(None, Cause.NVML, detail, failed.with_traceback(None))
        self._retry.succeeded()
        for which, entries in lists.items():
            if not all(_is_credible(entry, total) for entry in entries):
                self._driver.errors.add(which.value, "Garbage")
                return Merged(
                    None,
                    Cause.GARBAGE,
                    "the driver lists an impossible PID, or a process with more memory than the device has:"
                    " the list is ignored (a known bug of drivers 535.54 to 535.86; use another version)",
                )
        kept = [entry for entries in lists.values() for entry in entries if not is_elsewhere(entry)]
        processes = merge(kept)
        keys = frozenset((entry.pid, entry.gpu_instance, entry.compute_instance) for entry in kept)
        if max(len(processes), *map(len, lists.values())) >= MOST_LISTED:
            return Merged(
                processes,
                Cause.TRUNCATED,
                f"the driver lists at most {MOST_LISTED} processes of a GPU, so some may be missing",
                entries=keys,
            )
        return Merged(processes, entries=keys)

    def _ask(self, device: Handle, *, used: int | None, now: float) -> dict[ProcessList, list[ListedProcess]]:
        compute = self._driver.processes(device, ProcessList.COMPUTE)
        lists = {ProcessList.COMPUTE: compute}
        unexplained = (used or 0) - sum(entry.used_bytes or 0 for entry in compute)
        self._reads_since_full += 1
        is_full = (
            used is None
            or self._reads_since_full >= _READS_PER_FULL_ONE
            or abs(unexplained - self._unexplained) > _EXPLAINED_WITHIN
        )
        if is_full:
            self._reads_since_full = 0
            self._unexplained = unexplained
        for which in _OTHERS:
            if (is_full or self._tells_more[which]) and self._not_offered[which].is_due(now):
                try:
                    lists[which] = self._driver.processes(device, which)
                except NotOffered:
                    self._not_offered[which].failed(now)
                    self._tells_more[which] = False
                else:
                    self._not_offered[which].succeeded()
                    self._tells_more[which] = bool(lists[which]) and not set(lists[which]) <= set(compute)
        return lists


def merge(entries: Iterable[ListedProcess]) -> tuple[GpuProcess, ...]:
    """Make one process of what is one process.

    Entries of the same PID and MIG instance, be they of several lists or of one (nested PID namespaces
    repeat a PID), are about the same memory: the largest figure counts, and one that is known before one
    that is not. Entries of several instances are different memory, and unknown if any is.
    """
    by_instance: dict[tuple[int, int, int], int | None] = {}
    for entry in entries:
        key = entry.pid, entry.gpu_instance, entry.compute_instance
        before = by_instance.get(key)
        if before is None or (entry.used_bytes is not None and entry.used_bytes > before):
            by_instance[key] = entry.used_bytes
    by_pid: dict[int, int | None] = {}
    for (pid, _, _), used in by_instance.items():
        other = by_pid.get(pid, 0)
        by_pid[pid] = None if used is None or other is None else other + used
    return tuple(GpuProcess(pid, used) for pid, used in by_pid.items())


def _is_credible(entry: ListedProcess, total: int | None) -> bool:
    most = MOST_DEVICE_BYTES if total is None else total
    return 0 < entry.pid <= _MOST_PID and (entry.used_bytes is None or entry.used_bytes <= most)
