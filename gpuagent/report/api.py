"""`/api/v1/shares`: the whole of the last snapshot as JSON. What is not known is null."""

from collections import defaultdict
from typing import Any

import orjson

from gpuagent.problems import Problem
from gpuagent.shares.claims import Amount, Candidate, PodClaim
from gpuagent.snapshot import GpuAccount, Holding
from gpuagent.status import Status
from gpuagent.verdicts.judge import Verdict
from gpuagent.wishes import Wish

Json = dict[str, Any]


def shares_json(status: Status, *, node: str, is_simulated: bool) -> bytes:
    """Show GPUs and pods, every candidate for a share and its source, verdicts and problems."""
    snapshot = status.snapshot
    return orjson.dumps(
        {
            "node": node,
            "simulated": is_simulated,
            "driverVersion": status.driver_version or None,
            "sampleTimestamp": snapshot.wall_time if snapshot else None,
            "lastGoodSampleTimestamp": status.good_wall_time,
            "attributionOk": status.attribution_ok,
            "problems": [_problem(problem) for problem in status.problems],
            "gpus": [_gpu(account) for account in snapshot.gpus] if snapshot else [],
            "pods": _pods(status),
        }
    )


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
        holdings[holding.claim.pod.uid].append(holding)
    for verdict in status.verdicts.judged.values():
        verdicts[verdict.key.uid].append(verdict)
    taken_at = status.snapshot.taken_at
    return [
        {
            **_claim(claim),
            "asked": _wish(status.wishes.get(claim.pod.uid)),
            "gpus": [_holding(holding) for holding in holdings[claim.pod.uid]],
            "verdicts": [_verdict(verdict, taken_at) for verdict in verdicts[claim.pod.uid]],
        }
        for claim in sorted(status.snapshot.claims, key=lambda claim: (*claim.pod.key, claim.pod.uid))
    ]


def _claim(claim: PodClaim) -> Json:
    pod, tenant = claim.pod, claim.tenant
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "phase": pod.phase,
        "queue": claim.queue or None,
        "vcluster": {"name": tenant.vcluster, "namespace": tenant.namespace, "pod": tenant.pod}
        if tenant
        else None,
        "gpuGroups": claim.groups,
        "gpuUuids": claim.gpu_uuids,
        "gpuUnresolved": claim.is_unresolved,
        "hasUnsizedGpus": pod.has_unsized_gpus,
        "lacksReservation": claim.lacks_reservation,
        "shareChanged": claim.changed or None,
        "shares": {uuid: _amount(amount) for uuid, amount in claim.shares.items()},
        "limits": {uuid: _amount(amount) for uuid, amount in claim.limits.items()},
        "candidates": [_candidate(candidate) for candidate in claim.candidates],
        "notes": claim.notes,
    }


def _candidate(candidate: Candidate) -> Json:
    said = {
        "source": candidate.source,
        "says": candidate.text,
        "bytesPerGpu": dict(candidate.bytes_per_gpu),
    }
    return said if candidate.counts else said | {"counts": False}


def _wish(wish: Wish | None) -> Json | None:
    return None if wish is None else {"evict": wish.evict, "graceSeconds": wish.grace}


def _amount(amount: Amount) -> Json:
    return {"bytes": amount.bytes, "source": amount.source}


def _holding(holding: Holding) -> Json:
    return {
        "gpuUuid": holding.gpu_uuid,
        "gpu": holding.gpu_index,
        "mig": holding.is_mig,
        "usedBytes": holding.used_bytes,
        "processes": holding.processes,
    }


def _verdict(verdict: Verdict, taken_at: float) -> Json:
    return {
        "reason": verdict.key.reason,
        "gpuUuid": verdict.key.gpu_uuid,
        "flagged": verdict.is_flagged,
        "lastedSeconds": None if verdict.since is None else round(taken_at - verdict.since, 3),
        "balanceSeconds": round(verdict.balance, 3),
        "usedBytes": verdict.used_bytes,
        "allowedBytes": verdict.allowed_bytes,
    }
