"""Groups the use of pods into rows, and finds the share that would have done for each. Pure.

| the row's pods | the advice |
| --- | --- |
| have the share that a label gives them now | a new value of that label |
| have a whole GPU, and the namespace has no default share | a default share |
| have another share than the label of their size, or wrote a share themselves | none: no label changes them |
| are, or may be, ranks of a distributed job, or have several whole GPUs | none: each keeps a GPU |
| were seen for too few hours, or their use is unknown | none |
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from console.usage.advice import (
    KnownNamespace,
    ShareValue,
    kubectl,
    label_command,
    smallest_fraction,
    smallest_memory,
)
from console.usage.pod_use import HOUR, LEAST_KNOWN, Doubt, PodUse, utc_minute
from service.text import counted
from webhook.policy.distributed import RANK_KINDS
from webhook.policy.labels import PolicyMetadata

RANKS: Final = "ranks of a distributed job"
LIKELY_RANKS: Final = (
    "pods of an Indexed Job, a JobSet or a LeaderWorkerSet that ran at the same time and may be ranks"
)
SEVERAL_GPUS: Final = "pods with several GPUs"

_UNKNOWN: Final = KnownNamespace(PolicyMetadata(), None)
"""A namespace inside a vCluster, or one whose labels could not be read."""
_ABSENT: Final = KnownNamespace(PolicyMetadata(), None, "the namespace does not exist")
_NO_OPTIONS: Final[Mapping[str, str]] = {}
_JOB: Final = "Job"
_STATEFUL_SET: Final = "StatefulSet"
_INDEX: Final = re.compile(r"-[0-9]{1,6}\Z")  # end of the name of a JobSet's Job: `train-workers-0`
_INDEXED_POD: Final = re.compile(r"-[0-9]{1,6}-[a-z0-9]{5}(?:-x-.*)?")
"""End of the name of an Indexed Job's pod, after that of the Job, and what a vCluster adds to it."""

Namespaces = Mapping[str, KnownNamespace] | None
"""The namespaces of the cluster by name; None if they could not be read."""


class RowKey(NamedTuple):
    """What the pods of a row have in common; the first four fields are the label that gives their share."""

    namespace: str
    vcluster: str
    virtual_namespace: str
    size: str
    workload_kind: str
    workload: str
    share: ShareValue
    keeps_gpu: str  # why the pods keep a whole GPU each, for a note; empty if they may share one
    is_claim: bool = False  # whether the share is a resource claim


@dataclass(slots=True, kw_only=True)
class AdviceRow:
    """The advice for one size or workload."""

    key: RowKey
    uses: Sequence[PodUse] = field(repr=False)
    models: Sequence[str]
    pods: int
    pod_hours: float
    peak_bytes: int | None
    quantile_bytes: int | None
    over_hours: float | None  # None if no pod has the counter
    coverage: float
    is_at_limit: bool  # whether a pod filled its share, so that the pods may need more than `suggested`
    suggested: ShareValue | None = None  # None if there is no advice
    notes: list[str] = field(default_factory=list)
    command: str = ""

    @property
    def is_change(self) -> bool:
        """Whether the advice differs from the share that the pods have."""
        return self.suggested is not None and self.suggested != self.key.share


class Balance(NamedTuple):
    """GPUs promised to the pods that exist at the end of the time, as KAI counts."""

    promised: float
    suggested: float
    difference: float  # GPUs that must be added; negative if GPUs are gained


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The rows, the balance, and what could not be used."""

    rows: Sequence[AdviceRow]
    balance: Balance | None  # None for rows by workload: a label gives all workloads of a size their share
    dropped: int  # pods with a name that no Kubernetes object can have, or a figure that no GPU can have
    remarks: Sequence[str]  # sentences about the whole answer

    @property
    def commands(self) -> list[str]:
        """The commands of all rows. Every word is a name or number, or quoted."""
        return [row.command for row in self.rows if row.command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How the advice is made."""

    quantile: float = 0.99
    headroom: float = 0.15  # part of the quantile that is added to it
    min_hours: float = 24.0  # pod-hours below which a row has no advice
    cover_peak: bool = False  # whether the advice covers the peak, too
    by_workload: bool = False
    context: str = ""  # of the cluster that the commands change; empty for that of the shell
    kubeconfig: str = ""

    def advise(
        self, uses: Sequence[PodUse], namespaces: Namespaces, *, options: Mapping[str, str] = _NO_OPTIONS,
        dropped: int = 0, remarks: Sequence[str] = (),
    ) -> Advice:  # fmt: skip
        """Make the advice. Pods with invalid names are counted besides those that were `dropped` before.

        `options` tells by UID what pods run that take what they are given, with the option.
        """
        valid = [use for use in uses if use.names.are_valid]
        invalid = {use.names.uid for use in uses} - {use.names.uid for use in valid}
        gpus = Counter(uid for uid, _ in {(use.names.uid, use.names.gpu_uuid) for use in valid})
        # Why a pod with a whole GPU keeps it.
        keeps = dict.fromkeys(_likely_ranks(valid), LIKELY_RANKS)
        keeps |= {uid: SEVERAL_GPUS for uid, count in gpus.items() if count > 1}
        groups: defaultdict[RowKey, list[PodUse]] = defaultdict(list)
        for use in valid:
            known = _known(namespaces, use.names.namespace, use.names.vcluster)
            groups[self._key(use, keeps.get(use.names.uid, ""), known)].append(use)
        contradictions = _contradictions([key for key in groups if not key.is_claim])
        rows = []
        for key in sorted(groups):
            known = _known(namespaces, key.namespace, key.vcluster)
            rows.append(self._row(key, groups[key], known, contradictions.get(key, "")))
        for row in rows:
            seen = Counter(options[uid] for uid in {use.names.uid for use in row.uses} & options.keys())
            row.notes += (f"{counted(pods, 'pod')} of {row.pods} with {each}" for each, pods in seen.items())
        outside = {use.names.uid for use in valid if use.is_current and use.gpu_bytes is None}
        if outside and not self.by_workload:
            pods = counted(len(outside), "pod")
            unknown = f"Not in the balance: {pods} on a GPU whose memory is unknown, as for MIG devices."
            remarks = (*remarks, unknown)
        balance = None if self.by_workload else _balance(rows)
        return Advice(rows=rows, balance=balance, dropped=dropped + len(invalid), remarks=remarks)

    def need_of(self, use: PodUse) -> float | None:
        """Return the bytes that would have done for a pod; None if its use is unknown."""
        if use.quantile_bytes is None or use.peak_bytes is None:
            return None
        need = max(use.quantile_bytes * (1 + self.headroom), use.peak_bytes if self.cover_peak else 0.0)
        if use.keeps_share:
            return max(need if use.quantile_bytes > use.share_bytes else 0.0, use.share_bytes)
        return need

    def _needs(self, uses: Iterable[PodUse]) -> list[tuple[float, int]]:
        needs = ((self.need_of(use), use.gpu_bytes) for use in uses)
        return [(need, gpu) for need, gpu in needs if need is not None and gpu is not None]

    def _key(self, use: PodUse, keeps_whole: str, known: KnownNamespace) -> RowKey:
        names = use.names
        workload = (names.workload_kind, names.workload) if self.by_workload else ("", "")
        share = ShareValue.seen(use.share_bytes, use.gpu_bytes)
        if use.is_claim:  # a claim asks for bytes, and the webhook changes no pod with one
            share = share if share.is_whole else ShareValue.seen(use.share_bytes, None)
            return RowKey(*names.place, names.size, *workload, share, "", is_claim=True)
        label = known.share_of(names.size)
        if label is not None and use.gpu_bytes is not None and label.is_share(use.share_bytes, use.gpu_bytes):
            share = label
        of_whole = keeps_whole if share.is_whole else ""
        keeps_gpu = RANKS if names.workload_kind in RANK_KINDS else of_whole
        return RowKey(*names.place, names.size, *workload, share, keeps_gpu)

    def _row(
        self, key: RowKey, uses: Sequence[PodUse], known: KnownNamespace, contradiction: str
    ) -> AdviceRow:
        seconds: defaultdict[str, float] = defaultdict(float)
        for use in uses:
            seconds[use.names.uid] = max(seconds[use.names.uid], use.seconds)
        expected = sum(use.expected_seconds for use in uses)
        over = {use.names.uid: use.over_seconds for use in uses if use.over_seconds is not None}
        row = AdviceRow(
            key=key,
            uses=uses,
            models=sorted({use.names.model for use in uses if use.names.model}),
            pods=len(seconds),
            pod_hours=sum(seconds.values()) / HOUR,
            peak_bytes=_largest(use.peak_bytes for use in uses),
            quantile_bytes=_largest(use.quantile_bytes for use in uses),
            over_hours=sum(over.values()) / HOUR if over else None,
            coverage=min(sum(use.known_seconds for use in uses) / expected, 1.0) if expected else 0.0,
            is_at_limit=any(use.is_at_limit for use in uses),
        )
        row.suggested, problem = self._suggested(row, in_memory=key.is_claim or known.is_in_memory(key.share))
        command, note = self._command(row, known)
        row.command = "" if contradiction else command
        row.notes = [*self._notes(row, problem), *filter(None, (note, contradiction if command else ""))]
        return row

    def _suggested(self, row: AdviceRow, *, in_memory: bool) -> tuple[ShareValue | None, str]:
        """Return the share that would have done; None, and why, if there is none to advise."""
        key, uses = row.key, row.uses
        if key.keeps_gpu:
            return None, f"{key.keeps_gpu}: each keeps a whole GPU"
        if row.pod_hours < self.min_hours:
            return None, f"too few hours: {row.pod_hours:.1f} of {self.min_hours:g}"
        gpus = {use.gpu_bytes for use in uses if use.gpu_bytes is not None}
        if any(use.gpu_bytes is None for use in uses):
            return None, "the memory of the GPU is unknown, as for MIG devices"
        if not self._needs(uses):
            return None, "the use is unknown"
        # A pod that takes what it is given needs its share. The bytes that KAI hands over for it are rounded.
        others = [use for use in uses if not _fills(key.share, use)]
        needs = self._needs(others)
        if not needs:
            return key.share, ""
        share = smallest_memory(needs) if in_memory else smallest_fraction(needs)
        is_less = any(share.bytes_on(gpu) < key.share.bytes_on(gpu) for gpu in gpus)
        return (key.share if is_less and len(others) < len(uses) else share), ""

    def _notes(self, row: AdviceRow, problem: str) -> Iterator[str]:
        """Yield what the figures of a row do not show."""
        if problem:
            yield problem
        if row.suggested is not None and not self._is_covered(row):
            yield "the need with headroom is more than a GPU has: no label covers it"
        if row.coverage < LEAST_KNOWN and any(use.known_seconds for use in row.uses):
            yield f"use known in {row.coverage:.0%} of the time"
        if row.suggested is not None:
            pods = Counter(doubt for _, doubt in {(use.names.uid, use.doubt) for use in row.uses})
            yield from (f"{counted(pods[each], 'pod')} of {row.pods} {each}" for each in Doubt if pods[each])
        if row.is_at_limit:
            yield "a pod filled its share and may need more"
        if row.suggested is not None and len(row.models) > 1 and not row.suggested.mib:
            needs = {own: self._needs(u for u in row.uses if u.names.model == own) for own in row.models}
            parts = [f"{model} {smallest_fraction(own)}" for model, own in needs.items() if own]
            yield f"several models of card, the largest counts: {', '.join(parts)}"

    def _is_covered(self, row: AdviceRow) -> bool:
        return all(need <= gpu_bytes for need, gpu_bytes in self._needs(row.uses))

    def _command(self, row: AdviceRow, known: KnownNamespace) -> tuple[str, str]:
        """Return the command for the suggested share, and a note, such as why there is no command.

        The namespaces inside a vCluster cannot be read here.
        """
        key, uses = row.key, row.uses
        change = row.suggested if row.is_change and self._is_covered(row) else None
        if key.is_claim:
            return "", _change_of_claim(row)
        if self.by_workload:
            return "", ""
        if key.vcluster:
            if change is None or not key.virtual_namespace:
                return "", ""
            if not any(use.is_current for use in uses):
                return "", "no pod has this share now"
            if not key.size:
                return "", "no command: the default share inside the vCluster is not known here"
            inside = kubectl(self.context, self.kubeconfig, key.vcluster, key.namespace)
            command = label_command(inside, key.virtual_namespace, known.edit(key.size, change))
            return command, "labels and caps inside the vCluster are not known here"
        if known is _UNKNOWN or known.without_effect:
            return "", known.without_effect
        of_label = known.share_of(key.size)
        if of_label != key.share and not (key.share.is_whole and not key.size and of_label is None):
            return "", _other_share(row, of_label)
        if change is None:
            return "", ""
        if change.is_whole and not key.size:
            return "", (
                "needs a whole GPU: no default share covers it; define a size of 1, or write it on the pod"
            )
        edit = known.edit(key.size, change)
        if refusal := known.refusal(edit):
            return "", f"no label covers the need: {refusal}"
        return label_command(kubectl(self.context, self.kubeconfig), key.namespace, edit), ""


def _known(namespaces: Namespaces, namespace: str, vcluster: str) -> KnownNamespace:
    return _UNKNOWN if vcluster or namespaces is None else namespaces.get(namespace, _ABSENT)


def _largest(amounts: Iterable[float | None]) -> int | None:
    return max((round(amount) for amount in amounts if amount is not None), default=None)


def _fills(share: ShareValue, use: PodUse) -> bool:
    """Whether the pod takes all bytes that KAI hands over for the share, and no more."""
    return (
        use.keeps_share
        and use.gpu_bytes is not None
        and (use.quantile_bytes or 0.0) <= use.share_bytes
        and share.is_share(use.share_bytes, use.gpu_bytes)
    )


def _change_of_claim(row: AdviceRow) -> str:
    share = "the share is the pods' resource claim, which no label changes"
    if row.suggested is None or not row.is_change:
        return share
    if row.suggested.is_whole:
        return f"{share}: let the ResourceClaimTemplate request a whole device"
    return f"{share}: set capacity.requests.memory of the ResourceClaimTemplate to {row.suggested}"


def _other_share(row: AdviceRow, of_label: ShareValue | None) -> str:
    """Return why no label gives the row's pods their share."""
    key = row.key
    if not key.size:
        return "the pods have a share of their own, or had another default share; no label changes it"
    now = f"is {of_label} now" if of_label else "does not exist now"
    if any(use.is_current for use in row.uses):
        return f"pods have {key.share}; the size {now}"
    last_day = utc_minute(max(use.last for use in row.uses)).split()[0]
    return f"had {key.share} until {last_day}; the size {now}"


def _contradictions(keys: Sequence[RowKey]) -> dict[RowKey, str]:
    """Return why a row gets no command: its label would change pods of other rows that need what they have.

    1. A size of a vCluster with several shares: the present value of the label is unknown. Rows without a
       command count, too.
    2. A share instead of the whole GPU that ranks with the same label have. The webhook gives ranks that name
       a size its share, and it may not recognise those without a size.
    """
    shares: defaultdict[tuple[str, ...], set[ShareValue]] = defaultdict(set)
    with_ranks = set()
    for key in keys:
        label = key[:4]
        shares[label].add(key.share)
        if key.keeps_gpu == LIKELY_RANKS or (key.keeps_gpu == RANKS and key.size):
            with_ranks.add(label)
    reasons = {
        key: "no command: the label may also change pods that are, or may be, ranks with a whole GPU each"
        for key in keys
        if key.share.is_whole and key[:4] in with_ranks
    }
    several = "pods of this size have several shares: no command, because its label is not known here"
    return reasons | {key: several for key in keys if key.vcluster and len(shares[key[:4]]) > 1}


def _balance(rows: Iterable[AdviceRow]) -> Balance:
    """Return the balance; only advice with a command counts, because no label gives the other."""
    promised = suggested = 0.0
    for row in rows:
        share = row.suggested if row.command and row.suggested is not None else row.key.share
        for use in row.uses:
            if use.is_current and use.gpu_bytes is not None:
                promised += min(row.key.share.portion_on(use.gpu_bytes), 1.0)
                suggested += min(share.portion_on(use.gpu_bytes), 1.0)
    promised, suggested = round(promised, 2), round(suggested, 2)
    return Balance(promised, suggested, round(suggested - promised, 2))


def _likely_ranks(uses: Sequence[PodUse]) -> set[str]:
    """Return the UIDs of pods that ran beside another one of their Indexed Job, JobSet or LeaderWorkerSet.

    Prometheus has the kind and the name of a pod's controller, and not the variables and labels by which
    `webhook.policy.distributed` recognises ranks. The Jobs of a JobSet and of a TrainJob (Kubeflow Trainer
    v2) are Indexed. In a LeaderWorkerSet, the StatefulSet of the workers has the name of their leader, which
    is a pod of another StatefulSet. On the host, a vCluster's pods have other names than inside, so that its
    LeaderWorkerSets are not recognised. The time side by side must be longer than a part of the window,
    because the beginning and the end of a pod are known to that only.
    """
    of_sets = [use.names for use in uses if use.names.workload_kind == _STATEFUL_SET]
    leaders = {(*names.place, names.pod) for names in of_sets}
    leaders &= {(*names.place, names.workload) for names in of_sets}
    groups: defaultdict[Hashable, dict[str, PodUse]] = defaultdict(dict)
    for use in uses:
        names = use.names
        if names.workload_kind == _STATEFUL_SET:
            own = [(*names.place, name) for name in (names.pod, names.workload)]
            for leader in leaders.intersection(own):
                groups[leader][names.uid] = use
        elif names.workload_kind == _JOB and _INDEXED_POD.fullmatch(names.pod.removeprefix(names.workload)):
            groups[*names.place, _INDEX.sub("", names.workload)][names.uid] = use
    uids: set[str] = set()
    for pods in groups.values():
        latest: PodUse | None = None
        for pod in sorted(pods.values(), key=lambda pod: pod.first):
            if latest is not None and min(latest.last, pod.last) - pod.first > pod.bucket:
                uids |= {latest.names.uid, pod.names.uid}
            if latest is None or pod.last > latest.last:
                latest = pod
    return uids
