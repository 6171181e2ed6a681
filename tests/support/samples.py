"""Short forms for a node in tests: GPUs, pods, shares, and samples."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, GpuReading
from gpuagent.ledger.attribution import PodIndex, attribute
from gpuagent.ledger.balance import build_snapshot
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.problems import Problem
from gpuagent.sampling.sample import LookupResult, Origin, Sample
from gpuagent.shares.pod_share import Amount, PodShare, ShareSource

MIB = 1 << 20
GIB = 1 << 30
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


def gpu(
    *processes: tuple[int, int | None], uuid: str = A, used: int | None = None, index: int = 0, **fields: Any
) -> Gpu:
    """Return a GPU of 24 GiB with processes (pid, bytes); it uses 100 MiB more than they do."""
    known = sum(used_bytes or 0 for _, used_bytes in processes)
    listed = tuple(GpuProcess(pid, used_bytes) for pid, used_bytes in processes)
    return Gpu(
        **{
            "index": index,
            "uuid": uuid,
            "model": "NVIDIA A10",
            "total_bytes": 24 * GIB,
            "used_bytes": known + 100 * MIB if used is None else used,
            "reserved_bytes": 300 * MIB,
            "processes": listed,
            **fields,
        }
    )


def uid_of(name: str) -> str:
    """Return a pod's UID by its name."""
    return f"{name.encode().hex():0<8.8}-1111-4222-8333-{name.encode().hex():0<12.12}"


def pod(key: str, *, namespace: str = "team-a", whole_gpus: int = 0, **fields: Any) -> NodePod:
    """Return a running pod; its key is its name and gives its UID."""
    return NodePod(
        **{
            "namespace": namespace,
            "name": key,
            "uid": uid_of(key),
            "phase": "Running",
            "labels": {},
            "annotations": {},
            "whole_gpus": whole_gpus,
            **fields,
        }
    )


def pod_share(
    name: str,
    share: int | None = None,
    *,
    gpus: Iterable[str] = (A,),
    pod: NodePod | None = None,
    **fields: Any,
) -> PodShare:
    """Return a pod's share with an amount of bytes on each GPU, or without any."""
    gpus = tuple(gpus) if share is not None else ()
    return PodShare(
        **{
            "pod": pod or globals()["pod"](name),
            "has_share": share is not None,
            "gpu_uuids": gpus,
            "shares": {uuid: Amount(share, ShareSource.BIND_REQUEST) for uuid in gpus} if share else {},
            **fields,
        }
    )


def in_pod(name: str, comm: str = "python") -> Origin:
    """The origin of a process in that pod."""
    return Origin(result=LookupResult.CONTAINER, pod_uids=(uid_of(name),), container_id="c" * 64, name=comm)


HOST = Origin(result=LookupResult.HOST, name="Xorg")
GONE = Origin(result=LookupResult.GONE)
DENIED = Origin(result=LookupResult.DENIED)


def sample(
    *gpus: Gpu, origins: Mapping[int, Origin] | None = None, at: float = 0.0, problems: Iterable[Problem] = ()
) -> Sample:
    """Return a sample; problems are those of the driver."""
    return Sample(
        reading=GpuReading(gpus=gpus, problems=tuple(problems), driver_version="570.00"),
        origins=dict(origins or {}),
        taken_at=at,
        wall_time=1_800_000_000.0 + at,
        seconds=0.01,
    )


def snapshot_of(
    taken: Sample, *pod_shares: PodShare, reservations: Iterable[str] = (), problems: Iterable[Problem] = ()
) -> Snapshot:
    """Return the snapshot with the pods of the shares as the list of pods."""
    inventory = Inventory(
        pods={each.pod.uid: each.pod for each in pod_shares}, reservation_uids=frozenset(reservations)
    )
    return build_snapshot(
        taken,
        attribution=attribute(taken, PodIndex.from_inventory(inventory)),
        pod_shares=pod_shares,
        problems=problems,
    )


def balance_of(taken: Sample, pod_shares: Iterable[PodShare], pods: PodIndex) -> Snapshot:
    """The accounts, with this list of pods."""
    return build_snapshot(taken, attribution=attribute(taken, pods), pod_shares=pod_shares)


def holding(snapshot: Snapshot, name: str, uuid: str = A) -> Holding | None:
    """Return the pod's usage of the GPU."""
    matches = [h for h in snapshot.holdings if h.pod_share.pod.name == name and h.gpu_uuid == uuid]
    assert len(matches) <= 1
    return matches[0] if matches else None


def used(snapshot: Snapshot, name: str, uuid: str = A) -> int | str | None:
    """Return the bytes that the pod uses on the GPU; None if unknown, "absent" if not listed."""
    pod_holding = holding(snapshot, name, uuid)
    return "absent" if pod_holding is None else pod_holding.used_bytes
