"""The state of a driver as a scenario defines it at each time, including failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuagent.gpus.driver import MOST_LISTED, NO_INSTANCE, ListedProcess, ProcessList, Sensor
from tests.support.scenarios.scenario import FaultKind, Scenario, SimulatedFault, SimulatedGpu

_UNKNOWN: Final = 999
_EVERY_CALL: Final = ("*",)
_LISTS: Final = tuple(which.value for which in ProcessList)

_FAILS: Final[dict[FaultKind, tuple[tuple[str, ...], int]]] = {
    FaultKind.GPU_LOST: (_EVERY_CALL, 15),
    FaultKind.RESET_REQUIRED: (_EVERY_CALL, 16),
    FaultKind.DRIVER_NOT_LOADED: (_EVERY_CALL, 9),
    FaultKind.UNINITIALIZED: (("nvmlDeviceGetMemoryInfo",), 1),
    FaultKind.NOT_READY: (_EVERY_CALL, 27),
    FaultKind.LIBRARY_MISSING: (_EVERY_CALL, 12),
    FaultKind.DRIVER_REPLACED: (_EVERY_CALL, 18),
    FaultKind.NO_PERMISSION: (_EVERY_CALL, 4),
    FaultKind.BLOCKED: (_EVERY_CALL, 17),
    FaultKind.UNKNOWN_ERROR: (_EVERY_CALL, _UNKNOWN),
    FaultKind.NOT_SUPPORTED: (_LISTS, 3),
    FaultKind.OLD_DRIVER: (("nvmlDeviceGetMemoryInfo_v2", *(f"{name}_v3" for name in _LISTS)), 13),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that fails, with an NVML error code."""

    call: str
    """Name of the call, with or without version, or `*` for all calls."""
    gpu: int | None
    """None: on all devices; with `*` also calls without a device."""
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMoment:
    """State of one GPU or MIG device."""

    uuid: str
    total: int
    reserved: int
    used: int
    lists: dict[ProcessList, list[ListedProcess]]
    instances: tuple["DeviceMoment", ...] = ()
    percents: dict[int, int] | None = None
    """Utilisation by PID in percent, without the processes that use nothing; None if the driver does not
    report it."""
    sensors: Mapping[Sensor, int] = field(default_factory=dict)
    """The sensors of the GPU in the driver's units."""
    xids: tuple[int, ...] = ()
    """Codes of the errors since the start, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    devices: tuple[DeviceMoment, ...]
    time: float = 0.0
    """Seconds since the start."""
    failures: tuple[Failure, ...] = ()
    races: frozenset[int | None] = frozenset()
    """GPUs (None: all) whose process list grows between the calls for its size and its content."""
    hangs: bool = False
    """Whether all calls block."""

    @property
    def time_stamp(self) -> int:
        """Time stamp of a utilisation sample at this time, in microseconds; never 0, which means no time."""
        return round((self.time + 1) * 1_000_000)


def state_at(scenario: Scenario, time: float) -> DriverState:
    """Return the driver's state, `time` seconds after the start."""
    faults = [fault for fault in scenario.faults if fault.is_at(time)]
    return DriverState(
        devices=tuple(
            _gpu(scenario, index, time, [fault for fault in faults if fault.gpu in (None, index)])
            for index in range(len(scenario.gpus))
        ),
        time=time,
        failures=tuple(
            Failure(call, fault.gpu, _FAILS[fault.fault][1])
            for fault in faults
            if fault.fault in _FAILS
            for call in _FAILS[fault.fault][0]
        ),
        races=frozenset(fault.gpu for fault in faults if fault.fault is FaultKind.SIZE_RACE),
        hangs=any(fault.fault is FaultKind.HANG for fault in faults),
    )


def _gpu(scenario: Scenario, index: int, time: float, faults: list[SimulatedFault]) -> DeviceMoment:
    gpu = scenario.gpus[index]
    kinds = {fault.fault for fault in faults}
    unknown = frozenset(fault.pid for fault in faults if fault.pid is not None)
    own, used = _lists(scenario, index, time, unknown)
    instances = []
    for number, mig in enumerate(gpu.mig, 1):
        lists, used_bytes = _lists(scenario, mig.uuid, time, unknown, number)
        instances.append(
            DeviceMoment(uuid=mig.uuid, total=int(mig.memory), reserved=0, used=used_bytes, lists=lists)
        )
        used += used_bytes
        for which in ProcessList:
            own[which].extend(lists[which])
    if FaultKind.PID_NAMESPACE in kinds:
        for device in (own, *(instance.lists for instance in instances)):
            for entries in device.values():
                entries.clear()
    if FaultKind.GARBAGE in kinds:
        compute = own[ProcessList.COMPUTE]
        compute[:1] = [ListedProcess(compute[0].pid if compute else 3, gpu.memory + 1)]
    return DeviceMoment(
        uuid=gpu.uuid,
        total=int(gpu.memory),
        reserved=int(gpu.reserved),
        used=used + gpu.unaccounted,
        lists={which: entries[:MOST_LISTED] for which, entries in own.items()},
        instances=tuple(instances),
        percents=_percents(scenario, index, time),
        sensors=_sensors(gpu, time),
        xids=tuple(xid.code for xid in sorted(gpu.xid, key=lambda xid: xid.at) if xid.at <= time),
    )


def _sensors(gpu: SimulatedGpu, time: float) -> dict[Sensor, int]:
    sensors: dict[Sensor, int] = {}
    if gpu.utilization is not None and not gpu.mig:
        sensors[Sensor.UTILIZATION] = gpu.utilization.at(time)
    if gpu.temperature is not None:
        sensors[Sensor.TEMPERATURE] = gpu.temperature.at(time)
    if gpu.power is not None:
        sensors[Sensor.POWER] = gpu.power.at(time) * 1000
    if gpu.power_limit is not None:
        sensors[Sensor.POWER_LIMIT] = gpu.power_limit.at(time) * 1000
    return sensors


def _percents(scenario: Scenario, index: int, time: float) -> dict[int, int] | None:
    """Return the utilisation of a GPU by PID; None if no process of the scenario has one."""
    if all(process.utilization is None for process in scenario.processes):
        return None
    percents: dict[int, int] = {}
    for process in scenario.processes:
        if process.gpu == index and process.utilization is not None and process.is_at(time):
            percent = process.utilization.at(time)
            if percent:
                percents.update(dict.fromkeys(range(process.pid, process.pid + process.count), percent))
    return percents


def _lists(
    scenario: Scenario, device: int | str, time: float, unknown: frozenset[int], instance: int | None = None
) -> tuple[dict[ProcessList, list[ListedProcess]], int]:
    gpu_instance, compute_instance = (NO_INSTANCE, NO_INSTANCE) if instance is None else (instance, 0)
    lists: dict[ProcessList, list[ListedProcess]] = {which: [] for which in ProcessList}
    used = 0
    for process in scenario.processes:
        if process.gpu != device or not process.is_at(time):
            continue
        used_bytes = process.memory.at(time)
        for pid in range(process.pid, process.pid + process.count):
            reported = None if pid in unknown else used_bytes
            entry = ListedProcess(pid, reported, gpu_instance, compute_instance)
            for which in process.kind:
                lists[which].append(entry)
        used += used_bytes * process.count
    return lists, used
