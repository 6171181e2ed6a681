"""One GPU over time: its handle, its lists, and what happens to it while it does not answer."""

from gpuagent.gpus.backoff import Backoff
from gpuagent.gpus.driver import (
    MEMORY_INFO,
    CallFailed,
    Driver,
    DriverGone,
    GpuLost,
    Handle,
    NotOffered,
    explained,
)
from gpuagent.gpus.process_lists import Merged, ProcessLists
from gpuagent.gpus.reading import Gpu, MigInstance
from gpuagent.problems import Cause, Problem


class Device:
    """The GPU at one index of the driver, which may be lost and come back."""

    def __init__(self, *, driver: Driver, index: int, uuid: str = "") -> None:
        self._driver = driver
        self._index = index
        self.uuid = uuid
        """Empty until the device first answered."""
        self.failure: CallFailed | None = None
        """Why it does not answer; None while it does."""
        self._handle: Handle = None
        self._model = ""
        self._lists = ProcessLists(driver)
        self._instance_lists: dict[str, ProcessLists] = {}
        self._retry = Backoff()

    def read(self, now: float) -> tuple[Gpu | None, tuple[Problem, ...]]:
        """Read the device, or say why not. A device that failed is tried again later, from its handle on.

        Raises:
            DriverGone, DriverReplaced: it is not about this device.
        """
        if self._retry.is_due(now):
            try:
                if self._handle is None:
                    self._attach()
                gpu, problems = self._measure(now)
            except DriverGone:
                raise
            except CallFailed as failed:
                self._handle = None
                self._retry.failed(now)
                self.failure = failed.with_traceback(None)
            else:
                self._retry.succeeded()
                self.failure = None
                return gpu, problems
        why = explained(self.failure) if self.failure else "the GPU does not answer"
        return None, (Problem(Cause.NVML, self.scope, why),)

    @property
    def scope(self) -> str:
        """The UUID; `index-3` for a device that never told its own: an empty one would mean the node."""
        return self.uuid or f"index-{self._index}"

    def _attach(self) -> None:
        handle = self._driver.open(self._index)
        uuid = self._driver.uuid(handle)
        if not uuid:
            raise CallFailed("nvmlDeviceGetUUID", "Empty")
        try:
            self._model = self._driver.name(handle)
        except NotOffered:
            self._model = ""
        self._lists = ProcessLists(self._driver)
        self._instance_lists.clear()
        self.uuid = uuid
        self._handle = handle

    def _measure(self, now: float) -> tuple[Gpu, tuple[Problem, ...]]:
        total, used, reserved = self._memory(self._handle)
        is_mig = self._driver.is_mig(self._handle)
        merged = self._lists.read(self._handle, used=used, total=total, now=now, outside_instances=is_mig)
        problems = _problems(merged, self.uuid)
        instances = self._read_instances(now, problems) if is_mig else ()
        gpu = Gpu(
            index=self._index,
            uuid=self.uuid,
            model=self._model,
            total_bytes=total,
            used_bytes=used,
            reserved_bytes=reserved,
            processes=merged.processes,
            mig=is_mig,
            instances=instances,
        )
        return gpu, tuple(problems)

    def _read_instances(self, now: float, problems: list[Problem]) -> tuple[MigInstance, ...]:
        """Read those MIG devices that can be read, and add why others cannot."""
        instances = []
        try:
            for handle in self._driver.instances(self._handle):
                instance, more = self._read_instance(handle, now)
                instances.append(instance)
                problems += more
        except (GpuLost, DriverGone):
            raise
        except CallFailed as failed:  # taken down since it was listed, or not for the agent's eyes
            problems.append(Problem(Cause.NVML, self.uuid, f"{explained(failed)}: MIG devices are missing"))
        return tuple(instances)

    def _read_instance(self, handle: Handle, now: float) -> tuple[MigInstance, list[Problem]]:
        uuid = self._driver.uuid(handle)
        total, used, _ = self._memory(handle)
        lists = self._instance_lists.setdefault(uuid, ProcessLists(self._driver))
        merged = lists.read(handle, used=used, total=total, now=now)
        instance = MigInstance(uuid=uuid, total_bytes=total, processes=merged.processes)
        return instance, _problems(merged, uuid)

    def _memory(self, handle: Handle) -> tuple[int, int, int | None]:
        memory = self._driver.memory(handle)
        used = memory.total - memory.free - (memory.reserved or 0)
        if memory.total <= 0 or used < 0:
            self._driver.errors.add(MEMORY_INFO, "Garbage")
            raise CallFailed(MEMORY_INFO, "Garbage")
        return memory.total, used, memory.reserved


def _problems(merged: Merged, uuid: str) -> list[Problem]:
    return [Problem(merged.cause, uuid, merged.detail)] if merged.cause else []
