"""Checks nodes with GPUs: the labels that the agent's DaemonSet and KAI use, and their agents. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from console.doctor.daemon_sets import AgentDaemonSet
from kai import keys
from service.check_results import CheckResult, limited, ok, problem, unknown, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ListResult
from webhook.doctor.nodes import PRESENT_LABEL, ClusterNode

AGENTS: Final = "agents"
LABELS: Final = "node labels"

_DISCOVERY: Final = "install NVIDIA's GPU feature discovery, which sets the label, or set it by hand"
_MEMORY: Final = "correct the label: the memory of one GPU in MiB, as NVIDIA's GPU feature discovery sets it"


def node_findings(
    nodes: ListResult[ClusterNode],
    with_agent: Collection[str] | None,
    daemon_sets: Sequence[AgentDaemonSet] = (),
) -> Iterator[CheckResult]:
    """Yield findings about the labels of nodes with GPUs, and about nodes without an agent.

    Args:
        nodes: the nodes of the cluster.
        with_agent: names of the nodes that have an agent; None if the agents could not be listed.
        daemon_sets: the agents' DaemonSets; empty if there is none, or if they could not be listed.
    """
    if not nodes.is_known:
        return
    gpu_nodes = [node for node in nodes.items if node.has_gpus]
    if not gpu_nodes:
        yield unknown(
            LABELS,
            f"no node has GPUs: none has capacity {keys.GPU_RESOURCE} or the label {PRESENT_LABEL}",
            "install NVIDIA's GPU operator, or its device plugin and GPU feature discovery",
        )
        return
    without_label = [node.name for node in gpu_nodes if not node.is_labelled]
    if without_label:
        yield _missing(without_label, f"{PRESENT_LABEL}=true", "the agent's DaemonSet selects nodes by it")
    without_memory = [node.name for node in gpu_nodes if not node.has_memory_label]
    if without_memory:
        yield _missing(
            without_memory,
            keys.NODE_GPU_MEMORY,
            "KAI assumes 100 MiB for each of their GPUs and schedules no gpu-memory pod there",
        )
    invalid = [f"{node.name} ({node.memory_label_error})" for node in gpu_nodes if node.memory_label_error]
    if invalid:
        have = "has" if len(invalid) == 1 else "have"
        yield warning(
            LABELS,
            f"{counted(len(invalid), 'node')} with GPUs {have} an invalid label {keys.NODE_GPU_MEMORY}:"
            f" {listed(invalid)}; neither KAI nor kaishare can compute the bytes of a share from it",
            _MEMORY,
        )
    if not without_label and not without_memory and not invalid:
        have = "has" if len(gpu_nodes) == 1 else "have"
        yield ok(LABELS, f"{counted(len(gpu_nodes), 'node')} with GPUs {have} both labels")
    if with_agent is not None:
        uncovered = [node for node in gpu_nodes if node.name not in with_agent]
        if not uncovered:
            yield ok(AGENTS, f"each of {counted(len(gpu_nodes), 'node')} with GPUs has an agent")
        elif daemon_sets:
            yield from _kept_away(uncovered, daemon_sets[0])
        else:
            yield _uncovered(uncovered)


def _missing(names: Collection[str], label: str, consequence: str) -> CheckResult:
    have = "lacks" if len(names) == 1 else "lack"
    return warning(
        LABELS,
        f"{counted(len(names), 'node')} with GPUs {have} the label {label}: {listed(names)}; {consequence}",
        _DISCOVERY,
    )


def _uncovered(uncovered: Sequence[ClusterNode]) -> CheckResult:
    unlabelled = [node.name for node in uncovered if not node.is_labelled]
    advice = (
        f"set the label {PRESENT_LABEL}=true on {listed(unlabelled)},"
        " or change agent.nodeSelector of the chart"
        if unlabelled
        else "compare the taints of the nodes with agent.tolerations of the chart,"
        " and check --agent-namespace"
    )
    return problem(AGENTS, _without_agent([node.name for node in uncovered]), advice)


def _without_agent(names: Collection[str]) -> str:
    have = "has" if len(names) == 1 else "have"
    return (
        f"{counted(len(names), 'node')} with GPUs {have} no agent: {listed(names)};"
        " the usage of their GPUs is unknown"
    )


def _kept_away(uncovered: Sequence[ClusterNode], daemon_set: AgentDaemonSet) -> Iterator[CheckResult]:
    """Yield a problem for each reason why the DaemonSet has no pod on nodes with GPUs."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in uncovered:
        reasons = "; ".join(daemon_set.obstacles(node.name, node.labels, node.taints))
        by_reason[reasons].append(node.name)
    name, namespace = daemon_set.metadata.name, daemon_set.metadata.namespace
    title = f"DaemonSet {name} wants {counted(daemon_set.desired, 'pod')}"
    problems = []
    for reasons, names in sorted(by_reason.items()):
        if reasons:
            detail = f"and not there: {reasons}"
            advice = "correct the named values of the chart, or the labels and taints of the nodes"
        else:
            detail = "also there: its pods are not created or not scheduled"
            advice = f"kubectl -n {namespace} describe daemonset {name}; see also agent readiness"
        problems.append(problem(AGENTS, f"{_without_agent(names)}. {title}, {detail}", advice))
    yield from limited(problems, "more reason")
