"""Compares the pods of one snapshot with their entitlements, without history. Pure."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from gpuagent.ledger.driver_limits import TOLERANCE_BYTES, LimitState, PodLimits
from gpuagent.ledger.slack import Slack
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import LEAVES_LOWER_BOUNDS, NEEDS_MEMORY, Cause, Suspension
from gpuagent.shares.pod_share import PodShare, ShareSource
from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS, OF_DRIVER_LIMITS, FlagReason
from gpuagent.verdicts.verdict import Key, Verdict

SMALL_BYTES: Final = 256 << 20
"""Memory that a pod may use on a GPU without a share there: a CUDA library opens a context on every device
that it sees."""
_ON_FOREIGN_GPU: Final = (FlagReason.UNASSIGNED_GPU, FlagReason.NO_SHARE)


class Ground(Struct, frozen=True, gc=False):
    """Result of comparing one snapshot with the condition of one key."""

    verdict: Verdict
    """The verdict without history: not flagged."""
    is_over: bool
    """Above the limit plus slack; for a reason without a limit: the violation is present. A ground whose
    usage is a lower bound is always over."""
    is_clean: bool
    """At or below the limit without slack, and certainly so. Else, without a violation, a flag keeps its
    state."""


class Grounds:
    """The grounds of one snapshot by key."""

    def __init__(self, snapshot: Snapshot, *, slack: Slack, excluded_namespaces: frozenset[str]) -> None:
        self._snapshot = snapshot
        self._slack = slack
        self._excluded = excluded_namespaces
        present = {a.gpu.uuid for a in snapshot.gpus}
        self._suspension = Suspension.of(snapshot.problems, present)
        self._silence = Suspension.of(snapshot.problems, present, ignored=LEAVES_LOWER_BOUNDS)
        """The scope in which not even a lower bound is known."""
        self._limits_silence = Suspension.of(snapshot.problems, present, ignored=NEEDS_MEMORY)
        """The scope in which the limits of known containers are unknown."""
        self._holdings = {(h.pod_share.pod.uid, h.gpu_uuid): h for h in snapshot.holdings}
        self._pod_shares = {pod_share.pod.uid: pod_share for pod_share in snapshot.pod_shares}
        self.unknown_uids = frozenset(key[0] for key, h in self._holdings.items() if h.used_bytes is None)
        """Pods that may use more memory on some GPU than is known."""
        self._suspends_nothing = not (
            self._suspension.covers_all
            or self._suspension.gpu_uuids
            or self.unknown_uids
            or snapshot.driver_limits
            or any(pod_share.awaits_record for pod_share in snapshot.pod_shares)
        )
        self._are_pods_stale = any(problem.cause is Cause.PODS_STALE for problem in snapshot.problems)
        self._evaluated_gpus = {a.gpu.uuid: a.gpu.index for a in snapshot.gpus if not a.gpu.mig}
        self._ended_bytes = {a.gpu.uuid: a.ended_bytes for a in snapshot.gpus if a.ended_bytes != 0}
        self.by_key = {g.verdict.key: g for g in self._all() if not self._is_silenced(g.verdict)}

    def is_suspended(self, key: Key) -> bool:
        """Whether a problem or an unknown figure prevents an evaluation of a key without a ground."""
        if self._suspends_nothing:  # the usual case
            return False
        if key.reason in FROM_KAI_RECORDS:
            is_gone = bool(key.gpu_uuid) and key.gpu_uuid not in self._evaluated_gpus
            return self._are_pods_stale or (is_gone and self._suspension.covers(key.gpu_uuid))
        if key.reason in OF_DRIVER_LIMITS:
            limits = self._snapshot.driver_limits.get((key.uid, key.gpu_uuid))
            has_promise = limits is not None and any(row.source for row in limits.containers)
            return has_promise or self._suspension.covers(key.gpu_uuid)
        holding = self._holdings.get((key.uid, key.gpu_uuid))
        is_unknown = holding is not None and holding.compared[1]
        return self._suspension.covers(key.gpu_uuid) or self._awaits_record(key) or is_unknown

    def _is_silenced(self, verdict: Verdict) -> bool:
        if self._suspends_nothing:
            return False
        if verdict.key.reason in FROM_KAI_RECORDS:  # about objects: the list of processes does not matter
            return self._are_pods_stale
        if verdict.key.reason in OF_DRIVER_LIMITS:
            return self._limits_silence.covers(verdict.key.gpu_uuid)
        scope = self._silence if verdict.is_lower_bound else self._suspension
        return scope.covers(verdict.key.gpu_uuid) or self._awaits_record(verdict.key)

    def _awaits_record(self, key: Key) -> bool:
        """Whether a BindRequest of unknown existence may give the pod the GPU that it uses."""
        pod_share = self._pod_shares.get(key.uid)
        return key.reason in _ON_FOREIGN_GPU and pod_share is not None and pod_share.awaits_record

    def of_remembered(self, last: Verdict) -> Ground | None:
        """Return the ground of a remembered key without a ground in this snapshot; None if there is none.

        A flag outlives its ground. It stands until the pod is within its limit or has left the GPU, or until
        KAI has recorded that the GPU is the pod's.
        """
        key = last.key
        index = self._evaluated_gpus.get(key.gpu_uuid)
        is_of_memory = key.reason not in FROM_KAI_RECORDS | OF_DRIVER_LIMITS
        if not is_of_memory or key.uid not in self._snapshot.pod_uids or index is None:
            return None
        holding = self._holdings.get((key.uid, key.gpu_uuid))
        pod_share = self._pod_shares.get(key.uid, last.pod_share)
        used = holding.compared[0] if holding else 0
        if key.reason in _ON_FOREIGN_GPU:
            if key.gpu_uuid in pod_share.gpu_uuids and not pod_share.is_whole:
                verdict = Verdict(key=key, pod_share=pod_share, gpu_index=index, used_bytes=used)
                return Ground(verdict, False, True)
            ground = self._compare(key, pod_share, index, used, None)
            stands = last.is_flagged and key.reason is FlagReason.UNASSIGNED_GPU
            return ground if stands or not ground.is_over else None
        if not last.is_flagged or not pod_share.has_share:
            return None
        return self._compare(key, pod_share, index, used, last.allowed_bytes or 0)

    def _all(self) -> Iterator[Ground]:
        for holding in self._snapshot.holdings:
            if holding.is_mig or holding.pod_share.pod.is_finished:
                continue
            ground = self._of_holding(holding)
            if ground is not None and (ground.is_over or not ground.verdict.is_lower_bound):
                yield ground
        for (uid, gpu_uuid), limits in self._snapshot.driver_limits.items():
            yield from self._of_limits(uid, gpu_uuid, limits)
        for pod_share in self._snapshot.pod_shares:
            if pod_share.is_from_kai and not pod_share.pod.is_finished:
                yield from self._of_records(pod_share)

    def _of_holding(self, holding: Holding) -> Ground | None:
        """Compare a pod's memory on one GPU, or a lower bound of it, with the entitlement there."""
        pod_share, allowed = holding.pod_share, None
        entitlement = pod_share.on(holding.gpu_uuid)
        if entitlement.limit is not None:
            reason, allowed = FlagReason.LIMIT_BYPASSED, entitlement.limit.bytes
        elif entitlement.is_excused:
            return None
        elif entitlement.share is not None:
            reason, allowed = FlagReason.OVER_SHARE, entitlement.share.bytes
        elif pod_share.has_share:
            reason = FlagReason.UNASSIGNED_GPU
        elif pod_share.pod.namespace in self._excluded:
            return None
        else:
            reason = FlagReason.NO_SHARE
        key = Key(pod_share.pod.uid, holding.gpu_uuid, reason)
        used, is_lower_bound = holding.compared
        ground = self._compare(
            key, pod_share, holding.gpu_index, used, allowed, is_lower_bound=is_lower_bound
        )
        if ground.is_over and reason is FlagReason.LIMIT_BYPASSED and self._is_held(holding, allowed or 0):
            return Ground(ground.verdict, False, True)
        return ground

    def _is_held(self, holding: Holding, limit_bytes: int) -> bool:
        """Whether the driver holds all containers to the limit.

        Memory above it is then managed memory, or older than the limit ("MPS v3 Memory Partitioning").
        """
        limits = self._snapshot.driver_limits.get((holding.pod_share.pod.uid, holding.gpu_uuid))
        held_bytes = limits.held_bytes if limits and holding.processes is not None else None
        return held_bytes is not None and held_bytes <= limit_bytes + TOLERANCE_BYTES

    def _of_limits(self, uid: str, gpu_uuid: str, limits: PodLimits) -> Iterator[Ground]:
        """Compare the promised limits of a pod's containers with the driver's on one GPU.

        The containers that are known are enough for a violation, and not for its absence.
        """
        rows = [row for row in limits.containers if row.source is not None]
        holding, pod_share = self._holdings.get((uid, gpu_uuid)), self._pod_shares.get(uid)
        if not rows or pod_share is None or pod_share.pod.is_finished:
            return
        is_complete = holding is not None and holding.processes is not None
        is_known = is_complete and all(row.state is not LimitState.UNKNOWN for row in rows)
        for reason, state in (
            (FlagReason.LIMIT_NOT_IN_FORCE, LimitState.NOT_IN_FORCE),
            (FlagReason.LIMIT_DIFFERS, LimitState.DIFFERS),
        ):
            row = next((row for row in rows if row.state is state), None)
            if row is not None or is_known:
                verdict = Verdict(
                    key=Key(uid, gpu_uuid, reason),
                    pod_share=pod_share,
                    gpu_index=self._evaluated_gpus.get(gpu_uuid),
                    allowed_bytes=row.promised if row else None,
                    detail=row.text if row else "",
                )
                yield Ground(verdict, row is not None, row is None)

    def _compare(
        self,
        key: Key,
        pod_share: PodShare,
        gpu_index: int,
        used: int,
        allowed: int | None,
        *,
        is_lower_bound: bool = False,
    ) -> Ground:
        """Compare a pod's memory with a share or limit; without one, with that of a small context.

        The pod is clean if it uses no more than that, and was not over if the processes that ended were its.
        Their owner is unknown. They accuse no pod. They acquit none either: a pod that holds its memory by
        short processes, one after the other, would otherwise seem to use nothing whenever the look-up of the
        processes begins late, as while another GPU is slow.
        """
        most, without_slack = SMALL_BYTES, SMALL_BYTES
        if allowed is not None:
            most, without_slack = allowed + self._slack.of(allowed), allowed
        ended = self._ended_bytes.get(key.gpu_uuid, 0)
        is_clean = used <= without_slack and ended is not None and used + ended <= most
        verdict = Verdict(
            key=key,
            pod_share=pod_share,
            gpu_index=gpu_index,
            used_bytes=used,
            is_lower_bound=is_lower_bound,
            allowed_bytes=allowed,
        )
        return Ground(verdict, used > most, is_clean)

    def _of_records(self, pod_share: PodShare) -> Iterator[Ground]:
        """Check KAI's records of the pod, for each of its GPUs, or once if its GPU is unknown."""
        for uuid in self._gpus_of(pod_share):
            for reason, is_the_case in (
                (FlagReason.SHARE_CHANGED, bool(pod_share.changed)),
                (FlagReason.NO_RESERVATION, pod_share.lacks_reservation),
            ):
                key = Key(pod_share.pod.uid, uuid, reason)
                verdict = Verdict(key=key, pod_share=pod_share, gpu_index=self._evaluated_gpus.get(uuid))
                yield Ground(verdict, is_the_case, not is_the_case)

    def _gpus_of(self, pod_share: PodShare) -> tuple[str, ...]:
        """Return the GPUs of the pod's share that responded; one empty UUID if this node knows none.

        GPUs of ResourceClaims are in no record of KAI.
        """
        claimed = ShareSource.RESOURCE_CLAIM
        own = [
            uuid
            for uuid in pod_share.gpu_uuids
            if (amount := pod_share.on(uuid).share) is None or amount.source is not claimed
        ]
        known = tuple(uuid for uuid in own if uuid in self._evaluated_gpus)
        is_known = known or any(
            (pod_share.pod.uid, uuid) in self._holdings or self._suspension.covers(uuid) for uuid in own
        )
        return known if is_known else ("",)
