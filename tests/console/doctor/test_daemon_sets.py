"""Why the agents' DaemonSet has no pod on a node with GPUs."""

from typing import Any

import msgspec
import pytest

from console.doctor.agent_checks import AgentDaemonSet
from console.doctor.api_reader import ListOutcome, ListResult
from console.doctor.check_results import State
from console.doctor.gpu_nodes import PRESENT_LABEL, ClusterNode, Taint, node_findings
from service.text import MOST_LINES


def daemon_set(desired: int = 0, **spec: Any) -> AgentDaemonSet:
    document = {
        "metadata": {"name": "kaishare-agent", "namespace": "kaishare-agent"},
        "spec": {"template": {"spec": spec}},
        "status": {"desiredNumberScheduled": desired},
    }
    return msgspec.convert(document, AgentDaemonSet)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


GPU = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
UNSELECTED = ["not selected by the node affinity (agent.affinity)"]
UNTOLERATED = ["taint nvidia.com/gpu=present:NoSchedule without a toleration (agent.tolerations)"]
LABELS = {"pool": "a", "gpus": "8"}


@pytest.mark.parametrize(
    ("spec", "taints", "expected"),
    [
        ({}, (), []),
        ({"nodeSelector": {"pool": "a"}}, (), []),
        ({"nodeSelector": {"pool": "b", "x": "y"}}, (), ["no label pool=b (agent.nodeSelector)", "no label x=y (agent.nodeSelector)"]),
        ({"affinity": affinity(expression("pool", "In", "b"), expression("pool", "NotIn", "b"))}, (), []),
        ({"affinity": affinity(expression("pool", "In", "b"))}, (), UNSELECTED),
        ({"affinity": affinity(expression("pool", "DoesNotExist"))}, (), UNSELECTED),
        ({"affinity": affinity(expression("gpus", "Gt", "4"))}, (), []),
        ({"affinity": affinity(expression("gpus", "Lt", "4"))}, (), UNSELECTED),
        ({"affinity": affinity(expression("gpus", "Gt", "x"))}, (), UNSELECTED),
        ({"affinity": affinity({})}, (), UNSELECTED),
        ({"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]})}, (), []),
        ({}, (GPU,), UNTOLERATED),
        ({"tolerations": [{"operator": "Exists"}]}, (GPU,), []),
        ({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]}, (GPU,), UNTOLERATED),
        ({"tolerations": [{"key": "nvidia.com/gpu", "value": "present"}]}, (GPU,), []),
        ({"tolerations": [{"key": "nvidia.com/gpu", "value": "x"}]}, (GPU,), UNTOLERATED),
        ({}, (Taint(key="a", effect="PreferNoSchedule"), Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")), []),
    ],
)  # fmt: skip
def test_a_daemon_set_needs_selection_and_tolerations(
    spec: dict[str, Any], taints: tuple[Taint, ...], expected: list[str]
) -> None:
    assert list(daemon_set(**spec).obstacles("n0", LABELS, taints)) == expected


def test_nodes_with_the_same_reason_share_a_line() -> None:
    labels = {PRESENT_LABEL: "true", "nvidia.com/gpu.memory": "23028"}
    nodes = [ClusterNode(name=f"n{number}", labels=labels, taints=(GPU,)) for number in range(3)]
    sets = [daemon_set(1)]
    _, finding = node_findings(ListResult(tuple(nodes), ListOutcome.WHOLE), {"n0"}, sets)
    assert finding.state is State.PROBLEM
    assert finding.what == (
        "2 nodes with GPUs have no agent: n1, n2; the usage of their GPUs is unknown. DaemonSet kaishare-agent wants"
        f" 1 pod, and not there: {UNTOLERATED[0]}"
    )
    many = [
        ClusterNode(name=f"n{n}", labels=labels, taints=(Taint(key=f"k{n}", effect="NoSchedule"),))
        for n in range(500)
    ]  # fmt: skip
    _, *findings = node_findings(ListResult(tuple(many), ListOutcome.WHOLE), frozenset(), sets)
    assert len(findings) == MOST_LINES + 1
