"""JSON API: the whole of the last snapshot, and the last 15 minutes of each pod. Unknown values are null."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import msgspec

from gpuagent.api_types import (
    AgentResponse,
    ApiAmount,
    ApiCandidate,
    ApiContainerLimit,
    ApiEndedPod,
    ApiGpu,
    ApiHolding,
    ApiLostGpu,
    ApiOverSharePolicy,
    ApiPod,
    ApiProblem,
    ApiRiskCause,
    ApiTenant,
    ApiVerdict,
    ApiWorkload,
    ApiXid,
    HistoryResponse,
    is_noticeable_risk,
)
from gpuagent.evaluation.status import Evaluation
from gpuagent.first_acts import FirstAct, for_gpu, for_problem
from gpuagent.gpus.gpu_reading import Xid
from gpuagent.ledger.snapshot import GpuAccount, Snapshot
from gpuagent.problems import Cause, Suspension
from gpuagent.shares.pod_share import PodShare, Validity
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import first_act, flag_message
from gpuagent.verdicts.verdict import Change, Verdict

_HISTORY_FRAME_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLinks:
    """Addresses outside of the agent to which the page links; empty for none."""

    runbooks: str = ""
    """Address under which docs/runbooks.md is; ends with a slash."""
    fleet: str = ""
    """Address of a page of all nodes; NODE in it stands for the node's name."""


NO_LINKS: Final = PageLinks()
NODE: Final = "{node}"
MOST_ENDED_PODS: Final = 128
MOST_HISTORY_BYTES: Final = 1 << 20
"""Size of the response with the history. 2,048 series of pods on a GPU with 80 GiB have 0.8 MB."""


def shares_json(status: Evaluation, *, node: str, is_simulated: bool, links: PageLinks = NO_LINKS) -> bytes:
    """Return the whole status as JSON: GPUs, pods, every candidate for a share, verdicts and problems."""
    return msgspec.json.encode(response_of(status, node=node, is_simulated=is_simulated, links=links))


def history_json(status: Evaluation, *, node: str) -> bytes:
    """Return the used memory and the share of each pod on each GPU in the last 15 minutes, as JSON.

    A series that would exceed MOST_HISTORY_BYTES is left out, and `complete` is false then.
    """
    history, snapshot = status.history, status.snapshot
    if history is None or snapshot is None:
        return msgspec.json.encode(HistoryResponse(node))
    pods, size = list(history.pods()), 0
    for number, pod in enumerate(pods):
        size += len(msgspec.json.encode(pod)) + 1
        if size > MOST_HISTORY_BYTES - _HISTORY_FRAME_BYTES:
            del pods[number:]
            break
    is_complete = size <= MOST_HISTORY_BYTES - _HISTORY_FRAME_BYTES
    return msgspec.json.encode(
        HistoryResponse(node, snapshot.wall_time, history.bucket_seconds, is_complete, pods)
    )


def response_of(
    status: Evaluation, *, node: str, is_simulated: bool, links: PageLinks = NO_LINKS
) -> AgentResponse:
    """Return the whole status in the types of the API."""
    snapshot = status.snapshot
    present = {account.gpu.uuid for account in snapshot.gpus} if snapshot else set()
    suspension = Suspension.of(status.problems, present)
    return AgentResponse(
        node=node,
        simulated=is_simulated,
        driver_version=status.driver_version or None,
        sample_timestamp=snapshot.wall_time if snapshot else None,
        last_good_sample_timestamp=status.good_wall_time,
        gpu_sharing_mode=status.gpu_sharing_mode,
        attribution_ok=status.attribution_ok,
        grace_seconds=status.grace,
        flag_transitions={
            reason.value: {change.label: status.transitions.get((reason, change), 0) for change in Change}
            for reason in FlagReason
        },
        runbooks_url=f"{links.runbooks}docs/runbooks.md" if links.runbooks else None,
        fleet_url=links.fleet.replace(NODE, quote(node, safe="", errors="replace")) or None,
        problems=[
            ApiProblem(each.cause, each.gpu_uuid, each.detail, **_remedy(for_problem(each.cause, each.error)))
            for each in status.problems
        ],
        gpus=[_gpu(account, suspension) for account in snapshot.gpus] if snapshot else [],
        lost_gpus=[
            ApiLostGpu(
                gpu.index,
                gpu.uuid,
                gpu.model,
                _xid(gpu.xid),
                gpu.is_lost,
                **_remedy(for_problem(Cause.NVML, gpu.error)),
            )
            for gpu in status.lost_gpus
        ],
        ended_pods=_ended_pods(snapshot) if snapshot else [],
        pods=_pods(status, snapshot) if snapshot else [],
    )


def of_namespace(response: AgentResponse, namespace: str) -> AgentResponse:
    """Return what a user of one namespace may see: its pods, and which GPUs they are on.

    Figures of a whole GPU, problems and counts are about all pods of the node, and are left out as unknown.
    """
    pods = [pod for pod in response.pods if pod.namespace == namespace]
    held = {uuid for pod in pods for uuid in (*pod.gpu_uuids, *(holding.gpu_uuid for holding in pod.gpus))}
    gpus = [
        ApiGpu(gpu.uuid, gpu.index, gpu.model, gpu.mig, gpu.verdicts_suspended, gpu.total_bytes)
        for gpu in response.gpus
        if gpu.uuid in held
    ]
    return msgspec.structs.replace(
        response, pods=pods, gpus=gpus, lost_gpus=[], problems=[], flag_transitions={}, fleet_url=None
    )


def _remedy(act: FirstAct | None) -> dict[str, Any]:
    """Return the fields of `WithRemedy`."""
    return {"first_act": act.text, "runbook": act.section} if act else {}


def _gpu(account: GpuAccount, suspension: Suspension) -> ApiGpu:
    gpu = account.gpu
    total, promised = gpu.total_bytes, account.promised_bytes
    is_at_risk = is_noticeable_risk(account.at_risk_bytes, total)
    act = for_gpu(
        risk=account.risk_causes[0].name if account.risk_causes and is_at_risk else None,
        is_overpromised=bool(total and promised and promised > total),
    )
    return ApiGpu(
        verdicts_suspended=suspension.covers(gpu.uuid),
        memory_unknown=gpu.memory_unknown or None,
        risk_causes=tuple(ApiRiskCause(cause.name, cause.bytes) for cause in account.risk_causes),
        xid=_xid(gpu.sensors.xid),
        **_same(gpu, "uuid index model mig total_bytes used_bytes reserved_bytes"),
        **_same(account, "promised_bytes host_bytes ended_pods_bytes unattributed_bytes at_risk_bytes"),
        **_same(gpu.sensors, "utilization_ratio temperature_celsius power_watts power_limit_watts"),
        **_remedy(act),
    )


def _same(source: object, names: str) -> dict[str, Any]:
    """Return the fields that a type of the API has by the same names."""
    return {name: getattr(source, name) for name in names.split()}


def _ended_pods(snapshot: Snapshot) -> list[ApiEndedPod]:
    """Return the pods that are no longer listed and use memory, those with the most memory first."""
    ended = [
        ApiEndedPod(
            each.pod.namespace, each.pod.name, each.pod.uid, each.pod.owner, gpu.gpu.uuid, each.used_bytes
        )
        for gpu in snapshot.gpus
        for each in gpu.ended_pods
    ]
    return sorted(ended, key=lambda pod: -(pod.used_bytes or 0))[:MOST_ENDED_PODS]


def _xid(xid: Xid | None) -> ApiXid | None:
    return ApiXid(xid.code, xid.time) if xid else None


def _pods(status: Evaluation, snapshot: Snapshot) -> list[ApiPod]:
    holdings: dict[str, list[ApiHolding]] = defaultdict(list)
    verdicts: dict[str, list[ApiVerdict]] = defaultdict(list)
    for holding in snapshot.holdings:
        uid, idle_seconds = holding.pod_share.pod.uid, None
        if status.history is not None:
            idle_seconds = status.history.idle_seconds(uid, holding.gpu_uuid, snapshot.taken_at)
        holdings[uid].append(
            ApiHolding(
                gpu_uuid=holding.gpu_uuid,
                gpu=holding.gpu_index,
                mig=holding.is_mig,
                used_bytes=holding.used_bytes,
                utilization_ratio=holding.utilization_ratio,
                processes=holding.processes,
                idle_seconds=None if idle_seconds is None else round(idle_seconds, 3),
            )
        )
    limits: dict[str, list[ApiContainerLimit]] = defaultdict(list)
    for (uid, _), own in snapshot.driver_limits.items():
        limits[uid] += msgspec.convert(own.containers, list[ApiContainerLimit], from_attributes=True)
    totals = {account.gpu.uuid: account.gpu.total_bytes for account in snapshot.gpus}
    for verdict in status.verdicts.by_key.values():
        gpu_bytes = totals.get(verdict.key.gpu_uuid)
        verdicts[verdict.key.uid].append(_verdict(verdict, snapshot.taken_at, gpu_bytes))
    flags = (verdict for verdict in status.verdicts.by_key.values() if verdict.is_flagged)
    by_uid = {verdict.key.uid: verdict.pod_share for verdict in flags}  # a flag can outlast its pod's memory
    by_uid |= {pod_share.pod.uid: pod_share for pod_share in snapshot.pod_shares}
    pod_shares = sorted(by_uid.values(), key=lambda each: (*each.pod.key, each.pod.uid))
    return [_pod(each, status, holdings, verdicts, limits) for each in pod_shares]


def _pod(
    pod_share: PodShare,
    status: Evaluation,
    holdings: Mapping[str, list[ApiHolding]],
    verdicts: Mapping[str, list[ApiVerdict]],
    driver_limits: Mapping[str, list[ApiContainerLimit]],
) -> ApiPod:
    pod, tenant, workload = pod_share.pod, pod_share.tenant, pod_share.workload
    uid, policy = pod.uid, status.over_share_policies.get(pod.uid)
    return ApiPod(
        pod.namespace,
        pod.name,
        pod.uid,
        pod.phase,
        gpu_uuids=pod_share.gpu_uuids,
        has_unsized_gpus=pod_share.has_unsized_gpus,
        lacks_reservation=pod_share.lacks_reservation,
        notes=pod_share.notes,
        queue=pod_share.queue or None,
        size=pod_share.size or None,
        workload=ApiWorkload(workload.kind, workload.name) if workload.name else None,
        vcluster=ApiTenant(tenant.vcluster, tenant.namespace, tenant.pod) if tenant else None,
        gpu_groups=pod_share.groups,
        gpu_unresolved=pod_share.is_unresolved,
        shares={uuid: ApiAmount(each.bytes, each.source) for uuid, each in pod_share.shares.items()},
        limits={
            uuid: ApiAmount(limit.bytes, limit.source, counts=each.limit is not None)
            for uuid, each in pod_share.entitlements.items()
            if (limit := each.limit or each.ignored_limit) is not None
        },
        driver_limits=driver_limits.get(uid, []),
        candidates=[
            ApiCandidate(
                source=candidate.source,
                text=candidate.text,
                bytes_per_gpu=dict(candidate.bytes_per_gpu),
                counts=candidate.validity is Validity.COUNTS,
            )
            for candidate in pod_share.candidates
        ],
        over_share_policy=ApiOverSharePolicy(policy.evict, policy.grace) if policy else None,
        not_evicted=status.not_evicted.get(uid),
        share_changed=pod_share.changed or None,
        gpus=holdings.get(uid, []),
        verdicts=verdicts.get(uid, []),
    )


def _verdict(verdict: Verdict, taken_at: float, gpu_bytes: int | None) -> ApiVerdict:
    return ApiVerdict(
        reason=verdict.key.reason,
        gpu_uuid=verdict.key.gpu_uuid,
        flagged=verdict.is_flagged,
        lasted_seconds=None if verdict.since is None else round(taken_at - verdict.since, 3),
        balance_seconds=round(verdict.balance, 3),
        used_bytes=None if verdict.is_lower_bound else verdict.used_bytes,
        used_at_least_bytes=verdict.used_bytes if verdict.is_lower_bound else None,
        allowed_bytes=verdict.allowed_bytes,
        message=flag_message(verdict, taken_at, gpu_bytes) if verdict.is_flagged else None,
        **_remedy(first_act(verdict) if verdict.is_flagged else None),
    )
