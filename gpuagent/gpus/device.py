"""One GPU over time: its handle, its figures, and retries while it does not respond."""

from typing import Final, TypeAlias

from gpuagent.gpus.device_figures import MemoryReader, UtilizationReader
from gpuagent.gpus.driver import (
    NO_INSTANCE,
    REFUSALS,
    CallFailed,
    FigureFailed,
    Handle,
    ListedProcess,
    NotOffered,
    NotPermitted,
    ProcessList,
    explained,
)
from gpuagent.gpus.gpu_reading import Gpu, MigInstance, Percents
from gpuagent.gpus.health import HealthReader
from gpuagent.gpus.nvml import NvmlDriver
from gpuagent.gpus.process_lists import Merged, ProcessLists
from gpuagent.problems import Cause, Problem
from service.backoff import Backoff

_MOST_MIG_PLACES: Final = 256
"""Upper bound of MIG devices to read per GPU; A100 and H100 have at most 7."""


_EntryKey: TypeAlias = tuple[int, int, int]
"""PID, GPU instance and compute instance."""


Answer: TypeAlias = tuple[Gpu | None, tuple[Problem, ...]]
"""The figures and their problems; the GPU is None if it does not respond."""


class Device:
    """The GPU at one index of the driver. It may be lost and come back."""

    def __init__(self, *, driver: NvmlDriver, index: int, health: HealthReader, uuid: str = "") -> None:
        self._driver = driver
        self._index = index
        self.uuid = uuid
        """Empty until the first response of the device."""
        self.failure: CallFailed | None = None
        """Why the device does not respond; None while it does."""
        self.is_mig = False
        """Whether the GPU was in MIG mode at its last response."""
        self._handle: Handle = None
        """The last handle, by which the errors of a lost GPU can still be read; None if invalid."""
        self._is_open = False
        """Whether the device responded to its last call."""
        self._model = ""
        self._health = health
        self._readers = _Readers(driver)
        self._instances: dict[str, _Readers] = {}
        self._retry = Backoff()

    def reset(self) -> None:
        """Discard the handle, which is invalid after an initialisation of the driver, and retry at once."""
        self._handle = None
        self._is_open = False
        self._retry.end_wait()

    def read(self, now: float) -> Answer:
        """Read the device; None if it does not respond, with the reason in `failure`.

        A failed device is opened again after a back-off. The errors (XID) come first, so that the error with
        which a GPU is lost is known: an initialisation of the driver, which a lost GPU causes, drops them.
        """
        if self._handle is not None:
            self._health.read(self._handle, self.uuid, now, is_open=self._is_open)
        if self._retry.is_due(now):
            try:
                if not self._is_open:
                    self._attach()
                    self._health.read(self._handle, self.uuid, now, is_open=True)
                gpu, problems = self._measure(now)
            except CallFailed as failed:
                self._is_open = False
                self._retry.back_off(now)
                self.failure = failed.with_traceback(None)
            else:
                self._retry.reset()
                self.failure = None
                return gpu, problems
        return None, ()

    @property
    def handle(self) -> Handle | None:
        """The handle of a GPU that responded to its last call and is not in MIG mode; else None."""
        return self._handle if self._is_open and not self.is_mig else None

    @property
    def scope(self) -> str:
        """The UUID, or `index-3` if the UUID is unknown, since an empty UUID means the node."""
        return self.uuid or self.place

    @property
    def place(self) -> str:
        """The position, as `index-3`."""
        return f"index-{self._index}"

    @property
    def index(self) -> int:
        """The place in the driver's list."""
        return self._index

    def _attach(self) -> None:
        handle = self._driver.open(self._index)
        uuid = self._driver.uuid(handle)
        if not uuid:
            raise FigureFailed("nvmlDeviceGetUUID", "Empty")
        try:
            self._model = self._driver.name(handle)
        except FigureFailed:  # the name is optional
            self._model = ""
        self._readers = _Readers(self._driver)
        self._health.renew()
        self._instances.clear()
        self.uuid = uuid
        self._handle = handle
        self._is_open = True

    def _measure(self, now: float) -> tuple[Gpu, tuple[Problem, ...]]:
        """Read all figures. A refused figure is unknown, and does not affect the others.

        Raises:
            CallFailed: the GPU is lost, or reports neither its memory nor its processes.
        """
        memory = self._readers.memory.read(self._handle, now)
        problems: list[Problem] = []
        is_mig = self._is_mig(problems)
        parts = _Assembly(is_complete=is_mig is True)
        if is_mig is not False:
            self._read_instances(parts, now, problems)
        used, total = (memory.used, memory.total) if memory else (None, None)
        merged = self._readers.lists.read(
            self._handle,
            used=used,
            total=total,
            now=now,
            is_elsewhere=None if is_mig is False else parts.has,
        )
        processes = merged.processes
        if processes is None and memory is None and not parts.instances and not parts.is_complete:
            self._raise_failure(merged)
        if parts.is_complete and _is_refused_whole(merged):
            # NVML returns the GPU's own list, an aggregate, "only if the caller has appropriate privileges".
            # In MIG mode every process runs on a MIG device, and all MIG devices were read.
            processes = ()
        else:
            problems += _problems(merged, self.uuid)
        if memory is None and not self._readers.memory.is_refused:
            failure = self._readers.memory.failure
            error = failure.error if failure else ""
            problems.append(Problem(Cause.NVML, self.uuid, self._why_memory_is_unknown(), error))
        self.is_mig = bool(is_mig or parts.instances)
        utilization = self._utilization(now)
        gpu = Gpu(
            index=self._index,
            uuid=self.uuid,
            model=self._model,
            total_bytes=total,
            used_bytes=used,
            reserved_bytes=memory.reserved if memory else None,
            processes=processes,
            mig=self.is_mig,
            instances=tuple(parts.instances),
            memory_unknown="" if memory else self._why_memory_is_unknown(),
            utilization=utilization,
            utilization_unknown=self._why_utilization_is_unknown(),
            sensors=self._health.sensors(self.uuid),
            mps_clients=self._readers.lists.mps_clients,
        )
        return gpu, tuple(problems)

    def _utilization(self, now: float) -> Percents | None:
        """Return the utilisation by PID; None if unknown, as for every GPU in MIG mode.

        NVML does not support the call in MIG mode. An MPS client without a sample is unknown, since the
        driver may have sampled its kernels as those of the MPS server.
        """
        if self.is_mig:
            self._readers.utilization = UtilizationReader(self._driver)
            return None
        percents = self._readers.utilization.read(self._handle, now)
        if percents is None:
            return None
        return {**dict.fromkeys(self._readers.lists.mps_clients or ()), **percents}

    def _why_utilization_is_unknown(self) -> str:
        if self.is_mig:
            return "NVML does not report it in MIG mode"
        failure = self._readers.utilization.failure
        return explained(failure) if failure else ""

    def _is_mig(self, problems: list[Problem]) -> bool | None:
        """Whether the GPU is in MIG mode; None, with a problem, if unknown."""
        try:
            return self._driver.is_mig(self._handle)
        except FigureFailed as failed:
            detail = f"{explained(failed)}: whether the GPU is in MIG mode is unknown"
            problems.append(Problem(Cause.NVML, self.uuid, detail, failed.error))
            return None

    def _read_instances(self, parts: "_Assembly", now: float, problems: list[Problem]) -> None:
        """Read all readable MIG devices, and add a problem for each other one."""
        try:
            places = self._driver.mig_places(self._handle)
        except FigureFailed as failed:
            parts.is_complete = False
            if not isinstance(failed, NotOffered):
                problems.append(self._missing(failed))
            return
        for place in range(min(places, _MOST_MIG_PLACES)):
            try:
                self._read_instance(parts, place, now, problems)
            except FigureFailed as failed:  # removed since it was listed, or not accessible for the agent
                parts.is_complete = False
                problems.append(self._missing(failed))
        present = {instance.uuid for instance in parts.instances}
        self._instances = {uuid: readers for uuid, readers in self._instances.items() if uuid in present}

    def _read_instance(self, parts: "_Assembly", place: int, now: float, problems: list[Problem]) -> None:
        handle = self._driver.instance(self._handle, place)
        if handle is None:
            return
        uuid = self._driver.uuid(handle)
        if not uuid or any(uuid == instance.uuid for instance in parts.instances):
            raise FigureFailed("nvmlDeviceGetUUID", "Duplicate" if uuid else "Empty")
        readers = self._instances.setdefault(uuid, _Readers(self._driver))
        memory = readers.memory.read(handle, now)
        used, total = (memory.used, memory.total) if memory else (None, None)
        merged = readers.lists.read(handle, used=used, total=total, now=now)
        parts.is_complete &= merged.processes is not None
        parts.entries.update(map(_key, merged.entries))
        why = readers.memory.failure
        parts.instances.append(
            MigInstance(
                uuid=uuid,
                total_bytes=total,
                used_bytes=used,
                processes=merged.processes,
                memory_unknown="" if memory or not why else explained(why),
            )
        )
        problems += _problems(merged, uuid)

    def _missing(self, failed: CallFailed) -> Problem:
        detail = f"{explained(failed)}: some MIG devices could not be read"
        return Problem(Cause.NVML, self.uuid, detail, failed.error)

    def _raise_failure(self, merged: Merged) -> None:
        """Raise the failure of the process lists, if any.

        Failures that a restart may solve take precedence.
        """
        failures = [failure for failure in (self._readers.memory.failure, merged.failure) if failure]
        if merged.failure is not None:
            raise min(failures, key=lambda failure: isinstance(failure, REFUSALS))

    def _why_memory_is_unknown(self) -> str:
        failure = self._readers.memory.failure
        if isinstance(failure, NotPermitted):
            return (
                f"{failure}: a GPU in MIG mode reports its memory only to containers with the MIG monitor"
                " capability (the chart's agent.migMonitor)"
            )
        if isinstance(failure, NotOffered):
            return f"{failure}: this GPU does not report its memory; GPUs with unified memory never do"
        return explained(failure) if failure else ""


class _Readers:
    """State of one GPU or MIG device that outlives a sample."""

    def __init__(self, driver: NvmlDriver) -> None:
        self.memory = MemoryReader(driver)
        self.lists = ProcessLists(driver)
        self.utilization = UtilizationReader(driver)


class _Assembly:
    """The MIG devices of a GPU in one sample."""

    def __init__(self, *, is_complete: bool) -> None:
        self.instances: list[MigInstance] = []
        self.entries: set[_EntryKey] = set()
        """The entries of all process lists that were read."""
        self.is_complete = is_complete
        """Whether the GPU is in MIG mode, and every MIG device and its processes were read."""

    def has(self, entry: ListedProcess) -> bool:
        """Whether an entry of the GPU's own list belongs to a MIG device that was read.

        The entries of other MIG devices count for the GPU, since they are in no other list.
        """
        if entry.gpu_instance == NO_INSTANCE:
            return False
        keys = _key(entry), (entry.pid, NO_INSTANCE, NO_INSTANCE)
        return self.is_complete or any(key in self.entries for key in keys)


def _key(entry: ListedProcess) -> _EntryKey:
    return entry.pid, entry.gpu_instance, entry.compute_instance


def _is_refused_whole(merged: Merged) -> bool:
    """Whether the driver refused the compute list, the first one, so that no process is known."""
    failure = merged.failure
    return isinstance(failure, REFUSALS) and failure.call == ProcessList.COMPUTE.value


def _problems(merged: Merged, uuid: str) -> list[Problem]:
    error = merged.failure.error if merged.failure else ""
    return [Problem(merged.cause, uuid, merged.detail, error)] if merged.cause else []
