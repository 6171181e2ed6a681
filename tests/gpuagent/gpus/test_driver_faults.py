"""Faults of the driver in any order, against the real binding.

A node has three GPUs, MIG on some of them, and a pod for each process. A library that stands in for NVIDIA's answers as the
node's true state says, except where a fault applies: a call fails with any code, hangs, or lies. GPUs are lost, reset, added
and removed, and the driver is replaced. The agent's reader, ledger and verdicts run on a simulated clock. After each sample:

- no pod that stays within its share has a flag,
- each figure equals the true state of that moment, or is absent,
- a GPU without a fault is in the sample, with its figures,
- a new process is asked for only after the driver was replaced, or while every GPU fails.
"""

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from gpuagent.gpus.gpu_reader import NvmlGpus
from gpuagent.gpus.gpu_reading import DriverReplaced, Gpu
from gpuagent.pods.inventory import Inventory
from kai import keys
from tests.support.driver_chain import Chain, Series
from tests.support.markers import scaled
from tests.support.nvml_stub.build import ANSWERS, cached_library, use_library
from tests.support.proc_files import ProcTree, in_pod
from tests.support.samples import pod, uid_of

GIB: Final = 1 << 30
MIB: Final = 1 << 20
TOTAL, RESERVED = 16 * GIB, 512 * MIB
UUIDS: Final = tuple(f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abcd")
SHARE: Final = 6 * GIB
"""Share of each pod on its GPU; `calm` pods hold at most as much, and `greedy` more."""
GREEDY: Final = "greedy"
STEP_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 30.0
_OUTSIDE_MIG: Final = "4294967295 4294967295"
_HUGE: Final = (1 << 32) - 1

NODE_CALLS: Final = ("nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlEventSetCreate", "nvmlEventSetFree")  # fmt: skip
GPU_CALLS: Final = (
    "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceRegisterEvents", "nvmlEventSetWait", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)  # fmt: skip
SENSORS: Final = {
    "nvmlDeviceGetUtilizationRates": 37, "nvmlDeviceGetTemperature": 61, "nvmlDeviceGetPowerUsage": 142_500,
    "nvmlDeviceGetEnforcedPowerLimit": 300_000,
}  # fmt: skip
TRUE_SENSORS: Final = {"utilization_ratio": 0.37, "temperature_celsius": 61, "power_watts": 142.5, "power_limit_watts": 300.0}  # fmt: skip
XIDS: Final = (13, 31, 48, 79)
BLOCKS, GONE, NOT_LOADED, REPLACED = -1, 15, 9, 18
CODES: Final = (BLOCKS, 1, 2, 3, 4, 6, 7, NOT_LOADED, 10, 12, 13, GONE, 16, 17, REPLACED, 25, 27, 28, 999, 12345, -7)  # fmt: skip
_MISSING: Final = frozenset({3, 13, 25})
"""Codes that say that a driver does not have a call. A process that only such a list has is not known."""

LIES: Final = (
    "process {index} - 0 {pid} " + f"{11 * GIB} {_OUTSIDE_MIG}",  # more than the GPU's used memory
    "process {index} - 0 {pid} " + f"{TOTAL + 1} {_OUTSIDE_MIG}",
    "process {index} - 0 {pid} " + f"{(1 << 63) + 5} {_OUTSIDE_MIG}",
    "process {index} - 0 {pid} - " + _OUTSIDE_MIG,
    "process {index} - 2 {pid} " + f"{12 * GIB} {_OUTSIDE_MIG}",
    "process {index} - 0 0 " + f"{GIB} {_OUTSIDE_MIG}",
    "process {index} - 0 7777 " + f"{GIB} {_OUTSIDE_MIG}",  # not in /proc
    "process {index} - 0 4194305 " + f"{GIB} {_OUTSIDE_MIG}",
    f"process {{index}} - 0 {_HUGE} {GIB} {_OUTSIDE_MIG}",
    "gpu {index} {uuid} 0 0 0 NVIDIA A10",
    "gpu {index} {uuid} " + f"{1 << 51} 0 {1 << 50} NVIDIA A10",
    "gpu {index} {uuid} " + f"{TOTAL} 0 {1 << 63} NVIDIA A10",
    "gpu {index} {uuid} " + f"{TOTAL} {1 << 62} {GIB} NVIDIA A10",
    "gpu {index} {uuid} " + f"{TOTAL} 0 0 NVIDIA A10",
    "gpu {index} " + f"{UUIDS[0]} {TOTAL} {RESERVED} {GIB} NVIDIA A10",  # the UUID of another GPU
    *(
        f"lie {call} {{index}} {number} {code}"
        for call in (*GPU_CALLS[4:9], "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigMode")
        for number, code in ((_HUGE, 0), (_HUGE, 7), (1025, 7), (5, 0), (0, 0), (200_000_000, 7))
    ),
    *(f"sensor {{index}} {call} {_HUGE}" for call in SENSORS),
    f"sample {{index}} {{pid}} 0 {_HUGE}",
    f"sample {{index}} {{pid}} {(1 << 64) - 1} 50",
    "sample {index} 0 0 50",
    "xid {index} 1000001 0",
    f"xid {{index}} 1000002 {_HUGE}",
    "race {index} -1",
    "samples {index} 1 -1 0",
    "delay {index} 20",
)
NODE_FAULTS: Final = (
    f"lie nvmlDeviceGetCount - {_HUGE} 0", "lie nvmlDeviceGetCount - 0 0", "lie nvmlDeviceGetCount - 120 0", "sticky",
    *(f"fail {call} - {code}" for call in NODE_CALLS for code in CODES if code != REPLACED),
)  # fmt: skip


@dataclass
class Process:
    pid: int
    pod: str
    used: int
    which: int = 0
    """The list that has it: 0 compute, 1 graphics."""


@dataclass
class TrueGpu:
    uuid: str
    processes: list[Process]
    is_mig: bool = False
    is_lost: bool = False
    faults: list[str] = field(default_factory=list)
    """Lines of the library, with `{index}` in place of the GPU's index."""
    is_lied_about: bool = False
    is_suspect: bool = False
    """Whether a fault of the GPU has ended whose back-off may last."""

    @property
    def used(self) -> int:
        return sum(process.used for process in self.processes)

    def lines(self, index: int) -> Iterable[str]:
        place, instance = ("0", "1 0") if self.is_mig else ("-", _OUTSIDE_MIG)
        yield f"gpu {index} {self.uuid} {TOTAL} {RESERVED} {self.used} NVIDIA A10"
        if self.is_mig:
            yield f"mig {index} MIG-{self.uuid[4:]} {TOTAL // 2} 0 {self.used}"
        for process in self.processes:
            yield f"process {index} {place} {process.which} {process.pid} {process.used} {instance}"
            yield f"sample {index} {process.pid} 0 20"
        for call, value in SENSORS.items():
            yield f"sensor {index} {call} {value}"
        if self.is_lost:
            yield f"fail * {index} {GONE}"
        for line in self.faults:
            yield line.format(index=index, uuid=self.uuid, pid=self.processes[0].pid)


class DriverFaults(RuleBasedStateMachine):
    """A node whose driver has faults, and the agent's chain from the driver to the figures."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0
        self.folder = Path(tempfile.mkdtemp(prefix="kaishare-driver-"))
        self.patch = pytest.MonkeyPatch()
        self.answers = self.folder / "answers"
        self.patch.setenv(ANSWERS, str(self.answers))
        self.now = 1000.0
        self.pids = itertools.count(100)
        self.tree = ProcTree(self.folder / "proc")
        self.tree.add(2, "0::/", name="kthreadd")
        self.gpus: list[TrueGpu] = []
        self.node_faults: list[str] = []
        self.newest_xid = 0

    @initialize()
    def start(self) -> None:
        """Begin with three healthy GPUs: two with a calm pod, and one with a greedy pod, too."""
        self.gpus = [
            TrueGpu(UUIDS[0], [self.process("calm-0", 4 * GIB), self.process(GREEDY, 9 * GIB)]),
            TrueGpu(UUIDS[1], [self.process("calm-1", 2 * GIB), self.process("calm-1", GIB, which=1)]),
            TrueGpu(UUIDS[2], [self.process("calm-2", SHARE)]),
        ]
        self.pods = [*(f"calm-{number}" for number in range(len(UUIDS))), GREEDY]
        of_pod = {name: UUIDS[0] if name == GREEDY else UUIDS[int(name[-1])] for name in self.pods}
        self.inventory = Inventory(
            pods={
                each.uid: each
                for name in self.pods
                for each in [
                    pod(
                        name,
                        annotations={keys.GPU_MEMORY: str(SHARE // MIB)},
                        labels={keys.GPU_GROUP: of_pod[name]},
                    )
                ]
            },
            reservations={uuid: uuid for uuid in UUIDS},
        )
        self.write()
        use_library(cached_library(), self.patch)
        self.begin_process()
        self.sample()

    def begin_process(self) -> None:
        """Start a new agent: nothing of the old one is known."""
        self.source = NvmlGpus(clock=lambda: self.now, deadline=DEADLINE_SECONDS)
        self.chain = Chain(self.source, self.tree.root, self.inventory, lambda: self.now)

    def process(self, name: str, used: int, which: int = 0) -> Process:
        pid = next(self.pids)
        self.tree.add(pid, in_pod(uid_of(name)), start=pid)
        return Process(pid, name, used, which)

    # What happens on the node

    @rule(index=st.integers(0, 3), part=st.integers(0, 100))
    def allocate(self, index: int, part: int) -> None:
        """Change the memory of a calm pod, up to exactly its share."""
        gpu = self.gpu(index)
        process = gpu.processes[0]
        others = sum(each.used for each in gpu.processes[1:] if each.pod == process.pod)
        process.used = (SHARE - others) * part // 100

    @rule(index=st.integers(0, 3))
    def restart_pod_process(self, index: int) -> None:
        gpu = self.gpu(index)
        old = gpu.processes[0]
        self.tree.end(old.pid)
        gpu.processes[0] = self.process(old.pod, old.used, old.which)

    @rule(index=st.integers(0, 3))
    def reuse_pid(self, index: int) -> None:
        """End a process; the kernel gives its PID to a process of another pod, on another GPU."""
        gpu, other = self.gpu(index), self.gpu(index + 1)
        if gpu is other:
            return
        old, new = gpu.processes[0], other.processes[0]
        self.tree.end(new.pid)
        new.pid, old.pid = old.pid, next(self.pids)
        for process in (new, old):
            self.tree.add(process.pid, in_pod(uid_of(process.pod)), start=next(self.pids))

    @rule(index=st.integers(0, 3))
    def toggle_mig(self, index: int) -> None:
        gpu = self.gpu(index)
        if any(line.startswith("gpu") for line in gpu.faults):
            return
        gpu.is_mig = not gpu.is_mig
        gpu.is_suspect = True

    @rule(index=st.integers(0, 3), code=st.sampled_from(XIDS))
    def report_error(self, index: int, code: int) -> None:
        self.newest_xid += 1
        gpu = self.gpu(index)
        gpu.faults.append(f"xid {{index}} {self.newest_xid} {code}")

    # Faults

    @rule(index=st.integers(0, 3), call=st.sampled_from(GPU_CALLS), code=st.sampled_from(CODES))
    def fail(self, index: int, call: str, code: int) -> None:
        gpu = self.gpu(index)
        gpu.faults.append(f"fail {call} {{index}} {code}")
        gpu.is_suspect = True
        gpu.is_lied_about |= code in _MISSING and call in GPU_CALLS[4:7]

    @rule(index=st.integers(0, 3), line=st.sampled_from(LIES))
    def lie(self, index: int, line: str) -> None:
        """Let a call of one GPU succeed with an impossible result."""
        gpu = self.gpu(index)
        if gpu.is_mig and line.startswith("gpu"):
            return
        gpu.faults.append(line)
        gpu.is_suspect = True
        gpu.is_lied_about |= not line.startswith("delay")
        if UUIDS[0] in line:
            self.suspect_all()

    @rule(line=st.sampled_from(NODE_FAULTS))
    def fail_node(self, line: str) -> None:
        self.node_faults.append(line)
        self.suspect_all()

    @rule(seconds=st.sampled_from([5, 30]))
    def hang_all(self, seconds: int) -> None:
        """Let every call hang for some seconds of the simulated clock."""
        self.node_faults.append("hang")
        self.suspect_all()
        for _ in range(seconds // 5):
            self.sample()
        self.node_faults.remove("hang")
        self.write()
        self.until_answered()

    @rule(index=st.integers(0, 3))
    def lose(self, index: int) -> None:
        gpu = self.gpu(index)
        gpu.is_lost = gpu.is_suspect = True

    @rule(index=st.integers(0, 3))
    def reset(self, index: int) -> None:
        """Reset a GPU: it works again, without the faults that it had."""
        gpu = self.gpu(index)
        gpu.is_lost = False
        gpu.faults.clear()
        self.write()
        self.until_answered()
        gpu.is_lied_about = False

    @rule(index=st.integers(0, 3), uuid=st.sampled_from(UUIDS))
    def reload_driver(self, index: int, uuid: str) -> None:
        """Unload the driver, remove or add a GPU, and load the driver again."""
        self.end_faults()
        self.node_faults = [f"fail * - {NOT_LOADED}"]
        self.suspect_all()
        self.sample()
        self.node_faults = []
        present = [gpu.uuid for gpu in self.gpus]
        if uuid in present and len(present) > 1:
            for process in self.gpu(present.index(uuid)).processes:
                self.tree.end(process.pid)
            self.gpus.pop(present.index(uuid))
        elif uuid not in present:
            number = UUIDS.index(uuid)
            self.gpus.insert(index % len(self.gpus), TrueGpu(uuid, [self.process(f"calm-{number}", GIB)]))
            self.suspect_all()

    @rule()
    def upgrade_driver(self) -> None:
        """Replace the driver under the running agent: each call fails until a new process has its library."""
        self.end_faults()
        self.advance(3700)  # no GPU waits for its back-off
        self.node_faults = [f"fail * - {REPLACED}"]
        self.write()
        with pytest.raises(DriverReplaced):
            self.chain.sample()
        self.source.close()
        self.node_faults = ["driver 590.10.01"]
        self.write()
        self.begin_process()
        self.suspect_all()

    @rule()
    def end_faults(self) -> None:
        """End all faults; calls that hang return."""
        self.node_faults = []
        for gpu in self.gpus:
            gpu.faults.clear()
            gpu.is_lost = False
        self.write()
        self.until_answered()
        for gpu in self.gpus:
            gpu.is_lied_about = False

    # Samples

    @rule(count=st.integers(1, 4))
    def take_samples(self, count: int) -> None:
        for _ in range(count):
            self.sample()

    @rule()
    def settle(self) -> None:
        """End all faults, and wait for every back-off: then everything is known again."""
        self.end_faults()
        for seconds in (70, 3700, 70):
            self.advance(seconds)
            self.sample(is_checked=False)
        for gpu in self.gpus:
            gpu.is_suspect = False
        for _ in range(3):
            series = self.sample()
        gpus = [gpu for reading in self.chain.readings[-3:] for gpu in reading.gpus]  # one sample may be slow
        sensed = {gpu.uuid for gpu in gpus if gpu.sensors.temperature_celsius}
        assert sensed == {gpu.uuid for gpu in self.gpus}, "a sensor stays unknown"
        for gpu in self.gpus:
            if not gpu.is_mig and any(process.pod == GREEDY for process in gpu.processes):
                assert self.flags(series).keys() == {GREEDY}, "a pod above its share has no flag"

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def sample(self, *, is_checked: bool = True) -> Series:
        self.write()
        self.advance(STEP_SECONDS)
        series = self.chain.sample()
        self.samples += 1
        wrong = self.flags(series).keys() - {GREEDY}
        assert not wrong, f"wrong flags: {self.flags(series)}"
        reading = self.chain.readings[-1]
        by_uuid = {gpu.uuid: gpu for gpu in reading.gpus}
        self.check_figures(series, by_uuid)
        if is_checked:
            for gpu in self.gpus:
                if not (gpu.is_suspect or gpu.faults or self.node_faults):
                    self.check_complete(gpu, by_uuid, series)
        if reading.restart_may_help:
            assert not reading.gpus
            assert not self.source.is_hanging
            assert all(gpu.is_suspect for gpu in self.gpus)
        return series

    def check_figures(self, series: Series, by_uuid: dict[str, Gpu]) -> None:
        """Each figure is true, or is absent."""
        assert by_uuid.keys() <= {gpu.uuid for gpu in self.gpus}, "a GPU that is not there"
        of_gpu = ("total", "used", "reserved", "host", "unattributed")
        for name in of_gpu:
            assert {uuid for (uuid,) in series.get(f"gpu_memory_{name}_bytes", {})} <= by_uuid.keys()
        if any(UUIDS[0] in line for gpu in self.gpus for line in gpu.faults):
            return  # two GPUs of one UUID: the driver's answers do not say which
        for gpu in self.gpus:
            reading = by_uuid.get(gpu.uuid)
            if gpu.is_lost:
                assert reading is None
            if reading is None:
                devices = {gpu.uuid, f"MIG-{gpu.uuid[4:]}"}
                assert not [key for key in series.get("pod_gpu_memory_used_bytes", {}) if key[1] in devices]
                continue
            for name, value in TRUE_SENSORS.items():
                read = getattr(reading.sensors, name)
                assert read is None or read == value, f"{name}: {read}"
            if gpu.is_lied_about:
                continue
            hidden = reading.reserved_bytes is None  # then the reserved memory counts as used
            truth = {"total": TOTAL, "used": gpu.used + (RESERVED if hidden else 0), "reserved": RESERVED}
            truth["host"] = 0
            for name, value in truth.items():
                read = series.get(f"gpu_memory_{name}_bytes", {}).get((gpu.uuid,))
                assert read is None or read == value, f"{name} of {gpu.uuid}: {read} instead of {value}"
            for key, read in series.get("pod_gpu_memory_used_bytes", {}).items():
                if key[1] in (gpu.uuid, f"MIG-{gpu.uuid[4:]}"):
                    on_device = gpu.is_mig == key[1].startswith("MIG")
                    value = sum(each.used for each in gpu.processes if each.pod == key[0]) * on_device
                    assert read == value, f"{key}: {read} instead of {value}"

    def check_complete(self, gpu: TrueGpu, by_uuid: dict[str, Gpu], series: Series) -> None:
        reading = by_uuid.get(gpu.uuid)
        assert reading is not None, f"{gpu.uuid} is missing: {self.chain.readings[-1].problems}"
        hidden = reading.reserved_bytes is None
        assert reading.used_bytes == gpu.used + RESERVED * hidden
        assert reading.sensors.xid is None or reading.sensors.xid.code in XIDS
        device = f"MIG-{gpu.uuid[4:]}" if gpu.is_mig else gpu.uuid
        used = series["pod_gpu_memory_used_bytes"]
        for name in {process.pod for process in gpu.processes}:
            assert (name, device) in used, f"no figure of {name} on {device}"

    def flags(self, series: Series) -> dict[str, list[str]]:
        raised: dict[str, list[str]] = {}
        for (name, *_, reason), value in series.get("pod_flagged", {}).items():
            if value:
                raised.setdefault(name, []).append(reason)
        return raised

    # Helpers

    def gpu(self, index: int) -> TrueGpu:
        return self.gpus[index % len(self.gpus)]

    def suspect_all(self) -> None:
        for gpu in self.gpus:
            gpu.is_suspect = True

    def write(self) -> None:
        lines = [line for index, gpu in enumerate(self.gpus) for line in gpu.lines(index)]
        making = self.answers.with_suffix(".making")
        making.write_text("".join(f"{line}\n" for line in ("driver 580.65.06", *lines, *self.node_faults)))
        making.replace(self.answers)

    def until_answered(self) -> None:
        """Wait until calls that hung have returned, unless faults remain."""
        if self.node_faults or any(gpu.faults for gpu in self.gpus):
            return
        ends = time.monotonic() + _SOON_SECONDS
        while self.source.is_hanging:
            assert time.monotonic() < ends, "a call does not return"
            time.sleep(0.005)

    def teardown(self) -> None:
        if self.gpus:
            self.end_faults()
            self.source.close()
        self.patch.undo()
        shutil.rmtree(self.folder)


@pytest.mark.slow
def test_no_single_fault_flags_an_innocent_pod_or_shows_a_wrong_figure() -> None:
    """Each lie, and a part of the pairs of call and code; the pods of a GPU that lies would have a flag after two samples."""
    step = 1 if scaled(1) > 1 else 11
    node = DriverFaults()
    faults: list[Callable[[], object]] = [partial(node.lie, index=0, line=line) for line in LIES]
    faults += [partial(node.fail_node, line=line) for line in NODE_FAULTS[:4]]
    faults += [
        partial(node.fail, index=index % 3, call=call, code=code)
        for index, (call, code) in enumerate(itertools.product(GPU_CALLS, CODES))
        if index % step == 0
    ]
    try:
        node.start()
        for fault in faults:
            fault()
            node.advance(60)  # the driver is asked for the number of GPUs once a minute
            node.take_samples(3)
            node.settle()
    finally:
        node.teardown()
    assert node.samples > 500


@pytest.mark.slow
def test_no_history_of_faults_flags_an_innocent_pod_or_shows_a_wrong_figure() -> None:
    run_state_machine_as_test(
        DriverFaults,
        settings=settings(
            max_examples=scaled(8), stateful_step_count=15, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
