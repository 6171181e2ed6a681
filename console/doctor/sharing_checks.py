"""Checks of KAI's sharing mode: what kaishare assumes, what NvFractions needs, and other products' keys.

NvFractions and its operator were read in KAI's documentation and source of 0.18, and never run. Run:ai's keys
are those of NVIDIA's documentation of Run:ai 2.x.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from console.cluster.agents import AgentReading
from console.cluster.facts import FactReader, Why, items
from console.doctor.check_results import CheckResult, grouped, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kai.installation import SharingMode
from kai.share import run_ai_limit
from kube.kinds import Kind, PartialObject
from service.text import counted, listed, one_line

_NOT_RUN: Final = " (not run on a real KAI 0.18)"
_FIRST_DRIVER: Final = 615
"""First branch of NVIDIA's driver with memory limits by cgroup (NVML's change log of 13.4)."""
_OPERATORS: Final = ("GpuFractioningConfig", "GpuSharingConfig")
"""Kinds of the object `default` of the operator behind NvFractions: its present name, and that of its first
releases."""
_CONDITIONS: Final = ("gpu-fractioning.nvidia.com/Ready", "gpu-sharing.nvidia.com/Ready")
"""Conditions of nodes where that operator's daemons run, likewise. Ready does not mean that limits hold."""
_KRM: Final = frozenset({"kai-pod-group-mutation", "kai-pod-mutation"})
"""Webhooks of kai-resource-management. Its assigner writes the queue of PodGroups."""


class _Condition(Struct, frozen=True):
    type: str = ""
    status: str = ""


class _NodeStatus(Struct, frozen=True):
    conditions: list[_Condition] | None = None

    @property
    def has_ready_operator(self) -> bool:
        """Whether one of the conditions is True; Unknown, as after a shutdown, is not."""
        return any(each.type in _CONDITIONS and each.status == "True" for each in self.conditions or ())


class _Node(PartialObject, frozen=True):
    status: _NodeStatus = _NodeStatus()


_NODES: Final = Kind("", "v1", "nodes", "Node", _Node)


def mode_findings(cluster: ClusterFacts, readings: Sequence[AgentReading]) -> Iterator[CheckResult]:
    """Yield findings about the agents' --gpu-sharing-mode, and about evictions that it withholds."""
    modes = cluster.installation.sharing_modes if cluster.installation else frozenset[SharingMode]()
    answers = [
        (each.pod.spec.node_name, each.received.answer) for each in readings if each.received is not None
    ]
    withheld = [pod.name for _, answer in answers for pod in answer.pods if pod.not_evicted == "mode-unknown"]
    if withheld:
        said = f"={next(iter(modes))}" if len(modes) == 1 else ""
        yield problem(
            f"evictions are withheld, since the agents do not know KAI's sharing mode: {listed(withheld)}",
            f"install kaishare with agent.gpuSharingMode{said}",
        )
    if len(modes) != 1:
        return
    (mode,) = modes
    others = grouped(
        (answer.gpu_sharing_mode, node)
        for node, answer in answers
        if answer.gpu_sharing_mode not in (None, mode)
    )
    for other, nodes in sorted(others.items()):
        yield problem(
            f"KAI's sharing mode is {mode}, and agents run with --gpu-sharing-mode {one_line(other or '')}:"
            f" {listed(nodes)}",
            f"install kaishare with agent.gpuSharingMode={mode}",
        )
    if mode is SharingMode.NV_FRACTIONS:
        too_old = [node for node, answer in answers if _is_too_old(answer.driver_version)]
        if too_old:
            yield problem(
                f"in {mode} the driver must hold the limits, and that of {listed(too_old)} is older than"
                f" {_FIRST_DRIVER}: no limit can be in force",
                f"install a driver of {_FIRST_DRIVER} or newer",
            )


def _is_too_old(driver: str | None) -> bool:
    major = (driver or "").partition(".")[0]
    return major.isascii() and major.isdecimal() and int(major) < _FIRST_DRIVER


async def operator_is_ready(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield whether the operator behind NvFractions is there and ready on nodes with GPUs."""
    modes = cluster.installation.sharing_modes if cluster.installation else ()
    if SharingMode.NV_FRACTIONS not in modes:
        return
    served = items(await reader.served())
    kinds = [kind for name in _OPERATORS for kind in served if kind.kind == name]
    if not kinds:
        if (await reader.served()).is_known:
            yield problem(
                f"KAI shares GPUs by NvFractions, and no {' or '.join(_OPERATORS)} is served: no pod with a"
                f" share is scheduled{_NOT_RUN}",
                "install KAI's chart with global.nvFractions.set=true, or NVIDIA's operator gpu-fractioning",
            )
    else:
        yield ok(f"the operator's kind is {one_line(kinds[0].name)}{_NOT_RUN}")
    nodes = await reader.list(_NODES)
    with_gpus = {node.name for node in items(cluster.nodes) if node.has_gpus}
    unready = [
        node.metadata.name
        for node in items(nodes)
        if node.metadata.name in with_gpus and not node.status.has_ready_operator
    ]
    if unready:
        yield problem(
            f"{counted(len(unready), 'node')} with GPUs without the condition {' or '.join(_CONDITIONS)}:"
            f" {listed(unready)}; KAI schedules no pod with a share there{_NOT_RUN}",
            "read the log of the operator's pods on these nodes",
        )
    elif nodes.why not in (None, Why.FORBIDDEN):
        yield unknown(nodes.line)


def resource_management(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a warning where kai-resource-management assigns queues, which the guard would refuse."""
    names = {
        name
        for configuration in items(cluster.mutating)
        for name in (configuration.name, *(hook.name for hook in configuration.hooks))
    }
    found = sorted(name for name in names if name.partition(".")[0] in _KRM)
    if found:
        yield warning(
            f"kai-resource-management assigns queues here (webhook {listed(found)}): a pod's queue label is a"
            f" wish, and its PodGroup moves to other queues{_NOT_RUN}",
            "do not install kaishare's guard in this cluster, whose policies refuse such moves",
        )


def run_ai_keys(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a warning for waiting pods with keys of Run:ai 2.x, which KAI ignores without a word."""
    by_advice: list[tuple[str, str]] = []
    for pod in items(cluster.waiting):
        annotations: Mapping[str, str] = pod.metadata.annotations or {}
        container = next((each.name for each in pod.spec.containers or ()), "NAME")
        if advice := run_ai_limit(annotations, container):
            by_advice.append((advice, "/".join(pod.metadata.key)))
    for advice, pods in sorted(grouped(by_advice).items()):
        yield warning(
            f"{listed(pods)}: an annotation of Run:ai 2.x, which KAI ignores, so that no limit is set", advice
        )
