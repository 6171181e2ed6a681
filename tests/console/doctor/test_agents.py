"""Findings about agents: grouped, bounded, and safe to print."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from console.agent_client import Received
from console.agents import AgentPod, AgentReading
from console.doctor.agent_checks import attribution_findings, pod_findings, response_findings
from console.doctor.api_reader import ListOutcome, ListResult
from console.doctor.check_results import State
from console.doctor.gpu_nodes import PRESENT_LABEL, ClusterNode, node_findings, read_node
from gpuagent.api_types import AgentResponse, ApiGpu, ApiProblem
from gpuagent.first_acts import FOR_PROBLEM
from service.text import MOST_LINES

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


@pytest.mark.parametrize(
    ("resource", "amount", "has_gpus"),
    [
        ("nvidia.com/gpu", "4", True),
        ("nvidia.com/gpu", "0", False),
        ("nvidia.com/mig-1g.10gb", "7", True),
        ("nvidia.com/gpu.shared", "16", True),
        ("nvidia.com/a100", "8", True),
        ("nvidia.com/hostdev", "2", False),
        ("amd.com/gpu", "4", False),
    ],
)
def test_a_node_has_gpus_by_any_resource_of_nvidias_device_plugin(
    resource: str, amount: str, has_gpus: bool
) -> None:
    """Time slicing and `renameByDefault` of the device plugin give a GPU another name."""
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "8", resource: amount}}}
    assert read_node(json.dumps(node).encode(), None).has_gpus is has_gpus


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


def test_nodes_that_could_not_be_listed_give_no_finding() -> None:
    assert list(node_findings(ListResult(), frozenset())) == []


def test_nodes_without_gpus() -> None:
    without = ClusterNode(name="n0", has_gpus=False)
    (finding,) = node_findings(ListResult((without,), ListOutcome.WHOLE), frozenset())
    assert finding.state is State.UNKNOWN


def test_without_the_label_of_its_memory_kai_takes_a_gpu_for_100_mib() -> None:
    node = ClusterNode(name="n0", labels={PRESENT_LABEL: "true"})
    (memory,) = node_findings(ListResult((node,), ListOutcome.WHOLE), None)
    assert memory.what == (
        "1 node with GPUs lacks the label nvidia.com/gpu.memory: n0;"
        " KAI assumes 100 MiB for each of their GPUs and schedules no gpu-memory pod there"
    )


def test_a_node_without_an_agent_and_with_both_labels() -> None:
    node = ClusterNode(name="n0", labels={PRESENT_LABEL: "true", "nvidia.com/gpu.memory": "23028"})
    labels, coverage = node_findings(ListResult((node,), ListOutcome.WHOLE), frozenset())
    assert labels.what == "1 node with GPUs has both labels"
    assert coverage.what == "1 node with GPUs has no agent: n0; the usage of their GPUs is unknown"
    assert "agent.tolerations" in coverage.advice
    (labels,) = node_findings(ListResult((node,), ListOutcome.WHOLE), None)
    assert labels.state is State.OK


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0", "0 MiB is less than the 100 MiB KAI counts in"),
        ("abc", '"abc" is not a number of MiB'),
        ("", '"" is not a number of MiB'),
    ],
)
def test_an_invalid_label_of_its_memory_is_named(value: str, why: str) -> None:
    labels = {PRESENT_LABEL: "true", "nvidia.com/gpu.memory": value}
    nodes = (ClusterNode(name="n0", labels=labels), ClusterNode(name="n1", labels=labels))
    (finding,) = node_findings(ListResult(nodes, ListOutcome.WHOLE), None)
    assert finding.state is State.WARNING
    assert finding.what.startswith(
        f"2 nodes with GPUs have an invalid label nvidia.com/gpu.memory: n0 ({why}), n1 ({why});"
    )
