"""What enforce refuses: `verify(policy, pod, rules, requester) -> Verification`, pure, about the final pod.

The sibling of `decide`: that one fills in and never denies, this one judges what came out after everyone's
mutations, line by line as docs/policy.md has it. Only pods of namespaces in mode enforce are judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from msgspec import Struct

from kai import keys
from kai.gpu_resources import names_device_class
from kai.pod import PodView
from service.text import quoted
from webhook.policy.checks import (
    LONGEST_RESOURCE,
    asked_gpu_resource,
    cap_findings,
    cluster_scoped_owners,
    own_share_key,
    reserved_key_findings,
)
from webhook.policy.decide import Rules, exempt
from webhook.policy.labels import INJECT, Mode, NamespacePolicy
from webhook.policy.reasons import Finding, Reason

MOST_DENIALS: Final = 8
"""Denials that are computed and told of one pod; the rest is told at the next try."""

KUBELET: Final = "system:node:"
DAEMON_SET_CONTROLLERS: Final = frozenset(
    {"system:serviceaccount:kube-system:daemon-set-controller", "system:kube-controller-manager"}
)


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks for a pod, as the API server knows him."""

    username: str

    @property
    def is_kubelet(self) -> bool:
        """Whether it is a kubelet, which alone makes mirror pods."""
        return self.username.startswith(KUBELET)

    @property
    def is_daemon_set_controller(self) -> bool:
        """Whether it is who makes DaemonSets' pods, with its own account or the controller manager's."""
        return self.username in DAEMON_SET_CONTROLLERS


class Verification(Struct, frozen=True, kw_only=True):
    """Whether a pod gets in, and why not."""

    denials: tuple[Finding, ...] = ()
    """What must change, the first line of the table first, up to eight; empty: it gets in."""
    has_more: bool = False
    """Whether there is more to change than `denials` names."""
    finding: Finding
    """The first denial, or why there is none: the one reason that metrics and log show."""

    @property
    def is_allowed(self) -> bool:
        """Whether the pod gets in."""
        return not self.denials

    @property
    def message(self) -> str:
        """What the user is told: a sentence for each denial."""
        sentences = [finding.sentence for finding in self.denials]
        return "; ".join([*sentences, "and more"] if self.has_more else sentences)


def verify(policy: NamespacePolicy | None, pod: PodView, rules: Rules, requester: Requester) -> Verification:
    """Judge a pod at its creation.

    Args:
        policy: its namespace's policy; None if the namespace is not managed.
        pod: the pod as it will be stored.
        rules: the administrator's settings.
        requester: who asks for it; identity is what the API server says, never what the pod says.
    """
    if policy is None:
        return _allowed(Reason.NOT_MANAGED)
    exemption = exempt(policy, rules)
    if exemption is not None:
        return Verification(finding=exemption.finding)
    if policy.mode is not Mode.ENFORCE:
        return _allowed(Reason.NOT_ENFORCED)

    if keys.MIRROR_POD in pod.annotations or pod.node_name:
        if requester.is_kubelet:
            return _allowed(Reason.MIRROR_POD if keys.MIRROR_POD in pod.annotations else Reason.NODE_NAME_SET)
        return _denied([Finding(Reason.NODE_NAME_DENIED if pod.node_name else Reason.MIRROR_DENIED)])
    if pod.is_of_daemon_set:
        if not requester.is_daemon_set_controller:
            return _denied([Finding(Reason.DAEMONSET_DENIED)])
        denials = _bounded(_daemon_set_denials(policy, pod, rules))
        return _denied(denials) if denials else _allowed(Reason.DAEMONSET)

    denials = _bounded(_denials(policy, pod, rules))
    return _denied(denials) if denials else _allowed(Reason.VERIFIED)


def _bounded(findings: Iterator[Finding]) -> list[Finding]:
    """Take one finding more than is told, to know whether there are more; the rest is not computed."""
    return list(islice(findings, MOST_DENIALS + 1))


def _daemon_set_denials(policy: NamespacePolicy, pod: PodView, rules: Rules) -> Iterator[Finding]:
    """Say what a DaemonSet's pod has to do with GPUs or KAI.

    KAI's pod grouper may not read DaemonSets, so such a pod is a workload of its own and its own queue label
    counts (seen on KAI v0.13.4). A pod that has nothing to do with GPUs or KAI is of no concern here.
    """
    yield from cluster_scoped_owners(pod.owners, rules.cluster_scoped)
    for what in _gpu_traces(policy, pod):
        yield Finding(Reason.DAEMONSET_GPU_DENIED, {"what": what})
    yield from reserved_key_findings(pod)


def _gpu_traces(policy: NamespacePolicy, pod: PodView) -> Iterator[str]:
    """Name what in a DaemonSet's pod asks for a GPU or for KAI, as the rest of a sentence."""
    share = own_share_key(pod)
    if share is not None:
        yield f"has a share of its own (annotation {quoted(share)})"
    resource = asked_gpu_resource(pod)
    if resource is not None:
        yield f"asks for a GPU ({quoted(resource, LONGEST_RESOURCE)})"
    elif pod.uses_mig:
        yield "asks for a MIG device (an annotation)"
    if pod.uses_claims and not (resource and names_device_class(resource)):
        yield "has a resource claim"
    scheduler = pod.scheduler_name
    if scheduler in {keys.SCHEDULER_NAME, policy.scheduler} - {keys.DEFAULT_SCHEDULER}:
        yield f"names KAI's scheduler ({quoted(scheduler)})"
    queue = pod.labels.get(keys.QUEUE_LABEL)
    if queue is not None and queue != policy.queue:
        yield f"names another queue ({quoted(queue)})"


def _denials(policy: NamespacePolicy, pod: PodView, rules: Rules) -> Iterator[Finding]:
    if pod.labels.get(INJECT) == "false":
        yield Finding(Reason.OPT_OUT_DENIED, {"value": quoted("false")})
    if pod.scheduler_name != policy.scheduler:
        yield Finding(
            Reason.WRONG_SCHEDULER,
            {"scheduler": quoted(pod.scheduler_name or keys.DEFAULT_SCHEDULER), "allowed": policy.scheduler},
        )
    queue = pod.labels.get(keys.QUEUE_LABEL, "")
    if policy.queue is None:
        problem = next(p for p in policy.problems if p.label == keys.QUEUE_LABEL)
        yield Finding(Reason.POLICY_INVALID, {"problem": problem})
    elif queue != policy.queue:
        shown = quoted(queue) if queue else "not set"
        yield Finding(Reason.WRONG_QUEUE, {"queue": shown, "allowed": policy.queue})
    yield from cluster_scoped_owners(pod.owners, rules.cluster_scoped)
    yield from cap_findings(policy, pod, None)
    yield from reserved_key_findings(pod)


def _allowed(reason: Reason) -> Verification:
    return Verification(finding=Finding(reason))


def _denied(denials: list[Finding]) -> Verification:
    more = len(denials) > MOST_DENIALS
    return Verification(denials=tuple(denials[:MOST_DENIALS]), finding=denials[0], has_more=more)
