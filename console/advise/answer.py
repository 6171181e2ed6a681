"""The advice: its options, rows and balance. Pure."""

from dataclasses import dataclass, field

from console.advise.policies import TargetCluster
from console.advise.shares import ShareValue
from console.advise.usage import PodUse


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
