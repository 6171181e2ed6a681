"""Doctor on KAI's sharing mode, its operator, and keys of other products."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from console.cluster.agents import AgentReading
from console.cluster.facts import FactReader
from console.doctor.cluster_state import ClusterFacts, ClusterNode
from console.doctor.sharing_checks import limits_can_hold, mode_findings, run_ai_keys
from gpuagent.api_types import ApiPod
from kai.releases import Version
from kai.share import run_ai_limit
from kube.client import KubeClient
from kube.kinds import Pod
from tests.console.doctor.test_node_checks import lines_of, reading
from tests.support.api_server import ApiServer, lists, says
from tests.support.cluster_facts import but, installed, whole

NV_FRACTIONS = but(installation=installed("--nv-fractions-enabled=true"))
UNENFORCED = but(installation=installed("--gpu-sharing-enabled=true"))

WITHHELD = (
    "problem: evictions are withheld, since the agents do not know KAI's sharing mode: train -> install kaishare"
    " with agent.gpuSharingMode=NonMemoryEnforced"
)
CASES: dict[str, tuple[ClusterFacts, list[AgentReading], list[str]]] = {
    "no agent says a mode": (UNENFORCED, [reading()], []),
    "the same mode": (UNENFORCED, [reading(gpu_sharing_mode="NonMemoryEnforced")], []),
    "another mode": (
        UNENFORCED, [reading(gpu_sharing_mode="HamiCore"), reading(1, gpu_sharing_mode="NonMemoryEnforced")],
        ["problem: KAI's sharing mode is NonMemoryEnforced, and agents run with --gpu-sharing-mode HamiCore: n0"],
    ),
    "KAI's mode is not known": (but(installation=None), [reading(gpu_sharing_mode="HamiCore")], []),
    "withheld evictions": (
        UNENFORCED, [reading(pods=[ApiPod(namespace="a", name="train", uid="u", not_evicted="mode-unknown")])], [WITHHELD]),
    "an old driver in NvFractions": (
        NV_FRACTIONS, [reading(driver_version="595.91.07"), reading(1, driver_version="620.70.06"), reading(2)],
        ["problem: in NvFractions the driver must hold the limits, and that of n0 is older than 615"],
    ),
    "an old driver by the node's label": (
        replace(NV_FRACTIONS, nodes=whole(*(ClusterNode(name=f"n{number}", labels={label: branch})
        for number, (label, branch) in enumerate([("nvidia.com/cuda.driver.major", "595"),
        ("nvidia.com/cuda.driver-version.major", "620"), ("nvidia.com/cuda.driver.major", "595")])))),
        [reading(2, driver_version="620.70.06")],
        ["problem: in NvFractions the driver must hold the limits, and that of n0 is older than 615"],
    ),
    "an old driver in another mode": (UNENFORCED, [reading(driver_version="595.91.07")], []),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "readings", "expected"), CASES.values(), ids=CASES)
def test_the_agents_mode_is_compared_with_kais(
    cluster: ClusterFacts, readings: list[AgentReading], expected: list[str]
) -> None:
    lines = lines_of(mode_findings(cluster, readings))
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


NEW, OLD = "gpu-fractioning.nvidia.com/Ready", "gpu-sharing.nvidia.com/Ready"
SERVED = "ok: the operator's kind is gpufractioningconfigs.nvidia.com"
ABSENT = "problem: KAI shares GPUs by NvFractions, and no GpuFractioningConfig or GpuSharingConfig is served"
UNREADY = f"problem: 1 node with GPUs without the condition {NEW} or {OLD}: n0"
NRI = "problem: the container toolkit's NRI plugin is on"
OLD_TOOLKIT = "problem: container-toolkit is 1.19.0, and limits need 1.20.1: no limit is set"
OLD_PLUGIN = "problem: k8s-device-plugin is 0.19.3, and limits need 0.20.1"
NO_RELEASES = [
    f"unknown: the release of {name} is not known" for name in ("container-toolkit", "k8s-device-plugin")
]
OF_26_7 = ("nvcr.io/nvidia/k8s/container-toolkit:v1.20.1", "nvcr.io/nvidia/k8s-device-plugin:v0.20.1-ubi9")


@pytest.mark.parametrize(
    ("kind", "condition", "images", "nri", "expected"),
    [
        ("GpuFractioningConfig", NEW, OF_26_7, False, [SERVED]),
        ("GpuSharingConfig", OLD, OF_26_7, None, ["ok: the operator's kind is gpusharingconfigs.nvidia.com"]),
        ("GpuSharingConfig", "Ready", OF_26_7, None, ["ok: ", UNREADY]),
        ("Other", NEW, OF_26_7, None, [ABSENT]),
        ("GpuFractioningConfig", NEW, OF_26_7, True, [SERVED, NRI]),
        ("GpuFractioningConfig", NEW, (*OF_26_7, "x/container-toolkit:1.19.0"), None, [SERVED, OLD_TOOLKIT]),
        ("GpuFractioningConfig", NEW, (OF_26_7[0], "k8s-device-plugin:v0.19.3"), None, [SERVED, OLD_PLUGIN]),
        ("GpuFractioningConfig", NEW, ("x/container-toolkit@sha256:00",), None, [SERVED, *NO_RELEASES]),
    ],
)  # fmt: skip
async def test_what_limits_of_the_driver_need_is_looked_for(
    server: ApiServer, client: KubeClient, kind: str, condition: str, images: tuple[str, ...], nri: Any,
    expected: list[str],
) -> None:  # fmt: skip
    resource = {"resource": f"{kind.lower()}s", "scope": "Cluster", "responseKind": {"kind": kind}}
    group = {"metadata": {"name": "nvidia.com"}, "versions": [{"version": "v1", "resources": [resource]}]}
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": image} for image in images]}}}
    server.refusals = {
        "/daemonsets": lists({"metadata": {"name": "of-nvidia"}, "spec": spec}),
        "/clusterpolicies": lists({"metadata": {"name": "p"}, "spec": {"cdi": {"nriPluginEnabled": nri}}}),
        "/apis": says(json.dumps({"items": [group]})),
    }
    nodes = whole(
        ClusterNode(name="n0", conditions=frozenset({condition})),
    )
    cluster = but(installation=NV_FRACTIONS.installation, nodes=nodes)
    lines = lines_of([each async for each in limits_can_hold(cluster, FactReader(client))])
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
    assert [each async for each in limits_can_hold(UNENFORCED, FactReader(client))] == []


@pytest.mark.parametrize(
    ("annotations", "version", "key", "remedy"),
    [
        ({}, "", "", ""),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.5"}, "", "fraction", 'write gpu-fraction.limit: "0.5" (KAI 0.18.3, mode'),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.5"}, "0.18.3", "fraction", 'write gpu-fraction.limit: "0.5"'),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.5"}, "0.18.2", "fraction",
         'write kai.scheduler/container.main.gpu-memory.portion.limit: "0.5" (KAI 0.18.0, mode NvFractions)'),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.5", "gpu-fraction-container-name": "b"}, "0.18.0", "fraction",
         'write kai.scheduler/container.b.gpu-memory.portion.limit: "0.5"'),
        ({"gpu-fraction": "0.5", "gpu-fraction-limit": "1"}, "", "fraction", "remove it"),
        ({"gpu-fraction": "0.5", "gpu-fraction-limit": "nan"}, "", "fraction", "remove it"),
        ({"gpu-memory": "4000", "gpu-memory-limit": "8000"}, "", "memory", "write gpu-memory.limit: 8000Mi"),
        ({"gpu-memory": "4000", "gpu-memory-limit": "8000"}, "0.18.0", "memory",
         "write nvidia.com/container.main.gpu-memory.request: 4000Mi and nvidia.com/container.main.gpu-memory.limit: 8000Mi"),
        ({"gpu-memory": "4000", "gpu-memory-limit": "3999"}, "", "memory", "remove it"),
        ({"gpu-memory": "4000", "gpu-memory-limit": "9" * 100_000}, "", "memory", "remove it"),
    ],
)  # fmt: skip
def test_keys_of_run_ai_are_named_with_what_to_write(
    annotations: dict[str, str], version: str, key: str, remedy: str
) -> None:
    advice = run_ai_limit(annotations, "main", Version.parse(version) if version else None)
    assert advice is None if not key else advice is not None and advice[0] == f"gpu-{key}-limit"
    assert (advice or ("", ""))[1].startswith(remedy)
    document = {"metadata": {"name": "p", "namespace": "a", "annotations": annotations},
                "spec": {"containers": [{"name": "main"}]}}  # fmt: skip
    cluster = but(waiting=whole(msgspec.convert(document, Pod)))
    lines = lines_of(run_ai_keys(cluster))
    assert len(lines) == bool(key)
    assert all(line.startswith(f"warning: a/p: KAI ignores gpu-{key}-limit of Run:ai 2.x") for line in lines)
