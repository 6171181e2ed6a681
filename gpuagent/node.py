"""The node that the agent looks at: where its GPUs, processes and pods come from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.gpus.gpu_reading import GpuSource
from gpuagent.pods.inventory import PodSource
from kai.releases import Version
from service.log import JsonLog


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Which node, and where its GPUs, processes and pods come from."""

    is_simulated: bool = False
    """Whether GPUs and processes are made up from the pods; only on a node without a driver."""
    pods: Path | None = None
    """The pods file; None for the API server."""
    kubeconfig: str | None = None
    """The kubeconfig of the API server; None for the service account, or `$KUBECONFIG` outside of a pod."""
    node: str = ""
    """Name of the node; empty if it is unknown."""
    proc_root: Path = Path("/proc")
    reservation_namespace: str
    kai_version: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedNode:
    """The source of a node's figures."""

    source: GpuSource
    settings: NodeSettings
    """Those that were given, with /proc of a simulated node."""
    follow: Callable[[PodSource], None] = lambda _pods: None
    """Receives the source of pods, from which a simulated node makes up its processes."""


def open_node(settings: NodeSettings, *, deadline: float, log: JsonLog) -> OpenedNode:
    """Return the source of a node's figures.

    Args:
        settings: which node.
        deadline: seconds until a GPU counts as unanswered.
        log: receives invalid annotations of a simulated node's pods.

    Raises:
        UsageError: the settings cannot be used.
    """
    # Each import costs memory that the other kind of node has no use for.
    if settings.is_simulated:
        from gpuagent.simulation.simulated_gpus import simulated_gpus  # noqa: PLC0415

        gpus = simulated_gpus(node=settings.node, log=log, kai_version=settings.kai_version)
        return OpenedNode(
            source=gpus, settings=replace(settings, proc_root=gpus.proc_root), follow=gpus.follow
        )
    from gpuagent.gpus.nvml import NvmlGpus  # noqa: PLC0415

    return OpenedNode(source=NvmlGpus(deadline=deadline), settings=settings)
