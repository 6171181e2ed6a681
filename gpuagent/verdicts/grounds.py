"""Compares the pods of one snapshot with their shares, without history: the grounds of verdicts. Pure."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpuagent.ledger.slack import Slack
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import LEAVES_LOWER_BOUNDS, Suspension
from gpuagent.shares.pod_share import Amount, PodShare
from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS, FlagReason

SMALL_BYTES: Final = 256 << 20
"""Memory that a pod may use on a GPU without a share there: a CUDA library opens a context on every device
that it sees."""


_ON_FOREIGN_GPU: Final = (FlagReason.UNASSIGNED_GPU, FlagReason.NO_SHARE)


class Key(Struct, frozen=True, gc=False):
    """Identifies a verdict: a pod, a GPU and a reason."""

    uid: str
    gpu_uuid: str
    """Empty if the pod's GPU is unknown."""
    reason: FlagReason


class Ground(Struct, frozen=True, kw_only=True, gc=False):
    """Result of comparing one snapshot with the condition of one key."""

    key: Key
    pod_share: PodShare
    gpu_index: int | None
    is_over: bool
    """Above the limit plus slack; for a reason without a limit: the violation is present."""
    is_clean: bool
    """At or below the limit without slack, and certainly so. Else, without a violation, a flag keeps its
    state."""
    used_bytes: int | None = None
    """None if the reason is not about memory."""
    is_lower_bound: bool = False
    """Whether the pod may use more than `used_bytes`; such a ground is always over."""
    allowed_bytes: int | None = None
    """Share or limit that the usage is compared with, without slack; None if there is none."""


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
        self._holdings = {(h.pod_share.pod.uid, h.gpu_uuid): h for h in snapshot.holdings}
        self._pod_shares = {pod_share.pod.uid: pod_share for pod_share in snapshot.pod_shares}
        self.unknown_uids = frozenset(key[0] for key, h in self._holdings.items() if h.used_bytes is None)
        """Pods that may use more memory on some GPU than is known."""
        self._suspends_nothing = not (
            self._suspension.covers_all
            or self._suspension.gpu_uuids
            or self.unknown_uids
            or any(pod_share.awaits_record for pod_share in snapshot.pod_shares)
        )
        self._evaluated_gpus = {a.gpu.uuid: a.gpu.index for a in snapshot.gpus if not a.gpu.mig}
        self._ended_bytes = {a.gpu.uuid: a.ended_bytes for a in snapshot.gpus if a.ended_bytes != 0}
        self.by_key = {ground.key: ground for ground in self._all() if not self._is_silenced(ground)}

    def is_suspended(self, key: Key) -> bool:
        """Whether a problem or an unknown figure prevents an evaluation of a key without a ground."""
        if self._suspends_nothing:  # the usual case
            return False
        holding = self._holdings.get((key.uid, key.gpu_uuid))
        is_unknown = holding is not None and holding.used_bytes is None
        return (
            self._suspension.covers(key.gpu_uuid)
            or self._awaits_record(key)
            or (is_unknown and key.reason not in FROM_KAI_RECORDS)
        )

    def _is_silenced(self, ground: Ground) -> bool:
        if self._suspends_nothing:
            return False
        scope = self._silence if ground.is_lower_bound else self._suspension
        return scope.covers(ground.key.gpu_uuid) or self._awaits_record(ground.key)

    def _awaits_record(self, key: Key) -> bool:
        """Whether a BindRequest of unknown existence may give the pod the GPU that it uses."""
        pod_share = self._pod_shares.get(key.uid)
        return key.reason in _ON_FOREIGN_GPU and pod_share is not None and pod_share.awaits_record

    def of_remembered(self, key: Key, last: PodShare, flagged_above: int | None) -> Ground | None:
        """Return the ground of a remembered key without a ground in this snapshot; None if there is none.

        A flag outlives its ground. It stands until the pod is within its limit or has left the GPU, or until
        KAI has recorded that the GPU is the pod's.

        Args:
            key: pod, GPU and reason.
            last: the pod's last known share.
            flagged_above: for a flagged key the bytes that the pod may use there; None if it is not flagged.
        """
        index = self._evaluated_gpus.get(key.gpu_uuid)
        if key.reason in FROM_KAI_RECORDS or key.uid not in self._snapshot.pod_uids or index is None:
            return None
        holding = self._holdings.get((key.uid, key.gpu_uuid))
        pod_share = self._pod_shares.get(key.uid, last)
        used = (holding.used_bytes or 0) if holding else 0
        ground = Ground(
            key=key, pod_share=pod_share, gpu_index=index, is_over=False, is_clean=True, used_bytes=used
        )
        if key.reason in _ON_FOREIGN_GPU:
            is_given = key.gpu_uuid in pod_share.gpu_uuids and not pod_share.is_whole
            if is_given:
                return ground
            if used <= SMALL_BYTES:
                return replace(ground, is_clean=self._is_clean(key.gpu_uuid, used, SMALL_BYTES, SMALL_BYTES))
            stands = flagged_above is not None and key.reason is FlagReason.UNASSIGNED_GPU
            return replace(ground, is_over=True, is_clean=False) if stands else None
        if flagged_above is None or not pod_share.has_share:
            return None
        most = flagged_above + self._slack.of(flagged_above)
        return replace(
            ground,
            is_over=used > most,
            is_clean=self._is_clean(key.gpu_uuid, used, flagged_above, most),
            allowed_bytes=flagged_above,
        )

    def _all(self) -> Iterator[Ground]:
        for holding in self._snapshot.holdings:
            if holding.is_mig or holding.pod_share.pod.is_finished:
                continue
            ground = self._of_holding(holding)
            if ground is not None and (ground.is_over or not ground.is_lower_bound):
                yield ground
        for pod_share in self._snapshot.pod_shares:
            if pod_share.has_share and not pod_share.pod.is_finished and not pod_share.is_whole:
                yield from self._of_pod_share(pod_share)

    def _of_holding(self, holding: Holding) -> Ground | None:
        """Compare a pod's memory on one GPU, or a lower bound of it, with the limit that applies there."""
        pod_share = holding.pod_share
        entitlement = pod_share.on(holding.gpu_uuid)
        if entitlement.limit is not None:
            return self._against(holding, entitlement.limit, FlagReason.LIMIT_BYPASSED)
        if entitlement.is_excused:
            return None
        if entitlement.share is not None:
            return self._against(holding, entitlement.share, FlagReason.OVER_SHARE)
        if pod_share.has_share:
            return self._on_foreign_gpu(holding, FlagReason.UNASSIGNED_GPU)
        is_excluded = pod_share.pod.namespace in self._excluded
        return None if is_excluded else self._on_foreign_gpu(holding, FlagReason.NO_SHARE)

    def _against(self, holding: Holding, allowed: Amount, reason: FlagReason) -> Ground:
        used, is_lower_bound = holding.known_bytes, holding.used_bytes is None
        most = allowed.bytes + self._slack.of(allowed.bytes)
        return Ground(
            key=Key(holding.pod_share.pod.uid, holding.gpu_uuid, reason),
            pod_share=holding.pod_share,
            gpu_index=holding.gpu_index,
            is_over=used > most,
            is_clean=self._is_clean(holding.gpu_uuid, used, allowed.bytes, most),
            used_bytes=used,
            is_lower_bound=is_lower_bound,
            allowed_bytes=allowed.bytes,
        )

    def _is_clean(self, gpu_uuid: str, used: int, allowed: int, most: int) -> bool:
        """Whether a pod uses no more than its limit, and was not over if the processes that ended were its.

        Their owner is unknown. They accuse no pod. They acquit none either: a pod that holds its memory by
        short processes, one after the other, would otherwise seem to use nothing whenever the look-up of the
        processes begins late, as while another GPU is slow.
        """
        ended = self._ended_bytes.get(gpu_uuid, 0)
        return used <= allowed and ended is not None and used + ended <= most

    def _on_foreign_gpu(self, holding: Holding, reason: FlagReason) -> Ground:
        used = holding.known_bytes
        return Ground(
            key=Key(holding.pod_share.pod.uid, holding.gpu_uuid, reason),
            pod_share=holding.pod_share,
            gpu_index=holding.gpu_index,
            is_over=used > SMALL_BYTES,
            is_clean=self._is_clean(holding.gpu_uuid, used, SMALL_BYTES, SMALL_BYTES),
            used_bytes=used,
            is_lower_bound=holding.used_bytes is None,
        )

    def _of_pod_share(self, pod_share: PodShare) -> Iterator[Ground]:
        """Check KAI's records of the pod, for each of its GPUs, or once if its GPU is unknown."""
        for uuid in self._gpus_of(pod_share):
            for reason, is_the_case in (
                (FlagReason.SHARE_CHANGED, bool(pod_share.changed)),
                (FlagReason.NO_RESERVATION, pod_share.lacks_reservation),
            ):
                yield Ground(
                    key=Key(pod_share.pod.uid, uuid, reason),
                    pod_share=pod_share,
                    gpu_index=self._evaluated_gpus.get(uuid),
                    is_over=is_the_case,
                    is_clean=not is_the_case,
                )

    def _gpus_of(self, pod_share: PodShare) -> tuple[str, ...]:
        """Return the pod's GPUs that responded; one empty UUID if this node knows no GPU of the pod."""
        known = tuple(uuid for uuid in pod_share.gpu_uuids if uuid in self._evaluated_gpus)
        is_known = known or any(
            (pod_share.pod.uid, uuid) in self._holdings or self._suspension.covers(uuid)
            for uuid in pod_share.gpu_uuids
        )
        return known if is_known else ("",)
