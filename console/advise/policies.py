"""Which label of a namespace gives a row's pods their share, and whether a new value is accepted. Pure."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from console.advise.shares import ShareValue, share_value
from kai.own_labels import FRACTION, MEMORY, SIZE_PREFIX
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
