"""The node that the agent looks at: where its GPUs, processes and pods come from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.gpus.gpu_reading import GpuSource
from gpuagent.pods.inventory import PodSource
from kai.releases import Version
from service.command import UsageError
from service.log import JsonLog


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Which node, and where its GPUs, processes and pods come from."""

    scenario: Path | None = None
    """Scenario of a simulated node; None for the driver of this node."""
    simulates_cluster: bool = False
    """Whether GPUs and processes are made up from the pods of the API server; only without a driver."""
    pods: Path | None = None
    """The pods file; None for the API server, or for a scenario, which has its own pods."""
    node: str = ""
    """Name of the node; empty if it is unknown. Set for a scenario only if it was named explicitly."""
    proc_root: Path = Path("/proc")
    reservation_namespace: str
    kai_version: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedNode:
    """The source of a node's figures."""

    source: GpuSource
    settings: NodeSettings
    """Those that were given, with the name, the pods and /proc of a simulated node."""
    follow: Callable[[PodSource], None] = lambda _pods: None
    """Receives the source of pods, from which a simulated cluster makes up its processes."""


def open_node(settings: NodeSettings, *, deadline: float, log: JsonLog) -> OpenedNode:
    """Return the source of a node's figures.

    Args:
        settings: which node.
        deadline: seconds until a GPU counts as unanswered.
        log: receives invalid annotations of a simulated cluster's pods.

    Raises:
        UsageError: the settings cannot be used; also service.documents.DocumentError.
    """
    # Each import costs memory that the other kinds of node have no use for.
    if settings.simulates_cluster:
        from gpuagent.simulation.simulated_cluster import simulated_cluster  # noqa: PLC0415

        cluster = simulated_cluster(node=settings.node, log=log, kai_version=settings.kai_version)
        return OpenedNode(
            source=cluster,
            settings=replace(settings, proc_root=cluster.proc_root),
            follow=cluster.follow,
        )
    if settings.scenario is None:
        from gpuagent.gpus.nvml import NvmlGpus  # noqa: PLC0415

        return OpenedNode(source=NvmlGpus(deadline=deadline), settings=settings)
    from gpuagent.simulation.scenario_loading import load_scenario  # noqa: PLC0415
    from gpuagent.simulation.simulated_node import simulated_gpus  # noqa: PLC0415

    scenario = load_scenario(settings.scenario)
    if settings.node not in ("", scenario.node.name):
        raise UsageError(f'--node "{settings.node}" is not the scenario\'s node, "{scenario.node.name}"')
    gpus = simulated_gpus(scenario, deadline=deadline)
    return OpenedNode(
        source=gpus,
        settings=replace(settings, node=gpus.node, pods=gpus.pods_file, proc_root=gpus.proc_root),
    )
