"""The advice: options, rows, balance, and the label of a namespace that gives the share. Pure."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from console.advise.pod_use import PodUse
from console.advise.share_values import ShareValue, share_value
from kai.kaishare_keys import FRACTION, MEMORY, SIZE_PREFIX
from webhook.policy.labels import NamespacePolicy, PolicyMetadata, label_problems

_PLAIN: Final = {FRACTION: MEMORY, MEMORY: FRACTION}
"""The labels of a default share; a namespace has at most one of them."""


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
        """Return how kubectl is called for a vCluster of this cluster, quoted for a shell.

        `vcluster connect` has no option for the kubeconfig that it reads; it writes that of `--kube-config`.

        Args:
            name: the vCluster's name.
            namespace: its namespace in this cluster.
        """
        words = ["vcluster", "connect", name, "--namespace", namespace]
        words += [f"--context={self.context}"] if self.context else []
        variable = f"KUBECONFIG={shlex.quote(self.kubeconfig)} " if self.kubeconfig else ""
        return f"{variable}{shlex.join(words)} -- kubectl"


@dataclass(frozen=True, slots=True)
class KnownNamespace:
    """The labels and annotations of a namespace, and the policy that they are."""

    metadata: PolicyMetadata
    policy: NamespacePolicy | None
    """None if the namespace is not managed."""
    without_effect: str = ""
    """Why its labels change no pod, such as its mode; empty if they do."""

    def share_of(self, size: str) -> ShareValue | None:
        """Return the share that a size has now, or the default share for an empty name."""
        if self.policy is None:
            return None
        if not size:
            return None if self.policy.share is None else share_value(self.policy.share)
        known = self.policy.sizes.by_name.get(size)
        return None if known is None or known.problem is not None else share_value(known.share)

    def is_in_memory(self, current: ShareValue) -> bool:
        """Whether a new share is written in MiB: as the present one, unless only the other unit has a cap."""
        policy = self.policy
        if policy is None or (policy.max_fraction is None) == (policy.max_memory_mib is None):
            return bool(current.mib)
        return policy.max_memory_mib is not None

    def edit(self, size: str, share: ShareValue) -> "LabelEdit":
        """Return the edit that gives a size, or the default share for an empty name, a new value."""
        if size:
            return LabelEdit({SIZE_PREFIX + size: str(share)})
        key = MEMORY if share.mib else FRACTION
        value = str(share.mib) if share.mib else str(share)
        removed = _PLAIN[key] if _PLAIN[key] in self.metadata.labels else ""
        return LabelEdit({key: value}, removed)

    def refusal(self, edit: "LabelEdit") -> str:
        """Return why `/validate/namespaces` refuses an edit; empty if it accepts it."""
        labels = {key: value for key, value in self.metadata.labels.items() if key != edit.removed}
        after = PolicyMetadata(labels | dict(edit.values), self.metadata.annotations)
        problems = label_problems(after, self.metadata).first
        return str(problems[0]) if problems else ""


@dataclass(frozen=True, slots=True)
class LabelEdit:
    """New values of a namespace's labels."""

    values: Mapping[str, str]
    removed: str = ""
    """A label that must be removed; empty if there is none."""

    def command(self, kubectl: str, namespace: str) -> str:
        """Return the command; one command, because the webhook may refuse each half of the edit.

        Args:
            kubectl: how kubectl is called for the cluster.
            namespace: the namespace's name there.
        """
        words = [f"{self.removed}-"] if self.removed else []
        words += [f"{key}={value}" for key, value in self.values.items()]
        return f"{kubectl} label namespace {namespace} {' '.join(words)} --overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOptions:
    """How the advice is made."""

    quantile: float = 0.99
    headroom: float = 0.15
    """Part of the quantile that is added to it."""
    min_hours: float = 24.0
    """Pod-hours below which a row has no advice."""
    cover_peak: bool = False
    """Whether the advice covers the peak, too."""
    by_workload: bool = False
    cluster: TargetCluster = field(default_factory=TargetCluster)
    """The cluster that the commands change."""


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
    keeps_gpu: str = ""
    """Why the pods keep a whole GPU each, for a note; empty if they may share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """The advice for one size or workload."""

    key: RowKey
    models: tuple[str, ...]
    pods: int
    pod_hours: float
    suggested: ShareValue | None
    """None if there is no advice."""
    is_at_least: bool
    """Whether the pods may need more than `suggested`."""
    peak_bytes: int | None
    quantile_bytes: int | None
    over_hours: float | None
    """None if no pod has the counter."""
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
    balance: Balance | None
    """None for rows by workload: a label gives all workloads of a size their share."""
    dropped: int
    """Pods with a name that no Kubernetes object can have, or a figure that no GPU can have."""
    remarks: tuple[str, ...] = ()
    """Sentences about the whole answer."""

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands of all rows. Every word is a name or number, or quoted."""
        return tuple(command for row in self.rows for command in row.commands)
