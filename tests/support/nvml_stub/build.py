"""Builds the simulated driver library and writes its answers."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from gpuagent.gpus.driver import ProcessList
from tests.support.scenarios.driver import DeviceMoment, DriverState, state_at
from tests.support.scenarios.scenario import Scenario

NAME = "libnvidia-ml.so.1"
ANSWERS = "NVML_STUB_FILE"
_UNINITIALIZED = 1
_NOT_SUPPORTED = 3
_SOURCE = Path(__file__).with_name("nvml_stub.c")


def built_library(folder: Path, *flags: str) -> Path:
    """Build the simulated driver library; return its path.

    Flags: `-DWITHOUT_V3`, `-DWITHOUT_MEMORY_V2`. The library has no SONAME; with one, a later load of the
    real library in this process would return this one.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is needed: apt-get install gcc")
    library = folder / "-".join(["nvml", *(flag.removeprefix("-D").lower() for flag in flags)]) / NAME
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        making = library.with_suffix(".making")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(making), str(_SOURCE)],
            check=True,
        )  # fmt: skip
        making.rename(library)
    return library


class Answers:
    def __init__(self, path: Path, scenario: Scenario) -> None:
        self.path = path
        self.scenario = scenario

    def show(self, time: float = 0.0, *, more: Iterable[str] = ()) -> None:
        """Write the state of a scenario at a time, with further lines in the library's format."""
        self.write([*_lines(self.scenario, state_at(self.scenario, time)), *more])

    def write(self, lines: Iterable[str]) -> None:
        making = self.path.with_suffix(".making")
        making.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        making.replace(self.path)


def use_library(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make NVIDIA's binding in this process load the simulated library until the patch ends.

    A test whose GPU hung may have left the library initialised.
    """
    loaded = ctypes.CDLL(str(library))
    while loaded.nvmlShutdown() != _UNINITIALIZED:
        continue
    monkeypatch.setattr(pynvml, "nvmlLib", loaded)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


def _lines(scenario: Scenario, moment: DriverState) -> Iterable[str]:
    yield f"driver {scenario.node.driver}"
    for index, gpu in enumerate(moment.devices):
        yield f"gpu {index} {gpu.uuid} {gpu.total} {gpu.reserved} {gpu.used} {scenario.gpus[index].model}"
        yield from _processes(index, "-", gpu)
        if gpu.percents is None:
            yield f"samples {index} 0 0 {_NOT_SUPPORTED}"
        for pid, percent in (gpu.percents or {}).items():
            yield f"sample {index} {pid} {moment.time_stamp} {percent}"
        for sensor, value in gpu.sensors.items():
            yield f"sensor {index} {sensor.value} {value}"
        for number, code in enumerate(gpu.xids, 1):
            yield f"xid {index} {number} {code}"
        for place, mig in enumerate(gpu.instances):
            yield f"mig {index} {mig.uuid} {mig.total} {mig.reserved} {mig.used}"
            yield from _processes(index, str(place), mig)
    for failure in moment.failures:
        yield f"fail {failure.call} {'-' if failure.gpu is None else failure.gpu} {failure.code}"
    for race in moment.races:
        yield f"race {'-' if race is None else race} -1"
    if moment.hangs:
        yield "hang"


def _processes(index: int, mig: str, device: DeviceMoment) -> Iterable[str]:
    for number, which in enumerate(ProcessList):
        for entry in device.lists[which]:
            used = "-" if entry.used_bytes is None else entry.used_bytes
            yield (
                f"process {index} {mig} {number} {entry.pid} {used}"
                f" {entry.gpu_instance} {entry.compute_instance}"
            )
