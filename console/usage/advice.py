"""The advice: shares as labels write them, namespaces, rows, and the commands that set labels. Pure."""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from console.usage.pod_use import PodUse
from kai import keys
from kai.kaishare_keys import FRACTION, MEMORY, SIZE_PREFIX
from kai.share import MIB
from kai.share_bytes import Card
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import NamespacePolicy, PolicyMetadata, label_problems

RANKS: Final = "ranks of a distributed job"
LIKELY_RANKS: Final = (
    "pods of an Indexed Job, a JobSet or a LeaderWorkerSet that ran at the same time and may be ranks"
)
SEVERAL_GPUS: Final = "pods with several GPUs"

_PLAIN: Final = {FRACTION: MEMORY, MEMORY: FRACTION}
"""The labels of a default share; a namespace has at most one of them."""
_TOLERANCE: Final = 0.004
"""Part of a card by which a share may differ from a label's: less than half of a hundredth. The driver's
memory of a card and the node label that KAI reads may differ by some MiB."""
_HUNDREDTHS: Final = range(2, 100)  # fractions that a label may have


@dataclass(frozen=True, slots=True, order=True)
class ShareValue:
    """A share: hundredths of a GPU (100 is a whole one), or MiB."""

    hundredths: int = 0
    mib: int = 0

    def __str__(self) -> str:
        """Return the share as the value of a size's label: `0.25`, `8192Mi` or `1`."""
        if self.mib:
            return f"{self.mib}Mi"
        return "1" if self.is_whole else f"{self.hundredths / 100:.2f}"

    @classmethod
    def of_policy(cls, share: PolicyShare | None) -> "ShareValue":
        """Return a policy's share; None is a size of a whole GPU."""
        if share is None:
            return WHOLE
        is_memory = share.annotation == keys.GPU_MEMORY
        return cls(mib=int(share.value)) if is_memory else cls(round(float(share.value) * 100))

    @classmethod
    def seen(cls, share_bytes: int, gpu_bytes: int | None) -> "ShareValue":
        """Return the share that a pod's bytes on a GPU stand for: hundredths if they fit, else MiB."""
        if gpu_bytes is not None:
            if WHOLE.is_share(share_bytes, gpu_bytes):
                return WHOLE
            card = card_of(gpu_bytes)
            share = cls(round(share_bytes / (card.units * card.unit_bytes) * 100))
            if share.hundredths and share.is_share(share_bytes, gpu_bytes):
                return share
        return cls(mib=max(-(-share_bytes // MIB), 1))

    @property
    def is_whole(self) -> bool:
        """Whether the share is a whole GPU."""
        return self.hundredths >= 100

    def bytes_on(self, gpu_bytes: int) -> int:
        """Return the bytes that KAI gives on a GPU with this memory."""
        if self.is_whole:
            return gpu_bytes
        card = card_of(gpu_bytes)
        return card.memory_bytes(self.mib) if self.mib else card.fraction_bytes(self.hundredths / 100)

    def portion_on(self, gpu_bytes: int) -> float:
        """Return the part of the GPU that KAI charges."""
        return card_of(gpu_bytes).portion_of_memory(self.mib) if self.mib else self.hundredths / 100

    def is_share(self, share_bytes: int, gpu_bytes: int) -> bool:
        """Whether a pod's share on a GPU is this one.

        KAI hands a share in MiB over as a portion with two decimals, so both amounts count.
        """
        if not self.mib:
            return abs(share_bytes - self.bytes_on(gpu_bytes)) <= _TOLERANCE * gpu_bytes
        handed_over = card_of(gpu_bytes).fraction_bytes(self.portion_on(gpu_bytes))
        return min(abs(share_bytes - given) for given in (self.mib * MIB, handed_over)) <= MIB


WHOLE: Final = ShareValue(hundredths=100)


def card_of(gpu_bytes: int) -> Card:
    """Return the card as KAI counts it.

    Raises:
        ValueError: KAI shares no GPU of this memory.
    """
    return Card.from_mib(gpu_bytes // MIB)


def smallest_fraction(needs: Iterable[tuple[float, int]]) -> ShareValue:
    """Return the smallest fraction that covers each need (bytes, memory of the GPU), or a whole GPU."""
    hundredths = 2
    for need, gpu_bytes in needs:
        card = card_of(gpu_bytes)
        fits = (h for h in _HUNDREDTHS if h >= hundredths and card.fraction_bytes(h / 100) >= need)
        hundredths = next(fits, 100)
    return ShareValue(hundredths)


def smallest_memory(needs: Iterable[tuple[float, int]]) -> ShareValue:
    """Return the smallest share in MiB that covers each need; a whole GPU if it fits on none."""
    needs = list(needs)
    share = ShareValue(mib=max(math.ceil(max(need for need, _ in needs) / MIB), 1))
    return share if all(share.portion_on(gpu_bytes) < 1 for _, gpu_bytes in needs) else WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCluster:
    """The cluster whose labels the commands change; empty: that of the shell in which they run."""

    kubeconfig: str = ""
    context: str = ""

    @property
    def kubectl(self) -> str:
        """How kubectl is called for this cluster, quoted for a shell."""
        options = {"--context": self.context, "--kubeconfig": self.kubeconfig}
        return shlex.join(["kubectl", *(f"{name}={value}" for name, value in options.items() if value)])

    def vcluster_kubectl(self, name: str, namespace: str) -> str:
        """Return how kubectl is called for a vCluster in a namespace of this cluster, quoted for a shell.

        `vcluster connect` has no option for the kubeconfig that it reads; it writes that of `--kube-config`.
        """
        words = ["vcluster", "connect", name, "--namespace", namespace]
        words += [f"--context={self.context}"] if self.context else []
        variable = f"KUBECONFIG={shlex.quote(self.kubeconfig)} " if self.kubeconfig else ""
        return f"{variable}{shlex.join(words)} -- kubectl"


@dataclass(frozen=True, slots=True)
class LabelEdit:
    """A new value of a namespace's label, and a label that must be removed with it, if any."""

    key: str
    value: str
    removed: str = ""

    def command(self, kubectl: str, namespace: str) -> str:
        """Return the command; one command, because the webhook may refuse each half of the edit."""
        removed = f"{self.removed}- " if self.removed else ""
        return f"{kubectl} label namespace {namespace} {removed}{self.key}={self.value} --overwrite"


@dataclass(frozen=True, slots=True)
class KnownNamespace:
    """The labels and annotations of a namespace, and the policy that they are."""

    metadata: PolicyMetadata
    policy: NamespacePolicy | None  # None if the namespace is not managed
    without_effect: str = ""  # why its labels change no pod, such as its mode; empty if they do

    def share_of(self, size: str) -> ShareValue | None:
        """Return the share that a size has now, or the default share for an empty name."""
        if self.policy is None:
            return None
        if not size:
            return None if self.policy.share is None else ShareValue.of_policy(self.policy.share)
        known = self.policy.sizes.by_name.get(size)
        return None if known is None or known.problem is not None else ShareValue.of_policy(known.share)

    def is_in_memory(self, current: ShareValue) -> bool:
        """Whether a new share is written in MiB: as the present one, unless only the other unit has a cap."""
        policy = self.policy
        if policy is None or (policy.max_fraction is None) == (policy.max_memory_mib is None):
            return bool(current.mib)
        return policy.max_memory_mib is not None

    def edit(self, size: str, share: ShareValue) -> LabelEdit:
        """Return the edit that gives a size, or the default share for an empty name, a new value."""
        if size:
            return LabelEdit(SIZE_PREFIX + size, str(share))
        key = MEMORY if share.mib else FRACTION
        removed = _PLAIN[key] if _PLAIN[key] in self.metadata.labels else ""
        return LabelEdit(key, str(share.mib or share), removed)

    def refusal(self, edit: LabelEdit) -> str:
        """Return why `/validate/namespaces` refuses an edit; empty if it accepts it."""
        labels = {key: value for key, value in self.metadata.labels.items() if key != edit.removed}
        after = PolicyMetadata(labels | {edit.key: edit.value}, self.metadata.annotations)
        problems = label_problems(after, self.metadata).first
        return str(problems[0]) if problems else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOptions:
    """How the advice is made."""

    quantile: float = 0.99
    headroom: float = 0.15  # part of the quantile that is added to it
    min_hours: float = 24.0  # pod-hours below which a row has no advice
    cover_peak: bool = False  # whether the advice covers the peak, too
    by_workload: bool = False
    cluster: TargetCluster = field(default_factory=TargetCluster)  # the cluster that the commands change


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class RowKey:
    """What the pods of a row have in common."""

    namespace: str
    vcluster: str = ""
    virtual_namespace: str = ""
    size: str = ""
    workload_kind: str = ""
    workload: str = ""
    share: ShareValue
    keeps_gpu: str = ""  # why the pods keep a whole GPU each, for a note; empty if they may share one

    @property
    def label(self) -> tuple[str, ...]:
        """The label that gives the pods their share."""
        return self.namespace, self.vcluster, self.virtual_namespace, self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """The advice for one size or workload."""

    key: RowKey
    models: tuple[str, ...]
    pods: int
    pod_hours: float
    suggested: ShareValue | None  # None if there is no advice
    is_at_least: bool  # whether the pods may need more than `suggested`
    peak_bytes: int | None
    quantile_bytes: int | None
    over_hours: float | None  # None if no pod has the counter
    coverage: float
    notes: tuple[str, ...]
    commands: tuple[str, ...] = ()
    uses: tuple[PodUse, ...] = field(default=(), repr=False)

    @property
    def current(self) -> ShareValue:
        """The share that the pods have."""
        return self.key.share

    @property
    def is_change(self) -> bool:
        """Whether the advice differs from the share that the pods have."""
        return self.suggested is not None and self.suggested != self.current


@dataclass(frozen=True, slots=True)
class Balance:
    """GPUs promised to the pods that exist at the end of the time, as KAI counts."""

    promised: float
    suggested: float

    @property
    def difference(self) -> float:
        """GPUs that must be added; negative if GPUs are gained."""
        return self.suggested - self.promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The rows, the balance, and what could not be used."""

    rows: tuple[AdviceRow, ...]
    balance: Balance | None  # None for rows by workload: a label gives all workloads of a size their share
    dropped: int  # pods with a name that no Kubernetes object can have, or a figure that no GPU can have
    remarks: tuple[str, ...] = ()  # sentences about the whole answer

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands of all rows. Every word is a name or number, or quoted."""
        return tuple(command for row in self.rows for command in row.commands)


def commands_of(
    row: AdviceRow,
    namespaces: Mapping[str, KnownNamespace] | None,
    options: AdviceOptions,
    *,
    is_covered: bool,
) -> AdviceRow:
    """Return the row with the commands for the suggested share, or with a note on why there are none.

    `is_covered` says whether a GPU has what the pods need.
    """
    command, note = "", ""
    if not options.by_workload and row.key.vcluster:
        command, note = _vcluster_command(row, options, is_covered=is_covered)
    elif not options.by_workload and namespaces is not None:
        command, note = _command(row, namespaces.get(row.key.namespace), options, is_covered=is_covered)
    notes = (*row.notes, note) if note else row.notes
    return replace(row, commands=(command,) if command else (), notes=notes)


_NOT_COVERED: Final = "no command: no label covers the need"


def _command(
    row: AdviceRow, known: KnownNamespace | None, options: AdviceOptions, *, is_covered: bool
) -> tuple[str, str]:
    """Return the command and a note for a namespace of the cluster."""
    key, suggested = row.key, row.suggested
    if known is None or known.without_effect:
        return "", "the namespace does not exist" if known is None else known.without_effect
    of_label = known.share_of(key.size)
    if of_label != key.share and not (key.share.is_whole and not key.size and of_label is None):
        return "", _other_share(row, of_label)
    if suggested is None or suggested == key.share:
        return "", ""
    if not is_covered:
        return "", _NOT_COVERED
    if suggested.is_whole and not key.size:
        return "", (
            "needs a whole GPU: no default share covers it; define a size of 1, or write it on the pod"
        )
    edit = known.edit(key.size, suggested)
    if refusal := known.refusal(edit):
        return "", f"no label covers the need: {refusal}"
    return edit.command(options.cluster.kubectl, key.namespace), ""


def _other_share(row: AdviceRow, of_label: ShareValue | None) -> str:
    """Return why no label gives the row's pods their share."""
    key = row.key
    if not key.size:
        return "the pods have a share of their own, or had another default share; no label changes it"
    now = f"is {of_label} now" if of_label else "does not exist now"
    if any(use.is_current for use in row.uses):
        return f"pods have {key.share}; the size {now}"
    last = datetime.fromtimestamp(max(use.last for use in row.uses), UTC)
    return f"had {key.share} until {last:%Y-%m-%d}; the size {now}"


def _vcluster_command(row: AdviceRow, options: AdviceOptions, *, is_covered: bool) -> tuple[str, str]:
    """Return the command and a note for the vCluster, whose namespaces cannot be read here."""
    key = row.key
    if row.suggested is None or not row.is_change or not key.virtual_namespace:
        return "", ""
    if not any(use.is_current for use in row.uses):
        return "", "no pod has this share now"
    if not is_covered:
        return "", _NOT_COVERED
    if not key.size:
        return "", "no command: the default share inside the vCluster is not known here"
    kubectl = options.cluster.vcluster_kubectl(key.vcluster, key.namespace)
    edit = KnownNamespace(PolicyMetadata(), None).edit(key.size, row.suggested)
    note = "labels and caps inside the vCluster are not known here"
    return edit.command(kubectl, key.virtual_namespace), note


def without_contradictions(rows: Sequence[AdviceRow]) -> list[AdviceRow]:
    """Take away the commands whose label would also change pods of other rows that need what they have.

    1. A size of a vCluster with several shares: the present value of the label is unknown. Rows without a
       command count, too.
    2. A share instead of the whole GPU that ranks with the same label have. The webhook gives ranks that name
       a size its share, and it may not recognise those without a size.
    """
    by_label: defaultdict[tuple[str, ...], set[ShareValue]] = defaultdict(set)
    with_ranks = set()
    for row in rows:
        by_label[row.key.label].add(row.current)
        if row.key.keeps_gpu == LIKELY_RANKS or (row.key.keeps_gpu == RANKS and row.key.size):
            with_ranks.add(row.key.label)

    def contradiction(key: RowKey) -> str:
        if key.vcluster and len(by_label[key.label]) > 1:
            return "pods of this size have several shares: no command, because its label is not known here"
        if key.share.is_whole and key.label in with_ranks:
            return (
                "no command: the label may also change pods that are, or may be, ranks with a whole GPU each"
            )
        return ""

    return [
        replace(row, commands=(), notes=(*row.notes, note))
        if row.commands and (note := contradiction(row.key))
        else row
        for row in rows
    ]
