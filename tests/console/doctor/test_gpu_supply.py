"""Which GPUs a DRA driver hands out, which the device plugin, and whether the agents read claims."""

import json
from typing import Any

import pytest

from console.doctor.check_results import CheckResult
from console.doctor.cluster_state import ClusterNode
from console.doctor.gpu_supply import device_findings
from kube.device_kinds import ResourceSlice
from kube.kinds import DAEMON_SETS, RESOURCE_SLICES, Controller
from tests.support.kinds import made
from tests.support.kube_objects import GPU_0, NODE
from tests.support.resource_claims import gpu_slice

PLUGIN = ClusterNode(name="other", gpus=2)


def whole() -> dict[str, Any]:
    made_slice = gpu_slice(GPU_0)
    del made_slice["spec"]["devices"][0]["allowMultipleAllocations"]
    return made_slice


def agent(*args: str) -> Controller:
    spec = {"template": {"spec": {"containers": [{"name": "agent", "args": ["serve", *args]}]}}}
    return DAEMON_SETS.decode(json.dumps(made("DaemonSet", "kaishare-agent", "kaishare", spec=spec)))


def found(*documents: dict[str, Any], nodes: tuple[ClusterNode, ...] = (), agents: tuple[Controller, ...] = ()) -> list[tuple[str, str]]:  # fmt: skip
    slices: list[ResourceSlice] = [RESOURCE_SLICES.decode(json.dumps(each)) for each in documents]
    results: list[CheckResult] = list(device_findings(slices, nodes, agents))
    return [(result.state.value, result.what) for result in results]


APART = ("ok", "GPUs of 1 node by ResourceClaims of gpu.nvidia.com, of 1 node by the device plugin")
TWICE = "1 node hands out each GPU twice: gpu-node-0; the device plugin as nvidia.com/gpu"
WHOLE = "a claim takes a whole GPU: no device allows multiple allocations"
UNREAD = "1 GPU can be shared by claims, which enforce no memory, and the agents of DaemonSet kaishare-agent do not"


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (found(gpu_slice(GPU_0), nodes=(PLUGIN,)), [APART]),
        (found(gpu_slice(GPU_0), nodes=(PLUGIN, ClusterNode(name=NODE, gpus=1))), [("problem", TWICE)]),
        (found(gpu_slice(GPU_0), nodes=(ClusterNode(name=NODE, gpus=0), PLUGIN)), [APART]),
        (found(whole(), nodes=(PLUGIN,)), [APART, ("warning", WHOLE)]),
        (found(gpu_slice(GPU_0), nodes=(PLUGIN,), agents=(agent(),)), [APART, ("warning", UNREAD)]),
        (found(gpu_slice(GPU_0), nodes=(PLUGIN,), agents=(agent("--resource-claims=true"),)), [APART]),
        (found(gpu_slice(GPU_0), nodes=(PLUGIN,), agents=(agent("--resource-claims", "true"),)), [APART]),
    ],
    ids=["apart", "twice", "no plugin there", "whole GPUs", "claims are not read", "read", "read, by extraArgs"],
)  # fmt: skip
def test_who_hands_out_which_gpu(results: list[tuple[str, str]], expected: list[tuple[str, str]]) -> None:
    assert [state for state, _ in results] == [state for state, _ in expected]
    for (_, what), (_, start) in zip(results, expected, strict=True):
        assert what.startswith(start)
