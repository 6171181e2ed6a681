"""Nodes with GPUs: what a share is worth on each, their labels, and their agents.

KAI has three figures for one share. Its status takes the annotation, its scheduler rounds to hundredths for
the queue, and compares units of memory for one GPU.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.agent_checks import AgentDaemonSet
from console.doctor.api_reader import ApiReader, ListResult, ListSpec
from console.doctor.check_results import CheckResult, limited, ok, problem, unknown, warning
from console.doctor.counted_pod_groups import gpu_amount
from kai import keys
from kai.gpu_resources import NVIDIA_PREFIX, names_gpu
from kai.numbers import parse_int
from kai.pod import Quantity
from kai.releases import Version
from kai.share import MIB, Share
from kai.share_bytes import Card
from kube.kinds import FullMeta, Taint
from service.text import counted, listed, one_line

PRESENT_LABEL: Final = "nvidia.com/gpu.present"
"""Label of GPU feature discovery. The chart's DaemonSet selects nodes with the value `true`."""

_NODES: Final = ListSpec(
    resource="nodes",
    without="the nodes with GPUs are not known, and were not compared with agents and requests",
)
_UNLABELLED: Final = Card(100, MIB)
"""GPU of a node without the label: KAI's DefaultGpuMemory (`node_info.go`), used for fractions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node as far as the checks need it."""

    name: str
    gpus: float | None = None
    """`nvidia.com/gpu` of the node, replicas of time-slicing included; None if the quantity cannot be read.

    The larger one of allocatable and capacity: a GPU that fails leaves allocatable while its pods run on.
    """
    memory: int | None = None
    """MiB of one GPU as in the label, which KAI's status uses (`fraction.go`); None without a valid label."""
    card: Card | None = None
    """One GPU as KAI's scheduler counts it; None without a valid label."""
    has_gpus: bool = True
    """Whether the node has GPUs, by its capacity or its labels."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of a node with GPUs; empty for another one."""
    taints: tuple[Taint, ...] = ()

    @property
    def is_labelled(self) -> bool:
        """Whether the label `PRESENT_LABEL` has the value `true`."""
        return self.labels.get(PRESENT_LABEL) == "true"

    @property
    def has_memory_label(self) -> bool:
        """Whether the node has the label from which KAI computes the bytes of a share."""
        return keys.NODE_GPU_MEMORY in self.labels

    @property
    def memory_label_error(self) -> str:
        """Why the value of that label is invalid; empty if it is valid, or without the label."""
        if not self.has_memory_label:
            return ""
        try:
            Card.from_label(self.labels[keys.NODE_GPU_MEMORY])
        except ValueError as error:
            return one_line(str(error))
        return ""

    def in_status(self, share: Share) -> float | None:
        """Return the GPUs of a share in KAI's status: the devices count once (`ExtractGPUSharingReceived…`).

        None if they depend on the memory of the node's GPUs, and that is unknown.
        """
        if share.fraction is not None:
            return share.fraction
        return share.memory_mib / self.memory if share.memory_mib is not None and self.memory else None

    def in_queue(self, share: Share) -> float | None:
        """Return the GPUs of a share that KAI's scheduler charges to its queue; None as in `in_status`."""
        if share.memory_mib is not None:
            return self.card.portion_of_memory(share.memory_mib) * share.devices if self.card else None
        return share.counted_gpus

    def on_gpu(self, share: Share) -> float | None:
        """Return the part of each GPU that KAI's scheduler charges to its node; None as in `in_status`."""
        card = self.card or (None if share.fraction is None else _UNLABELLED)
        return card.share_bytes(share) / (card.units * card.unit_bytes) if card else None


UNKNOWN_NODE: Final = ClusterNode(name="")
"""Stands for a node that could not be read."""


class _Spec(Struct, frozen=True):
    taints: list[Taint] | None = None


class _Status(Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None
    capacity: dict[str, Quantity] | None = None


class _Node(Struct, frozen=True):
    metadata: FullMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()


_node = msgspec.json.Decoder(_Node).decode


async def list_nodes(reader: ApiReader, version: Version | None) -> ListResult[ClusterNode]:
    """List the nodes; a failed request is recorded in the reader. See `read_node`."""
    return await reader.list(_NODES, partial(read_node, version=version))


def read_node(item: bytes, version: Version | None) -> ClusterNode:
    """Read a node.

    Args:
        item: the node's JSON.
        version: the installed release of KAI; None if unknown.
    """
    node = _node(item)
    labels = node.metadata.labels
    label = labels.get(keys.NODE_GPU_MEMORY, "")
    has_gpus = any(
        amount not in ("0", 0) and name.startswith(NVIDIA_PREFIX) and names_gpu(name)
        for name, amount in (node.status.capacity or {}).items()
    )
    has_gpus |= labels.get(PRESENT_LABEL) == "true" or keys.NODE_GPU_MEMORY in labels
    allocatable, capacity = gpu_amount(node.status.allocatable), gpu_amount(node.status.capacity)
    try:
        memory, card = parse_int(label), Card.from_label(label, version)
    except ValueError:
        memory, card = None, None
    return ClusterNode(
        name=node.metadata.name,
        gpus=None if allocatable is None or capacity is None else max(allocatable, capacity),
        memory=memory,
        card=card,
        has_gpus=has_gpus,
        labels=labels if has_gpus else {},
        taints=tuple(node.spec.taints or ()),
    )


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
