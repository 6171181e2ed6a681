"""The call of a process list: the same entries as the binding's own functions, and a bounded array."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpuagent.gpus.driver import ListedProcess, ProcessList
from gpuagent.gpus.list_calls import ProcessListCall
from gpuagent.gpus.nvml import NvmlDriver
from tests.support.scenarios import node, process

SYMBOL = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.mark.parametrize("count", [0, 1, 3, 949])
def test_the_entries_are_those_of_the_bindings_own_functions(driven: Any, count: int) -> None:
    some = [process(1000, "3Mi", count=count)] if count else []
    driven(node(*some, process(10, kind="graphics"), process(11, kind="mps"), process(12, gpu=1)))
    driver = NvmlDriver()
    driver.start()
    device = driver.open(0)
    for which in ProcessList:
        own = driver.processes(device, which)
        bindings = getattr(pynvml, f"{which.value}_v3")(device.handle)
        assert own == [
            ListedProcess(entry.pid, entry.usedGpuMemory, entry.gpuInstanceId, entry.computeInstanceId)
            for entry in bindings
        ]
    driver.stop()


class Library:
    """A library whose only function answers with a fixed code and count."""

    def __init__(self, code: int, count: int) -> None:
        self._code, self._count = code, count
        self.rooms: list[int] = []

    def function(self, _handle: Any, count: Any, _entries: Any) -> int:
        pointer = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))
        self.rooms.append(pointer.contents.value)
        pointer.contents.value = self._count
        return self._code


def use(library: Library | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a library the one that the binding has loaded."""
    loaded = SimpleNamespace(**{SYMBOL: library.function}) if library else None
    monkeypatch.setattr(pynvml, "nvmlLib", loaded)


@pytest.mark.parametrize(
    ("demanded", "room"), [(1, 1024), (1500, 3000), (1 << 14, 1 << 14), ((1 << 32) - 1, 1 << 14)]
)
def test_the_array_never_grows_beyond_its_limit(
    monkeypatch: pytest.MonkeyPatch, demanded: int, room: int
) -> None:
    library = Library(pynvml.NVML_ERROR_INSUFFICIENT_SIZE, demanded)
    use(library, monkeypatch)
    call = ProcessListCall()
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_InsufficientSize):
            call.read(SYMBOL, None)
    assert library.rooms == [1024, room, room]


def test_a_count_beyond_the_array_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Library(pynvml.NVML_SUCCESS, 1025), monkeypatch)
    with pytest.raises(pynvml.NVMLError_Unknown):
        ProcessListCall().read(SYMBOL, None)


def test_entries_that_the_driver_did_not_write_are_not_those_of_an_earlier_list(driven: Any) -> None:
    _, answers = driven(node(process(1000, "3Mi", count=5)))
    driver = NvmlDriver()
    driver.start()
    device = driver.open(0)
    assert len(driver.processes(device, ProcessList.COMPUTE)) == 5
    answers.show(more=["lie nvmlDeviceGetGraphicsRunningProcesses 0 3 0"])
    assert [entry.pid for entry in driver.processes(device, ProcessList.GRAPHICS)] == [0, 0, 0]
    driver.stop()


def test_without_library_or_function_the_error_is_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    use(None, monkeypatch)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        ProcessListCall().read(SYMBOL, None)
    use(Library(pynvml.NVML_SUCCESS, 0), monkeypatch)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        ProcessListCall().read("nvmlDeviceGetComputeRunningProcesses_v9", None)
