"""What enforce refuses: `verify(policy, pod, rules, requester) -> Verdict`, pure, about the final pod.

The sibling of `decide`: that one fills in and never denies, this one judges what came out after everyone's
mutations, line by line as docs/policy.md has it. Only pods of namespaces in mode enforce are judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from kai import keys
from kai.pod import PodView
from service.text import quoted
from webhook.checks import cap_findings, reserved_key_findings
from webhook.decide import Rules, exempt
from webhook.policy import INJECT, Mode, NamespacePolicy
from webhook.reasons import Finding, Reason

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


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a pod gets in, and why not."""

    denials: tuple[Finding, ...] = ()
    """Everything that must change, the first line of the table first; empty: it gets in."""
    finding: Finding
    """The first denial, or why there is none: the one reason that metrics and log show."""

    @property
    def is_allowed(self) -> bool:
        """Whether the pod gets in."""
        return not self.denials

    @property
    def message(self) -> str:
        """What the user is told: a sentence for each denial."""
        return "; ".join(finding.sentence for finding in self.denials)


def verify(policy: NamespacePolicy | None, pod: PodView, rules: Rules, requester: Requester) -> Verdict:
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
        return Verdict(finding=exemption.finding)
    if policy.mode is not Mode.ENFORCE:
        return _allowed(Reason.NOT_ENFORCED)

    if keys.MIRROR_POD in pod.annotations or pod.node_name:
        if requester.is_kubelet:
            return _allowed(Reason.MIRROR_POD if keys.MIRROR_POD in pod.annotations else Reason.NODE_NAME_SET)
        return _denied([Finding(Reason.NODE_NAME_DENIED if pod.node_name else Reason.MIRROR_DENIED)])
    if any(owner.kind == "DaemonSet" for owner in pod.owners):
        if requester.is_daemon_set_controller:
            return _allowed(Reason.DAEMONSET)
        return _denied([Finding(Reason.DAEMONSET_DENIED)])

    denials = list(_denials(policy, pod))
    return _denied(denials) if denials else _allowed(Reason.VERIFIED)


def _denials(policy: NamespacePolicy, pod: PodView) -> Iterator[Finding]:
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
    yield from cap_findings(policy, pod, None)
    yield from reserved_key_findings(pod)


def _allowed(reason: Reason) -> Verdict:
    return Verdict(finding=Finding(reason))


def _denied(denials: list[Finding]) -> Verdict:
    return Verdict(denials=tuple(denials), finding=denials[0])
