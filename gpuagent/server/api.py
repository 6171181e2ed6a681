"""JSON API `/api/v1/shares`: the whole of the last snapshot. Unknown values are null."""

from collections import defaultdict
from typing import Any

import orjson

from gpuagent.ledger.snapshot import GpuAccount, Holding
from gpuagent.problems import Problem
from gpuagent.shares.pod_shares import Amount, Candidate, PodShare
from gpuagent.status import Status
from gpuagent.verdicts.grounds import FlagReason
from gpuagent.verdicts.judge import Change, Verdict
from gpuagent.verdicts.over_share import OverSharePolicy

Json = dict[str, Any]


def shares_json(status: Status, *, node: str, is_simulated: bool) -> bytes:
    """Return the whole status as JSON: GPUs, pods, every candidate for a share, verdicts and problems."""
    snapshot = status.snapshot
    return orjson.dumps(
        {
            "node": node,
            "simulated": is_simulated,
            "driverVersion": status.driver_version or None,
            "sampleTimestamp": snapshot.wall_time if snapshot else None,
            "lastGoodSampleTimestamp": status.good_wall_time,
            "attributionOk": status.attribution_ok,
            "flagTransitions": _transitions(status),
            "problems": [_problem(problem) for problem in status.problems],
            "gpus": [_gpu(account) for account in snapshot.gpus] if snapshot else [],
            "pods": _pods(status),
        }
    )


def _transitions(status: Status) -> dict[str, dict[str, int]]:
    """Return the number of transitions since the agent started, by reason and change."""
    return {
        reason.value: {change.label: status.transitions.get((reason, change), 0) for change in Change}
        for reason in FlagReason
    }


def _problem(problem: Problem) -> Json:
    return {"reason": problem.cause, "gpuUuid": problem.gpu_uuid, "detail": problem.detail}


def _gpu(account: GpuAccount) -> Json:
    gpu = account.gpu
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "mig": gpu.mig,
        "totalBytes": gpu.total_bytes,
        "usedBytes": gpu.used_bytes,
        "reservedBytes": gpu.reserved_bytes,
        "memoryUnknown": gpu.memory_unknown or None,
        "promisedBytes": account.promised_bytes,
        "hostBytes": account.host_bytes,
        "unattributedBytes": account.unattributed_bytes,
    }


def _pods(status: Status) -> list[Json]:
    if status.snapshot is None:
        return []
    holdings: dict[str, list[Holding]] = defaultdict(list)
    verdicts: dict[str, list[Verdict]] = defaultdict(list)
    for holding in status.snapshot.holdings:
        holdings[holding.pod_share.pod.uid].append(holding)
    for verdict in status.verdicts.by_key.values():
        verdicts[verdict.key.uid].append(verdict)
    taken_at = status.snapshot.taken_at
    return [
        {
            **_pod_share(pod_share),
            "asked": _policy(status.over_share_policies.get(pod_share.pod.uid)),
            "gpus": [_holding(holding) for holding in holdings[pod_share.pod.uid]],
            "verdicts": [_verdict(verdict, taken_at) for verdict in verdicts[pod_share.pod.uid]],
        }
        for pod_share in sorted(
            status.snapshot.pod_shares, key=lambda pod_share: (*pod_share.pod.key, pod_share.pod.uid)
        )
    ]


def _pod_share(pod_share: PodShare) -> Json:
    pod, tenant = pod_share.pod, pod_share.tenant
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "phase": pod.phase,
        "queue": pod_share.queue or None,
        "size": pod_share.size or None,
        "workload": {"kind": pod_share.workload.kind, "name": pod_share.workload.name}
        if pod_share.workload.name
        else None,
        "vcluster": {"name": tenant.vcluster, "namespace": tenant.namespace, "pod": tenant.pod}
        if tenant
        else None,
        "gpuGroups": pod_share.groups,
        "gpuUuids": pod_share.gpu_uuids,
        "gpuUnresolved": pod_share.is_unresolved,
        "hasUnsizedGpus": pod.has_unsized_gpus,
        "lacksReservation": pod_share.lacks_reservation,
        "shareChanged": pod_share.changed or None,
        "shares": {uuid: _amount(amount) for uuid, amount in pod_share.shares.items()},
        "limits": {uuid: _amount(amount) for uuid, amount in pod_share.limits.items()},
        "candidates": [_candidate(candidate) for candidate in pod_share.candidates],
        "notes": pod_share.notes,
    }


def _candidate(candidate: Candidate) -> Json:
    entry = {
        "source": candidate.source,
        "says": candidate.text,
        "bytesPerGpu": dict(candidate.bytes_per_gpu),
    }
    return entry if candidate.counts else entry | {"counts": False}


def _policy(over_share_policy: OverSharePolicy | None) -> Json | None:
    return (
        None
        if over_share_policy is None
        else {"evict": over_share_policy.evict, "graceSeconds": over_share_policy.grace}
    )


def _amount(amount: Amount) -> Json:
    return {"bytes": amount.bytes, "source": amount.source}


def _holding(holding: Holding) -> Json:
    return {
        "gpuUuid": holding.gpu_uuid,
        "gpu": holding.gpu_index,
        "mig": holding.is_mig,
        "usedBytes": holding.used_bytes,
        "processes": holding.processes,
        "utilizationRatio": holding.utilization_ratio,
    }


def _verdict(verdict: Verdict, taken_at: float) -> Json:
    return {
        "reason": verdict.key.reason,
        "gpuUuid": verdict.key.gpu_uuid,
        "flagged": verdict.is_flagged,
        "lastedSeconds": None if verdict.since is None else round(taken_at - verdict.since, 3),
        "balanceSeconds": round(verdict.balance, 3),
        "usedBytes": None if verdict.is_lower_bound else verdict.used_bytes,
        "usedAtLeastBytes": verdict.used_bytes if verdict.is_lower_bound else None,
        "allowedBytes": verdict.allowed_bytes,
    }
