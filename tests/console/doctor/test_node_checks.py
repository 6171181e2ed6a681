"""Nodes without an agent, and agents' findings: grouped, bounded, and safe to print."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.cluster.agents import AgentReading, Received
from console.doctor.check_results import CheckResult
from console.doctor.cluster_state import PRESENT_LABEL, ClusterFacts, ClusterNode
from console.doctor.node_checks import (
    attribution_findings,
    coverage,
    obstacles,
    pod_findings,
    release_findings,
    response_findings,
    scraping_finding,
)
from gpuagent.api_types import AgentResponse, ApiGpu, ApiProblem
from gpuagent.first_acts import FOR_PROBLEM, for_problem
from kube.kinds import DAEMON_SETS, Controller, Pod, Taint
from service.text import MOST_LINES
from tests.support.cluster_facts import alone, but, by_policies, of_kai, whole
from tests.support.prometheus_standin import prometheus_standin
from tests.support.top_agents import act_line, agent_pod

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def pod(number: int = 0, node: str | None = None, **fields: Any) -> Pod:
    own = {"version": "0.1.0", "creationTimestamp": (NOW - timedelta(days=3)).isoformat(), **fields}
    return agent_pod(f"n{number}" if node is None else node, f"agent-{number}", **own)


def reading(number: int = 0, failure: str = "", age: float | None = 1.0, **answer: object) -> AgentReading:
    response = AgentResponse(node=f"n{number}", **{"attribution_ok": True, **answer})  # type: ignore[arg-type]
    received = None if failure else Received(answer=response, body=b"", at=0.0, age=age)
    return AgentReading(pod=pod(number), received=received, failure=failure)


def attributed(*readings: AgentReading) -> Iterator[CheckResult]:
    return attribution_findings(readings)


def lines_of(findings: Iterable[CheckResult]) -> list[str]:
    return [f"{each.state}: {each.what} -> {each.advice}" for each in findings]


def of_agent(reason: str, detail: str, error: str = "") -> ApiProblem:
    """Return a problem as an agent's API has it: with what to do first."""
    act = for_problem(reason, error)
    assert act is not None
    return ApiProblem(reason=reason, detail=detail, first_act=act.text, runbook=act.section)


UNREADY: dict[str, Any] = {"waiting": "CrashLoopBackOff", "restarts": 7}
RIGHT = "get pods/proxy in a"
LACKING = replace(reading(failure=f"the caller may not {RIGHT}"), missing_right=RIGHT)
DENIED = of_agent("proc-denied", "cannot read /proc")
CONFLICT = ApiProblem(reason="reservation-conflict", detail="two namespaces")
RIGHTS = ApiProblem(reason="rights", detail="no right to create events: apply the chart's roles")
MISSING = of_agent("gpu-missing", "one of two")
LABEL = ApiProblem(reason="node-label", detail="two models")
REPLACED = of_agent("nvml", "DriverNotLoaded", "DriverNotLoaded")
FILES = ApiProblem(reason="device-files", detail="there is no /dev/nvidiactl: use CDI")
BLANK = ApiGpu(uuid="GPU-1", index=3, memory_unknown="nvmlDeviceGetMemoryInfo: NoPermission")
UNREADY_WITH_FILES = replace(
    reading(attribution_ok=None, problems=[FILES]), pod=pod(waiting="CrashLoopBackOff")
)
SIX = [reading(0, attribution_ok=False, problems=[DENIED]), reading(1, attribution_ok=False, problems=[DENIED]), reading(2, problems=[CONFLICT]), reading(3, failure="no answer"), reading(4, age=600.0), reading(5, attribution_ok=None), reading(6, attribution_ok=False)]  # fmt: skip


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (pod_findings([pod(**UNREADY)], [], NOW), ["problem: n0 (pod agent-0, 3 d old): CrashLoopBackOff, 7 restarts -> kubectl -n kaishare-agent describe pod agent-0"]),
        (pod_findings([pod(phase="Pending", node="")], [], None), ["problem: no node (pod agent-0): Pending"]),
        (pod_findings([pod(0), pod(1, phase="Pending", deletionTimestamp="2026-11-22T00:00:00Z")], [], NOW), ["unknown: 1 agent terminating: n1 (pod agent-1, 3 d old)"]),
        (pod_findings([pod(0)], [], NOW), ["ok: 1 agent ready"]),
        (response_findings([reading(number, "no answer") for number in range(40)], NOW), ["problem: n0 (pod agent-0, 3 d old), n1 (pod agent-1, 3 d old), n10 (pod agent-10, 3 d old), n11 (pod agent-11, 3 d old), n12 (pod agent-12, 3 d old) and 35 more: no answer"]),
        (response_findings([LACKING], NOW), [f"unknown: n0 (pod agent-0, 3 d old): the caller may not {RIGHT} -> grant the right to {RIGHT}"]),
        (attributed(*SIX), ["problem: not possible on n6", "problem: old figures on n4: taken 10 min ago", "problem: proc-denied on n0, n1: cannot read /proc", "warning: reservation-conflict on n2: two namespaces", "unknown: no sample yet on n5"]),
        # The detail of the agent's own faults has the remedy.
        (attributed(reading(problems=[DENIED, RIGHTS, of_agent("proc-denied", "later")])), [f"problem: proc-denied on n0: cannot read /proc -> {act_line(FOR_PROBLEM['proc-denied'])}", "problem: rights on n0: no right to create events: apply the chart's roles -> "]),
        (attributed(reading(problems=[MISSING, LABEL])), ["problem: gpu-missing on n0: one of two -> Run nvidia-smi -L on the node,", "warning: node-label on n0: two models"]),
        (attributed(reading(problems=[REPLACED])), ["problem: nvml on n0: DriverNotLoaded -> Wait if the node's driver is being replaced;"]),
        (attributed(UNREADY_WITH_FILES), ["problem: device-files on n0: there is no /dev/nvidiactl: use CDI"]),
        (attributed(reading(gpus=[BLANK])), ["warning: memory of GPUs unknown on n0: GPU 3, nvmlDeviceGetMemoryInfo: NoPermission -> on MIG nodes set the chart's agent.migMonitor"]),
        (release_findings([pod(0)], (), "0.1.0", "0.1.0"), ["ok: 0.1.0 (agent, published settings, this command)"]),
        (release_findings([pod(0), pod(1, version="0.2.0")], (), "", "0.1.0"), ["warning: different: 0.1.0 (agent, this command); 0.2.0 (agent) -> finish the upgrade"]),
        (release_findings([], (), "", "0.1.0"), []),
    ],
)  # fmt: skip
def test_findings_about_agents(findings: Iterator[CheckResult], expected: list[str]) -> None:
    lines = lines_of(findings)
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


LONG = "\u202e\n" * 9999
HOSTILE = [ApiProblem(reason=f"\x1b[2J{n}", detail=LONG) for n in range(5000)]


@pytest.mark.parametrize(
    "findings",
    [
        pod_findings([pod(number, phase="Pending") for number in range(500)], [], NOW),
        response_findings([reading(number, f"error {number}") for number in range(500)], NOW),
        attributed(reading(attribution_ok=False, problems=HOSTILE)),
    ],
)
def test_many_or_hostile_agents_cannot_flood_the_report(findings: Iterator[CheckResult]) -> None:
    results = list(findings)
    assert len(results) == MOST_LINES + 1
    assert all(result.what.isprintable() and len(result.what) < 1000 for result in results)


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


@pytest.mark.parametrize(
    ("spec", "taints", "expected"),
    [
        ({}, (), []),
        ({"nodeSelector": {"pool": "b", "x": "y"}}, (), ["no label pool=b (agent.nodeSelector)", "no label x=y (agent.nodeSelector)"]),
        ({"affinity": affinity(expression("pool", "In", "b"), expression("pool", "NotIn", "b"))}, (), []),
        ({"affinity": affinity(expression("pool", "In", "b"))}, (), UNSELECTED),
        ({"affinity": affinity(expression("pool", "DoesNotExist"))}, (), UNSELECTED),
        ({"affinity": affinity(expression("gpus", "Gt", "4"))}, (), []),
        ({"affinity": affinity(expression("gpus", "Lt", "4"))}, (), UNSELECTED),
        ({"affinity": affinity({})}, (), UNSELECTED),
        ({"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]})}, (), []),
        ({}, (GPU,), UNTOLERATED),
        ({"tolerations": [{"operator": "Exists"}]}, (GPU,), []),
        ({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]}, (GPU,), UNTOLERATED),
        ({"tolerations": [{"key": "nvidia.com/gpu", "value": "present"}]}, (GPU,), []),
        ({}, (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),), []),
    ],
)  # fmt: skip
def test_a_daemon_set_needs_selection_and_tolerations(
    spec: dict[str, Any], taints: tuple[Taint, ...], expected: list[str]
) -> None:
    node = ClusterNode(name="n0", labels={"pool": "a", "gpus": "8"}, taints=taints)
    assert list(obstacles(daemon_set(**spec), node)) == expected


BOTH = {PRESENT_LABEL: "true", "nvidia.com/gpu.memory": "23028"}
NOWHERE = ["problem: no agent found in namespace kaishare-agent"]
THREE = [ClusterNode(name=f"n{number}", labels=BOTH, taints=(GPU,)) for number in range(3)]
WITHOUT = "; the usage of their GPUs is unknown"
DIFFERENT = [ClusterNode(name=f"m{n}", taints=(Taint(key=f"k{n}", effect="NoSchedule"),)) for n in range(500)]


@pytest.mark.parametrize(
    ("cluster", "nodes", "pods", "sets", "expected"),
    [
        (but(), THREE, [pod(0), pod(1), pod(2)], (), ["ok: each of 3 nodes with GPUs has an agent"]),
        (but(), THREE, [pod(0)], (daemon_set(1),), [f"problem: 2 nodes with GPUs have no agent: n1, n2{WITHOUT}. DaemonSet kaishare-agent wants 1 pod, and not there: {UNTOLERATED[0]} -> correct the named values"]),
        (but(), THREE, [pod(0)], (daemon_set(1, tolerations=[{"operator": "Exists"}]),), [f"problem: 2 nodes with GPUs have no agent: n1, n2{WITHOUT}. DaemonSet kaishare-agent wants 1 pod, also there: its pods are not created or not scheduled -> kubectl -n kaishare-agent describe"]),
        (but(), DIFFERENT, [pod(0)], (daemon_set(1),), ["problem: 1 node"] * MOST_LINES + ["problem: and 490 more reasons"]),
        (but(), THREE[2:], [pod(0)], (), [f"problem: 1 node with GPUs has no agent: n2{WITHOUT} -> compare labels (nvidia.com/gpu.present=true) and taints of the nodes with agent.nodeSelector and agent.tolerations"]),
        (but(), DIFFERENT[:1], [pod(0)], (), [f"problem: 1 node with GPUs has no agent: m0{WITHOUT} -> compare labels"]),
        (but(), [], [], (daemon_set(0),), []),
        (alone(by_policies()), THREE, [], (), NOWHERE),
        (but(), THREE, [], (), NOWHERE),
        (but(), [], [], (), ["unknown: no agent found"]),
        (but(mutating=whole(of_kai()), validating=whole()), THREE, [], (), []),
        (but(), THREE, None, (), []),  # the agents could not be listed
    ],
)  # fmt: skip
def test_nodes_with_gpus_need_an_agent(
    cluster: ClusterFacts, nodes: list[ClusterNode], pods: list[Pod] | None, sets: tuple[Controller, ...],
    expected: list[str],
) -> None:  # fmt: skip
    lines = lines_of(coverage(replace(cluster, nodes=whole(*nodes)), pods, sets))
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


ABSENT = "no series of the job kaishare-agent, by which alerts and records count"


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (["kaishare-agent"], "ok: URL scrapes the agents -> "),
        (["gpu", "kaishare-agent/kaishare-agent"], "ok: URL scrapes the agents -> "),
        (["tenant/kaishare-agent"], f"warning: URL has {ABSENT}; agents are in tenant/kaishare-agent -> rename the job"),
        (["a\x1b[31m"], f"warning: URL has {ABSENT}; agents are in a�[31m -> rename the job"),
        ([], f"warning: URL has {ABSENT} -> set monitors.enabled and monitors.labels of the chart"),
        (None, "unknown: not checked: URL: the answer is not of a Prometheus"),
    ],
)  # fmt: skip
async def test_a_prometheus_without_the_agents_job_is_told(jobs: list[str] | None, expected: str) -> None:
    result = [{"metric": {"job": job}, "value": [1.0, "3"]} for job in jobs or ()]
    answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
    async with prometheus_standin("no" if jobs is None else json.dumps(answer)) as standin:
        # The API server is not asked where an address is given.
        finding = await scraping_finding(None, "kaishare-agent", standin.url)  # type: ignore[arg-type]
        assert lines_of([finding])[0].replace(standin.url, "URL").startswith(expected)
        assert 'up{job=~"(kaishare-agent/)?kaishare-agent"}' in standin.forms[0]["query"]
