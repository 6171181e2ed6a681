"""Nodes at their worst: any driver, any process list, any /proc; nothing raises, vanishes or becomes zero."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuagent.gpus.driver import (
    NO_INSTANCE,
    CallFailed,
    DeviceMemory,
    DriverGone,
    ErrorCounts,
    FigureFailed,
    GpuLost,
    ListedProcess,
    NotOffered,
    NotPermitted,
    ProcessList,
    Sensor,
    UtilizationSample,
)
from gpuagent.gpus.gpu_reader import NvmlGpus
from gpuagent.pods.inventory import Inventory
from gpuagent.problems import Cause
from gpuagent.sampling.sample import LookupResult
from kai import keys
from tests.support.driver_chain import Chain
from tests.support.markers import scaled
from tests.support.proc_files import HOST, ProcTree, in_pod
from tests.support.samples import pod, uid_of

UUIDS = ("GPU-0", "GPU-1", "GPU-2", "")
FAILURES = (
    (NotPermitted, "NoPermission"),
    (NotOffered, "NotSupported"),
    (CallFailed, "Unknown"),
    (GpuLost, "GpuIsLost"),
    (DriverGone, "Uninitialized"),
)
HUGE = (1 << 64) - 1
V1_ROOT = "5:devices:/"

failures = st.one_of(st.none(), st.none(), st.none(), st.none(), st.sampled_from(FAILURES))
amounts = st.one_of(st.sampled_from([0, 1, 1 << 20, 1 << 30, 1 << 50, 1 << 63, HUGE]), st.integers(0, HUGE))
pids = st.sampled_from([0, 3, 10, 11, 12, 13, 14, 15, 16, 17, 1 << 22, (1 << 32) - 1])
instance_ids = st.sampled_from([NO_INSTANCE, NO_INSTANCE, 0, 1, 2])
entries = st.builds(
    ListedProcess,
    pid=pids,
    used_bytes=st.one_of(st.none(), st.integers(0, 1 << 30), amounts),
    gpu_instance=instance_ids,
    compute_instance=instance_ids,
)
memories = st.one_of(
    st.builds(DeviceMemory, total=st.just(80 << 30), free=st.integers(0, 80 << 30), reserved=st.just(0)),
    st.builds(DeviceMemory, total=amounts, free=amounts, reserved=st.one_of(st.none(), amounts)),
)


samples = st.builds(
    UtilizationSample,
    pid=pids,
    time=st.one_of(st.integers(0, 9), st.integers(0, 100_000_000), amounts),
    percent=st.one_of(st.integers(0, 100), st.sampled_from([101, (1 << 32) - 1])),
)


@dataclass
class HostileDevice:
    """One GPU or MIG device: what it answers, or how it fails."""

    uuid: Any
    memory: Any
    lists: Any
    mig: Any = False
    parts: list[Any] = field(default_factory=list)
    opening: Any = None
    samples: Any = ()


def devices(uuids: tuple[str, ...]) -> st.SearchStrategy[HostileDevice]:
    return st.builds(
        HostileDevice,
        uuid=st.one_of(st.sampled_from(uuids), st.sampled_from(FAILURES)),
        memory=st.one_of(memories, st.sampled_from(FAILURES)),
        lists=st.fixed_dictionaries(
            {
                which: st.one_of(st.lists(entries, max_size=4), st.sampled_from(FAILURES))
                for which in ProcessList
            }
        ),
        opening=failures,
        samples=st.one_of(st.lists(samples, max_size=4), st.sampled_from(FAILURES)),
    )


@st.composite
def gpus(draw: st.DrawFn) -> HostileDevice:
    device = draw(devices(UUIDS))
    device.mig = draw(st.one_of(st.just(False), st.just(True), st.sampled_from(FAILURES)))
    device.parts = draw(st.lists(st.one_of(st.none(), devices(("MIG-1", "MIG-2", ""))), max_size=3))
    return device


@dataclass
class HostileDriver:
    """A driver that answers as it was drawn."""

    moment: list[HostileDevice]
    starting: Any = None
    version_: Any = None
    counting: Any = None
    errors: ErrorCounts = field(default_factory=ErrorCounts)

    def start(self) -> None:
        self._or_fail(self.starting)

    def stop(self) -> None:
        return

    def version(self) -> str:
        self._or_fail(self.version_)
        return "1"

    def count(self) -> int:
        self._or_fail(self.counting)
        return len(self.moment)

    def open(self, index: int) -> int:
        if index >= len(self.moment):
            raise FigureFailed("open", "InvalidArgument")
        self._or_fail(self.moment[index].opening)
        return index

    def uuid(self, device: Any) -> str:
        return self._answer(self._at(device).uuid)

    def name(self, device: Any) -> str:
        return "model"

    def memory(self, device: Any) -> DeviceMemory:
        return self._answer(self._at(device).memory)

    def processes(self, device: Any, which: ProcessList) -> list[ListedProcess]:
        return self._answer(self._at(device).lists[which], which.value)

    def utilization(self, device: Any, since: int) -> list[UtilizationSample]:
        return list(self._answer(self._at(device).samples))

    def sensor(self, device: Any, which: Sensor) -> int:
        raise NotOffered(which.value, "NotSupported")

    def xids(self, device: Any, most: int) -> list[int]:
        raise NotOffered("nvmlEventSetWait", "NotSupported")

    def is_mig(self, device: Any) -> bool:
        return self._answer(self._at(device).mig)

    def mig_places(self, device: Any) -> int:
        return len(self._at(device).parts)

    def instance(self, device: Any, place: int) -> Any:
        part = self._at(device).parts[place]
        if part is None:
            return None
        self._or_fail(part.opening)
        return (device, place)

    def _at(self, device: Any) -> HostileDevice:
        index, place = device if isinstance(device, tuple) else (device, None)
        if index >= len(self.moment):
            raise GpuLost("any", "GpuIsLost")
        gpu = self.moment[index]
        if place is None:
            return gpu
        if place >= len(gpu.parts) or gpu.parts[place] is None:
            raise FigureFailed("any", "InvalidArgument")
        return gpu.parts[place]

    def _answer(self, what: Any, call: str = "call") -> Any:
        self._or_fail(what, call)
        return what

    def _or_fail(self, what: Any, call: str = "call") -> None:
        if isinstance(what, tuple) and what in FAILURES:
            kind, error = what
            self.errors.add(call, error)
            raise kind(call, error)


class Source(NvmlGpus):
    is_simulated = False


@pytest.fixture(scope="module")
def proc(tmp_path_factory: pytest.TempPathFactory) -> ProcTree:
    tree = ProcTree(tmp_path_factory.mktemp("hostile") / "proc")
    tree.add(2, "0::/", name="kthreadd")
    tree.add(3, HOST)
    tree.add(10, in_pod(uid_of("train")))
    tree.add(11, in_pod(uid_of("serve")))
    tree.add(12, in_pod(uid_of("deleted")))
    tree.add(13, V1_ROOT, state="Z")
    tree.add(14, V1_ROOT, state="Z")
    tree.add_thread(14, 140, in_pod(uid_of("train")))
    tree.add(15, "garbage")
    tree.add(16, in_pod(uid_of("reserve")))
    return tree


INVENTORY = Inventory(
    pods={
        each.uid: each
        for each in (
            pod("train", annotations={keys.GPU_FRACTION: "0.5"}, labels={keys.GPU_GROUP: "g"}),
            pod("serve", annotations={keys.GPU_MEMORY: "2048"}, labels={keys.GPU_GROUP: "g"}),
        )
    },
    reservations={"g": "GPU-0"},
    reservation_uids=frozenset({uid_of("reserve")}),
)
nodes = st.lists(gpus(), max_size=3)
ONE = HostileDevice("GPU-0", DeviceMemory(1 << 40, 0, 0), {which: [] for which in ProcessList})


@example([[ONE]], None, None, None)
@given(st.lists(nodes, min_size=1, max_size=4), failures, failures, failures)
@settings(max_examples=scaled(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_driver_causes_no_error_and_loses_no_byte(
    proc: ProcTree, moments: list[list[HostileDevice]], starting: Any, version: Any, counting: Any
) -> None:
    driver = HostileDriver([], starting=starting, version_=version, counting=counting)
    now = [1000.0]
    source = Source(driver=driver, clock=lambda: now[0])
    chain = Chain(source, proc.root, INVENTORY, lambda: now[0])
    listed_before: set[int] = set()
    for moment in moments:
        driver.moment = moment
        for step in (5.0, 61.0):
            series = chain.sample()
            check_figures(series)
            listed_before = check_sums(chain, series, listed_before)
            now[0] += step
    source.close()


def check_figures(series: dict[str, Any]) -> None:
    for name, places in series.items():
        for value in places.values():
            assert value >= 0 or name == "gpu_memory_unattributed_bytes"
            assert value <= (1 if name == "pod_gpu_utilization_ratio" else 1 << 63)


def check_sums(chain: Chain, series: dict[str, Any], listed_before: set[int]) -> set[int]:
    """Each listed process is in a sum of its GPU, or a problem of that GPU says that it may not be."""
    sample, reading = chain.sampled, chain.readings[-1]
    problems = {(uuid, reason) for uuid, reason in series.get("agent_attribution_problem", ())}
    pod_used = defaultdict(float)
    for (_, uuid), value in series.get("pod_gpu_memory_used_bytes", {}).items():
        pod_used[uuid] += value
    listed = set()
    for gpu in reading.gpus:
        own = {gpu.uuid, *(part.uuid for part in gpu.instances)}
        used_bytes: float = 0
        all_known = True
        for part in (gpu, *gpu.instances):
            for process in part.processes or ():
                listed.add(process.pid)
                lookup_result = sample.origins[process.pid].result
                if lookup_result is LookupResult.GONE:
                    assert process.pid not in listed_before  # of one sample only
                    continue
                all_known &= process.used_bytes is not None
                used_bytes += process.used_bytes or 0
        has_problem = any(uuid in own for uuid, _ in problems)
        host = series.get("gpu_memory_host_bytes", {}).get((gpu.uuid,))
        if not has_problem:
            assert all_known
            assert host is not None
            assert host + sum(pod_used[uuid] for uuid in own) == pytest.approx(
                used_bytes, abs=0.5 + used_bytes * 1e-12
            )
        for name, figure in (("total", gpu.total_bytes), ("used", gpu.used_bytes)):
            assert series.get(f"gpu_memory_{name}_bytes", {}).get((gpu.uuid,)) == figure
        check_raw(chain.source, gpu, has_problem=has_problem)
    for problem in reading.problems:
        assert isinstance(problem.cause, Cause)
    return listed


def check_raw(source: Any, gpu: Any, *, has_problem: bool) -> None:
    """Every entry that the driver lists for a GPU is in a list of the reading, unless a problem is reported."""
    device = source._driver.moment[gpu.index]
    pids = {process.pid for part in (gpu, *gpu.instances) for process in part.processes or ()}
    compute = device.lists[ProcessList.COMPUTE]
    if not has_problem and isinstance(compute, list):
        own = [entry for entry in compute if entry.gpu_instance == NO_INSTANCE or device.mig is False]
        assert {entry.pid for entry in own} <= pids
