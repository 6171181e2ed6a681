"""Resolves what each pod may use on each GPU. Pure, except that it remembers the first records of each pod.

A source is one reader here (`_Resolution._read`), and one row in the table of `entitlement`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replaced

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.pods.inventory import Inventory, NodePod, PodClaims
from gpuagent.pods.pod_owners import tenant_of
from gpuagent.shares.entitlement import Record, Sources, entitlement
from gpuagent.shares.placement import (
    UNPLACED,
    ClaimedMemory,
    Placement,
    WholeGpus,
    claimed_memory,
    is_of_vcluster,
    is_reserved,
    of_groups,
    withheld_gpus,
)
from gpuagent.shares.pod_share import (
    Amount,
    Candidate,
    Entitlement,
    LimitSource,
    PodShare,
    Relation,
    ShareSource,
    Validity,
)
from gpuagent.shares.records import NO_RECORDS, PodDeclaration, PodRecords, share_drift
from gpuagent.shares.share_requests import Cards, effective_limit
from kai import keys
from kai.installation import SharingMode
from kai.releases import Version
from service.text import first_few

_NO_CLAIMS: Final = PodClaims()
_MOST_NOTES: Final = 8
_LONGEST_NOTE: Final = 600
_NOBODY: Final[Mapping[str, Collection[str]]] = {}
_NOTHING_CLAIMED: Final[Mapping[str, ClaimedMemory]] = {}


def _bounded(notes: Sequence[str]) -> tuple[str, ...]:
    """Limit the number and length of the notes on one pod; its owner can cause any number."""
    more = len(notes) - _MOST_NOTES
    cut = tuple(note[:_LONGEST_NOTE] for note in notes[:_MOST_NOTES])
    return (*cut, f"{more} more values of the pod are invalid") if more > 0 else cut


class SavedPod(Struct, frozen=True, gc=False, omit_defaults=True):
    """What is remembered of one pod, over a restart of the agent."""

    uid: str
    annotations: dict[str, str] = {}
    """As first seen, with the pod's labels: those that a declaration is read from."""
    labels: dict[str, str] = {}
    records: PodRecords = NO_RECORDS
    whole_gpus: tuple[str, ...] = ()
    claims: PodClaims = _NO_CLAIMS
    """What the pod's ResourceClaims give, if all of them were known."""

    def as_first_seen(self, pod: NodePod) -> NodePod:
        """Return the pod with the annotations and labels that were first seen."""
        own = _read_strings(pod)
        others = [
            {key: text for key, text in now.items() if key not in read}
            for now, read in zip((pod.annotations, pod.labels), own, strict=True)
        ]
        return replace(pod, annotations=others[0] | self.annotations, labels=others[1] | self.labels)


def _read_strings(pod: NodePod) -> tuple[dict[str, str], dict[str, str]]:
    """Return the annotations and the labels of a pod that the agent reads."""
    annotations = {
        key: text
        for key, text in pod.annotations.items()
        if key in keys.READ_ANNOTATIONS or key.startswith(keys.READ_PREFIXES)
    }
    labels = {
        key: text
        for key, text in pod.labels.items()
        if key in keys.READ_LABELS or key.startswith(keys.READ_PREFIXES)
    }
    return annotations, labels


@dataclass(slots=True)
class _Known:
    """What is remembered of one pod, for as long as its UID exists."""

    pod: NodePod
    now: PodDeclaration
    first: PodDeclaration
    first_seen: tuple[dict[str, str], dict[str, str]]
    """The annotations and labels that `first` was read from."""
    records: PodRecords = NO_RECORDS
    claims: PodClaims = _NO_CLAIMS
    """What its ResourceClaims gave when all of them were known; it stays while one is not known again."""
    finished: PodShare | None = None
    """Result for a finished pod, which is resolved once."""

    def claims_now(self, present: PodClaims) -> PodClaims:
        """Return what the pod's claims give, and remember it.

        A claim in use can be replaced by one of the same name that is not allocated.
        """
        if present.is_sized or not self.claims.is_sized:
            self.claims = present
        return self.claims


class ShareResolver:
    """Resolves the shares of all pods, and remembers each pod's first declaration and KAI's first records.

    The annotations, GPU groups and queue label of a pod count as first seen, for as long as its UID exists.
    Any user who may edit the pod can change them later (observed: KAI applies a later gpu-fraction to its
    quotas, but not to the allocation). The same holds for the GPUs and the share that KAI recorded
    (`shares.records`). A restart forgets them unless `restore` is given what `saved` returned.
    """

    def __init__(
        self, *, kai_version: Version | None = None, gpu_sharing_mode: SharingMode | None = None
    ) -> None:
        """Set KAI's release and its mode of GPU sharing; None if the administrator has not stated it."""
        self._version = kai_version
        self._mode = gpu_sharing_mode
        self._known: dict[str, _Known] = {}
        self._whole = WholeGpus()
        self._restored: dict[str, SavedPod] = {}
        """By UID, until the pods are listed."""
        self._most_devices = 0
        """Largest number of GPUs that responded at once."""
        self._last: tuple[Inventory, object, tuple[PodShare, ...]] | None = None

    def resolve(
        self, inventory: Inventory, devices: Sequence[Gpu], holders: Mapping[str, Collection[str]] = _NOBODY
    ) -> tuple[PodShare, ...]:
        """Return the share of every pod of the inventory; it is empty for a pod without share and GPU.

        `holders` are the GPUs with processes of a pod, by its UID, and only serve to find whole GPUs. The
        usage of the devices is ignored.
        """
        wanted = {uid: pod.whole_gpus for uid, pod in inventory.pods.items() if pod.holds_whole_gpus}
        used = {uid: frozenset(holders.get(uid, ())) for uid in wanted}
        situation = (tuple((gpu.uuid, gpu.total_bytes, gpu.mig) for gpu in devices), used)
        if self._last and self._last[0] is inventory and self._last[1] == situation:
            return self._last[2]
        self._known = {uid: self._seen(uid, pod, inventory) for uid, pod in inventory.pods.items()}
        claims = {uid: self._known[uid].claims_now(each) for uid, each in inventory.claims.items()}
        given, inventory = inventory, replace(inventory, claims=claims)
        self._restored = {}  # the other pods have ended
        cards = Cards(node_labels=inventory.node_labels, devices=devices, version=self._version)
        self._most_devices = max(self._most_devices, len(devices))
        withheld = {uid: withheld_gpus(inventory.pods[uid], inventory, self._most_devices) for uid in wanted}
        whole = self._whole.assign(wanted, withheld, inventory, devices, used)
        claimed = claimed_memory(claims)
        pod_shares = []
        for uid, known in self._known.items():
            if known.finished is None:
                memory = claimed.get(uid, _NOTHING_CLAIMED)
                resolution = _Resolution(known, inventory, cards, self._mode, memory)
                pod_share = resolution.pod_share(whole.get(uid, ()), withheld.get(uid, ()))
                if known.pod.is_finished:
                    known.finished, known.records = pod_share, NO_RECORDS
                else:
                    known.records = resolution.records
            pod_shares.append(known.finished or pod_share)
        self._last = (given, situation, tuple(pod_shares))
        return self._last[2]

    def saved(self) -> list[SavedPod]:
        """Return everything that a restart would forget of pods with a share or a GPU."""
        pods = [
            SavedPod(uid, *known.first_seen, known.records, self._whole.assigned.get(uid, ()), known.claims)
            for uid, known in self._known.items()
            if not known.pod.is_finished
            and (
                known.first.declares_share
                or known.now.declares_share
                or known.pod.holds_whole_gpus
                or known.claims.is_sized
            )
        ]
        return [*pods, *self._restored.values()]

    def restore(self, pods: Sequence[SavedPod]) -> None:
        """Go on from what an earlier process saved."""
        self._restored = {pod.uid: pod for pod in pods}
        self._whole.restore({pod.uid: pod.whole_gpus for pod in pods if pod.whole_gpus})

    def _seen(self, uid: str, pod: NodePod, inventory: Inventory) -> _Known:
        known = self._known.get(uid)
        if known is None:
            now = PodDeclaration.by(pod)
            saved = self._restored.get(uid)
            if saved is None:
                return _Known(pod, now, now, _read_strings(pod) if now.declares_share else ({}, {}))
            first = PodDeclaration.by(saved.as_first_seen(pod))
            records = saved.records if saved.records.agree_with(pod, inventory) else NO_RECORDS
            return _Known(pod, now, first, (saved.annotations, saved.labels), records, saved.claims)
        if known.pod is not pod:
            known.pod, known.now, known.finished = pod, PodDeclaration.by(pod), None
        return known


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one source says, before the pod's GPUs are known."""

    source: ShareSource
    text: str
    bytes_on: Callable[[str], int | None]
    validity: Validity = Validity.COUNTS


class _Resolution:
    """Resolution of one pod's share."""

    def __init__(
        self,
        known: _Known,
        inventory: Inventory,
        cards: Cards,
        mode: SharingMode | None,
        claimed: Mapping[str, ClaimedMemory],
    ) -> None:
        self._pod = pod = known.pod
        self._claims = inventory.claims.get(pod.uid, _NO_CLAIMS)
        self._claimed = claimed
        self._now, self._first = known.now, known.first
        self._inventory = inventory
        self._cards = cards
        self._mode = mode
        self.records = records = known.records.updated(pod, inventory, known.now.name)
        bound, request = records.bound, self._first.request
        self._devices = (bound.count if bound else 0) or (request.share.devices if request.share else 1)
        self._labelled = labelled = self._first.groups(self._devices)
        allocated = bound.groups if bound else ()
        # KAI writes the label before it binds the pod, so a later label is not from KAI.
        is_labelled = bool(labelled) and not self._has_foreign_label()
        is_more_than_given = bool(allocated) and len(labelled) > len(allocated)
        own = labelled if is_labelled and not is_more_than_given else ()
        self._groups = records.groups or own or allocated
        self._sources = sources = Sources(
            record=records.state,
            is_labelled=is_labelled,
            has_annotation=request.has_share,
            has_whole_gpus=pod.holds_whole_gpus and pod.uid not in inventory.tenant_reservation_uids,
            has_claimed_gpus=bool(claimed),
            has_unsized_gpus=pod.has_unsized_resource
            or (bool(pod.claims or pod.has_unnamed_claims) and not self._claims.is_sized),
            is_running=pod.is_running,
        )
        # The pod's owner can write `gpus.devices`, too, so it places only a share that KAI recorded.
        is_recorded = sources.record is Record.SHARE
        self._request = request if is_recorded or not request.devices else replace(request, devices={})
        self._is_whole = sources.counts is ShareSource.WHOLE_GPU
        self._is_kais = sources.counts in (ShareSource.BIND_REQUEST, ShareSource.ANNOTATION)
        if sources.is_placed and self._is_kais:
            self.records = records.with_gpus(self._groups, self._request, pod, inventory)

    def pod_share(self, whole: tuple[str, ...], withheld: Collection[str]) -> PodShare:
        """Return the pod's share, given its whole GPUs and the GPUs that KAI groups hold."""
        pod, first, records, counts = self._pod, self._first, self.records, self._sources.counts
        tenant = tenant_of(pod, self._inventory.namespaces)
        notes = (*pod.notes, *self._now.notes, *([records.note] if records.note else []))
        without_share = PodShare(
            sharing_mode=self._mode,
            pod=pod,
            tenant=tenant,
            queue=first.queue,
            size=first.size,
            workload=first.virtual_workload if tenant else first.workload,
            has_unsized_gpus=self._sources.has_unsized_gpus,
            notes=_bounded(notes),
        )
        if pod.is_finished:
            return without_share
        place = records.place if counts is not None else UNPLACED
        if self._is_whole:
            place = Placement(whole, is_complete=len(whole) >= pod.whole_gpus)
        elif counts is ShareSource.RESOURCE_CLAIM:
            place = Placement(tuple(self._claimed), is_complete=True)
        by_groups = of_groups(self._groups, pod, self._inventory)
        has_doubtful_groups = bool(self._groups) and not by_groups.is_complete
        is_certain = place.is_complete and not (
            self._is_kais and (records.may_have_other_gpus or has_doubtful_groups)
        )
        is_claim = counts is ShareSource.RESOURCE_CLAIM
        changes = [] if is_claim else share_drift(self._now, first, self._devices, records, self._cards)
        if self._is_kais and by_groups.is_complete and by_groups.gpus != place.gpus:
            changes.append("the reservation pod of its group names another GPU now")
        readings = tuple(self._read())
        counting = next((reading for reading in readings if reading.source is counts), None)
        entitlements, elsewhere = self._entitlements(
            counting, place.gpus, withheld=withheld, is_certain=is_certain
        )
        return replace(
            without_share,
            candidates=tuple(
                Candidate(
                    reading.source,
                    reading.text,
                    {gpu: reading.bytes_on(gpu) for gpu in place.gpus or ("",)},
                    reading.validity,
                )
                for reading in readings
            ),
            source=counts,
            groups=self._groups,
            gpu_uuids=tuple(dict.fromkeys((*place.gpus, *self._claimed))),
            is_unresolved=counts is not None and not place.is_complete,
            awaits_record=self._sources.awaits_record,
            entitlements=entitlements,
            elsewhere=elsewhere,
            changed="; ".join(changes),
            lacks_reservation=counts is not None
            and not is_claim
            and pod.is_running
            and self._lacks_reservation(),
        )

    def _read(self) -> Iterator[_Reading]:
        """Yield what each source says, best first."""
        bound, sources, cards = self.records.bound, self._sources, self._cards
        if sources.record is Record.SHARE and bound is not None:
            devices = f" on {bound.count} GPUs" if bound.count > 1 else ""
            part = float(bound.portion)
            yield _Reading(
                ShareSource.BIND_REQUEST,
                f"portion {bound.portion}{devices}",
                lambda gpu: card.fraction_bytes(part) if (card := cards.of(gpu)) else None,
            )
        now, first, ignored = self._now.request, self._first.request, ""
        validity = Validity.OVERRULED if sources.record is Record.NO_SHARE else Validity.COUNTS
        if sources.is_annotation_ignored:
            validity = Validity.IGNORED
            label = "the GPU group of its label is not from KAI" if self._labelled else "it has no GPU group"
            ignored = f", ignored by KAI: the pod has no BindRequest, and {label}"
        if first.has_share:
            text = (first.text if first == now else f"{first.text}, as first seen") + ignored
            yield _Reading(ShareSource.ANNOTATION, text, partial(self._request.bytes_on, cards), validity)
        if sources.has_whole_gpus:
            text = f"{keys.GPU_RESOURCE} {self._pod.whole_gpus}"
            yield _Reading(ShareSource.WHOLE_GPU, text, cards.total_of)
        if self._claimed:
            names = dict.fromkeys(each.claim for each in self._claims.gpus)
            yield _Reading(ShareSource.RESOURCE_CLAIM, f"claim {first_few(list(names))}", self._claimed_on)
        if now.has_share and now != first:
            validity = Validity.IGNORED if ignored else Validity.LATER
            text = f"{now.text}, changed later"
            yield _Reading(ShareSource.ANNOTATION, text, partial(now.bytes_on, cards), validity)

    def _entitlements(
        self, counting: _Reading | None, own: Sequence[str], *, withheld: Collection[str], is_certain: bool
    ) -> tuple[dict[str, Entitlement], Entitlement]:
        """Return the entitlement on each GPU that differs from those on all others, and the latter."""
        sources, others = self._sources, Relation.OTHER
        relations = dict.fromkeys(own, Relation.OWN)
        if self._is_whole:
            relations = dict.fromkeys(withheld, Relation.WITHHELD) | relations
        elif counting is not None:
            others = Relation.OTHER if is_certain else Relation.POSSIBLE
            possible = self.records.former_gpus if is_certain else self._cards.gpus
            relations |= {gpu: Relation.POSSIBLE for gpu in possible if gpu not in relations}
        entitlements = {}
        for gpu, relation in relations.items():
            amount = counting.bytes_on(gpu) if counting else None
            share = Amount(amount, counting.source) if counting and amount is not None else None
            limit = self._request.limit_on(gpu) if relation is Relation.OWN else None
            if limit is None:
                entitlements[gpu] = entitlement(sources, relation, share)
                continue
            counts = effective_limit(
                limit, share_bytes=amount, gpu_bytes=self._cards.total_of(gpu), mode=self._mode
            )
            entitlements[gpu] = entitlement(
                sources,
                relation,
                share,
                None if counts is None else Amount(counts, LimitSource.ANNOTATION),
                ignored_limit=Amount(limit, LimitSource.ANNOTATION) if counts is None else None,
            )
        is_claim = sources.counts is ShareSource.RESOURCE_CLAIM
        for gpu, claimed in self._claimed.items():
            entitlements[gpu] = self._with_claim(gpu, claimed, None if is_claim else entitlements.get(gpu))
        return entitlements, entitlement(sources, others)

    def _claimed_on(self, gpu: str) -> int | None:
        claimed = self._claimed.get(gpu)
        return self._cards.total_of(gpu) if claimed is None or claimed.bytes is None else claimed.bytes

    def _with_claim(self, gpu: str, claimed: ClaimedMemory, before: Entitlement | None) -> Entitlement:
        """Return the entitlement on a GPU of a claim; the memory of a share of KAI there is added.

        A pod with the whole GPU is never over.
        """
        amount = self._claimed_on(gpu)
        share = None if amount is None else Amount(amount, ShareSource.RESOURCE_CLAIM)
        made = entitlement(Sources(has_claimed_gpus=True), Relation.OWN, share)
        made = replaced(made, is_excused=made.is_excused or claimed.bytes is None, peers=claimed.peers)
        if before is None or before.relation is not Relation.OWN or before.share is None or amount is None:
            return made
        total = Amount(before.share.bytes + amount, before.share.source)
        return replaced(made, share=total, is_excused=before.is_excused or made.is_excused)

    def _has_foreign_label(self) -> bool:
        """Whether the pod's group label is not from KAI, on the host or inside the pod's vCluster.

        The BindRequests of a KAI inside a vCluster are not on the host.
        """
        if self._pod.uid not in self._inventory.unplaced_uids or self.records.has_bind_request:
            return False
        return not all(is_of_vcluster(group, self._pod, self._inventory) for group in self._labelled)

    def _lacks_reservation(self) -> bool:
        """Whether a group of the pod has no reservation pod.

        Both the current group, which KAI uses, and the first one count.
        """
        groups = {*self._groups, *self._now.groups(self._devices)}
        return not all(is_reserved(group, self._pod, self._inventory) for group in groups)
