"""Every code of NVML on one GPU, for each call: the other GPU keeps its figures and flags."""

from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from gpuagent.pods.inventory import Inventory
from kai import keys
from tests.gpuagent.gpus.test_driver_faults import GPU_CALLS
from tests.support.driver_chain import Chain, Series
from tests.support.proc_files import ProcTree, in_pod
from tests.support.samples import pod, uid_of
from tests.support.scenarios import A, B, node, process

CODES = sorted(
    value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and 0 < value <= 999
)
CALLS = (*GPU_CALLS, "*")


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "proc")
    tree.add(2, "0::/", name="kthreadd")
    tree.add(100, in_pod(uid_of("greedy")))
    tree.add(101, in_pod(uid_of("other")))
    return tree


def of_gpu(series: Series, uuid: str) -> dict[tuple[str, ...], float]:
    """The figures of a GPU and of its pods that stay the same from sample to sample."""
    return {
        (name, *key): value
        for name, family in series.items()
        for key, value in family.items()
        if uuid in key and "utilization" not in name and "seconds" not in name
    }


@pytest.mark.parametrize("call", CALLS)
def test_a_code_of_one_gpu_changes_nothing_of_the_other(driven, proc: ProcTree, clock, call: str) -> None:
    assert len(CODES) >= 29
    pods = [
        pod("greedy", annotations={keys.GPU_MEMORY: "2048"}, labels={keys.GPU_GROUP: "a"}),
        pod("other", annotations={keys.GPU_MEMORY: "2048"}, labels={keys.GPU_GROUP: "b"}),
    ]
    inventory = Inventory(pods={each.uid: each for each in pods}, reservations={"a": A, "b": B})
    gpus, answers = driven(node(process(100, "8Gi"), process(101, "1Gi", gpu=1)))
    chain = Chain(gpus, proc.root, inventory, clock)
    for _ in range(3):
        healthy = of_gpu(chain.sample(), A)
        clock.now += 5
    assert healthy["pod_flagged", "greedy", A, "over-share"] == 1
    for code in CODES:
        answers.show(more=[f"fail {call} 1 {code}"])
        for _ in range(2):
            clock.now += 5
            series = chain.sample()
            assert of_gpu(series, A) == healthy, code
            assert series["agent_attribution_ok"][()] == 1, code
            assert {uuid for uuid, _ in series.get("agent_attribution_problem", {})} <= {B}, code
        answers.show()
        clock.now += 60
        series = chain.sample()
        assert of_gpu(series, A) == healthy, code
        assert series["gpu_memory_used_bytes"][(B,)] > 0, code


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_the_same_code_of_the_node_is_believed(driven, proc: ProcTree, clock, call: str) -> None:
    gpus, answers = driven(node())
    chain = Chain(gpus, proc.root, Inventory(), clock)
    assert len(chain.sample()["gpu_memory_used_bytes"]) == 2
    answers.show(more=["fail nvmlDeviceGetMemoryInfo - 1", f"fail {call} - 9"])
    for _ in range(2):
        clock.now += 5
        series = chain.sample()
        assert "gpu_memory_used_bytes" not in series
        assert series["agent_attribution_ok"][()] == 0
    answers.show()
    clock.now += 60
    assert len(chain.sample()["gpu_memory_used_bytes"]) == 2
