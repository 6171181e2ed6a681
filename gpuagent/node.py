"""The node that the agent looks at: where its GPUs, processes and pods come from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuagent.gpus.gpu_reading import GpuSource
from gpuagent.pods.inventory import PodSource
from gpuagent.sampling.processes import Lookup, Processes
from kai.releases import Version
from service.command import UsageError
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
    """The sources of a node's figures."""

    settings: NodeSettings
    source: GpuSource
    look_up: Callable[..., Lookup]
    """Finds the origin of each process, as `Processes.look_up`."""
    follow: Callable[[PodSource], None] = lambda _pods: None
    """Receives the source of pods, from which a simulated node makes up its processes."""


def open_node(settings: NodeSettings, *, deadline: float, log: JsonLog) -> OpenedNode:
    """Return the sources of a node's figures; a GPU counts as unanswered after `deadline` seconds.

    Raises:
        UsageError: the node is to be simulated, and has an NVIDIA driver.
    """
    # Each import costs memory that the other kind of node has no use for.
    if settings.is_simulated:
        from gpuagent.simulation.simulated_gpus import SimulatedGpus, driver_of_this_node  # noqa: PLC0415

        if driver := driver_of_this_node():
            raise UsageError(f"--gpus simulated is refused on a node with an NVIDIA driver: {driver}")
        gpus = SimulatedGpus(node=settings.node, log=log, kai_version=settings.kai_version)
        return OpenedNode(settings=settings, source=gpus, look_up=gpus.look_up, follow=gpus.follow)
    from gpuagent.gpus.gpu_reader import NvmlGpus  # noqa: PLC0415

    processes = Processes(proc_root=settings.proc_root)
    return OpenedNode(settings=settings, source=NvmlGpus(deadline=deadline), look_up=processes.look_up)
