"""Checks of the node's pods, of their reservation pods, and of the owners of processes on GPUs. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from console.doctor.check_results import CheckResult, ok, problem
from console.doctor.driver_checks import Observation
from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.ledger.attribution import PodIndex
from gpuagent.node import NodeSettings
from gpuagent.pods.inventory import Inventory
from gpuagent.sampling.processes import processes_of
from gpuagent.sampling.sample import LookupResult
from gpuagent.shares.pod_share import PodShare
from gpuagent.shares.share_resolver import ShareResolver
from kai import keys
from kai.share_bytes import Card
from service.text import counted, listed, one_line

PODS: Final = "pods"
_RESERVATIONS: Final = "reservation pods"
_LABEL: Final = "node label"


def pod_findings(
    inventory: Inventory, observation: Observation, settings: NodeSettings, *, source: str
) -> Iterator[CheckResult]:
    """Check the list of pods.

    Args:
        inventory: the pods.
        observation: the GPUs and their processes.
        settings: with the node's name and `--kai-version`.
        source: origin of the list, in words.
    """
    node = one_line(settings.node)
    count = len(inventory.pods) + len(inventory.reservation_uids)
    if not count:
        yield problem(
            PODS,
            f"{source} has no pod on the node {node}",
            "set --node or NODE_NAME to the name of the Node object (kubectl get nodes)",
        )
        return
    yield ok(PODS, f"{counted(count, 'pod')} on the node {node}, from {source}")
    yield from _owners(inventory, observation)
    pod_shares = ShareResolver(kai_version=settings.kai_version).resolve(inventory, observation.gpus)
    yield from _reservations(inventory, observation.gpus)
    yield from _pods_without_reservation(inventory, pod_shares)
    if inventory.node_labels is not None:
        yield _label(inventory.node_labels)


def _owners(inventory: Inventory, observation: Observation) -> Iterator[CheckResult]:
    """Check the owners of the processes on the GPUs."""
    check = "processes on GPUs"
    if not observation.gpus:
        return
    index = PodIndex.from_inventory(inventory)
    pids = {process.pid for gpu in observation.gpus for process in processes_of(gpu)}
    contained = [observation.origins[pid] for pid in pids if pid in observation.origins]
    contained = [origin for origin in contained if origin.result is LookupResult.CONTAINER]
    known = sum(index.pod_of(origin) is not None for origin in contained)
    strangers = sum(bool(origin.pod_uids) for origin in contained if index.pod_of(origin) is None)
    hosts = observation.lookup_counts[LookupResult.HOST]
    summary = (
        f"{known} in pods of this node, {hosts} of the host, {len(contained) - known} in other containers"
    )
    if strangers and not known:
        yield problem(
            check,
            f"{summary}: their pods are not in the list of pods",
            "check that --node is this node, and that the list is from its cluster",
        )
    elif pids:
        yield ok(check, summary)
    else:
        yield ok(check, "none now")


def _reservations(inventory: Inventory, gpus: tuple[Gpu, ...]) -> Iterator[CheckResult]:
    gpu_by_group = dict(inventory.reservations)
    gpu_by_group |= {
        f"{group} of the vCluster in {namespace}": gpu
        for (namespace, group), gpu in inventory.tenant_reservations.items()
    }
    nameless = [group for group, gpu in gpu_by_group.items() if not gpu]
    if nameless:
        yield problem(
            _RESERVATIONS,
            f"no GPU is known for the group {listed(nameless)}",
            "check the log of its reservation pod, in KAI's reservation namespace or in its vCluster's host"
            " namespace: the pod must see exactly one GPU",
        )
    present = {gpu.uuid for gpu in gpus}
    absent_gpus = sorted({gpu for gpu in gpu_by_group.values() if gpu and gpu not in present})
    if absent_gpus and gpus:
        yield problem(
            _RESERVATIONS,
            f"reservation pods name GPUs that the driver does not list: {listed(absent_gpus)}",
            "a GPU is lost or hidden from the agent's container, or the pods belong to another node",
        )
    named = [
        f"{gpu} (group {group})"
        for group, gpu in gpu_by_group.items()
        if gpu in present or (gpu and not gpus)
    ]
    if named:
        yield ok(_RESERVATIONS, f"{len(named)}: {listed(named)}")


def _pods_without_reservation(inventory: Inventory, pod_shares: Iterable[PodShare]) -> Iterator[CheckResult]:
    lacking = [
        f"{pod_share.pod.namespace}/{pod_share.pod.name}"
        for pod_share in pod_shares
        if pod_share.lacks_reservation
    ]
    if lacking:
        yield problem(
            _RESERVATIONS,
            f"no reservation pod for {listed(lacking)}: KAI may give their GPU to others or delete them",
            "recreate these pods",
        )
    elif not inventory.reservations and not inventory.tenant_reservations:
        yield ok(_RESERVATIONS, "none: no pod on this node has a share in a GPU group")


def _label(labels: Mapping[str, str]) -> CheckResult:
    value = labels.get(keys.NODE_GPU_MEMORY)
    if value is not None:
        try:
            Card.from_label(value)
        except ValueError as error:
            return problem(
                _LABEL,
                f"invalid {keys.NODE_GPU_MEMORY}: {one_line(str(error))}; KAI cannot compute shares from it",
                "correct the label: it is the memory of one GPU in MiB, as GPU feature discovery sets it",
            )
        return ok(_LABEL, f"{keys.NODE_GPU_MEMORY}={one_line(value)}")
    return problem(
        _LABEL,
        f"the node has no {keys.NODE_GPU_MEMORY}: KAI assumes 100 MiB and schedules no gpu-memory pod",
        "install GPU feature discovery, which sets it; with unified memory set the label by hand (MiB)",
    )
