"""Agents: nodes without one, and findings that are grouped, bounded, and safe to print."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.agent_client import Received
from console.agents import AgentPod, AgentReading
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_state import PRESENT_LABEL, ClusterFacts, ClusterNode
from console.doctor.node_checks import (
    attribution_findings,
    coverage,
    obstacles,
    pod_findings,
    release_findings,
    response_findings,
)
from gpuagent.api_types import AgentResponse, ApiGpu, ApiProblem
from gpuagent.table.next_steps import FOR_PROBLEM
from kube.kinds import DAEMON_SETS, Controller, Taint
from service.text import MOST_LINES
from tests.support.cluster_facts import alone, but, by_policies, of_kai, whole

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def pod(number: int = 0, **fields: object) -> AgentPod:
    own = AgentPod(
        namespace="kaishare-agent", name=f"agent-{number}", uid=f"u{number}", node=f"n{number}", port=9445,
        version="0.1.0", created_at=NOW - timedelta(days=3), is_ready=True, trouble="", restarts=0,
    )  # fmt: skip
    return replace(own, **fields)  # type: ignore[arg-type]


def reading(number: int = 0, failure: str = "", age: float | None = 1.0, **answer: object) -> AgentReading:
    response = AgentResponse(node=f"n{number}", **{"attribution_ok": True, **answer})  # type: ignore[arg-type]
    received = None if failure else Received(answer=response, body=b"", at=0.0, age=age)
    return AgentReading(pod=pod(number), received=received, failure=failure)


def test_an_agent_that_is_not_ready() -> None:
    (finding,) = pod_findings([pod(is_ready=False, trouble="CrashLoopBackOff", restarts=7)], [], NOW)
    assert finding.state is State.PROBLEM
    assert finding.what == "n0 (pod agent-0, 3 d old): CrashLoopBackOff, 7 restarts"
    (finding,) = pod_findings([pod(is_ready=False, trouble="Pending", node="")], [], None)
    assert finding.what == "no node (pod agent-0): Pending"


def test_an_agent_that_is_terminating_is_not_called_ready() -> None:
    pods = [pod(0), pod(1, is_ready=False, is_terminating=True)]
    (finding,) = pod_findings(pods, [], NOW)
    assert finding.state is State.UNKNOWN
    assert finding.what == "1 agent terminating: n1 (pod agent-1, 3 d old)"
    (finding,) = pod_findings(pods[:1], [], NOW)
    assert (finding.state, finding.what) == (State.OK, "1 agent ready")


def test_many_agents_that_are_not_ready_take_few_lines() -> None:
    unready = [pod(number, is_ready=False, trouble="Pending") for number in range(500)]
    findings = list(pod_findings(unready, [], NOW))
    assert len(findings) == MOST_LINES + 1
    assert findings[-1].what.startswith(f"and {500 - MOST_LINES} more agents not ready: n")


def test_agents_with_the_same_failure_share_a_line() -> None:
    findings = list(response_findings([reading(number, "no answer") for number in range(40)], NOW))
    assert [finding.state for finding in findings] == [State.PROBLEM]
    assert findings[0].what == (
        "n0 (pod agent-0, 3 d old), n1 (pod agent-1, 3 d old), n10 (pod agent-10, 3 d old),"
        " n11 (pod agent-11, 3 d old), n12 (pod agent-12, 3 d old) and 35 more: no answer"
    )


def test_each_agent_may_fail_in_its_own_way() -> None:
    findings = list(response_findings([reading(number, f"error {number}") for number in range(500)], NOW))
    assert len(findings) == MOST_LINES + 1


def test_a_missing_right_is_no_problem_of_the_agents() -> None:
    right = "get pods/proxy in a"
    lacking = replace(reading(failure=f"the caller may not {right}"), missing_right=right)
    (finding,) = response_findings([lacking], NOW)
    assert finding.state is State.UNKNOWN
    assert finding.advice == "grant the right to get pods/proxy in a"


def test_attribution_problems_by_reason() -> None:
    denied = ApiProblem(reason="proc-denied", detail="cannot read /proc")
    conflict = ApiProblem(reason="reservation-conflict", detail="two namespaces")
    findings = list(
        attribution_findings(
            [
                reading(0, attribution_ok=False, problems=[denied]),
                reading(1, attribution_ok=False, problems=[denied]),
                reading(2, problems=[conflict]),
                reading(3, failure="no answer"),
                reading(4, age=600.0),
                reading(5, attribution_ok=None),
                reading(6, attribution_ok=False),
            ]
        )
    )
    assert [(finding.state, finding.what) for finding in findings] == [
        (State.PROBLEM, "not possible on n6"),
        (State.PROBLEM, "the figures are old: n4 (10 min)"),
        (State.PROBLEM, "proc-denied on n0, n1: cannot read /proc"),
        (State.WARNING, "reservation-conflict on n2: two namespaces"),
        (State.UNKNOWN, "no sample yet on n5"),
    ]


def test_each_problem_comes_with_what_to_do_first() -> None:
    """The step of the table for a reason of the metrics; the detail of the agent's own faults has the remedy."""
    denied = ApiProblem(reason="proc-denied", detail="cannot read /proc")
    rights = ApiProblem(reason="rights", detail="no right to create events: apply the chart's roles")
    findings = list(attribution_findings([reading(problems=[denied, rights])]))
    assert [(finding.state, finding.what, finding.advice) for finding in findings] == [
        (State.PROBLEM, "proc-denied on n0: cannot read /proc", FOR_PROBLEM["proc-denied"].line),
        (State.PROBLEM, "rights on n0: no right to create events: apply the chart's roles", ""),
    ]


def test_an_agent_that_is_not_ready_tells_its_problems_all_the_same() -> None:
    files = ApiProblem(reason="device-files", detail="there is no /dev/nvidiactl: use CDI")
    unready = reading(attribution_ok=None, problems=[files])
    unready = replace(unready, pod=replace(unready.pod, is_ready=False))
    (finding,) = attribution_findings([unready])
    assert finding.what == "device-files on n0: there is no /dev/nvidiactl: use CDI"


def test_a_gpu_of_unknown_memory_is_named() -> None:
    blank = ApiGpu(uuid="GPU-1", index=3, memory_unknown="nvmlDeviceGetMemoryInfo: NoPermission")
    (finding,) = attribution_findings([reading(gpus=[blank])])
    assert finding.state is State.WARNING
    assert finding.what.endswith("GPU 3 of n0: nvmlDeviceGetMemoryInfo: NoPermission")
    assert "agent.migMonitor" in finding.advice


def test_hostile_agents_cannot_flood_the_report_or_act_on_the_terminal() -> None:
    hostile = [ApiProblem(reason=f"\x1b[2J{n}", detail="\u202e\n" * 9999) for n in range(5000)]
    findings = list(attribution_findings([reading(attribution_ok=False, problems=hostile)]))
    assert len(findings) == MOST_LINES + 1
    assert all(finding.what.isprintable() and len(finding.what) < 1000 for finding in findings)


def daemon_set(desired: int = 0, **spec: Any) -> Controller:
    document = {
        "metadata": {"name": "kaishare-agent", "namespace": "kaishare-agent"},
        "spec": {"template": {"spec": spec}},
        "status": {"desiredNumberScheduled": desired},
    }
    return DAEMON_SETS.decode(json.dumps(document))


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
        ({}, (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),), []),
    ],
)  # fmt: skip
def test_a_daemon_set_needs_selection_and_tolerations(
    spec: dict[str, Any], taints: tuple[Taint, ...], expected: list[str]
) -> None:
    node = ClusterNode(name="n0", labels=LABELS, taints=taints)
    assert list(obstacles(daemon_set(**spec), node)) == expected


BOTH = {PRESENT_LABEL: "true", "nvidia.com/gpu.memory": "23028"}


def covered(nodes: list[ClusterNode], pods: list[AgentPod], *sets: Controller) -> list[CheckResult]:
    return list(coverage(but(nodes=whole(*nodes)), pods, sets))


def test_nodes_with_the_same_reason_share_a_line() -> None:
    nodes = [ClusterNode(name=f"n{number}", labels=BOTH, taints=(GPU,)) for number in range(3)]
    (finding,) = covered(nodes, [pod(0)], daemon_set(1))
    assert finding.state is State.PROBLEM
    assert finding.what == (
        "2 nodes with GPUs have no agent: n1, n2; the usage of their GPUs is unknown. DaemonSet kaishare-agent"
        f" wants 1 pod, and not there: {UNTOLERATED[0]}"
    )
    taints = [(Taint(key=f"k{number}", effect="NoSchedule"),) for number in range(500)]
    many = [ClusterNode(name=f"m{n}", labels=BOTH, taints=each) for n, each in enumerate(taints)]
    assert len(covered(many, [pod(0)], daemon_set(1))) == MOST_LINES + 1


def test_a_node_without_an_agent_and_without_a_daemon_set() -> None:
    node = ClusterNode(name="n9", labels=BOTH)
    (finding,) = covered([node], [pod(0)])
    assert finding.what == "1 node with GPUs has no agent: n9; the usage of their GPUs is unknown"
    assert "agent.tolerations" in finding.advice
    (finding,) = covered([replace(node, labels={})], [pod(0)])
    assert finding.advice.startswith("set the label nvidia.com/gpu.present=true on n9")


NOWHERE = "problem: no agent found in namespace kaishare-agent"


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (alone(by_policies()), NOWHERE),
        (but(), NOWHERE),
        (but(mutating=whole(of_kai()), validating=whole()), ""),
    ],
)
def test_gpu_nodes_without_an_agent_are_a_problem_where_kaishare_decides(
    cluster: ClusterFacts, expected: str
) -> None:
    cluster = replace(cluster, nodes=whole(ClusterNode(name="n1")))
    (line,) = [f"{each.state}: {each.what}" for each in coverage(cluster, [], ())] or [""]
    assert line.startswith(expected)
    assert bool(line) is bool(expected)
    assert list(coverage(cluster, None, ())) == [], "the agents could not be listed"


def test_different_releases_are_a_warning() -> None:
    (finding,) = release_findings([pod(0)], (), "0.1.0", "0.1.0")
    assert (finding.state, finding.what) == (State.OK, "0.1.0 (agent, published settings, this command)")
    (finding,) = release_findings([pod(0), pod(1, version="\x1b0")], (), "", "0.1.0")
    assert finding.state is State.WARNING
    assert finding.what.isprintable()
    assert list(release_findings([], (), "", "0.1.0")) == []
