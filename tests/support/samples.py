"""Short forms for a node in tests: GPUs, pods, shares, and samples."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, GpuReading
from gpuagent.ledger.attribution import PodIndex, attribute
from gpuagent.ledger.balance import build_snapshot
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.problems import Problem
from gpuagent.sampling.sample import LookupResult, Origin, Sample
from gpuagent.shares.entitlement import Record, Sources, entitlement
from gpuagent.shares.pod_share import Amount, LimitSource, PodShare, Relation, ShareSource

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
    has_share: bool | None = None,
    shares: Mapping[str, Amount] | None = None,
    limits: Mapping[str, Amount] | None = None,
    possible: Mapping[str, Amount | None] | None = None,
    is_unresolved: bool = False,
    source: ShareSource = ShareSource.BIND_REQUEST,
    **fields: Any,
) -> PodShare:
    """Return a pod's share with an amount of bytes on each GPU, or without any.
    `shares`, `limits` and `possible` are the amounts by GPU where they differ: `possible` on GPUs that may be the
    pod's, or were."""
    pod = pod or globals()["pod"](name)
    has_share = share is not None if has_share is None else has_share
    gpus = tuple(gpus) if share is not None else ()
    if shares is None:
        shares = {uuid: Amount(share, source) for uuid in gpus} if share else {}
    sources = Sources(
        record=Record.SHARE if has_share and source is not ShareSource.WHOLE_GPU else Record.NONE,
        has_whole_gpus=source is ShareSource.WHOLE_GPU,
        has_unsized_gpus=pod.has_unsized_resource,
    )
    entitlements = {
        uuid: entitlement(sources, Relation.POSSIBLE, each) for uuid, each in (possible or {}).items()
    }
    for uuid in gpus:
        limit = (limits or {}).get(uuid)
        entitlements[uuid] = entitlement(sources, Relation.OWN, shares.get(uuid), limit)
    others = Relation.POSSIBLE if is_unresolved and has_share else Relation.OTHER
    return PodShare(
        **{
            "pod": pod,
            "source": source if has_share else None,
            "gpu_uuids": gpus,
            "is_unresolved": is_unresolved,
            "entitlements": entitlements,
            "elsewhere": entitlement(sources, others),
            "has_unsized_gpus": pod.has_unsized_resource,
            **fields,
        }
    )


def with_limit(made: PodShare, limit: int, uuid: str = A) -> PodShare:
    amount = Amount(limit, LimitSource.ANNOTATION)
    return replace(
        made, entitlements={**made.entitlements, uuid: structs.replace(made.on(uuid), limit=amount)}
    )


def in_pod(name: str, comm: str = "python") -> Origin:
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
        origins=dict(origins or {}), taken_at=at, wall_time=1_800_000_000.0 + at, seconds=0.01,
    )  # fmt: skip


def snapshot_of(
    taken: Sample, *pod_shares: PodShare, reservations: Iterable[str] = (), problems: Iterable[Problem] = ()
) -> Snapshot:
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
    return build_snapshot(taken, attribution=attribute(taken, pods), pod_shares=pod_shares)


def holding(snapshot: Snapshot, name: str, uuid: str = A) -> Holding | None:
    matches = [h for h in snapshot.holdings if h.pod_share.pod.name == name and h.gpu_uuid == uuid]
    assert len(matches) <= 1
    return matches[0] if matches else None


def used(snapshot: Snapshot, name: str, uuid: str = A) -> int | str | None:
    """Return the bytes that the pod uses on the GPU; None if unknown, "absent" if not listed."""
    pod_holding = holding(snapshot, name, uuid)
    return "absent" if pod_holding is None else pod_holding.used_bytes
