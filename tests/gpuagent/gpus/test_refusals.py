"""Figures that a refusal of the driver removes and keeps, through NVML's own binding to /metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.gpus.driver import PROCESS_UTILIZATION
from gpuagent.pods.inventory import Inventory
from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS
from kai import keys
from tests.support.driver_chain import Chain, Series
from tests.support.proc_files import HOST, ProcTree, in_pod
from tests.support.samples import pod, uid_of
from tests.support.scenarios import GIB, A, B, node, process

NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN = 4, 3, 13, 999
LISTS = tuple(f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute"))
LABEL = {keys.NODE_GPU_MEMORY: "16384"}
MIG = ({"uuid": "MIG-1", "memory": "5Gi"}, {"uuid": "MIG-2", "memory": "10Gi"})
FIGURES = {
    "total": "gpu_memory_total_bytes", "used": "gpu_memory_used_bytes", "reserved": "gpu_memory_reserved_bytes",
    "promised": "gpu_memory_promised_bytes", "host": "gpu_memory_host_bytes",
    "unattributed": "gpu_memory_unattributed_bytes", "pod used": "pod_gpu_memory_used_bytes",
    "share": "pod_gpu_memory_share_bytes", "flagged": "pod_flagged",
}  # fmt: skip
EVERYTHING = set(FIGURES)
MEMORY = {"total", "used", "reserved", "unattributed"}
OF_PROCESSES = {"host", "unattributed", "pod used", "flagged"}
DEVICE = ("nvml", A)


def inventory(label: dict[str, str] | None = None) -> Inventory:
    """Half a GPU for `train`, whose group is on the first GPU, 2 GiB of it for `serve`."""
    pods = [
        pod("train", annotations={keys.GPU_FRACTION: "0.5"}, labels={keys.GPU_GROUP: "g"}),
        pod("serve", annotations={keys.GPU_MEMORY: "2048"}, labels={keys.GPU_GROUP: "g"}),
    ]
    return Inventory(pods={each.uid: each for each in pods}, reservations={"g": A}, node_labels=label)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "proc")
    tree.add(2, "0::/", name="kthreadd")
    tree.add(100, in_pod(uid_of("train")))
    tree.add(101, in_pod(uid_of("serve")))
    tree.add(102, HOST)
    tree.add(103, HOST)
    return tree


@pytest.fixture
def chain(driven, proc, clock) -> Callable[..., tuple[Chain, Any]]:
    def make(*lines: str, mig: Any = (), label: dict[str, str] | None = None) -> tuple[Chain, Any]:
        places = ("MIG-1", "MIG-2") if mig else (0, 0)
        gpus, answers = driven(
            node(
                process(100, "1Gi", gpu=places[0]), process(101, "3Gi", gpu=places[1]),
                *([] if mig else [process(102, "64Mi")]), process(103, "32Mi", gpu=1), mig=mig,
            )
        )  # fmt: skip
        answers.show(more=lines)
        return Chain(gpus, proc.root, inventory(LABEL if label is None else label), clock), answers

    return make


def present_figures(series: Series, uuid: str = A) -> set[str]:
    """The figures that a GPU has; a verdict about KAI's records is none."""
    return {
        name
        for name, family in FIGURES.items()
        if any(uuid in key and not FROM_KAI_RECORDS & {*key} for key in series.get(family, ()))
    }


def problems(series: Series) -> set[tuple[str, ...]]:
    return {(reason, uuid) for uuid, reason in series.get("agent_attribution_problem", ())}


def expected_of(call: str, code: int) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the figures that the first GPU keeps, and the expected problems."""
    is_refusal = code != UNKNOWN
    is_missing = code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    if call in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetName", PROCESS_UTILIZATION):
        return EVERYTHING, set()
    if call in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"):
        return set(), {("nvml", "index-0")}
    if call == "nvmlDeviceGetMemoryInfo":
        left = EVERYTHING - MEMORY
        return (left, set()) if is_refusal else (left - {"flagged"}, {DEVICE})
    if call == "nvmlDeviceGetMigMode":
        return (EVERYTHING, set()) if is_missing else (EVERYTHING - {"flagged"}, {DEVICE})
    if call != LISTS[0] and is_missing:
        return EVERYTHING, set()
    return EVERYTHING - OF_PROCESSES, {DEVICE}


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN])
@pytest.mark.parametrize(
    "call",
    [
        "nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", PROCESS_UTILIZATION, *LISTS,
    ],
)  # fmt: skip
def test_a_refusal_takes_away_its_own_figure_and_nothing_else(chain, clock, call: str, code: int) -> None:
    made, _ = chain(f"fail {call} {'-' if 'System' in call else 0} {code}")
    left, present = expected_of(call, code)
    for _ in range(4):
        series = made.sample()
        assert present_figures(series) == left
        assert problems(series) == present
        assert present_figures(series, B) >= {"total", "used", "reserved", "promised", "host", "unattributed"}
        assert not made.readings[-1].restart_may_help
        clock.now += 5
    if "flagged" in left:
        flagged = made.sample()["pod_flagged"]
        assert flagged[("serve", A, "over-share")] == 1
        assert flagged[("train", A, "over-share")] == 0


def test_a_gpu_of_unknown_memory_is_no_reason_to_initialise_again(chain, clock) -> None:
    """GB10 says NotSupported, a MIG GPU NoPermission to an unprivileged container: on every GPU, for ever."""
    for code in (NO_PERMISSION, NOT_SUPPORTED):
        made, _ = chain(f"fail nvmlDeviceGetMemoryInfo - {code}")
        for _ in range(120):
            series = made.sample()
            assert not made.readings[-1].restart_may_help
            clock.now += 5
        assert series["agent_attribution_ok"] == {(): 1}
        assert series["pod_gpu_memory_used_bytes"] == {("train", A): GIB, ("serve", A): 3 * GIB}
        # Retries follow after 1, 2 and 4 minutes, for each GPU with two versions of the call.
        failures = sum(n for (call, _), n in made.source.errors.items() if call == "nvmlDeviceGetMemoryInfo")
        assert failures <= 2 * 2 * 5
        (reason,) = {gpu["memoryUnknown"] for gpu in made.answer["gpus"]}
        assert reason.startswith("nvmlDeviceGetMemoryInfo")
        made.source.close()


def test_the_node_label_sizes_shares_and_whole_gpus_of_unknown_total(chain) -> None:
    made, _ = chain("fail nvmlDeviceGetMemoryInfo - 3")
    series = made.sample()
    assert series["pod_gpu_memory_share_bytes"] == {("train", A): 8150 << 20, ("serve", A): 2 * GIB}
    assert series["gpu_memory_promised_bytes"][(A,)] == (8150 << 20) + 2 * GIB
    whole, labels = pod("whole", whole_gpus=2), {keys.NODE_GPU_MEMORY: "16380"}
    made.books.pods.inventory = Inventory(pods={whole.uid: whole}, node_labels=labels)
    shares = made.sample()["pod_gpu_memory_share_bytes"]
    assert shares == {("whole", A): 16380 << 20, ("whole", B): 16380 << 20}, "not floored, as a fraction's is"


PETABYTES = [f"gpu 0 {A} {1 << 51} 0 0 A10", f"process 0 - 0 100 {1 << 50} 4294967295 4294967295"]


@pytest.mark.parametrize("is_refused", [True, False])
def test_impossible_figures_are_ignored(chain, is_refused: bool) -> None:
    """A TiB may be true one day, a PiB is not; sums of it would not fit into JSON's 64 bits."""
    made, answers = chain()
    if is_refused:
        answers.show(
            more=["fail nvmlDeviceGetMemoryInfo - 3", PETABYTES[1].replace(f"{1 << 50}", f"{1 << 51}")]
        )
    else:
        answers.write(PETABYTES)
    series = made.sample()
    assert problems(series) == {("garbage" if is_refused else "nvml", A)}
    assert "total" not in present_figures(series)


@pytest.mark.parametrize("label", [{}, {keys.NODE_GPU_MEMORY: "0"}, {keys.NODE_GPU_MEMORY: "[N/A]"}])
def test_without_label_and_total_a_part_of_a_gpu_is_unknown_and_never_zero(chain, clock, label) -> None:
    made, _ = chain("fail nvmlDeviceGetMemoryInfo - 3", label=label)
    for _ in range(4):
        series = made.sample()
        clock.now += 5
    assert (
        "pod_gpu_memory_share_bytes" not in series or ("train", A) not in series["pod_gpu_memory_share_bytes"]
    )
    assert (A,) not in series["gpu_memory_promised_bytes"]
    assert series["gpu_memory_promised_bytes"][(B,)] == 0
    assert ("train", A, "over-share") not in series["pod_flagged"]
    assert series["pod_gpu_memory_used_bytes"][("train", A)] == GIB
    assert [key for key, flag in series["pod_flagged"].items() if flag] == [("serve", A, "over-share")], (
        "a share in MiB needs no figure of the card"
    )


UNPRIVILEGED = tuple(f"fail {call} 0/- {NO_PERMISSION}" for call in ("nvmlDeviceGetMemoryInfo", *LISTS))
ON_MIG = {("train", "MIG-1"): GIB, ("serve", "MIG-2"): 3 * GIB}
MIG_CASES = {
    "privileged": ((), ON_MIG, set(), {"total", "used", "host", "unattributed"}),
    "unprivileged": (UNPRIVILEGED, ON_MIG, set(), {"host"}),
    "unprivileged, and a MIG device that tells no memory": ((*UNPRIVILEGED, "fail nvmlDeviceGetMemoryInfo 0/1 4"), ON_MIG, set(), {"host"}),
    "unprivileged, and a MIG device that tells no processes": ((*UNPRIVILEGED, f"fail {LISTS[0]} 0/1 4"),
        {("train", "MIG-1"): GIB}, {("nvml", "MIG-2"), ("nvml", A)}, set()),
    "unprivileged, and a MIG device that cannot be opened": ((*UNPRIVILEGED, "fail nvmlDeviceGetMigDeviceHandleByIndex 0/0 4"),
        {("serve", "MIG-2"): 3 * GIB}, {("nvml", A)}, set()),
    "a MIG device without processes, whose own the GPU lists": ((f"fail {LISTS[0]} 0/1 999",),
        {("train", "MIG-1"): GIB, ("serve", A): 3 * GIB}, {("nvml", "MIG-2")}, {"total", "used"}),
    "a MIG device that cannot be opened": (("fail nvmlDeviceGetMigDeviceHandleByIndex 0/0 4",),
        {("train", A): GIB, ("serve", "MIG-2"): 3 * GIB}, {("nvml", A)}, {"total", "used", "host", "unattributed"}),
    "a MIG device without a UUID": (("fail nvmlDeviceGetUUID 0/1 999",), {("train", "MIG-1"): GIB, ("serve", A): 3 * GIB},
        {("nvml", A)}, {"total", "used", "host", "unattributed"}),
    "MIG devices that cannot be counted": (("fail nvmlDeviceGetMaxMigDeviceCount 0 4",),
        {("train", A): GIB, ("serve", A): 3 * GIB}, {("nvml", A)}, {"total", "used", "host", "unattributed"}),
    "a GPU that refuses one of its own lists": ((f"fail {LISTS[1]} 0/- 4",), ON_MIG, {("nvml", A)}, {"total", "used"}),
    "a mode that is not told": (("fail nvmlDeviceGetMigMode 0 4",), ON_MIG, {("nvml", A)}, {"total", "used", "host", "unattributed"}),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "used_bytes", "present", "figures"), MIG_CASES.values(), ids=MIG_CASES)
def test_on_a_mig_gpu_no_listed_byte_is_lost(chain, clock, lines, used_bytes, present, figures) -> None:
    made, _ = chain(*lines, mig=MIG)
    for _ in range(3):
        series = made.sample()
        used = {key: n for key, n in series["pod_gpu_memory_used_bytes"].items() if n}
        assert used == used_bytes
        assert problems(series) == present
        assert present_figures(series) & {"total", "used", "host", "unattributed"} == figures
        assert not made.readings[-1].restart_may_help
        assert not any("unassigned" in reason for _, _, reason in series.get("pod_flagged", ()))
        clock.now += 5


def test_a_mig_gpu_without_mig_devices_is_no_lost_one(chain, clock) -> None:
    """MIG devices are taken down while the agent runs, and an unprivileged agent is told nothing of the rest."""
    made, answers = chain(*UNPRIVILEGED, mig=MIG)
    made.sample()
    alone = [f"gpu 0 {A} {16 * GIB} 0 0 A100", f"mig 0 MIG-1 {GIB} 0 0", *UNPRIVILEGED]
    answers.write(
        [*alone, "fail nvmlDeviceGetMigDeviceHandleByIndex 0/0 6"]
    )  # 6: there is none at that place
    for _ in range(20):
        series = made.sample()
        assert [gpu.uuid for gpu in made.readings[-1].gpus] == [A]
        assert series["gpu_memory_host_bytes"] == {(A,): 0}
        assert problems(series) == {("nvml", B)}  # the answers leave it out
        assert not made.readings[-1].restart_may_help
        clock.now += 5


def test_mig_devices_that_come_and_go_leave_nothing_behind(chain, clock) -> None:
    made, answers = chain(mig=MIG)
    made.sample()
    device = made.source._devices[0]
    for number in range(200):
        answers.write([f"gpu 0 {A} {16 * GIB} 0 0 A100", f"mig 0 MIG-{number} {GIB} 0 0"])
        made.sample()
        clock.now += 5
    assert list(device._instances) == ["MIG-199"]
