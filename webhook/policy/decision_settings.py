"""Settings of decisions that hold for every namespace. Pure."""

from dataclasses import dataclass

from kai.installation import SharingMode
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.releases import Version
from webhook.policy.labels import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """Settings that hold for every namespace: the administrator's options, and facts about the cluster."""

    kai_version: Version | None = None
    """KAI's release. If None (unknown), only shares that every release handles correctly are injected."""
    inject_shares: bool = True
    """Whether shares are injected.

    False suits a KAI with gpuSharing off, which refuses every pod with a share.
    """
    excluded_namespaces: frozenset[str] = EXCLUDED_NAMESPACES
    default_mode: Mode = Mode.DEFAULT
    """The mode of namespaces that name none; never enforce."""
    default_priority_class: str | None = None
    """The PriorityClass with `globalDefault`; None if there is none, or if it is not known.

    The API server writes this class into every pod without a class before it calls a webhook.
    """
    gpu_sharing_mode: SharingMode | None = None
    """KAI's mode, which decides what memory a container sees; None if it is not known."""
    by_admission_policies: bool = False
    """Whether admission policies decide, which read no selectors of sizes."""
