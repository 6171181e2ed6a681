"""Resolves the share of each pod on each GPU by BindRequest, annotation or whole GPUs.

Pure, except that it remembers the first annotations of each pod, and KAI's first records of it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuagent.gpus.gpu_reading import Gpu
from kai import keys
from kai.installation import SharingMode
from kai.releases import Version
from tests.gpuagent.old_core.pods.inventory import Inventory, NodePod
from tests.gpuagent.old_core.pods.pod_owners import tenant_of
from tests.gpuagent.old_core.shares.allocations import find_allocation
from tests.gpuagent.old_core.shares.cards import Cards
from tests.gpuagent.old_core.shares.drift import PodDeclaration, pod_name, share_drift
from tests.gpuagent.old_core.shares.first_records import FirstRecord, first_record
from tests.gpuagent.old_core.shares.placement import (
    UNPLACED,
    GroupGpus,
    Placement,
    WholeGpus,
    is_of_vcluster,
    is_reserved,
    of_groups,
)
from tests.gpuagent.old_core.shares.pod_share import Amount, Candidate, LimitSource, PodShare, ShareSource
from tests.gpuagent.old_core.shares.share_requests import ShareRequest, effective_limit

_MOST_NOTES: Final = 8
_LONGEST_NOTE: Final = 600
_NOBODY: Final[Mapping[str, Collection[str]]] = {}


def _bounded(notes: Sequence[str]) -> tuple[str, ...]:
    """Limit the number and length of the notes on one pod; its owner can cause any number."""
    more = len(notes) - _MOST_NOTES
    cut = tuple(note[:_LONGEST_NOTE] for note in notes[:_MOST_NOTES])
    return (*cut, f"{more} more values of the pod are invalid") if more > 0 else cut


class ShareResolver:
    """Resolves the shares of all pods, and remembers each pod's first declaration and KAI's first records.

    The annotations, GPU groups and queue label of a bound pod count as first seen, for as long as its UID
    exists. Any user who may edit the pod can change them later (observed: KAI applies a later gpu-fraction to
    its quotas, but not to the allocation). The same holds for the GPUs and the share that KAI recorded
    (`shares.pins`). A restart forgets them.
    """

    def __init__(
        self, *, kai_version: Version | None = None, gpu_sharing_mode: SharingMode | None = None
    ) -> None:
        """Set KAI's release and its mode of GPU sharing; None if the administrator has not stated it."""
        self._version = kai_version
        self._mode = gpu_sharing_mode
        self._declared: dict[str, tuple[NodePod, PodDeclaration]] = {}
        self._first: dict[str, PodDeclaration] = {}
        self._records: dict[str, FirstRecord] = {}
        self._finished: dict[str, PodShare] = {}
        """By UID: a finished pod is resolved once."""
        self._whole = WholeGpus()
        self._last: tuple[Inventory, object, tuple[PodShare, ...]] | None = None

    def resolve(
        self,
        inventory: Inventory,
        devices: Sequence[Gpu],
        holders: Mapping[str, Collection[str]] = _NOBODY,
    ) -> tuple[PodShare, ...]:
        """Return the share of every pod of the inventory; it is empty for a pod without share and GPU.

        Args:
            inventory: the pods and KAI's records of them.
            devices: the node's GPUs; their current usage is ignored.
            holders: GPUs on which processes of a pod were found, by pod UID; used only to find the pod of a
                whole GPU.
        """
        wanted = {uid: pod.whole_gpus for uid, pod in inventory.pods.items() if pod.holds_whole_gpus}
        used = {uid: frozenset(holders.get(uid, ())) for uid in wanted}
        situation = (tuple((gpu.uuid, gpu.total_bytes, gpu.mig) for gpu in devices), used)
        if self._last and self._last[0] is inventory and self._last[1] == situation:
            return self._last[2]
        self._update(inventory.pods)
        cards = Cards(node_labels=inventory.node_labels, devices=devices, version=self._version)
        drafts = [
            _Resolution(
                pod,
                now,
                self._first.get(uid, now),
                inventory=inventory,
                cards=cards,
                known=self._records.get(uid),
                mode=self._mode,
            )
            for uid, (pod, now) in self._declared.items()
            if uid not in self._finished
        ]
        self._records = {
            draft.pod.uid: draft.record
            for draft in drafts
            if draft.pod.is_bound and not draft.pod.is_finished
        }
        groups = GroupGpus(inventory)
        whole = self._whole.assign(wanted, inventory, devices, used, groups)
        resolved = {draft.pod.uid: draft.pod_share(whole.get(draft.pod.uid, ()), groups) for draft in drafts}
        resolved |= self._finished
        self._finished = {uid: share for uid, share in resolved.items() if share.pod.is_finished}
        pod_shares = tuple(resolved[uid] for uid in inventory.pods)
        self._last = (inventory, situation, pod_shares)
        return pod_shares

    def _update(self, pods: Mapping[str, NodePod]) -> None:
        """Read new pods, and forget removed ones."""
        declared: dict[str, tuple[NodePod, PodDeclaration]] = {}
        for uid, pod in pods.items():
            before = self._declared.get(uid)
            declared[uid] = (
                before if before is not None and before[0] is pod else (pod, PodDeclaration.by(pod))
            )
        self._declared = declared
        self._finished = {
            uid: share
            for uid, share in self._finished.items()
            if uid in declared and declared[uid][0] is share.pod
        }
        self._first = {uid: self._first.get(uid, now) for uid, (pod, now) in declared.items() if pod.is_bound}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A candidate of one source: a portion of a device, a request, or (without both) the whole device."""

    source: ShareSource
    text: str
    portion: str = ""
    request: ShareRequest | None = None
    may_decide: bool = True

    def bytes_on(self, gpu: str, cards: Cards) -> int | None:
        card = cards.of(gpu)
        if self.request is not None:
            return self.request.bytes_on(gpu, card, cards.unit_bytes)
        if self.portion:
            return card.fraction_bytes(float(self.portion)) if card else None
        return cards.total_of(gpu)


class _Resolution:
    """Resolution of one pod's share."""

    def __init__(
        self,
        pod: NodePod,
        now: PodDeclaration,
        first: PodDeclaration,
        *,
        inventory: Inventory,
        cards: Cards,
        known: FirstRecord | None,
        mode: SharingMode | None,
    ) -> None:
        self.pod = pod
        self._notes = now.notes
        self._declaration = first
        self._inventory = inventory
        self._cards = cards
        self._mode = mode
        self._latest = find_allocation(pod, inventory, pod_name(pod))
        self.record = first_record(known, self._latest, pod, inventory)
        self._allocation = self.record.allocation
        bound, share = self._allocation.bound, first.request.share
        devices = (bound.count if bound else 0) or (share.devices if share else 1)
        self._now, self._first = now.declared(devices), first.declared(devices)
        allocated_groups = bound.groups if bound else ()
        is_more_than_given = bool(allocated_groups) and len(self._first.groups) > len(allocated_groups)
        # KAI writes the label before it binds the pod, so a later label is not from KAI.
        is_labelled = bool(self._first.groups) and not self._has_foreign_label()
        labelled_groups = self._first.groups if is_labelled and not is_more_than_given else ()
        self._groups = self.record.groups or labelled_groups or allocated_groups
        self._is_placed_by_kai = is_labelled or self._allocation.has_bind_request
        self._awaits_bind_request = not self._is_placed_by_kai and not self.record.is_bind_request_known
        self._refusal = self._why_refused()
        is_recorded = bound is not None and bool(bound.portion)
        request = self._first.request
        # The pod's owner can write `gpus.devices`, too, so it places only a share that KAI recorded.
        self._request = request if is_recorded or not request.devices else replace(request, devices={})
        self._candidates = tuple(self._find_candidates())
        self._deciding = next((candidate for candidate in self._candidates if candidate.may_decide), None)
        self._is_whole = self._deciding is not None and self._deciding.source is ShareSource.WHOLE_GPU
        if self._deciding is not None and not self._is_whole and self._is_placed_by_kai:
            self.record = self.record.with_gpus(self._groups, self._request, pod, inventory)

    def pod_share(self, whole: tuple[str, ...], groups: GroupGpus) -> PodShare:
        """Return the pod's share, given its whole GPUs and the GPUs that KAI groups hold."""
        pod, declaration = self.pod, self._declaration
        notes = pod.notes + self._notes + self._allocation.notes
        tenant = tenant_of(pod, self._inventory.namespaces)
        without_share = PodShare(
            pod=pod,
            tenant=tenant,
            queue=declaration.queue,
            size=declaration.size,
            workload=declaration.virtual_workload if tenant else declaration.workload,
            notes=_bounded(notes),
        )
        if pod.is_finished:
            return without_share
        has_share = self._deciding is not None
        place = self.record.place if has_share else UNPLACED
        if self._is_whole:
            place = Placement(whole, is_complete=len(whole) >= pod.whole_gpus)
        by_groups = of_groups(self._groups, pod, self._inventory)
        may_have_other_gpus = self.record.may_have_other_gpus or (
            bool(self._groups) and not by_groups.is_complete
        )
        has_moved = (
            by_groups.is_complete and by_groups.gpus != place.gpus and has_share and not self._is_whole
        )
        shares = self._shares(place.gpus)
        limits, undecided = self._limits(place.gpus, shares)
        return replace(
            without_share,
            has_share=has_share,
            is_whole=self._is_whole,
            groups=self._groups,
            gpu_uuids=place.gpus,
            is_unresolved=has_share and not place.is_complete,
            awaits_bind_request=self._awaits_bind_request,
            is_annotation_ignored=bool(self._refusal)
            and (self._now.request.has_share or self._first.request.has_share),
            shares=shares,
            allowed_elsewhere=self._allowed_elsewhere(place, may_have_other_gpus=may_have_other_gpus),
            former_gpus=frozenset(self.record.former_gpus),
            has_doubtful_gpus=may_have_other_gpus,
            limits=limits,
            gpus_with_undecided_limit=undecided,
            candidates=tuple(
                Candidate(
                    candidate.source,
                    candidate.text,
                    {gpu: candidate.bytes_on(gpu, self._cards) for gpu in place.gpus or ("",)},
                    counts=candidate.may_decide,
                )
                for candidate in self._candidates
            ),
            changed="; ".join(
                (
                    *share_drift(self._now, self._first, self._allocation, self._latest, self._cards),
                    *(["the reservation pod of its group names another GPU now"] if has_moved else []),
                )
            ),
            lacks_reservation=has_share and pod.is_running and self._lacks_reservation(),
            unavailable_gpus=groups.unavailable_to(pod) if self._is_whole else frozenset(),
        )

    def _find_candidates(self) -> Iterator[_Candidate]:
        """Yield all candidates, best first."""
        bound = self._allocation.bound
        if bound is not None and bound.portion:
            devices = f" on {bound.count} GPUs" if bound.count > 1 else ""
            yield _Candidate(
                ShareSource.BIND_REQUEST, f"portion {bound.portion}{devices}", portion=bound.portion
            )
        # A BindRequest without a share overrides the pod's own annotation.
        is_open = (bound is None or bool(bound.portion)) and not self._refusal
        now, first = self._now.request, self._first.request
        if first.has_share:
            text = (first.text if first == now else f"{first.text}, as first seen") + self._refusal
            yield _Candidate(ShareSource.ANNOTATION, text, request=self._request, may_decide=is_open)
        if self.pod.holds_whole_gpus and self.pod.uid not in self._inventory.tenant_reservation_uids:
            yield _Candidate(ShareSource.WHOLE_GPU, f"{keys.GPU_RESOURCE} {self.pod.whole_gpus}")
        if now.has_share and now != first:
            yield _Candidate(
                ShareSource.ANNOTATION, f"{now.text}, changed later", request=now, may_decide=False
            )

    def _why_refused(self) -> str:
        """Return why the pod's annotation does not count; empty if KAI used it, or may have.

        A pod that KAI placed has a group label or a BindRequest. While the BindRequest is unknown, no
        annotation is refused.
        """
        if self._is_placed_by_kai or self._awaits_bind_request or not self.pod.is_running:
            return ""
        label = "the GPU group of its label is not from KAI" if self._first.groups else "it has no GPU group"
        return f", ignored by KAI: the pod has no BindRequest, and {label}"

    def _has_foreign_label(self) -> bool:
        """Whether the pod's group label is not from KAI, on the host or inside the pod's vCluster.

        The BindRequests of a KAI inside a vCluster are not on the host.
        """
        if self.pod.uid not in self._inventory.unplaced_uids or self._allocation.has_bind_request:
            return False
        return not all(is_of_vcluster(group, self.pod, self._inventory) for group in self._first.groups)

    def _shares(self, gpus: Iterable[str]) -> dict[str, Amount]:
        candidate = self._deciding
        if candidate is None:
            return {}
        amounts = {gpu: candidate.bytes_on(gpu, self._cards) for gpu in gpus}
        return {
            gpu: Amount(amount, candidate.source) for gpu, amount in amounts.items() if amount is not None
        }

    def _allowed_elsewhere(self, place: Placement, *, may_have_other_gpus: bool) -> dict[str, Amount]:
        """Return the share on GPUs other than the known ones, as far as they may be the pod's or were."""
        if self._is_whole or not self._is_placed_by_kai or self.pod.whole_gpus or self.pod.has_unsized_gpus:
            return {}
        is_uncertain = may_have_other_gpus or not place.is_complete
        gpus = self._cards.gpus if is_uncertain else self.record.former_gpus
        return self._shares(gpu for gpu in gpus if gpu not in place.gpus)

    def _limits(
        self, gpus: Sequence[str], shares: Mapping[str, Amount]
    ) -> tuple[dict[str, Amount], frozenset[str]]:
        """Return the limits of an enforcer, and the GPUs with an undecided limit.

        A pod must not be able to set its own limit. A limit in its annotations only lowers what the pod may
        use, unless KAI enforces it (mode NvFractions).
        """
        limits: dict[str, Amount] = {}
        undecided: set[str] = set()
        for gpu in gpus:
            own_limit = self._request.limit_on(gpu)
            if own_limit is None:
                continue
            share_bytes = shares[gpu].bytes if gpu in shares else None
            limit = effective_limit(
                own_limit, share_bytes=share_bytes, gpu_bytes=self._cards.total_of(gpu), mode=self._mode
            )
            if limit is not None:
                limits[gpu] = Amount(limit, LimitSource.ANNOTATION)
            elif self._mode is None:
                undecided.add(gpu)
        return limits, frozenset(undecided)

    def _lacks_reservation(self) -> bool:
        """Whether a group of the pod has no reservation pod.

        Both the current group, which KAI uses, and the first one count.
        """
        groups = {*self._groups, *self._now.groups}
        return not all(is_reserved(group, self.pod, self._inventory) for group in groups)
