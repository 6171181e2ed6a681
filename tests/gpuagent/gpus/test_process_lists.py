"""Process lists of the driver: how often they are read, how entries are merged, and the call in a bounded array."""

import ctypes
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.gpus.driver import NO_INSTANCE, ListedProcess, ProcessList
from gpuagent.gpus.list_calls import ProcessListCall
from gpuagent.gpus.nvml import NvmlDriver
from gpuagent.gpus.process_lists import ProcessLists, merge
from tests.support.scenarios import GIB, node, process

entries = st.builds(
    ListedProcess, st.integers(1, 6), st.none() | st.integers(0, 1 << 40), st.sampled_from([NO_INSTANCE, 1, 2]),
    st.sampled_from([NO_INSTANCE, 0]),
)  # fmt: skip


@given(st.lists(entries))
def test_the_largest_known_figure_of_each_instance_counts(given):
    figures = defaultdict(lambda: defaultdict(list))
    for entry in given:
        figures[entry.pid][entry.gpu_instance, entry.compute_instance].append(entry.used_bytes)
    merged = {figures.pid: figures.used_bytes for figures in merge(given)}
    assert merged.keys() == figures.keys()
    for pid, instances in figures.items():
        known = [[used for used in all_ if used is not None] for all_ in instances.values()]
        expected = sum(max(figures) for figures in known) if all(known) else None
        assert merged[pid] == expected


@given(st.lists(entries), st.randoms())
def test_neither_order_nor_repetition_matters(given, random):
    again = given + given
    random.shuffle(again)
    assert set(merge(again)) == set(merge(given))


class CountingDriver(NvmlDriver):
    """A driver on a scenario whose time the test sets; counts the calls by list."""

    def __init__(self, answers):
        super().__init__()
        self.calls = Counter()
        self.answers = answers

    def processes(self, device, which):
        self.calls[which] += 1
        return super().processes(device, which)

    def reads(self, lists, *times):
        """Read at those moments, and return what processes there are at the last."""
        device = self.open(0)
        for time in times:
            self.answers.show(time)
            memory = self.memory(device)
            used = memory.total - memory.free - memory.reserved
            merged = lists.read(device, used=used, total=memory.total, now=time)
        return {process.pid: process.used_bytes for process in merged.processes}


@pytest.fixture
def counting(driven):
    made = []

    def make(*processes):
        _, answers = driven(node(*processes))
        made.append(CountingDriver(answers))
        made[-1].start()
        return made[-1]

    yield make
    for driver in made:
        driver.stop()


def test_lists_without_entries_are_read_at_every_fifth_sample(counting):
    driver = counting(process(100))
    driver.reads(ProcessLists(driver), *range(25))
    assert driver.calls[ProcessList.COMPUTE] == 25
    assert driver.calls[ProcessList.GRAPHICS] == driver.calls[ProcessList.MPS] == 5


@pytest.mark.parametrize("kind", ["graphics", "mps"])
def test_a_list_with_entries_is_read_at_every_sample(counting, kind):
    memory = {second: f"{100 + second}Mi" for second in range(25)}
    driver = counting(process(100, memory, kind=kind))
    lists = ProcessLists(driver)
    for second in range(25):
        assert driver.reads(lists, second) == {100: (100 + second) << 20}
    assert driver.calls[kind_of(kind)] == 25


@pytest.mark.parametrize("kind", ["graphics", "mps"])
def test_unexplained_memory_makes_every_list_be_read_at_once(counting, kind):
    driver = counting(process(100), process(101, "2Gi", kind=kind, **{"from": 9}))
    lists = ProcessLists(driver)
    assert driver.reads(lists, *range(9)) == {100: GIB}
    calls = driver.calls[kind_of(kind)]
    assert driver.reads(lists, 9) == {100: GIB, 101: 2 * GIB}
    assert driver.calls[kind_of(kind)] == calls + 1


def test_processes_that_trade_memory_are_seen_at_once(counting):
    driver = counting(
        process(100, {0: "3Gi", 5: "1Gi"}), process(101, {0: "1Gi", 5: "3Gi"}), process(102, until=7),
        process(103, **{"from": 7}),
    )  # fmt: skip
    lists = ProcessLists(driver)
    assert driver.reads(lists, *range(5)) == {100: 3 * GIB, 101: GIB, 102: GIB}
    assert driver.reads(lists, 5) == {100: GIB, 101: 3 * GIB, 102: GIB}
    assert driver.reads(lists, 7) == {100: GIB, 101: 3 * GIB, 103: GIB}


def kind_of(name):
    return ProcessList[name.upper()]


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
def test_the_array_stays_within_limits(monkeypatch: pytest.MonkeyPatch, demanded: int, room: int) -> None:
    library = Library(pynvml.NVML_ERROR_INSUFFICIENT_SIZE, demanded)
    use(library, monkeypatch)
    call = ProcessListCall()
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_InsufficientSize):
            call.read(SYMBOL, None)
    assert library.rooms == [1024, room, room]


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
