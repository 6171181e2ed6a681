"""Pods with copied keys through the whole agent: each is flagged under its own name, after the agent's grace."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from kai.kaishare_keys import OVER_SHARE, VCLUSTER
from tests.gpuagent.test_chain import MIB, Node, flagged, named, new_node, start
from tests.support import kube_objects
from tests.support.agent_process import Agent
from tests.support.kube_objects import bind_request, namespace_object, pod, reservation
from tests.support.proc_files import in_pod

GPU = kube_objects.GPU_0
TOTAL = 81559 * MIB
KEYS_OF_VCLUSTER = {
    "vcluster.loft.sh/object-host-name": "greedy",
    "vcluster.loft.sh/object-host-namespace": "team-b",
    "vcluster.loft.sh/object-namespace": "n",
    "vcluster.loft.sh/object-name": "p",
}
GROUP = {"runai-gpu-group": "g"}


def on_the_node(name: str, number: int, **fields: Any) -> dict[str, Any]:
    made = pod(name, number, **{"namespace": "team-b", "node": "node-1", "labels": GROUP, **fields})
    made["spec"]["schedulerName"] = fields.get("scheduler", "kai-scheduler")
    return made


def objects(labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return a node with an honest pod above its share, and pods that copied keys.

    Args:
        labels: labels of the host namespace.
    """
    fraction = {"gpu-fraction": "0.1"}
    honest = on_the_node("honest", 1, annotations=fraction)
    greedy = on_the_node(
        "greedy", 2,
        labels={**GROUP, "vcluster.loft.sh/managed-by": "x", "vcluster.loft.sh/ns-label-x-x-4144a0673b": "24h"},
        annotations={**fraction, **KEYS_OF_VCLUSTER},
    )  # fmt: skip
    decoy = copy.deepcopy(greedy)  # a copy of the whole metadata: its keys name the other pod
    decoy["metadata"] |= {"name": "decoy", "uid": kube_objects.uid(3)}
    copied = on_the_node("copied", 4, annotations={"gpu-memory": "40000"})
    copied["spec"]["schedulerName"] = "default-scheduler"
    within = on_the_node("within", 5, annotations=fraction)
    node = kube_objects.node("81559")
    node["metadata"]["name"] = "node-1"
    return [
        node, namespace_object("team-b", {OVER_SHARE: "evict", **labels}),
        honest, greedy, decoy, copied, within,
        *(bind_request(name, number, "0.10", groups=("g",), namespace="team-b")
          for name, number in (("honest", 1), ("greedy", 2), ("decoy", 3), ("within", 5))),
        reservation("g", GPU, 6, node="node-1"),
    ]  # fmt: skip


def hold(node: Node) -> None:
    used_mib = {1: 9000, 2: 20_000, 3: 9000, 4: 30_000, 5: 7000}
    lines = ["driver 580.65.06", f"gpu 0 {GPU} {TOTAL} {500 * MIB} {76_000 * MIB} NVIDIA H100"]
    for number, mib in used_mib.items():
        node.proc.add(200 + number, in_pod(kube_objects.uid(number)))
        lines.append(f"process 0 - 0 {200 + number} {mib * MIB} 4294967295 4294967295")
    node.answers.write(lines)


@pytest.fixture(params=[False, True], ids=["plain host namespace", "host namespace of a vCluster"])
def labels(request: pytest.FixtureRequest) -> dict[str, str]:
    return {VCLUSTER: "true"} if request.param else {}


@pytest.fixture
def running(labels: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    node = new_node(tmp_path_factory.mktemp("node"))
    node.write_pods(objects(labels))
    hold(node)
    with start(node, tmp_path_factory.mktemp("log") / "log", tmp_path_factory) as made:
        yield made
        assert made.stop() == 0


def test_forged_keys_hide_no_pod(running: Agent, labels: dict[str, str]) -> None:
    expected = {
        ("honest", GPU, "over-share"),
        ("greedy", GPU, "over-share"),
        ("decoy", GPU, "over-share"),
        ("copied", GPU, "no-share"),
    }
    running.until(lambda: flagged(running.series()) == expected)
    series = running.series()
    names = named(series, "kaishare_pod_gpu_memory_used_bytes", "pod", "namespace", "vcluster", "virtual_pod")
    of_greedy = ("x", "p") if labels else ("", "")
    assert set(names) == {
        (name, "team-b", *(of_greedy if name == "greedy" else ("", "")))
        for name in ("honest", "greedy", "decoy", "copied", "within")
    }
    pods = {each["name"]: each for each in running.shares()["pods"]}
    policy = {"evict": True, "graceSeconds": None}
    assert [each["overSharePolicy"] for each in pods.values()] == [policy] * 5
    promised = named(series, "kaishare_gpu_memory_promised_bytes", "gpu_uuid")
    assert promised == {(GPU,): 4 * 8150 * MIB}, "nothing is promised to the pod that copied a group"
