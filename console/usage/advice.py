"""Shares as labels write them, and the commands that change the labels of namespaces. Pure."""

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kai import keys
from kai.kaishare_keys import FRACTION, MEMORY, SIZE_PREFIX
from kai.share import MIB
from kai.share_bytes import Card
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import NamespacePolicy, PolicyMetadata, label_problems

_PLAIN: Final = {FRACTION: MEMORY, MEMORY: FRACTION}  # the labels of a default share; one at most counts
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
    """Return the card as KAI counts it; raise ValueError if KAI shares no GPU of this memory."""
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


def kubectl(context: str, kubeconfig: str, vcluster: str = "", namespace: str = "") -> str:
    """Return how kubectl is called, for a vCluster in a namespace if it is named, quoted for a shell.

    An empty context or kubeconfig is that of the shell in which the command runs. `vcluster connect` has no
    option for the kubeconfig that it reads; it writes that of `--kube-config`.
    """
    of_context = [f"--context={context}"] if context else []
    if not vcluster:
        return shlex.join(["kubectl", *of_context, *([f"--kubeconfig={kubeconfig}"] if kubeconfig else [])])
    variable = f"KUBECONFIG={shlex.quote(kubeconfig)} " if kubeconfig else ""
    words = ["vcluster", "connect", vcluster, "--namespace", namespace, *of_context]
    return f"{variable}{shlex.join(words)} -- kubectl"


Edit = Mapping[str, str | None]
"""New values of labels of a namespace; None removes one. The webhook may refuse a part of an edit alone."""


def label_command(kubectl: str, namespace: str, edit: Edit) -> str:
    """Return the one command of an edit."""
    words = " ".join(f"{key}-" if value is None else f"{key}={value}" for key, value in edit.items())
    return f"{kubectl} label namespace {namespace} {words} --overwrite"


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

    def edit(self, size: str, share: ShareValue) -> Edit:
        """Return the edit that gives a size, or the default share for an empty name, a new value."""
        if size:
            return {SIZE_PREFIX + size: str(share)}
        key = MEMORY if share.mib else FRACTION
        removed = {_PLAIN[key]: None} if _PLAIN[key] in self.metadata.labels else {}
        return {**removed, key: str(share.mib or share)}

    def refusal(self, edit: Edit) -> str:
        """Return why `/validate/namespaces` refuses an edit; empty if it accepts it."""
        labels = {key: value for key, value in {**self.metadata.labels, **edit}.items() if value is not None}
        after = PolicyMetadata(labels, self.metadata.annotations)
        problems = label_problems(after, self.metadata).first
        return str(problems[0]) if problems else ""
