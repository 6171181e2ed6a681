"""What the simulated library of the driver answers as a scenario defines at each time, including failures."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final

from gpuagent.gpus.driver import NO_INSTANCE, ProcessList, Sensor
from gpuagent.gpus.process_lists import MOST_LISTED
from tests.support.scenarios.scenario import FaultKind, Scenario, SimulatedFault, SimulatedProcess

_NOT_SUPPORTED: Final = 3
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
    FaultKind.UNKNOWN_ERROR: (_EVERY_CALL, 999),
    FaultKind.NOT_SUPPORTED: (_LISTS, 3),
    FaultKind.OLD_DRIVER: (("nvmlDeviceGetMemoryInfo_v2", *(f"{name}_v3" for name in _LISTS)), 13),
}
"""Calls that fail, with or without version or `*` for all, and NVML's error code."""


def lines_at(scenario: Scenario, time: float) -> Iterator[str]:
    """Yield what the library answers, `time` seconds after the start, in its format."""
    faults = [fault for fault in scenario.faults if fault.is_at(time)]
    yield f"driver {scenario.node.driver}"
    for index in range(len(scenario.gpus)):
        yield from _gpu(scenario, index, time, [fault for fault in faults if fault.gpu in (None, index)])
    for fault in faults:
        where = "-" if fault.gpu is None else fault.gpu
        calls, code = _FAILS.get(fault.fault, ((), 0))
        yield from (f"fail {call} {where} {code}" for call in calls)
        if fault.fault is FaultKind.SIZE_RACE:
            yield f"race {where} -1"
        if fault.fault is FaultKind.HANG:
            yield "hang"


def _gpu(scenario: Scenario, index: int, time: float, faults: Sequence[SimulatedFault]) -> Iterator[str]:
    gpu, kinds = scenario.gpus[index], {fault.fault for fault in faults}
    processes = [each for each in scenario.processes if each.is_at(time)]
    unknown = {fault.pid for fault in faults}
    none = f"{NO_INSTANCE} {NO_INSTANCE}"
    own = [*_listed(processes, index, time, unknown, none)]
    migs = [
        [*_listed(processes, mig.uuid, time, unknown, f"{number} 0")] for number, mig in enumerate(gpu.mig, 1)
    ]
    if FaultKind.PID_NAMESPACE in kinds:
        own, migs = [], [[] for _ in migs]
    if FaultKind.GARBAGE in kinds:
        first = next((entry for entry in own if entry[0] == 0), None)
        own = [(0, first[1] if first else 3, f"{gpu.memory + 1} {none}"), *(e for e in own if e is not first)]
    used = [_used(processes, device, time) for device in (index, *(mig.uuid for mig in gpu.mig))]
    yield f"gpu {index} {gpu.uuid} {gpu.memory} {gpu.reserved} {sum(used) + gpu.unaccounted} {gpu.model}"
    for which in range(len(ProcessList)):
        entries = [entry for entry in (*own, *chain.from_iterable(migs)) if entry[0] == which]
        yield from (f"process {index} - {which} {pid} {rest}" for _, pid, rest in entries[:MOST_LISTED])
    for place, mig in enumerate(gpu.mig):
        yield f"mig {index} {mig.uuid} {mig.memory} 0 {used[place + 1]}"
        yield from (f"process {index} {place} {which} {pid} {rest}" for which, pid, rest in migs[place])
    if all(process.utilization is None for process in scenario.processes):
        yield f"samples {index} 0 0 {_NOT_SUPPORTED}"
    for process in processes:
        percent = process.utilization.at(time) if process.utilization and process.gpu == index else 0
        if percent:  # a time stamp of 0 would mean no time
            yield from (
                f"sample {index} {pid} {round((time + 1) * 1_000_000)} {percent}" for pid in process.pids
            )
    for sensor, value, unit in (
        (Sensor.UTILIZATION, None if gpu.mig else gpu.utilization, 1),
        (Sensor.TEMPERATURE, gpu.temperature, 1),
        (Sensor.POWER, gpu.power, 1000),
        (Sensor.POWER_LIMIT, gpu.power_limit, 1000),
    ):
        if value is not None:
            yield f"sensor {index} {sensor.value} {value.at(time) * unit}"
    for number, xid in enumerate(sorted(gpu.xid, key=lambda xid: xid.at), 1):
        if xid.at <= time:
            yield f"xid {index} {number} {xid.code}"


def _listed(
    processes: Sequence[SimulatedProcess],
    device: int | str,
    time: float,
    unknown: Collection[int | None],
    instance: str,
) -> Iterator[tuple[int, int, str]]:
    """Yield each entry of a device's lists: the number of the list, the PID, and the rest of its line."""
    for process in processes:
        for pid in process.pids if process.gpu == device else ():
            used = "-" if pid in unknown else process.memory.at(time)
            for number, which in enumerate(ProcessList):
                if which in process.kind:
                    yield number, pid, f"{used} {instance}"


def _used(processes: Sequence[SimulatedProcess], device: int | str, time: float) -> int:
    return sum(each.memory.at(time) * each.count for each in processes if each.gpu == device)
