"""Reads the nodes with GPUs, and checks the labels that the agent's DaemonSet and KAI use."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.daemon_sets import AgentDaemonSet, Taint
from kai import keys
from kai.gpu_resources import NVIDIA_PREFIX, names_gpu
from kube.objects import ObjectMeta
from service.check_results import CheckResult, ok, problem, unknown, warning
from service.text import MOST_LINES, counted, listed
from webhook.doctor.api_reader import ApiReader, ListResult, ListSpec

AGENTS: Final = "agents"
LABELS: Final = "node labels"

PRESENT_LABEL: Final = "nvidia.com/gpu.present"
"""Label of GPU feature discovery. The chart's DaemonSet selects nodes with the value `true`."""

_DISCOVERY: Final = "install NVIDIA's GPU feature discovery, which sets the label, or set it by hand"
_NODES: Final = ListSpec(
    resource="nodes",
    path="/api/v1/nodes",
    without="the nodes with GPUs are not known, and were not compared with the agents",
)


class _Metadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None


class _Spec(Struct, frozen=True):
    taints: list[Taint] | None = None


class _Status(Struct, frozen=True):
    capacity: dict[str, str] | None = None


class _Node(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_node = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node with GPUs, by its capacity or its labels."""

    name: str
    is_labelled: bool
    """Whether the label `PRESENT_LABEL` has the value `true`."""
    has_memory_label: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


async def read_gpu_nodes(reader: ApiReader) -> ListResult[GpuNode]:
    """List the nodes with GPUs; a failed request is recorded in the reader."""
    return await reader.list(_NODES, _gpu_node)


def _gpu_node(item: bytes) -> GpuNode | None:
    node = _node.decode(item)
    labels = node.metadata.labels or {}
    has_capacity = any(
        amount != "0" and name.startswith(NVIDIA_PREFIX) and names_gpu(name)
        for name, amount in (node.status.capacity or {}).items()
    )
    is_labelled = labels.get(PRESENT_LABEL) == "true"
    if not (has_capacity or is_labelled or keys.NODE_GPU_MEMORY in labels):
        return None
    return GpuNode(
        name=node.metadata.name,
        is_labelled=is_labelled,
        has_memory_label=keys.NODE_GPU_MEMORY in labels,
        labels=labels,
        taints=tuple(node.spec.taints or ()),
    )


def node_findings(
    nodes: ListResult[GpuNode],
    with_agent: Collection[str] | None,
    daemon_sets: Sequence[AgentDaemonSet] = (),
) -> Iterator[CheckResult]:
    """Yield findings about the labels of nodes with GPUs, and about nodes without an agent. Pure.

    Args:
        nodes: the nodes with GPUs.
        with_agent: names of the nodes that have an agent; None if the agents could not be listed.
        daemon_sets: the agents' DaemonSets; empty if there is none, or if they could not be listed.
    """
    if not nodes.is_known:
        return
    if not nodes.items:
        yield unknown(
            LABELS,
            f"no node has GPUs: none has capacity {keys.GPU_RESOURCE} or the label {PRESENT_LABEL}",
            "install NVIDIA's GPU operator, or its device plugin and GPU feature discovery",
        )
        return
    without_label = [node.name for node in nodes.items if not node.is_labelled]
    if without_label:
        yield _missing(without_label, f"{PRESENT_LABEL}=true", "the agent's DaemonSet selects nodes by it")
    without_memory = [node.name for node in nodes.items if not node.has_memory_label]
    if without_memory:
        yield _missing(
            without_memory,
            keys.NODE_GPU_MEMORY,
            "KAI assumes 100 MiB for each of their GPUs and schedules no gpu-memory pod there",
        )
    if not without_label and not without_memory:
        have = "has" if len(nodes.items) == 1 else "have"
        yield ok(LABELS, f"{counted(len(nodes.items), 'node')} with GPUs {have} both labels")
    if with_agent is not None:
        uncovered = [node for node in nodes.items if node.name not in with_agent]
        if not uncovered:
            yield ok(AGENTS, f"each of {counted(len(nodes.items), 'node')} with GPUs has an agent")
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


def _uncovered(uncovered: Sequence[GpuNode]) -> CheckResult:
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


def _kept_away(uncovered: Sequence[GpuNode], daemon_set: AgentDaemonSet) -> Iterator[CheckResult]:
    """Yield a problem for each reason why the DaemonSet has no pod on nodes with GPUs."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for node in uncovered:
        reasons = "; ".join(daemon_set.obstacles(node.name, node.labels, node.taints))
        by_reason[reasons].append(node.name)
    name, namespace = daemon_set.metadata.name, daemon_set.metadata.namespace
    title = f"DaemonSet {name} wants {counted(daemon_set.desired, 'pod')}"
    for reasons, names in sorted(by_reason.items())[:MOST_LINES]:
        if reasons:
            yield problem(
                AGENTS,
                f"{_without_agent(names)}. {title}, and not there: {reasons}",
                "correct the named values of the chart, or the labels and taints of the nodes",
            )
        else:
            yield problem(
                AGENTS,
                f"{_without_agent(names)}. {title}, also there: its pods are not created or not scheduled",
                f"kubectl -n {namespace} describe daemonset {name}; see also agent readiness",
            )
    if len(by_reason) > MOST_LINES:
        yield problem(AGENTS, f"and {len(by_reason) - MOST_LINES} more reasons")
